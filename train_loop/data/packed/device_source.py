"""Images that stay on the device: a step's batch names images and their windows, and the device cuts the windows out.

The images are decoded as a whole into files, which one process of a node makes and all its processes map:

    DIR/bigbatch-whole-<user>-<content>/train.npy   uint8 [images, side, side, 3], as ``PackedImages.open_whole``
                                        val.npy     the same of validation images, as the model sees them

DIR is TMPDIR. In a search this is its own folder, which is removed with it; otherwise the last process that reads the
files removes them. ``<content>`` is a digest of the packed set, the settings and the decoder's versions.
"""

from __future__ import annotations

import hashlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from bigbatch.cluster.host.allocation import usable_memory_bytes
from bigbatch.train_loop.data import sampling
from bigbatch.train_loop.data.loading.loader import LoadedSource, image_draws, is_mirrored
from bigbatch.train_loop.data.packed.images import PackedImages
from bigbatch.train_loop.data.source import Batch, Epoch
from bigbatch.train_loop.host.once_a_node import OnceANode, room_missing
from bigbatch.train_loop.host.ranks import memory_part, trials_on_gpu
from bigbatch.train_loop.plugins.nested import Nested


def cut_windows(images: torch.Tensor, windows: torch.Tensor, size: int) -> torch.Tensor:
    """A window of each image, resized to ``size`` × ``size``, antialiased, bilinear.

    It resizes as Pillow and torch resize bytes: with a triangle filter within the window, along rows and then along
    columns, each rounded to whole numbers. So a pixel differs from theirs by at most 1 of 255, if a value before
    rounding is close to a half, or if they begin with the columns. A window that is not resized is exact.

    Args:
        images: uint8 ``[N, H, W, 3]``.
        windows: whole numbers ``[N, 5]``: left, upper, right, lower; 1 to mirror it, else 0. The pixels of a window
            that lie outside its image are black; such a window must not be resized.

    Returns:
        float32 ``[N, size, size, 3]``, contiguous: whole numbers 0 to 255.
    """
    count, height, width, colours = images.shape
    left, upper, right, lower, mirrored = windows.unbind(1)
    # In half precision sums of bytes would be rounded to other pixels.
    with torch.autocast(images.device.type, enabled=False):
        columns = images.float().transpose(1, 2).reshape(count, width, height * colours)
        columns = _rounded(torch.bmm(_weights(left, right, mirrored, width, size), columns))
        rows = columns.view(count, size, height, colours).transpose(1, 2).reshape(count, height, size * colours)
        rows = _rounded(torch.bmm(_weights(upper, lower, torch.zeros_like(mirrored), height, size), rows))
    return rows.view(count, size, size, colours)


def _rounded(values: torch.Tensor) -> torch.Tensor:
    """Round in place. A half goes up, as in Pillow and torch."""
    return values.add_(0.5).floor_()


def _weights(begin: torch.Tensor, end: torch.Tensor, mirrored: torch.Tensor, side: int, size: int) -> torch.Tensor:
    """The share of each of ``side`` pixels in each of the ``size`` that are made of ``begin`` to ``end``.

    Args: whole numbers ``[N]``. Returns float32 ``[N, size, side]``.
    """
    begin, end, mirrored = begin[:, None, None], end[:, None, None], mirrored[:, None, None]
    there = torch.arange(size, device=begin.device)[None, :, None] + 0.5
    here = torch.arange(side, device=begin.device) + 0.5
    scale = (end - begin) / size
    centre = begin + scale * torch.where(mirrored > 0, size - there, there)
    # min=1: a window that is enlarged is interpolated between neighbours; a narrower filter would miss all of them.
    shares = (1 - (here - centre).abs() / scale.clamp(min=1)).clamp_(min=0)
    shares = shares * ((here > begin) & (here < end))
    return shares / shares.sum(2, keepdim=True).clamp_(min=1e-6)  # nothing where the window leaves the image


MEMORY_SHARE = 1 / 8
"""The part of the node's memory that the images may take."""
DEVICE_SHARE = 1 / 20
"""The part of a GPU's memory, or of a trial's share of it."""
SAY_BYTES = 1 << 25
"""Decoding fewer bytes takes a moment, and prints no line."""
BATCH = 256
Pixels = npt.NDArray[np.uint8]


