"""What the data part promises: the split, who sees which image when, augmentation, and what is refused."""

from __future__ import annotations

import dataclasses
import math
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from train_loop.config import BatchSplit, ConfigError, DataConfig
from train_loop.data import DataInfo, augment, describe, digits, folder, loader, open_data, sampling
from train_loop.data.scan import Listing, scan_folder
from train_loop.data.source import Batch, DataSource, Epoch

REPOSITORY = Path(__file__).parents[1]
CLASSES = ("ant", "bee", "cat")


@pytest.fixture(scope="module")
def images_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 + 7 noise pictures of 3 classes, of several sizes, formats and colour modes."""
    root = tmp_path_factory.mktemp("images")
    draws = np.random.default_rng(0)
    for part, counts in (("train", (9, 5, 6)), ("val", (4, 2, 1))):
        for name, count in zip(CLASSES, counts, strict=True):
            (root / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = draws.integers(0, 256, (40 + 7 * number, 60, 3), dtype=np.uint8)
                mode = ("RGB", "L", "CMYK")[number % 3]
                suffix = "JPEG" if number % 2 or mode == "CMYK" else "png"
                Image.fromarray(pixels).convert(mode).save(root / part / name / f"{number}.{suffix}")
    return root


@pytest.fixture(scope="module")
def digits_source() -> DataSource:
    return open_data(DataConfig())


def folder_source(root: Path, **changes: object) -> DataSource:
    return open_data(DataConfig(name=str(root), image_size=16, **changes))  # type: ignore[arg-type]


def flat(steps: Iterable[list[Batch]]) -> list[Batch]:
    return [batch for step in steps for batch in step]


def same(left: list[Batch], right: list[Batch]) -> bool:
    return len(left) == len(right) and all(
        torch.equal(a, b) and torch.equal(i, j) for (a, i), (b, j) in zip(left, right, strict=True)
    )


# --- which images make which batch ---


@pytest.mark.parametrize("workers, accumulation, micro", [(1, 1, 16), (2, 1, 8), (1, 2, 8), (3, 2, 5), (4, 4, 25)])
def test_every_training_image_once_an_epoch_but_the_dropped_end(workers: int, accumulation: int, micro: int) -> None:
    size, split = 1437, BatchSplit(workers, accumulation, micro)
    ranks = [list(sampling.train_micro_batches(size, 7, 3, split, rank)) for rank in range(workers)]
    steps = size // split.global_size
    assert [len(rank) for rank in ranks] == [steps] * workers
    assert {len(micros) for rank in ranks for micros in rank} == {accumulation}
    assert {len(indices) for rank in ranks for micros in rank for indices in micros} == {micro}
    seen = np.concatenate([indices for rank in ranks for micros in rank for indices in micros])
    assert len(seen) == len(set(seen.tolist())) == steps * split.global_size
    assert size - len(seen) < split.global_size


def test_step_is_the_same_images_however_it_is_cut() -> None:
    """Against the definition: micro-batch j of the global batch, on rank j % workers at step j // workers."""
    size, micro = 100, 4
    order = sampling.train_order(size, 1, 2)
    assert sorted(order.tolist()) == list(range(size))
    for workers, accumulation in ((1, 6), (2, 3), (3, 2), (6, 1)):
        split = BatchSplit(workers, accumulation, micro)
        for rank in range(workers):
            for number, micros in enumerate(sampling.train_micro_batches(size, 1, 2, split, rank)):
                for accumulated, indices in enumerate(micros):
                    start = number * 24 + (accumulated * workers + rank) * micro
                    assert indices.tolist() == order[start : start + micro].tolist()


def test_order_depends_on_seed_and_epoch_only() -> None:
    orders = {(s, e): tuple(sampling.train_order(50, s, e).tolist()) for s in range(4) for e in range(4)}
    assert len(set(orders.values())) == 16
    np.random.seed(1)
    torch.manual_seed(1)
    assert orders[2, 3] == tuple(sampling.train_order(50, 2, 3).tolist())


