"""Batches to the device, on a stream of their own, so that copying overlaps with computing."""

from __future__ import annotations

from collections import deque

import torch

from train_loop.config import DataConfig
from train_loop.data.source import Batch

COPIES_AHEAD = 2


class Uploader:
    """Copies batches to ``device``; on a CPU it hands them through.

    On CUDA the copy runs beside the steps that are still being computed: the host is ahead of the device, so asking
    for a batch when the host needs it is early enough, and no batch is asked for before the loader has it. What is
    copied from is kept until the copy is done, for a loader writes into its memory again afterwards.
    """

    def __init__(self, device: torch.device, config: DataConfig) -> None:
        self._device, self._pin = device, config.pin_memory
        overlaps = device.type == "cuda" and config.pin_memory and config.non_blocking
        self._stream = torch.cuda.Stream(device) if overlaps else None
        self._copied_from: deque[tuple[torch.cuda.Event, Batch]] = deque()

    def __call__(self, batch: Batch) -> Batch:
        """The same images and labels on the device, to be used on the current stream."""
        if self._device.type != "cuda":
            return _on(batch, self._device)
        if self._pin:
            batch = _pinned(batch[0]), _pinned(batch[1])
        if self._stream is None:
            return _on(batch, self._device)
        while len(self._copied_from) >= COPIES_AHEAD:
            self._copied_from.popleft()[0].synchronize()
        with torch.cuda.stream(self._stream):
            there = _on(batch, self._device)
            copied = self._stream.record_event()
        self._copied_from.append((copied, batch))
        current = torch.cuda.current_stream(self._device)
        current.wait_event(copied)
        for tensor in there:
            tensor.record_stream(current)  # its memory belongs to the other stream
        return there


def _on(batch: Batch, device: torch.device) -> Batch:
    images, labels = batch
    return images.to(device, non_blocking=True), labels.to(device, non_blocking=True)


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_pinned() else tensor.pin_memory()
