"""Images kept whole on the device: the ring's to within a rounding, decoded once a node, only where they suit."""

import collections
import errno
import os
import types
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
from bigbatch.train_loop.data.loading.loader import LoadedSource
from bigbatch.train_loop.data.packed import device_source
from bigbatch.train_loop.data.packed.device_source import DeviceSource, cut_windows
from bigbatch.train_loop.data.source import Batch, DataSource, Epoch
from bigbatch.train_loop.host import once_a_node
from helpers.packed_sets import pack_here
from helpers.small_disk import mounted

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
    """A folder, a packed set of small images and one of photographs of 72 pixels."""
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


def levels(source: DataSource, batch: Batch) -> torch.Tensor:
    """The images in bytes' units, ``[N, H, W, 3]``."""
    assert isinstance(source, LoadedSource)
    return (source.finish(batch[0]).permute(0, 2, 3, 1) * torch.tensor(source.std) + torch.tensor(source.mean)) * 255


def kept(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("size", [13, 32, 80])
def test_windows_are_pillows_crops_resized(size: int, device: str) -> None:
    draws = np.random.default_rng(size)
    images = draws.integers(0, 256, (60, 32, 32, 3), dtype=np.uint8)
    boxes = np.sort(draws.permuted(np.tile(np.arange(33), (120, 1)), axis=1)[:, :2].reshape(60, 2, 2), axis=2)
    windows = np.column_stack([boxes[:, 0, 0], boxes[:, 1, 0], boxes[:, 0, 1], boxes[:, 1, 1], np.arange(60) % 2])
    there = torch.from_numpy(images).to(device), torch.from_numpy(windows).to(device)
    found = cut_windows(*there, size).cpu().numpy()
    theirs = np.empty_like(found)
    for image, (*box, mirrored), out in zip(images, windows.tolist(), theirs, strict=True):
        crop = np.array(Image.fromarray(image).crop(box).resize((size, size), Image.Resampling.BILINEAR))
        out[:] = crop[:, ::-1] if mirrored else crop
    difference = np.abs(found - theirs)
    assert difference.max() <= 1 and (difference > 0).mean() < 0.1  # of noise, the most that rounding twice can do


@pytest.mark.parametrize(
    ("kind", "exact", "keys"),
    [
        ("small", True, {}),
        ("small", True, {"image_size": 40, "augment.repeats": 3, "subset": 0.5, "holdout": 0.5}),
        ("small", True, {"augment.enabled": False, "image_size": 40}),
        ("large", False, {"image_size": 32, "augment.min_crop_area": 0.3, "subset": 0.5, "val_image_size": 20}),
    ],
)
def test_images_are_the_rings(sets: dict[str, Path], kind: str, exact: bool, keys: dict[str, Any]) -> None:
    ring, device = opened(sets[kind], **keys, **{"loader.name": "ring"}), opened(sets[kind], **keys)
    assert not isinstance(ring, DeviceSource) and isinstance(device, DeviceSource) and device.processes == 0
    config = config_of(sets[kind], **keys)
    indices = sampling.train_order(device.info.train_size, 3, 1, config.augment.copies)
    batches, val = np.array_split(indices, 3), [np.arange(2 * VAL)[::-1].copy()]
    different, pixels = 0, 0
    for mine, theirs in zip(
        (*device.read_train(batches, Epoch(3, 1)), *device.read_val(val)),
        (*ring.read_train(batches, Epoch(3, 1)), *ring.read_val(val)),
        strict=True,
    ):
        got, wanted = levels(device, mine), levels(ring, theirs)
        assert torch.equal(mine[1], theirs[1])
        assert torch.allclose(got, wanted, atol=0.01 if exact else 1.01, rtol=0)
        different += int(((got - wanted).abs() > 0.01).sum())
        pixels += got.numel()
    assert different < 0.02 * pixels
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
    mixed = write_images(tmp_path / "mixed", 72)
    Image.new("RGB", (72, 80)).save(mixed / "train" / "a" / "00.png")
    left(pack_here(mixed, tmp_path / "set"), "", False)
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


def test_a_disk_that_others_fill_meanwhile_is_said(sets: dict[str, Path], monkeypatch) -> None:
    """As other trials do after this one has looked, or a quota that ``statvfs`` does not know."""
    notes: list[str] = []
    monkeypatch.setattr(device_source, "room_missing", lambda folder, size: "")
    with mounted("size=64k") as folder:
        monkeypatch.setenv("TMPDIR", str(folder))
        assert not isinstance(opened(sets["small"], notes), DeviceSource) and list(folder.iterdir()) == []
    assert ["No space left on device" in note for note in notes] == [True]


def test_trials_that_share_a_gpu_share_the_room_for_images(sets: dict[str, Path], monkeypatch) -> None:
    """A GPU of 2 MiB: a 20th of it holds these images, a 20th of a trial's part does not."""
    memory = types.SimpleNamespace(total_memory=2 << 20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: memory)
    for trials in (1, 2):
        monkeypatch.setenv("BIGBATCH_TRIALS_PER_GPU", str(trials))
        source = open_data(config_of(sets["small"]), device=torch.device("cuda", 0))
        assert isinstance(source, DeviceSource) == (trials == 1)
        source.close()