@pytest.mark.parametrize("size", [1, 2, 7, 16, 360])
@pytest.mark.parametrize("batch_size", [1, 5, 256])
@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_validation_counts_each_image_once(size: int, batch_size: int, workers: int) -> None:
    shares = [sampling.val_batches(size, batch_size, rank, workers) for rank in range(workers)]
    seen = Counter(int(i) for share in shares for batch in share for i in batch)
    assert seen == Counter(range(size))
    assert all(1 <= len(batch) <= batch_size for share in shares for batch in share)
    lengths = [sum(len(batch) for batch in share) for share in shares]
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize(
    "size, micro, count, workers, expected",
    [
        (1437, 128, 2048, 1, [11]),  # the whole set, 29 images left over
        (1437, 128, 2048, 2, [6, 5]),
        (1437, 128, 512, 3, [2, 1, 1]),
        (1437, 100, 350, 2, [2, 1]),
        (60, 100, 2048, 2, [1, 0]),  # not one whole micro-batch: one of all 60
    ],
)
def test_bn_images_come_in_whole_micro_batches(
    size: int, micro: int, count: int, workers: int, expected: list[int]
) -> None:
    ranks = [sampling.bn_batches(size, 0, 1, micro, count, rank, workers) for rank in range(workers)]
    assert [len(batches) for batches in ranks] == expected
    seen = [int(i) for batches in ranks for batch in batches for i in batch]
    assert len(seen) == len(set(seen)) <= min(size, count)
    assert {len(batch) for batches in ranks for batch in batches} == {min(micro, size)}
    one = sampling.bn_batches(size, 0, 1, micro, count, 0, 1)
    assert sorted(seen) == sorted(int(i) for batch in one for i in batch)


# --- repeated augmentation ---


@pytest.mark.parametrize("size, workers, repeats", [(1437, 4, 3), (60, 1, 3), (100, 3, 2), (50, 2, 64)])
def test_repeated_augmentation_is_timms(size: int, workers: int, repeats: int) -> None:
    """``RepeatAugSampler`` without its own shuffling gives places in the permutation, rank by rank."""
    timm = pytest.importorskip("timm.data.distributed_sampler")
    micro = 5
    order = sampling.train_order(size, 3, 1)
    for rank in range(workers):
        theirs = timm.RepeatAugSampler(range(size), workers, rank, False, repeats, selected_round=0)
        batches = sampling.train_micro_batches(size, 3, 1, BatchSplit(workers, 1, micro), rank, repeats=repeats)
        mine = np.concatenate([micros[0] for micros in batches])
        assert (mine % size).tolist() == order[list(theirs)][: len(mine)].tolist()
        assert 0 <= len(theirs) - len(mine) <= micro + 1  # they fill the last batch, we leave it out


