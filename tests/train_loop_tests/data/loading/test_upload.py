"""Copies to a device: a loader's slot is not written again before what was copied from it has arrived.

The device is a stand-in that puts off each asynchronous copy until somebody waits for it, the worst that CUDA allows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from bigbatch.train_loop.config import DataConfig, LoaderConfig
from bigbatch.train_loop.data.catalogue import open_data
from bigbatch.train_loop.data.loading import ring
from bigbatch.train_loop.data.loading.upload import Uploader
from bigbatch.train_loop.data.source import Epoch
from helpers.packed_sets import same

SIZE = 16
WAYS = [{"pin_memory": pin} for pin in (True, False)]


class Stream:
    """Work in its order, done when somebody waits for it."""

    def __init__(self, *_: Any) -> None:
        self.work: list[Callable[[], object]] = []

    def finish(self) -> None:
        while self.work:
            self.work.pop(0)()

    def record_event(self) -> Event:
        return Event(self)

    def wait_event(self, event: Event) -> None:
        self.work.append(event.synchronize)


class Event:
    def __init__(self, stream: Stream) -> None:
        self._stream, self._reached = stream, False
        stream.work.append(self._reach)

    def _reach(self) -> None:
        self._reached = True

    def synchronize(self) -> None:
        while not self._reached:
            self._stream.work.pop(0)()


class LateDevice:
    """What ``torch.cuda`` and ``Tensor.to`` do, as late as they may. ``slots``: page-locked memory of a loader."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.default = self.current = Stream()
        self.slots: ring.Slots | None = None
        self._locked: list[torch.Tensor] = []
        patch.setattr(torch.cuda, "Stream", Stream)
        patch.setattr(torch.cuda, "current_stream", lambda device: self.current)
        patch.setattr(torch.cuda, "stream", self._on)
        patch.setattr(torch.Tensor, "to", lambda *arguments, **options: self._to(*arguments, **options))
        patch.setattr(torch.Tensor, "is_pinned", lambda tensor: self._in_slot(tensor))
        patch.setattr(torch.Tensor, "pin_memory", lambda tensor: self._lock(tensor))
        patch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)

    @contextmanager
    def _on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def _in_slot(self, tensor: torch.Tensor) -> bool:
        if self.slots is None:
            return False
        memory = self.slots.memory
        return 0 <= tensor.data_ptr() - memory.ctypes.data < len(memory)

    def _lock(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != "cpu":
            raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
        self._locked.append(tensor.clone())  # torch keeps memory that it locked itself until copies of it have ended
        return self._locked[-1]

    def _to(self, tensor: torch.Tensor, device: torch.device, non_blocking: bool = False) -> torch.Tensor:
        if tensor.device.type != "cpu":
            return tensor  # it is there
        there, source, size = torch.zeros_like(tensor), tensor.data_ptr(), tensor.numel() * tensor.element_size()
        if not self._in_slot(tensor):
            return there.copy_(tensor)
        # By address: a copy engine holds no tensor.
        self.current.work.append(lambda: ctypes.memmove(there.data_ptr(), source, size))
        if not non_blocking:
            self.current.record_event().synchronize()
        return there


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_slot_is_not_written_again_before_its_copy_has_arrived(folder, way, made, monkeypatch):
    orders = [np.arange(4 * step, 4 * step + 4) % 20 for step in range(40)]
    plain = open_data(DataConfig(name=str(folder), image_size=SIZE)).read_train(orders, Epoch(1, 1))
    wanted = list(plain)
    config = DataConfig(name=str(folder), image_size=SIZE, loader=LoaderConfig(workers=1, **way))
    source, there = open_data(config), []
    with monkeypatch.context() as patch:
        device = LateDevice(patch)
        upload = Uploader(torch.device("cuda", 0), config.loader)
        for batch in source.read_train(orders, Epoch(1, 1)):
            device.slots = made[0].slots
            there.append(upload(batch))
            del batch
        device.default.finish()
        source.close()
    assert same(there, wanted)


@pytest.mark.parametrize("device", ["meta", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_what_is_on_the_device_already_is_passed_on(device: str, way: dict[str, Any], monkeypatch) -> None:
    """Of a data set of the user's own, whose labels may be elsewhere. ``meta`` stands for a device, on a CPU."""
    if device == "meta":
        LateDevice(monkeypatch)
    upload = Uploader(torch.device("cuda", 0), LoaderConfig(**way))
    images, labels = torch.ones(4, 3, device=device), torch.arange(4)
    for _ in range(3):
        there, targets = upload(({"pixels": images}, labels))
        assert there["pixels"] is images and torch.equal(targets.cpu(), labels)


def test_normalising_brings_nothing_to_the_device_after_the_first_batch(folder, monkeypatch):
    """Each such copy would make the host wait for the device; and validation may be what comes first."""
    source = open_data(DataConfig(name=str(folder), image_size=SIZE))
    (images, _) = next(source.val_batches(4, 0, 1))
    with torch.inference_mode():
        first = source.finish(images)
    with monkeypatch.context() as patch:
        patch.delattr(torch, "tensor")
        again = source.finish(images)
    mean, std = (np.array(values) for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    want = ((images.numpy() / 255.0 - mean) / std).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(again.numpy(), want, rtol=1e-5, atol=1e-5)
    assert torch.equal(first, again)
    weights = torch.ones_like(again, requires_grad=True)
    (again * weights).sum().backward()  # a tensor of inference mode would be refused here
    assert torch.equal(weights.grad, again)


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_batches_arrive_on_a_busy_gpu_as_they_were(folder, way, made):
    """The device has work for seconds in front of each copy, so a slot that was written again would be seen."""
    device = torch.device("cuda", torch.cuda.current_device())
    busy = torch.ones(8192, 8192, device=device)
    orders = [np.arange(8 * step, 8 * step + 8) % 20 for step in range(60)]
    config = DataConfig(name=str(folder), image_size=SIZE, loader=LoaderConfig(workers=2, **way))
    source, upload = open_data(config), Uploader(device, config.loader)
    there = []
    for batch in source.read_train(orders, Epoch(1, 1)):
        for _ in range(4):
            busy = busy @ busy / 8192
        images, labels = upload(batch)
        del batch
        there.append((images.clone(), source.finish(images), labels.clone()))
    plain = open_data(DataConfig(name=str(folder), image_size=SIZE))
    for mine, (want, want_labels) in zip(there, plain.read_train(orders, Epoch(1, 1)), strict=True):
        assert torch.equal(mine[0].cpu(), want) and torch.equal(mine[2].cpu(), want_labels)
        assert torch.allclose(mine[1].cpu(), plain.finish(want), rtol=1e-5, atol=1e-5)
    if made and way == WAYS[0]:
        assert torch.from_numpy(made[0].slots.pixels(0, 1, SIZE)).is_pinned()
    source.close()
