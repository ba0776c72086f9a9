"""Who sees which image when: orders, micro-batches, repeated augmentation, validation's shares and ``data.holdout``."""

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from bigbatch.train_loop.config import AugmentConfig, BatchSplit, ConfigError, DataConfig, LoaderConfig
from bigbatch.train_loop.data import sampling
from bigbatch.train_loop.data.catalogue import describe_data_set, open_data
from bigbatch.train_loop.data.source import DataSource, Epoch
from helpers.packed_sets import CLASSES, pack_here, write_images


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
    ("size", "micro", "count", "workers", "expected"),
    [
        (1437, 128, 2048, 1, [11]),  # the whole set, 29 images left over
        (1437, 128, 2048, 2, [6, 5]),
        (1437, 128, 512, 3, [2, 1, 1]),
        (1437, 100, 350, 2, [2, 1]),
        (60, 100, 2048, 2, [1, 0]),  # not one whole micro-batch: one of all 60
    ],
)
def test_bn_images_come_in_whole_micro_batches(size, micro, count, workers, expected):
    ranks = [sampling.bn_batches(size, 0, 1, micro, count, rank, workers) for rank in range(workers)]
    assert [len(batches) for batches in ranks] == expected
    seen = [int(i) for batches in ranks for batch in batches for i in batch]
    assert len(seen) == len(set(seen)) <= min(size, count)
    assert {len(batch) for batches in ranks for batch in batches} == {min(micro, size)}
    one = sampling.bn_batches(size, 0, 1, micro, count, 0, 1)
    assert sorted(seen) == sorted(int(i) for batch in one for i in batch)


@pytest.mark.parametrize(("size", "workers", "repeats"), [(1437, 4, 3), (60, 1, 3), (100, 3, 2), (50, 2, 64)])
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
    for step, steps in enumerate(zip(*ranks, strict=True)):
        micros = [micro for micros in steps for micro in micros]
        expected = repeated[step * split.global_size : (step + 1) * split.global_size]
        assert sorted(np.concatenate(micros) % size) == sorted(expected)
        assert len(set(np.concatenate(micros).tolist())) == split.global_size
        assert all(len(set((micro % size).tolist())) == len(micro) for micro in micros)
    # From the middle of an epoch.
    rest = list(sampling.train_micro_batches(size, 7, 3, split, 1, start_step=5, repeats=repeats))
    assert all(np.array_equal(a, b) for x, y in zip(rest, ranks[1][5:], strict=True) for a, b in zip(x, y, strict=True))

    config = DataConfig(str(images_folder), 16, augment=AugmentConfig(repeats=3))
    source = open_data(config)
    size = source.info.train_size
    indices = np.array([4, 4 + size, 4 + 2 * size])
    images, labels = next(iter(source.read_train([indices], Epoch(1, 2))))
    assert labels.unique().numel() == 1 and not torch.equal(images[0], images[1])
    once = open_data(dataclasses.replace(config, augment=AugmentConfig(repeats=1)))
    assert torch.equal(next(iter(once.read_train([indices[:1]], Epoch(1, 2))))[0][0], images[0])


@pytest.mark.parametrize(("size", "count"), [(360, 180), (360, 72), (50_000, 25_000), (31, 10)])
def test_the_parts_are_whole_and_each_class_gives_its_share(size: int, count: int) -> None:
    labels = np.random.default_rng(3).integers(0, 10, size)
    chooses, reports = sampling.holdout_rows(labels, count)
    assert sorted([*chooses.tolist(), *reports.tolist()]) == list(range(size)) and len(reports) == count
    for label in range(10):
        whole = int((labels == label).sum())
        assert abs(int((labels[reports] == label).sum()) - whole * count / size) <= 1


def test_the_rows_never_change() -> None:
    """In another process or version images that chose would report. They are not the first ones of each class: folders
    list videos and cameras one after another, and neighbours are alike."""
    assert sampling.holdout_rows(np.arange(20) % 3, 6)[1].tolist() == [2, 3, 8, 9, 13, 19]


def images_of(source: DataSource, *, reports: bool, ranks: int = 1) -> list[bytes]:
    read = source.holdout_batches if reports else source.val_batches
    found = [(images, labels) for rank in range(ranks) for images, labels in read(3, rank, ranks)]
    source.close()
    return sorted(
        bytes(image.contiguous().numpy().tobytes()) + bytes([int(label)])
        for images, labels in found
        for image, label in zip(images, labels, strict=True)
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("photographs") / "raw", train=2, val=7, size=(60, 50))


@pytest.fixture(scope="module")
def packed(folder: Path) -> Path:
    return pack_here(folder, folder.parent / "packed")


@pytest.mark.parametrize("kind", ["digits", "folder", "packed", "processes"])
def test_every_loader_divides_the_same_images(kind: str, folder: Path, packed: Path) -> None:
    name = {"digits": "digits", "packed": str(packed), "processes": str(packed)}.get(kind, str(folder))
    loader = LoaderConfig(workers=0)
    config = DataConfig(name, 32, loader=loader)
    processes = dataclasses.replace(loader, workers=2 * (kind == "processes"))
    parts = dataclasses.replace(config, holdout=1 / 3, loader=processes)
    whole, source = open_data(config), open_data(parts)
    assert describe_data_set(parts) == source.info
    size = whole.info.val_size
    assert source.info.holdout_size == round(size / 3) and source.info.val_size == size - round(size / 3)
    chooses, reports = images_of(source, reports=False), images_of(source, reports=True)
    assert (len(chooses), len(reports)) == (source.info.val_size, source.info.holdout_size)
    assert sorted(chooses + reports) == images_of(whole, reports=False)
    assert images_of(whole, reports=True) == []
    assert images_of(source, reports=False, ranks=3) == chooses  # each image on one rank, once
    assert images_of(source, reports=True, ranks=3) == reports
    if kind != "digits":
        counts = np.bincount([image[-1] for image in reports], minlength=len(CLASSES))
        assert counts.tolist() in ([2, 3, 2], [3, 2, 2], [2, 2, 3])


@pytest.mark.parametrize("part", [0.001, 0.999, 0.02])
def test_a_part_without_an_image_of_each_class_is_refused(part: float) -> None:
    with pytest.raises(ConfigError, match=r"data\.holdout must leave an image of each class.*Write data\.holdout=0\.5"):
        describe_data_set(DataConfig(holdout=part))