def test_copies_share_a_step_but_no_micro_batch_and_no_augmentation(images_folder: Path) -> None:
    size, repeats, split = 1437, 3, BatchSplit(2, 2, 30)
    ranks = [list(sampling.train_micro_batches(size, 7, 3, split, rank, repeats=repeats)) for rank in (0, 1)]
    assert len(ranks[0]) == size // split.global_size
    repeated = np.repeat(sampling.train_order(size, 7, 3), repeats)
    for step in range(len(ranks[0])):
        entries = np.concatenate([micro for rank in ranks for micro in rank[step]])
        expected = repeated[step * split.global_size : (step + 1) * split.global_size]
        assert Counter((entries % size).tolist()) == Counter(expected.tolist())
        assert set(Counter((entries % size).tolist()).values()) <= {1, 2, 3}  # 1, 2: cut by the step's ends
        assert len(set(entries.tolist())) == len(entries)
    for rank in ranks:
        for micros in rank:
            assert all(len(set((micro % size).tolist())) == len(micro) for micro in micros)
    # The very same steps on one worker, and from the middle of an epoch.
    alone = list(sampling.train_micro_batches(size, 7, 3, BatchSplit(1, 4, 30), 0, repeats=repeats))
    merged = [[m for pair in zip(a, b, strict=True) for m in pair] for a, b in zip(*ranks, strict=True)]
    assert all(np.array_equal(a, b) for x, y in zip(alone, merged, strict=True) for a, b in zip(x, y, strict=True))
    rest = list(sampling.train_micro_batches(size, 7, 3, split, 1, start_step=5, repeats=repeats))
    assert all(np.array_equal(a, b) for x, y in zip(rest, ranks[1][5:], strict=True) for a, b in zip(x, y, strict=True))

    for config in (DataConfig(augment_repeats=3), DataConfig(str(images_folder), 16, augment_repeats=3)):
        source = open_data(config)
        size = source.info.train_size
        indices = np.array([4, 4 + size, 4 + 2 * size])
        images, labels = next(iter(source.read_train([indices], Epoch(1, 2))))
        assert labels.unique().numel() == 1 and not torch.equal(images[0], images[1])
        assert not torch.equal(images[1], images[2])
        once = open_data(dataclasses.replace(config, augment_repeats=1))
        assert torch.equal(next(iter(once.read_train([indices[:1]], Epoch(1, 2))))[0][0], images[0])
        batches = list(source.train_batches(0, 0, BatchSplit(1, 3, 4), 0))
        assert len(batches) == size // 12


def test_impossible_repeats_are_refused_and_none_are_made_without_augmentation() -> None:
    for repeats in (0, 65):
        with pytest.raises(ConfigError, match="augment_repeats must be 1 to 64"):
            DataConfig(augment_repeats=repeats)
    assert DataConfig(augment_repeats=3).copies == 3 and DataConfig(augment_repeats=3, augment=False).copies == 1


@pytest.mark.parametrize("rank, start_step", [(2, 0), (-1, 0), (0, -1)])
def test_impossible_rank_or_step_is_refused(rank: int, start_step: int) -> None:
    with pytest.raises(ValueError, match="rank must be below 2"):
        list(sampling.train_micro_batches(100, 0, 0, BatchSplit(2, 1, 4), rank, start_step))


# --- the same through both sources: real batches ---


def sources(images_folder: Path) -> list[tuple[DataSource, int]]:
    """Each kind of source with a micro-batch that leaves some images over."""
    return [(open_data(DataConfig()), 100), (folder_source(images_folder), 3)]


def test_one_worker_with_two_accumulation_steps_equals_two_workers(images_folder: Path) -> None:
    for source, micro in sources(images_folder):
        one = list(source.train_batches(5, 1, BatchSplit(1, 2, micro), 0))
        two = [list(source.train_batches(5, 1, BatchSplit(2, 1, micro), rank)) for rank in (0, 1)]
        assert len(one) == source.steps_per_epoch(2 * micro) > 1
        merged = [first + second for first, second in zip(two[0], two[1], strict=True)]
        assert all(same(a, b) for a, b in zip(one, merged, strict=True))


def test_start_step_gives_exactly_the_rest_of_the_epoch(images_folder: Path) -> None:
    for source, micro in sources(images_folder):
        split = BatchSplit(1, 2, micro)
        whole = list(source.train_batches(5, 1, split, 0))
        rest = list(source.train_batches(5, 1, split, 0, start_step=2))
        assert len(rest) == len(whole) - 2
        assert all(same(a, b) for a, b in zip(whole[2:], rest, strict=True))
        assert list(source.train_batches(5, 1, split, 0, start_step=len(whole))) == []


def test_epochs_and_seeds_differ_and_repeat(images_folder: Path) -> None:
    for source, micro in sources(images_folder):
        split = BatchSplit(1, 1, micro)
        first = flat(source.train_batches(5, 1, split, 0))
        assert same(first, flat(source.train_batches(5, 1, split, 0)))
        assert not same(first, flat(source.train_batches(5, 2, split, 0)))
        assert not same(first, flat(source.train_batches(6, 1, split, 0)))


