"""Progressive resizing against FFCV's schedule; each source's sizes; a resume in the middle; what is refused."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bigbatch.train_loop.config import BatchSplit, ConfigError, DataConfig, LoaderConfig, ModelConfig, TrainConfig
from bigbatch.train_loop.data.catalogue import describe_data_set, open_data
from bigbatch.train_loop.data.pixels.boxes import other_sizes, train_image_size
from bigbatch.train_loop.loop.train import TrainingStopped
from bigbatch.train_loop.model.networks import check_model
from helpers.loop_references import run
from helpers.packed_sets import pack_here, write_images
from helpers.tiny_training import CONFIG, StopsAt, changed, install, untimed

PROGRESSIVE = DataConfig(image_size=96, progressive_from=32, progressive_start=1, progressive_end=4, val_image_size=112)


@pytest.mark.parametrize(
    ("epochs", "first", "last", "start", "end"),
    [(88, 160, 192, 65, 76), (16, 160, 192, 11, 13), (40, 128, 224, 0, 30), (5, 96, 128, 3, 4)],
)
def test_sizes_are_those_of_ffcv(epochs: int, first: int, last: int, start: int, end: int) -> None:
    """The published rule, and the first row the published configuration of 88 epochs."""
    config = DataConfig(image_size=last, progressive_from=first, progressive_start=start, progressive_end=end)
    sizes = [train_image_size(config, last, epoch) for epoch in range(epochs)]
    for epoch, size in enumerate(sizes):
        if epoch <= start:
            expected = first
        elif epoch >= end:
            expected = last
        else:
            expected = int(np.round(np.interp([epoch], [start, end], [first, last])[0] / 32)) * 32
        assert size == expected
    assert sizes == sorted(sizes) and set(sizes) == {*other_sizes(config, last), last}


def test_every_source_follows(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images")
    packed = pack_here(images, tmp_path / "packed")
    for name, workers in (("digits", 0), (str(images), 0), (str(images), 1), (str(packed), 0)):
        config = dataclasses.replace(PROGRESSIVE, name=name, loader=LoaderConfig(workers=workers))
        info, source = describe_data_set(config), open_data(config)
        assert (info.image_size, info.other_sizes) == (96, (32, 64, 112))
        for epoch, size in enumerate((32, 32, 64, 64, 96, 96)):
            pixels = source.finish(next(source.train_batches(0, epoch, BatchSplit(1, 1, 2), 0))[0][0])
            assert pixels.shape == (2, 3, size, size), (name, epoch)
            pixels = source.finish(next(source.bn_batches(0, epoch, 2, 4, 0, 1))[0])
            assert pixels.shape == (2, 3, size, size)
        assert source.finish(next(source.val_batches(2, 0, 1))[0]).shape == (2, 3, 112, 112)
    # What an epoch of a size shows is what a run of that size alone shows.
    both = DataConfig(str(images), 32), dataclasses.replace(PROGRESSIVE, name=str(images))
    fixed, progressive = (open_data(one).train_batches(0, 1, BatchSplit(1, 1, 2), 0) for one in both)
    assert torch.equal(next(fixed)[0][0], next(progressive)[0][0])


def small_network() -> nn.Module:
    layers = [nn.Conv2d(3, 8, 3, stride=4), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 10))


def test_a_resume_keeps_the_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = dataclasses.replace(PROGRESSIVE, image_size=64, progressive_end=2, val_image_size=48, subset=0.05)
    config = dataclasses.replace(CONFIG, data=data)
    seen: list[int] = []

    def build() -> nn.Module:
        network = small_network()
        network.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[-1]))
        return network

    install(monkeypatch.setattr, build, open_data(data))
    whole = run(config)
    training = [size for size in seen if size != 48]
    assert set(seen) == {32, 48, 64} and training == sorted(training)

    with pytest.raises(TrainingStopped):
        run(config, reporter=StopsAt(6), checkpoint_dir=tmp_path)
    rest = run(config, checkpoint_dir=tmp_path)
    assert untimed(rest) == untimed(whole)[-len(rest) :] and rest
    with pytest.raises(ConfigError, match="val_image_size 48 → 0"):
        run(changed(config, val_image_size=0), checkpoint_dir=tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"progressive_from": 100}, "multiple of 32"),
        ({"progressive_from": 64, "progressive_end": 0, "progressive_start": 0}, "progressive_start"),
        ({"progressive_start": 4}, "below data.progressive_end"),
        ({"progressive_start": -1}, "at least 0"),
        ({"val_image_size": 5}, "val_image_size"),
        ({"image_size": 100}, "got 100 after"),
        ({"image_size": 32}, "got 32 after"),
        ({"image_size": 0}, "got 32 after"),  # the digits' own
    ],
)
def test_impossible_sizes_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        describe_data_set(dataclasses.replace(PROGRESSIVE, **changes))


def test_a_last_size_that_is_never_reached_and_networks_of_one_size_are_refused() -> None:
    with pytest.raises(ConfigError, match="got 4 of 4"):
        TrainConfig(epochs=4, data=PROGRESSIVE)
    info = describe_data_set(PROGRESSIVE)
    check_model(ModelConfig(name="resnet18"), info)
    check_model(ModelConfig(name="mobilenet_v3_small"), info)
    with pytest.raises(ConfigError, match="got 32 px for vit_b_32"):
        check_model(ModelConfig(name="vit_b_32"), info)
