"""Image folders: crops, what is read and what is refused."""

import dataclasses
import math
import random
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bigbatch.train_loop.config import AugmentConfig, BatchSplit, ConfigError, DataConfig, LoaderConfig
from bigbatch.train_loop.data.catalogue import describe_data_set, open_data
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.train_loop.data.loading import loader
from bigbatch.train_loop.data.pixels import boxes, crops
from bigbatch.train_loop.data.sets import folder
from bigbatch.train_loop.data.sets.scan import Listing, scan_folder
from bigbatch.train_loop.data.source import Epoch
from bigbatch.train_loop.errors import ImageError
from helpers.packed_sets import CLASSES, flat, folder_source


def test_folder_is_described(images_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(images_folder.parent)
    info = describe_data_set(DataConfig(name=images_folder.name))
    expected = DataInfo(images_folder.name, str(images_folder), 20, 7, 3, 224, 3, CLASSES, "imagenet")
    assert dataclasses.replace(info, content="", largest_side=0) == expected
    assert info.largest_side == max(max(Image.open(path).size) for path in images_folder.glob("*/*/*"))
    assert describe_data_set(DataConfig(name=str(images_folder), image_size=32)).stem == "small"
    scan = scan_folder(str(images_folder))
    for listing in (scan.train, scan.val):
        names = [Path(listing.path(i)).parent.name for i in range(len(listing.labels))]
        assert names == [CLASSES[label] for label in listing.labels]
        assert len({listing.path(i) for i in range(len(names))}) == len(names)


def test_validation_images_equal_torchvisions(images_folder: Path) -> None:
    from torchvision import datasets, transforms

    normalise = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    steps = [transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor(), normalise]
    reference = datasets.ImageFolder(str(images_folder / "val"), transforms.Compose(steps))
    source = open_data(DataConfig(name=str(images_folder)))
    images, labels = next(source.val_batches(100, 0, 1))
    assert labels.tolist() == reference.targets
    torch.testing.assert_close(source.finish(images).contiguous(), torch.stack([image for image, _ in reference]))


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (64, 64), (700, 200), (200, 900), (400, 20), (1, 1)])
@pytest.mark.parametrize("augment", [AugmentConfig(), AugmentConfig(min_crop_area=0.05, max_crop_ratio=2.0)], ids=str)
def test_random_crops_are_distributed_as_torchvisions(size: tuple[int, int], augment: AugmentConfig) -> None:
    """Against ``RandomResizedCrop.get_params``: width, height, place, area and ratio, by Kolmogorov and Smirnov."""
    from scipy.stats import ks_2samp
    from torchvision.transforms import RandomResizedCrop

    width, height = size
    generator, image, count = random.Random(0), torch.empty(3, height, width), 3000
    found = np.array([boxes.random_box(width, height, generator, augment) for _ in range(count)])
    assert (found[:, :2] >= 0).all() and (found[:, :2] < found[:, 2:]).all() and (found[:, 2:] <= size).all()
    torch.manual_seed(0)
    ranges = ([0.08, 1.0], [3 / 4, 4 / 3]) if augment == AugmentConfig() else ([0.05, 1.0], [1 / 2, 2.0])
    theirs = np.array([RandomResizedCrop.get_params(image, *ranges) for _ in range(count)])

    def facts(left: np.ndarray, upper: np.ndarray, w: np.ndarray, h: np.ndarray) -> dict[str, np.ndarray]:
        return {"left": left, "upper": upper, "width": w, "height": h, "area": w * h, "ratio": w / h}

    mine = facts(found[:, 0], found[:, 1], found[:, 2] - found[:, 0], found[:, 3] - found[:, 1])
    expected = facts(theirs[:, 1], theirs[:, 0], theirs[:, 3], theirs[:, 2])
    for name, values in mine.items():
        assert ks_2samp(values, expected[name]).pvalue > 1e-3, name
    if size == (200, 900) and augment == AugmentConfig():  # ten draws often do not fit: both take the central box
        commonest, times = Counter(map(tuple, found.tolist())).most_common(1)[0]
        left, upper, right, lower = commonest
        same = (theirs == (upper, left, lower - upper, right - left)).all(1).sum()
        assert times > 50 and abs(times - same) < 5 * math.sqrt(times)


def test_half_of_the_crops_are_mirrored(tmp_path: Path) -> None:
    ramp = Image.fromarray(np.tile(np.arange(200, dtype=np.uint8), (200, 1))).convert("RGB")
    ramp.save(tmp_path / "ramp.png")
    images = folder.FolderImages(Listing(str(tmp_path), np.array([b"ramp.png"]), np.zeros(1, np.int64)))
    crop, mirrored = torch.empty((8, 8, 3), dtype=torch.uint8), 0
    for epoch in range(400):
        loader.BatchFiller(images, images, 1).open_image(loader.ReadPurpose(False, Epoch(0, epoch)), 0)(crop)
        mirrored += int(crop[0, 0, 0] > crop[0, -1, 0])
    assert 160 < mirrored < 240  # 4 standard deviations


@pytest.mark.parametrize("loader_workers", [0, 2])
@pytest.mark.parametrize("content", [b"", b"no image at all", None])
def test_broken_image_is_named(images_folder: Path, tmp_path: Path, content: bytes | None, loader_workers: int) -> None:
    images = shutil.copytree(images_folder, tmp_path / "images")
    broken = images / "train" / "bee" / "1.JPEG"
    whole = broken.read_bytes()
    broken.write_bytes(whole[: len(whole) // 2] if content is None else content)
    source = folder_source(images, loader=LoaderConfig(workers=loader_workers))
    with pytest.raises(ImageError) as caught:
        flat(source.train_batches(0, 0, BatchSplit(1, 1, 2), 0))
    assert str(broken) in str(caught.value) and "\n" not in str(caught.value)
    assert len(list(source.val_batches(100, 0, 1))) == 1  # loader processes serve on
    source.close()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("digit", ("Did you mean 'digits'?",)),
        ("Digits", ("Did you mean 'digits'?",)),
        ("imagenets", ("digits", "image folder", "'imagenet'")),
        ("/nowhere/images", ("must exist", "'/nowhere/images'")),
        ("./nowhere", ("must exist", "'./nowhere'")),
        ("/etc/passwd", ("must exist as a folder; got '/etc/passwd'",)),
    ],
)
def test_unknown_name_or_path_is_refused(name: str, words: Iterable[str]) -> None:
    for look in (describe_data_set, open_data):
        with pytest.raises(ConfigError) as caught:
            look(DataConfig(name=name))
        assert "\n" not in str(caught.value)
        for word in words:
            assert word in str(caught.value)


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_16_bit_grey_keeps_its_shades(tmp_path: Path, suffix: str) -> None:
    ramp = (np.arange(256, dtype=np.uint16) * 257).reshape(16, 16)
    Image.fromarray(ramp).save(tmp_path / f"a.{suffix}")
    pixels = np.asarray(crops.decode_rgb(str(tmp_path / f"a.{suffix}")))
    assert (pixels == np.arange(256).reshape(16, 16, 1)).all(), "65535 is 255, and what lies between is between"


def test_pixels_of_unknown_range_are_refused_by_name(tmp_path: Path) -> None:
    Image.fromarray(np.linspace(0, 1, 256, dtype=np.float32).reshape(16, 16)).save(tmp_path / "float.tif")
    Image.fromarray(np.full((16, 16), 10**6, dtype=np.int32)).save(tmp_path / "wide.tif")
    for name in ("float.tif", "wide.tif"):
        with pytest.raises(ImageError, match=name):
            crops.decode_rgb(str(tmp_path / name))
