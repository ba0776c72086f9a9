"""``data.holdout``: some validation images choose, the others report."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from bigbatch.train_loop.config import ConfigError, DataConfig, TrainConfig
from bigbatch.train_loop.data.catalogue import describe_data_set, open_data
from bigbatch.train_loop.data.sampling import holdout_rows
from bigbatch.train_loop.data.source import DataSource
from helpers.commands import run_process
from helpers.packed_sets import CLASSES, pack_here, write_images
from helpers.paths import ROOT


@pytest.mark.parametrize(("size", "count"), [(360, 180), (360, 72), (50_000, 25_000), (31, 10)])
def test_the_parts_are_whole_and_each_class_gives_its_share(size: int, count: int) -> None:
    labels = np.random.default_rng(3).integers(0, 10, size)
    chooses, reports = holdout_rows(labels, count)
    assert sorted([*chooses.tolist(), *reports.tolist()]) == list(range(size)) and len(reports) == count
    for label in range(10):
        whole = int((labels == label).sum())
        assert abs(int((labels[reports] == label).sum()) - whole * count / size) <= 1


def test_the_rows_are_not_the_first_ones_of_each_class() -> None:
    """Folders list videos and cameras one after another: neighbours are alike."""
    labels = np.repeat(np.arange(10), 100)
    _, reports = holdout_rows(labels, 500)
    inside = reports % 100
    assert 35 < inside.mean() < 65 and len(set((np.diff(reports)).tolist())) > 3


def test_another_process_holds_out_the_same_rows() -> None:
    code = (
        "import numpy as np; from bigbatch.train_loop.data.sampling import holdout_rows;"
        "print(holdout_rows(np.arange(100) % 7, 40)[1].tolist())"
    )
    found = run_process(sys.executable, "-c", code, cwd=ROOT / "src")
    assert found.stdout.strip() == str(holdout_rows(np.arange(100) % 7, 40)[1].tolist())


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


@pytest.mark.parametrize("kind", ["digits", "folder", "torchvision", "packed", "processes"])
def test_every_loader_divides_the_same_images(kind: str, folder: Path, packed: Path) -> None:
    name = {"digits": "digits", "packed": str(packed), "processes": str(packed)}.get(kind, str(folder))
    loader = {"name": "torchvision" if kind == "torchvision" else "auto", "workers": 2 * (kind == "processes")}

    def opened(holdout: float) -> DataSource:
        config = DataConfig(name=name, image_size=32)
        keys = {f"data.loader.{key}": value for key, value in loader.items()}
        return open_data(TrainConfig(data=config).replace_keys({**keys, "data.holdout": holdout}).data)

    whole, source = opened(0), opened(1 / 3)
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


def test_a_description_says_the_sizes_of_both_parts() -> None:
    info = describe_data_set(DataConfig(holdout=0.5))
    assert (info.train_size, info.val_size, info.holdout_size) == (1437, 180, 180)
    assert describe_data_set(DataConfig()).val_size == 360


@pytest.mark.parametrize("part", [0.001, 0.999, 0.02])
def test_a_part_without_an_image_of_each_class_is_refused(part: float) -> None:
    with pytest.raises(ConfigError, match=r"data\.holdout must leave an image of each class.*Write data\.holdout=0\.5"):
        describe_data_set(DataConfig(holdout=part))


def test_a_source_without_labels_says_so() -> None:
    class Unlabelled(DataSource):
        def read_train(self, batches, epoch):
            return iter(())

        def read_val(self, batches):
            return iter([(torch.zeros(1), torch.zeros(1))])

    source = Unlabelled(describe_data_set(DataConfig(holdout=0.5)))
    rule = r"data\.holdout needs .*; got a Unlabelled without val_labels\(\)\. Write --set"
    with pytest.raises(ConfigError, match=rule):
        source.val_batches(10, 0, 1)
