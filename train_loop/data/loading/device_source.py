"""Images that live on the device: a step's batch names them and their windows, and the device cuts them out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.data import sampling
from bigbatch.train_loop.data.loading.loader import LoadedSource, WholeImages, image_draws, is_mirrored
from bigbatch.train_loop.data.loading.whole_set import NotKept, Pixels, WholeSet
from bigbatch.train_loop.data.pixels.windows import cut_windows
from bigbatch.train_loop.data.source import Batch, Epoch
from bigbatch.train_loop.plugins.nested import Nested


def with_whole_images(source: LoadedSource, device: torch.device | None, note: Callable[[str], None]) -> LoadedSource:
    """The same images, kept whole on the device where ``data.loader.name`` is ``device`` or, if they suit, ``auto``.

    Args:
        device: where the model is; None: nothing trains, and ``auto`` changes nothing.
        note: is told why they are not kept, if that is news.

    Raises ConfigError where ``device`` was asked for and cannot be.
    """
    name = source.config.loader.name
    if name != "device" and (name != "auto" or device is None):
        return source
    try:
        return DeviceSource(source, WholeSet.of(source, device).read())
    except NotKept as why:
        if name == "device":
            raise ConfigError(
                f"data.loader.name=device keeps decoded images on the device; got {source.info.name}: {why}. "
                "Write data.loader.name=auto."
            ) from None
        if why.worth_a_note:
            note(f"images are decoded in each epoch, not kept on the device: {why}")
        return source


class DeviceSource(LoadedSource):
    """Each batch's images are ``{part: rows}`` until ``finish``, int64 ``[N]``, or ``[N, 6]`` of row and window.

    The draws are those of the ring, so images are the same to within a rounding, see ``windows.py``.
    """

    def __init__(self, source: LoadedSource, pixels: dict[str, Pixels]) -> None:
        super().__init__(source.config, source.info, *source.parts, source.mean, source.std)
        self._pixels = {part: torch.from_numpy(array) for part, array in pixels.items()}
        self._there: dict[tuple[str, torch.device], torch.Tensor] = {}

    @property
    def processes(self) -> int:
        """None: nothing is decoded."""
        return 0

    def close(self) -> None:
        """Let the device's memory go."""
        self._there.clear()
        super().close()

    def read_train(self, batches: Sequence[sampling.Indices], epoch: Epoch) -> Iterator[Batch]:
        """Rows and windows, and labels, int64 ``[N]``, on the CPU."""
        images = self.parts[0]
        for indices in batches:
            rows = indices % self.info.train_size
            given = self._windows(indices, rows, epoch) if self.config.augment.enabled else rows
            yield {"train": torch.from_numpy(given)}, torch.from_numpy(images.labels(rows))

    def read_val(self, batches: Sequence[sampling.Indices]) -> Iterator[Batch]:
        """Rows and labels, int64 ``[N]``, on the CPU."""
        for rows in batches:
            yield {"val": torch.from_numpy(rows)}, torch.from_numpy(self.parts[1].labels(rows))

    def _windows(self, indices: sampling.Indices, rows: sampling.Indices, epoch: Epoch) -> sampling.Indices:
        images, side = self.parts[0], self._pixels["train"].shape[1]
        assert isinstance(images, WholeImages)
        found = []
        for index, row in zip(indices.tolist(), rows.tolist(), strict=True):
            draws = image_draws(epoch, index)
            found.append((row, *images.draw_window(side, draws), is_mirrored(draws)))
        return np.array(found, dtype=np.int64)

    def finish(self, images: Nested) -> torch.Tensor:
        """Normalised float32 ``[N, 3, H, W]``, channels last in memory, on the device where ``images`` are."""
        ((part, given),) = images.items()
        pixels = self._on(part, given.device)
        if given.ndim == 1:
            return super().finish(pixels[given])
        return super().finish(cut_windows(pixels[given[:, 0]], given[:, 1:], self.info.image_size))

    def _on(self, part: str, device: torch.device) -> torch.Tensor:
        key = part, device
        if key not in self._there:
            with torch.inference_mode(False):  # training uses them after validation
                self._there[key] = self._pixels[part].to(device)
        return self._there[key]
