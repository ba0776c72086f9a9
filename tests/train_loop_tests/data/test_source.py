"""What every kind of data promises: real batches, the same however they are cut, and what is imported."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from bigbatch.train_loop.config import BatchSplit, ConfigError, DataConfig
from bigbatch.train_loop.data.catalogue import open_data
from bigbatch.train_loop.data.source import DataSource, Epoch
from helpers.commands import run_process
from helpers.packed_sets import flat, folder_source, same
from helpers.paths import ROOT


def sources(images_folder: Path) -> list[tuple[DataSource, int]]:
    """Each kind of source with a micro-batch that leaves some images over."""
    return [(open_data(DataConfig()), 100), (folder_source(images_folder), 3)]


def test_an_image_is_augmented_alike_in_any_batch(images_folder: Path) -> None:
    """Bit for bit, by index, whatever the company; and differently in another epoch."""
    for source, _ in sources(images_folder):
        indices = np.arange(13)
        alone = [batch[0] for batch in source.read_train([indices[i : i + 1] for i in range(13)], Epoch(3, 4))]
        together = next(iter(source.read_train([indices[::-1].copy()], Epoch(3, 4))))[0]
        assert torch.equal(torch.cat(alone), together.flip(0))
        other = next(iter(source.read_train([indices], Epoch(3, 5))))[0]
        assert all(not torch.equal(a[0], b) for a, b in zip(alone, other, strict=True))


def test_statistics_are_of_the_first_training_batches(images_folder: Path) -> None:
    for source, micro in sources(images_folder):
        statistics = list(source.bn_batches(5, 1, micro, 3 * micro, 0, 1))
        assert same(statistics, flat(source.train_batches(5, 1, BatchSplit(1, 1, micro), 0))[:3])


def test_batch_larger_than_the_training_set_is_refused(digits_source: DataSource) -> None:
    assert digits_source.info.steps_per_epoch(1437) == 1
    with pytest.raises(ConfigError, match=r"1437 training images.*got 2048\. Use batch.global_size=1024"):
        digits_source.info.steps_per_epoch(2048)


IMPORTS = """
import sys
from bigbatch.train_loop.config import DataConfig, ModelConfig
from bigbatch.train_loop.data.catalogue import describe_data_set, open_data
from bigbatch.train_loop.model.networks import check_model, check_model_name
check_model_name("resnet50"), describe_data_set(DataConfig(name=sys.argv[1]))
check_model(ModelConfig(name="resnet18"), describe_data_set(DataConfig()))
print([name for name in ("torch", "sklearn", "torchvision", "ray") if name in sys.modules])
next(open_data(DataConfig()).val_batches(10, 0, 1))
print([name for name in ("sklearn", "torchvision", "ray") if name in sys.modules])
"""


def test_describing_and_checking_a_resnet_load_no_torch_and_opening_digits_no_sklearn(images_folder: Path) -> None:
    run = run_process(sys.executable, "-c", IMPORTS, images_folder, cwd=ROOT / "src")
    assert run.stdout == "[]\n[]\n", run.stderr