def test_an_image_is_augmented_alike_in_any_batch(images_folder: Path) -> None:
    """Bit for bit, by index, whatever the company; and differently in another epoch."""
    for source, _ in sources(images_folder):
        indices = np.arange(13)
        alone = [batch[0] for batch in source.read_train([indices[i : i + 1] for i in range(13)], Epoch(3, 4))]
        together = next(iter(source.read_train([indices[::-1].copy()], Epoch(3, 4))))[0]
        assert torch.equal(torch.cat(alone), together.flip(0))
        other = next(iter(source.read_train([indices], Epoch(3, 5))))[0]
        assert all(not torch.equal(a[0], b) for a, b in zip(alone, other, strict=True))


def test_validation_and_bn_batches_over_ranks(images_folder: Path) -> None:
    for source, micro in sources(images_folder):
        ranks = [list(source.val_batches(micro, rank, 3)) for rank in range(3)]
        labels = torch.cat([labels for rank in ranks for _, labels in rank])
        images = torch.cat([images for rank in ranks for images, _ in rank])
        alone = list(source.val_batches(1000, 0, 1))
        assert len(images) == len(labels) == source.info.val_size and len(alone) == 1
        assert torch.equal(labels.bincount(), alone[0][1].bincount())
        assert math.isclose(images.double().sum().item(), alone[0][0].double().sum().item(), rel_tol=1e-9)

        split = BatchSplit(1, 1, micro)
        statistics = list(source.bn_batches(5, 1, micro, 3 * micro, 0, 1))
        assert same(statistics, flat(source.train_batches(5, 1, split, 0))[:3])


def test_batches_have_the_promised_types(images_folder: Path) -> None:
    for source, micro in sources(images_folder):
        size = source.info.image_size
        batches = [
            next(source.train_batches(0, 0, BatchSplit(1, 1, micro), 0))[0],
            next(source.val_batches(micro, 0, 1)),
            next(source.bn_batches(0, 0, micro, 2 * micro, 0, 1)),
        ]
        for images, labels in batches:
            images = source.finish(images)
            assert images.shape == (micro, 3, size, size) and images.dtype == torch.float32
            assert labels.shape == (micro,) and labels.dtype == torch.int64


def test_batch_larger_than_the_training_set_is_refused(digits_source: DataSource) -> None:
    assert digits_source.steps_per_epoch(1437) == 1
    with pytest.raises(ConfigError, match=r"1437 training images.*got 2048\. Use batch.global_size=1024"):
        digits_source.steps_per_epoch(2048)


# --- digits ---


def test_digits_split_is_stratified_and_covers_all() -> None:
    from sklearn.datasets import load_digits

    data, target = load_digits(return_X_y=True)
    pixels, labels = digits.load_scans()
    assert np.array_equal(labels, target) and np.array_equal(pixels.reshape(-1, 64) * 16, data)
    train, val = digits.split_rows(labels)
    assert (len(train), len(val)) == (1437, 360)
    assert sorted([*train.tolist(), *val.tolist()]) == list(range(1797))
    for count, held_out in zip(np.bincount(target), np.bincount(target[val]), strict=True):
        assert abs(held_out - count * 360 / 1797) < 1
    # The split never changes: results of two versions can be compared.
    assert (val[:6].tolist(), int(val.sum())) == ([3, 7, 8, 12, 15, 22], 305267)


def test_digits_info_matches_the_images(digits_source: DataSource) -> None:
    info = describe(DataConfig())
    assert info == digits_source.info
    labels = torch.cat([labels for _, labels in digits_source.val_batches(100, 0, 1)])
    train = flat(digits_source.train_batches(0, 0, BatchSplit(1, 1, 1437), 0))[0][1]
    assert (len(train), len(labels)) == (info.train_size, info.val_size)
    assert labels.unique().tolist() == [int(name) for name in info.class_names]
    assert (info.image_size, info.stem) == (32, "small_pool")
    assert describe(DataConfig(image_size=224)).stem == "imagenet"