def with_whole_images(source: LoadedSource, device: torch.device | None, note: Callable[[str], None]) -> LoadedSource:
    """The same images, kept whole on the device if they suit, unless ``data.loader.name`` is ``ring``.

    Args:
        source: the images of a packed set.
        device: where the model is; None: nothing trains, and nothing is kept.
        note: gets the reason if images that suit are not kept.
    """
    config = source.config
    if config.loader.name != "auto" or device is None:
        return source
    shapes = _shapes(source)
    size = sum(int(np.prod(shape)) for shape in shapes.values())
    if not size or size > MEMORY_SHARE * usable_memory_bytes() or size > DEVICE_SHARE * _memory_bytes(device):
        return source
    try:
        if config.augment.enabled and config.augment.policy != "none":
            raise OSError(f"data.augment.policy={config.augment.policy} changes images one by one on the CPU")
        return DeviceSource(source, _read(source, shapes))
    except OSError as error:
        note(f"images are decoded in each epoch, not kept on the device: {error}")
        return source


def _shapes(source: LoadedSource) -> dict[str, tuple[int, ...]]:
    """The shapes of the arrays of training and of validation images; empty if images are not square and of one size."""
    info, config, images = source.info, source.config, source.parts[0]
    assert isinstance(images, PackedImages)
    side = images.whole_side(info.image_size) if config.augment.enabled else info.image_size
    if not side:
        return {}
    val = config.val_image_size or info.image_size
    return {"train": (info.train_size, side, side, 3), "val": (info.val_size + info.holdout_size, val, val, 3)}


def _memory_bytes(device: torch.device) -> float:
    if device.type != "cuda":
        return math.inf
    return torch.cuda.get_device_properties(device).total_memory * memory_part(trials_on_gpu())


def _read(source: LoadedSource, shapes: dict[str, tuple[int, ...]]) -> dict[str, Pixels]:
    """The images, mapped; decoded first unless a process of this node did. Raises OSError, ImageError."""
    prefix = f"bigbatch-whole-{os.getuid()}-"
    facts = (shapes, source.config.augment.enabled, source.config.val_crop, Image.__version__, torch.__version__)
    digest = hashlib.sha256(repr(facts).encode())
    for images in source.parts:
        assert isinstance(images, PackedImages)
        digest.update(images.content())
    target = Path(os.environ.get("TMPDIR") or "/tmp", prefix + digest.hexdigest()[:16])

    def is_whole(folder: Path) -> bool:
        try:
            found = {part: np.load(folder / f"{part}.npy", mmap_mode="r").shape for part in shapes}
            # In /tmp another user may have made a folder of this name.
            return found == shapes and folder.stat().st_uid == os.getuid()
        except (OSError, ValueError):
            return False

    OnceANode(target, prefix, is_whole, lambda partial: _decode(source, shapes, partial), "decodes").hold(keep=False)
    # "c": torch warns about read-only arrays. With "c" a write would not reach the file.
    return {part: np.load(target / f"{part}.npy", mmap_mode="c") for part in shapes}


def _decode(source: LoadedSource, shapes: dict[str, tuple[int, ...]], partial: Path) -> None:
    """Decode the images into the folder, with as many processes as the source reads with."""
    size = sum(int(np.prod(shape)) for shape in shapes.values())
    if missing := room_missing(partial, size):
        raise OSError(f"decoded, they are {size / 1e9:.3g} GB; {missing}")
    if size >= SAY_BYTES:
        print(f"decoding {source.info.name} ({size / 1e9:.3g} GB) in {partial.parent}", file=sys.stderr, flush=True)
    try:
        for part, shape in shapes.items():
            rows = np.arange(shape[0])
            batches = [rows[first : first + BATCH] for first in range(0, len(rows), BATCH)]
            read = source.read_whole(batches, shape[1]) if part == "train" else source.read_val(batches)
            with (partial / f"{part}.npy").open("wb") as file:  # on a full disk a mapped one would kill this process
                np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
                for _, (pixels, _) in zip(batches, read, strict=True):
                    file.write(pixels.numpy())
    finally:
        source.close()


class DeviceSource(LoadedSource):
    """Each batch's images are ``{part: rows}`` until ``finish``, int64 ``[N]``, or ``[N, 6]`` of row and window.

    The draws are those of the ring, so images are the same to within a rounding, see ``cut_windows``.
    """

    def __init__(self, source: LoadedSource, pixels: dict[str, Pixels]) -> None:
        super().__init__(source.config, source.info, *source.parts, source.mean, source.std)
        self._pixels = {part: torch.from_numpy(array) for part, array in pixels.items()}
        self._there: dict[tuple[str, torch.device], torch.Tensor] = {}

    @property
    def processes(self) -> int:
        """No loader process: nothing is decoded."""
        return 0

    def close(self) -> None:
        """Free the device's memory."""
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
        assert isinstance(images, PackedImages)
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
