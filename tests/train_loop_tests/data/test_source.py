"""What every kind of data promises: real batches, the same however they are cut, and what is imported."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from bigbatch.train_loop.config import BatchSplit, ConfigError, DataConfig
from bigbatch.train_loop.data.catalogue import open_data
from bigbatch.train_loop.data.source import DataSource, Epoch
from helpers.commands import run_process
from helpers.noise_images import flat, folder_source, same, write_noise_images
from helpers.paths import ROOT


@pytest.fixture(scope="module")
def images_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_noise_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def digits_source() -> DataSource:
    return open_data(DataConfig())


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


def loaded(code: str, *modules: str) -> str:
    script = f"{code}\nimport sys\nprint([name for name in {modules!r} if name in sys.modules])"
    run = run_process(sys.executable, "-c", script, cwd=ROOT / "src")
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_describing_loads_neither_torch_nor_sklearn(images_folder: Path) -> None:
    code = (
        "from bigbatch.train_loop.config import DataConfig\n"
        "from bigbatch.train_loop.data.catalogue import describe_data_set\n"
        f"describe_data_set(DataConfig())\ndescribe_data_set(DataConfig(name={str(images_folder)!r}))"
    )
    assert loaded(code, "torch", "sklearn", "torchvision", "PIL", "ray") == "[]"


def test_opening_digits_does_not_load_sklearn() -> None:
    code = (
        "from bigbatch.train_loop.config import DataConfig\nfrom bigbatch.train_loop.data.catalogue import open_data\n"
        "next(open_data(DataConfig()).val_batches(10, 0, 1))"
    )
    assert loaded(code, "sklearn", "torchvision", "ray") == "[]"