def test_digits_are_enlarged_as_pillow_does(digits_source: DataSource) -> None:
    pixels, labels = digits.load_scans()
    val = digits.split_rows(labels)[1]
    images = next(digits_source.val_batches(50, 0, 1))[0]
    assert torch.equal(images[:, 0], images[:, 1]) and torch.equal(images[:, 0], images[:, 2])
    for image, row in zip(images, val, strict=False):
        reference = np.asarray(Image.fromarray(pixels[row, 0]).resize((32, 32), Image.Resampling.BILINEAR))
        restored = image[0].numpy() * digits.STD + digits.MEAN
        np.testing.assert_allclose(restored, reference, atol=1e-5)
    everything = pixels.astype(np.float64)
    assert abs(everything.mean() - digits.MEAN) < 1e-3 and abs(everything.std() - digits.STD) < 1e-3


def test_digits_are_moved_but_stay_themselves(digits_source: DataSource) -> None:
    plain = open_data(DataConfig(augment=False))
    indices = [np.arange(200)]
    still = next(iter(plain.read_train(indices, Epoch(0, 0))))[0]
    assert torch.equal(still, next(iter(plain.read_train(indices, Epoch(0, 9))))[0])
    moved = next(iter(digits_source.read_train(indices, Epoch(0, 0))))[0]
    pairs = torch.stack((still[:, 0].flatten(1), moved[:, 0].flatten(1)), 1)
    likeness = torch.stack([torch.corrcoef(pair)[0, 1] for pair in pairs])
    mirrored = torch.stack((still[:, 0].flip(-1).flatten(1), moved[:, 0].flatten(1)), 1)
    flipped = torch.stack([torch.corrcoef(pair)[0, 1] for pair in mirrored])
    assert 0.6 < likeness.mean() < 0.999
    assert (likeness > flipped).float().mean() > 0.95  # symmetric 0, 1 and 8 may come out close


# --- the affine map ---


def draws(**chosen: float) -> torch.Tensor:
    names = ("right", "down", "turn", "grow")
    return torch.tensor([[(chosen.get(name, 0.0) + 1) / 2 for name in names]], dtype=torch.float64)


