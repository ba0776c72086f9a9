"""Images kept whole on the device: the ring's to within a rounding, decoded once a node, only where they suit."""

import collections
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bigbatch.train_loop.config import DataConfig, data_config
from bigbatch.train_loop.data import sampling
from bigbatch.train_loop.data.catalogue import open_data
from bigbatch.train_loop.data.packed import device_source
from bigbatch.train_loop.data.packed.device_source import DeviceSource
from bigbatch.train_loop.data.source import DataSource, Epoch
from bigbatch.train_loop.host import once_a_node
from helpers.packed_sets import pack_here

CPU = torch.device("cpu")
TRAIN, VAL = 20, 6
"""Images of each of the two classes."""


def write_images(root: Path, side: int) -> Path:
    """Smooth colours under noise. The first ones of class ``b`` are brighter, so that there is something to learn."""
    draws = np.random.default_rng(side)
    for part, count in (("train", TRAIN), ("val", VAL)):
        for label, name in enumerate("ab"):
            (root / part / name).mkdir(parents=True)
            for number in range(count):
                coarse = Image.fromarray(draws.integers(60 * label, 180 + 60 * label, (5, 5, 3), dtype=np.uint8))
                pixels = np.array(coarse.resize((side, side), Image.Resampling.BICUBIC)).astype(int)
                pixels = np.clip(pixels + draws.integers(-20, 21, pixels.shape), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(root / part / name / f"{number:02d}.png")
    return root


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder, a packed set of it, and one of photographs of 72 pixels."""
    root = tmp_path_factory.mktemp("sets")
    folder, large = write_images(root / "folder", 24), write_images(root / "photographs", 72)
    return {"folder": folder, "small": pack_here(folder, root / "small"), "large": pack_here(large, root / "large")}


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The node's folder, and a process that has opened nothing; what would be called at its end is called."""
    at_end: list[Callable[[], object]] = []
    (tmp_path / "node").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "node"))
    monkeypatch.setattr(once_a_node, "_held", {})
    monkeypatch.setattr(once_a_node.atexit, "register", lambda f, *a: at_end.append(lambda: f(*a)))
    yield tmp_path / "node"
    for end in at_end:
        end()
    assert list((tmp_path / "node").iterdir()) == []


def config_of(path: Path, **keys: Any) -> DataConfig:
    given = {"name": str(path), "image_size": 24, "loader.workers": 0}
    return data_config({f"data.{key}": value for key, value in (given | keys).items()})


def opened(path: Path, notes: list[str] | None = None, /, **keys: Any) -> DataSource:
    return open_data(config_of(path, **keys), note=(notes if notes is not None else []).append, device=CPU)


def kept(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"image_size": 40, "augment.repeats": 3, "subset": 0.5, "holdout": 0.5},
        {"augment.enabled": False, "image_size": 40, "val_image_size": 20},
    ],
)
def test_images_are_the_rings(sets: dict[str, Path], keys: dict[str, Any]) -> None:
    ring, device = opened(sets["small"], **keys, **{"loader.name": "ring"}), opened(sets["small"], **keys)
    assert not isinstance(ring, DeviceSource) and isinstance(device, DeviceSource) and device.processes == 0
    config = config_of(sets["small"], **keys)
    indices = sampling.train_order(device.info.train_size, 3, 1, config.augment.copies)
    batches, val = np.array_split(indices, 3), [np.arange(2 * VAL)[::-1].copy()]
    for mine, theirs in zip(
        (*device.read_train(batches, Epoch(3, 1)), *device.read_val(val)),
        (*ring.read_train(batches, Epoch(3, 1)), *ring.read_val(val)),
        strict=True,
    ):
        assert torch.equal(mine[1], theirs[1])
        assert torch.equal(device.finish(mine[0]), ring.finish(theirs[0]))
    if config.augment.enabled:  # they do differ from epoch to epoch
        ((other, _),) = device.read_train(batches[:1], Epoch(3, 2))
        assert not torch.equal(other["train"], next(device.read_train(batches[:1], Epoch(3, 1)))[0]["train"])
    assert np.array_equal(device.val_labels(), ring.val_labels())


def test_images_are_decoded_once_for_all_processes_of_a_node(sets, temporary, monkeypatch, capfd):
    monkeypatch.setattr(device_source, "SAY_BYTES", 0)
    opened(sets["small"])
    (first,) = kept(temporary)
    monkeypatch.setattr(once_a_node, "_held", {})  # as in another process
    opened(sets["small"], **{"augment.repeats": 2})  # changes no whole image
    assert kept(temporary) == [first] and capfd.readouterr().err.count("decoding ") == 1
    assert opened(sets["small"], image_size=32).info.image_size == 32
    assert len(kept(temporary)) == 2  # the other one is still read


def test_what_suits_not_is_decoded_in_each_epoch(sets, tmp_path, monkeypatch):
    """It says why, if the images suited."""

    def left(path: Path, reason: str, said: bool = True, /, **keys: Any) -> None:
        notes: list[str] = []
        assert not isinstance(opened(path, notes, **keys), DeviceSource)
        assert [reason in note for note in notes] == [True] * said

    left(sets["small"], "data.augment.policy=trivial changes images one by one", **{"augment.policy": "trivial"})
    left(sets["folder"], "", False)
    left(sets["large"], "", False)
    with monkeypatch.context() as patch:
        patch.setattr(device_source, "usable_memory_bytes", lambda: 8 * 50_000)
        left(sets["small"], "", False)
    with monkeypatch.context() as patch:
        room = collections.namedtuple("room", "f_bavail f_frsize")
        patch.setattr(once_a_node.os, "statvfs", lambda _: room(1, 4096))
        left(sets["small"], "4.1e-06 GB are left in")
    with monkeypatch.context() as patch:  # as of a Lustre that is mounted without them

        def flock(*_: object) -> None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

        patch.setattr(once_a_node.fcntl, "flock", flock)
        left(sets["small"], "a file system without locks")
