"""torchvision's loader beside the ring, and batches on their way to a device."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bigbatch.train_loop.config import BatchSplit, ConfigError, DataConfig, LoaderConfig, data_config
from bigbatch.train_loop.data.catalogue import describe_data_set, open_data
from bigbatch.train_loop.data.loading.upload import Uploader
from bigbatch.train_loop.data.source import Epoch
from bigbatch.train_loop.errors import ImageError
from helpers.packed_sets import flat, same

SIZE = 16


def torchvision_source(folder: Path, workers: int = -1, prefetch: int = 2, **changes: Any) -> Any:
    loader = LoaderConfig("torchvision", workers, prefetch_factor=prefetch)
    return open_data(DataConfig(name=str(folder), image_size=SIZE, loader=loader, **changes))


def test_torchvisions_loader_has_the_same_images_by_its_own_transforms(folder: Path) -> None:
    """Validation against ImageFolder and transforms used by hand; training by labels, and alike in any processes."""
    from torchvision import datasets, transforms

    normalise = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    steps = [transforms.Resize(round(SIZE * 256 / 224)), transforms.CenterCrop(SIZE), transforms.ToTensor(), normalise]
    reference = datasets.ImageFolder(str(folder / "val"), transforms.Compose(steps))
    source = torchvision_source(folder)
    images, labels = next(source.val_batches(100, 0, 1))
    assert torch.equal(source.finish(images), torch.stack([image for image, _ in reference]))
    assert labels.tolist() == reference.targets
    other = torchvision_source(folder, workers=2, prefetch=1)
    ring = open_data(DataConfig(name=str(folder), image_size=SIZE))
    random_state = torch.get_rng_state()
    for epoch in (1, 2):
        mine, theirs, labelled = (
            flat(s.train_batches(3, epoch, BatchSplit(1, 2, 4), 0, start_step=1)) for s in (source, other, ring)
        )
        assert same(mine, theirs) and same([batch[1] for batch in mine], [batch[1] for batch in labelled])
    assert torch.equal(random_state, torch.get_rng_state())  # which dropout draws from
    next(read := other.train_batches(3, 1, BatchSplit(1, 2, 4), 0))
    assert len(list(other.val_batches(3, 0, 1))) == 4
    assert len(list(other.train_batches(3, 1, BatchSplit(1, 2, 4), 0))) == 5
    del read
    other.close()


def test_torchvisions_loader_seeds_no_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout there would draw the same masks again and again. torch seeds GPUs later where none is in use yet."""
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    assert next(torchvision_source(folder, workers=0).train_batches(3, 1, BatchSplit(1, 2, 4), 0)) and seeded == []


def test_torchvisions_loader_replaces_bad_images_too(broken: Path) -> None:
    source = torchvision_source(broken, on_bad_image="skip")
    (batch, labels), (_, others) = source.read_train([np.array([3, 4, 25, 30]), np.array([7, 8])], Epoch(1, 1))
    assert torch.equal(batch[0], batch[2]) and torch.equal(batch[1], batch[2]) and labels.tolist() == [1, 1, 1, 1]
    assert others.tolist() == [0, 0] and source.take_bad() == 2
    assert sum(len(labels) for _, labels in source.val_batches(4, 0, 1)) == 9
    with pytest.raises(ImageError, match="cannot read image .*03.png"):
        list(torchvision_source(broken).read_train([np.array([3, 4])], Epoch(1, 1)))


def test_torchvisions_loader_reads_neither_packed_sets_nor_digits(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "index.arrow").touch()
    with pytest.raises(ConfigError, match="data.loader.name=torchvision reads image folders"):
        torchvision_source(tmp_path)
    with pytest.raises(ConfigError, match="got digits.*Write data.loader.name=auto"):
        describe_data_set(DataConfig(name="digits", loader=LoaderConfig(name="torchvision")))


@pytest.mark.parametrize("change", [{"augment.policy": "rand"}, {"augment.repeats": 3}, {"progressive_from": 32}])
def test_torchvisions_loader_is_the_plain_pipeline(change: dict[str, Any]) -> None:
    keys = {"loader.name": "torchvision", "progressive_end": 9, **change}
    with pytest.raises(ConfigError, match=f"loader is the plain pipeline; got data.{next(iter(change))}"):
        data_config({f"data.{key}": value for key, value in keys.items()})


def test_uploading_to_a_cpu_changes_nothing() -> None:
    upload = Uploader(torch.device("cpu"), LoaderConfig())
    images, labels = torch.zeros(2, 4, 4, 3, dtype=torch.uint8), torch.arange(2)
    there = upload((images, labels))
    assert there[0] is images and there[1] is labels