def test_affine_of_whole_pixels_and_right_angles() -> None:
    image = torch.rand(1, 2, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    bounds = augment.AffineRange(shift=0.25, degrees=90.0, scale=1.0)
    close: Callable[[torch.Tensor, torch.Tensor], None] = torch.testing.assert_close
    close(augment.random_affine(image, draws(), bounds), image)
    shifted = torch.zeros_like(image)
    shifted[..., 2:, 4:] = image[..., :-2, :-4]  # 4 right, 2 down
    close(augment.random_affine(image, draws(right=1, down=0.5), bounds), shifted)
    close(augment.random_affine(image, draws(turn=1), bounds), image.rot90(-1, (-2, -1)))
    doubled = torch.nn.functional.interpolate(image, scale_factor=2, mode="bilinear", align_corners=False)
    close(augment.random_affine(image, draws(grow=1), bounds), doubled[..., 8:24, 8:24])


# --- image folders ---


def test_folder_is_described(images_folder: Path) -> None:
    info = describe(DataConfig(name=str(images_folder)))
    assert info == DataInfo(images_folder.name, str(images_folder), 20, 7, 3, 224, 3, CLASSES, "imagenet")
    assert describe(DataConfig(name=str(images_folder), image_size=32)).stem == "small"
    scan = scan_folder(str(images_folder))
    for listing in (scan.train, scan.val):
        names = [Path(listing.path(i)).parent.name for i in range(len(listing.labels))]
        assert names == [CLASSES[label] for label in listing.labels]
        assert len({listing.path(i) for i in range(len(names))}) == len(names)


def test_loader_processes_change_nothing(images_folder: Path) -> None:
    split = BatchSplit(1, 2, 3)
    expected = folder_source(images_folder)
    for processes in (1, 2):
        source = folder_source(images_folder, loader_workers=processes)
        assert same(flat(source.train_batches(1, 2, split, 0)), flat(expected.train_batches(1, 2, split, 0)))
    assert same(list(source.val_batches(2, 0, 2)), list(expected.val_batches(2, 0, 2)))


def test_validation_images_equal_torchvisions(images_folder: Path) -> None:
    from torchvision import datasets, transforms

    reference = datasets.ImageFolder(
        str(images_folder / "val"),
        transforms.Compose(
            [
                transforms.Resize(256),
                transforms.CenterCrop(224),
                transforms.ToTensor(),
                transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        ),
    )
    source = open_data(DataConfig(name=str(images_folder)))
    images, labels = next(source.val_batches(100, 0, 1))
    assert labels.tolist() == reference.targets
    torch.testing.assert_close(source.finish(images).contiguous(), torch.stack([image for image, _ in reference]))


def test_without_augmentation_training_images_are_cropped_as_in_validation(images_folder: Path) -> None:
    source = folder_source(images_folder, augment=False)
    images = next(iter(source.read_train([np.array([3])], Epoch(0, 0))))[0]
    whole = folder.central_crop(folder.decode(scan_folder(str(images_folder)).train.path(3)), 16)
    restored = source.finish(images)[0].permute(1, 2, 0) * torch.tensor(folder.STD) + torch.tensor(folder.MEAN)
    np.testing.assert_allclose(restored.numpy() * 255, np.asarray(whole), atol=1e-3)


@pytest.mark.parametrize("size", [(500, 375), (30, 300), (400, 20), (1, 1)])
def test_random_crops_stay_inside_with_the_stated_area_and_ratio(size: tuple[int, int]) -> None:
    width, height = size
    generator = random.Random(0)
    boxes = [folder.random_box(width, height, generator) for _ in range(500)]
    assert all(0 <= a < c <= width and 0 <= b < d <= height for a, b, c, d in boxes)
    if size == (500, 375):
        areas = np.array([(c - a) * (d - b) / (width * height) for a, b, c, d in boxes])
        ratios = np.array([(c - a) / (d - b) for a, b, c, d in boxes])
        assert 0.079 < areas.min() < 0.15 and 0.85 < areas.max() <= 1
        assert 0.74 < ratios.min() < 0.8 and 1.25 < ratios.max() < 1.35
    if size == (30, 300):  # too narrow for a third of its area: mostly the central box of ratio 3:4
        assert Counter(boxes).most_common(1)[0][0] == (0, 130, 30, 170)


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (64, 64), (700, 200), (200, 900)])
def test_random_crops_are_distributed_as_torchvisions(size: tuple[int, int]) -> None:
    """Against ``RandomResizedCrop.get_params``: width, height, place, area and ratio, by Kolmogorov and Smirnov."""
    from scipy.stats import ks_2samp
    from torchvision.transforms import RandomResizedCrop

    width, height = size
    generator, image, count = random.Random(0), torch.empty(3, height, width), 3000
    boxes = np.array([folder.random_box(width, height, generator) for _ in range(count)])
    torch.manual_seed(0)
    theirs = np.array([RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(count)])

    def facts(left: np.ndarray, upper: np.ndarray, w: np.ndarray, h: np.ndarray) -> dict[str, np.ndarray]:
        return {"left": left, "upper": upper, "width": w, "height": h, "area": w * h, "ratio": w / h}

    mine = facts(boxes[:, 0], boxes[:, 1], boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1])
    expected = facts(theirs[:, 1], theirs[:, 0], theirs[:, 3], theirs[:, 2])
    for name, values in mine.items():
        assert ks_2samp(values, expected[name]).pvalue > 1e-3, name
    if size == (200, 900):  # ten draws often do not fit: then both take the same central box
        commonest, times = Counter(map(tuple, boxes.tolist())).most_common(1)[0]
        left, upper, right, lower = commonest
        same = (theirs == (upper, left, lower - upper, right - left)).all(1).sum()
        assert times > 50 and abs(times - same) < 5 * math.sqrt(times)


def test_half_of_the_crops_are_mirrored(tmp_path: Path) -> None:
    ramp = Image.fromarray(np.tile(np.arange(200, dtype=np.uint8), (200, 1))).convert("RGB")
    ramp.save(tmp_path / "ramp.png")
    images = folder.FolderImages(Listing(str(tmp_path), np.array([b"ramp.png"]), np.zeros(1, np.int64)))
    crop, mirrored = torch.empty((8, 8, 3), dtype=torch.uint8), 0
    for epoch in range(400):
        loader.write_image(images, 0, Epoch(0, epoch), crop)
        mirrored += int(crop[0, 0, 0] > crop[0, -1, 0])
    assert 160 < mirrored < 240  # 4 standard deviations


@pytest.mark.parametrize("loader_workers", [0, 2])
@pytest.mark.parametrize("content", [b"", b"no image at all", None])
def test_broken_image_is_named(images_folder: Path, tmp_path: Path, content: bytes | None, loader_workers: int) -> None:
    for part in ("train", "val"):
        for name in CLASSES:
            (tmp_path / part / name).mkdir(parents=True)
            Image.new("RGB", (20, 20)).save(tmp_path / part / name / "fine.png")
    whole = (images_folder / "train" / "ant" / "1.JPEG").read_bytes()
    broken = tmp_path / "train" / "bee" / "broken.jpg"
    broken.write_bytes(whole[: len(whole) // 2] if content is None else content)
    source = folder_source(tmp_path, loader_workers=loader_workers)
    with pytest.raises(folder.ImageError) as caught:
        flat(source.train_batches(0, 0, BatchSplit(1, 1, 2), 0))
    assert str(broken) in str(caught.value) and "\n" not in str(caught.value)


def write_tree(root: Path, *files: str) -> Path:
    for file in files:
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        if not file.endswith("/"):
            path.touch()
        else:
            path.mkdir(exist_ok=True)
    return root


@pytest.mark.parametrize(
    "files, words",
    [
        ((), ("needs train/", "an empty folder", "train/<class>")),
        (("val/a/1.jpg",), ("needs train/", "val/")),
        (("train/a/1.jpg", "train/b/1.jpg"), ("needs val/ or validation/ or valid/ or test/", "train/")),
        (("train/a/1.jpg", "train/b/1.jpg", "val/a/1.jpg"), ("same classes", "'b'", "val")),
        (("train/a/1.jpg", "val/a/1.jpg", "val/b/1.jpg"), ("same classes", "'b'", "train")),
        (("train/a/1.jpg", "train/b/", "val/a/1.jpg", "val/b/1.jpg"), ("at least one image", "train/b")),
        (("train/a/1.jpg", "train/b/1.jpg", "val/a/1.jpg", "val/b/notes.txt"), ("at least one image", "val/b")),
        (("train/1.jpg", "val/1.jpg"), ("at least 2 classes", "got 0")),
        (("train/images/1.jpg", "val/images/1.jpg"), ("at least 2 classes", "got 1")),
    ],
)
def test_incomplete_folder_is_refused_in_one_line(tmp_path: Path, files: tuple[str, ...], words: Iterable[str]) -> None:
    write_tree(tmp_path, *files)
    with pytest.raises(ConfigError) as caught:
        describe(DataConfig(name=str(tmp_path)))
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("val", ["val", "validation", "test"])
def test_hidden_names_and_deeper_folders(tmp_path: Path, val: str) -> None:
    write_tree(
        tmp_path,
        "train/a/images/1.JPEG",
        "train/a/._1.JPEG",
        "train/b/1.Png",
        "train/.ipynb_checkpoints/",
        f"{val}/a/images/2.jpg",
        f"{val}/b/2.webp",
    )
    info = describe(DataConfig(name=str(tmp_path)))
    assert (info.train_size, info.val_size, info.class_names) == (2, 2, ("a", "b"))


@pytest.mark.parametrize(
    "name, words",
    [
        ("digit", ("Did you mean 'digits'?",)),
        ("Digits", ("Did you mean 'digits'?",)),
        ("imagenets", ("digits", "image folder", "'imagenet'")),
        ("/nowhere/images", ("must exist", "'/nowhere/images'")),
        ("./nowhere", ("must exist", "'./nowhere'")),
    ],
)
def test_unknown_name_or_path_is_refused(name: str, words: Iterable[str]) -> None:
    for look in (describe, open_data):
        with pytest.raises(ConfigError) as caught:
            look(DataConfig(name=name))
        assert "\n" not in str(caught.value)
        for word in words:
            assert word in str(caught.value)


def test_a_file_is_no_image_folder(tmp_path: Path) -> None:
    (tmp_path / "images.zip").touch()
    with pytest.raises(ConfigError, match="must be a folder; got the file"):
        describe(DataConfig(name=str(tmp_path / "images.zip")))


def test_relative_path_becomes_absolute(images_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(images_folder.parent)
    assert describe(DataConfig(name=images_folder.name)).path == str(images_folder)


# --- what is imported ---


def loaded(code: str, *modules: str) -> str:
    script = f"{code}\nimport sys\nprint([name for name in {modules!r} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_describing_loads_neither_torch_nor_sklearn(images_folder: Path) -> None:
    code = (
        "from train_loop.config import DataConfig\nfrom train_loop.data import describe\n"
        f"describe(DataConfig())\ndescribe(DataConfig(name={str(images_folder)!r}))"
    )
    assert loaded(code, "torch", "sklearn", "torchvision", "PIL", "ray") == "[]"


def test_opening_digits_does_not_load_sklearn() -> None:
    code = (
        "from train_loop.config import DataConfig\nfrom train_loop.data import open_data\n"
        "next(open_data(DataConfig()).val_batches(10, 0, 1))"
    )
    assert loaded(code, "sklearn", "torchvision", "ray") == "[]"


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_16_bit_grey_keeps_its_shades(tmp_path: Path, suffix: str) -> None:
    ramp = (np.arange(256, dtype=np.uint16) * 257).reshape(16, 16)
    Image.fromarray(ramp).save(tmp_path / f"a.{suffix}")
    pixels = np.asarray(folder.decode(str(tmp_path / f"a.{suffix}")))
    assert (pixels == np.arange(256).reshape(16, 16, 1)).all(), "65535 is 255, and what lies between is between"


def test_pixels_of_unknown_range_are_refused_by_name(tmp_path: Path) -> None:
    Image.fromarray(np.linspace(0, 1, 256, dtype=np.float32).reshape(16, 16)).save(tmp_path / "float.tif")
    Image.fromarray(np.full((16, 16), 10**6, dtype=np.int32)).save(tmp_path / "wide.tif")
    for name in ("float.tif", "wide.tif"):
        with pytest.raises(folder.ImageError, match=name):
            folder.decode(str(tmp_path / name))


def test_a_very_long_image_is_not_resized_whole() -> None:
    rng = np.random.default_rng(0)
    long = Image.fromarray(rng.integers(0, 256, (20, 8000, 3), dtype=np.uint8))
    expected = folder.central_crop(long.crop((3840, 0, 4160, 20)), 64)  # 16:1, its middle
    assert np.array_equal(np.asarray(folder.central_crop(long, 64)), np.asarray(expected))
    assert folder.central_crop(Image.new("RGB", (30000, 1)), 224).size == (224, 224)
