"""Images that live on the device: a step's batch names them and their windows, and the device cuts them out.

They are kept whole, decoded, in files that all processes of a node map and one of them makes:

    DIR/bigbatch-whole-<user>-<content>/train.npy   uint8 [images, side, side, 3], as ``WholeImages.open_whole``
                                        val.npy     the same of validation images, as the model sees them

DIR is TMPDIR, in a search its own folder, which ends with it; else the last process that reads the files removes them.
``<content>`` is a digest of the images' files, the settings and the code.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from bigbatch.cluster.host.allocation import usable_memory_bytes
from bigbatch.train_loop.data import sampling
from bigbatch.train_loop.data.loading.loader import (
    LoadedSource,
    RepeatedImages,
    WholeImages,
    WriteImage,
    image_draws,
    is_mirrored,
)
from bigbatch.train_loop.data.source import Batch, Epoch
from bigbatch.train_loop.errors import ImageError, OtherSizeError
from bigbatch.train_loop.host.once_a_node import OnceANode, room_missing
from bigbatch.train_loop.host.ranks import memory_part, trials_on_gpu
from bigbatch.train_loop.plugins.nested import Nested


def cut_windows(images: torch.Tensor, windows: torch.Tensor, size: int) -> torch.Tensor:
    """A window of each image, resized to ``size`` × ``size``, antialiased, bilinear.

    As Pillow and torch resize bytes: by a triangle filter within the window, along rows and then along columns, each
    rounded to whole numbers. So a pixel differs from theirs by 1 of 255 at most, where a value before rounding is close
    to a half or they begin with the columns. A window that is not resized is exact.

    Args:
        images: uint8 ``[N, H, W, 3]``.
        windows: whole numbers ``[N, 5]``: left, upper, right, lower; 1 to mirror it, else 0. The pixels of a window
            that lie outside its image are black; such a window is not to be resized.

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
    """A half goes up, as theirs; in place."""
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
"""Of the node's memory that the images may take."""
DEVICE_SHARE = 1 / 20
"""Of a GPU's memory, or a trial's part of it."""
SAY_BYTES = 1 << 25
"""Less is decoded in a moment, and nothing is said of it."""
BATCH = 256
PARTS = ("train", "val")
Pixels = npt.NDArray[np.uint8]


class NotKept(Exception):
    """The images are not kept whole; the message says why."""

    def __init__(self, reason: str, worth_a_note: bool = True) -> None:
        super().__init__(reason)
        self.worth_a_note = worth_a_note
        """Whether it is news: not for photographs of many sizes."""


@dataclass(frozen=True)
class WholeSet:
    """A source's images that are to be kept whole, and where."""

    source: LoadedSource
    folder: Path
    side: int
    """Pixels a side of training images."""

    @classmethod
    def of(cls, source: LoadedSource, device: torch.device | None) -> WholeSet:
        """For a source, unless there is a reason not to. Decodes nothing.

        Args:
            device: that must have room for the images; None: none.

        Raises NotKept.
        """
        config, size, train = source.config, source.info.image_size, source.parts[0]
        assert isinstance(train, WholeImages)
        side = train.whole_side(size) if config.augment.enabled else size
        if not side:
            raise NotKept("the images are not all square and of one size", worth_a_note=False)
        whole = cls(source, Path(os.environ.get("TMPDIR") or "/tmp"), side)
        for share, of, memory in (
            (MEMORY_SHARE, "the node's memory", usable_memory_bytes()),
            (DEVICE_SHARE, "the GPU's memory", _memory_bytes(device)),
        ):
            if memory is not None and whole.bytes > share * memory:
                raise NotKept(
                    f"decoded, the images are {whole.bytes / 1e9:.3g} GB, more than a {round(1 / share)}th of {of}",
                    worth_a_note=False,
                )
        if reason := config.why_one_by_one:
            raise NotKept(reason)
        return whole

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the arrays, by ``PARTS``."""
        info, val = self.source.info, self.source.config.val_image_size or self.source.info.image_size
        sizes = (info.train_size, self.side), (info.val_size + info.holdout_size, val)
        return {part: (count, side, side, 3) for part, (count, side) in zip(PARTS, sizes, strict=True)}

    @property
    def bytes(self) -> int:
        """Of all images."""
        return sum(int(np.prod(shape)) for shape in self.shapes.values())

    def read(self) -> dict[str, Pixels]:
        """The images by ``PARTS``, mapped; decoded first unless a process of this node did.

        Raises NotKept, and ImageError where a bad image is to end the run.
        """
        if not os.path.isdir(self.folder):
            raise NotKept(f"there is no folder {str(self.folder)!r} (TMPDIR)")
        try:
            prefix = f"bigbatch-whole-{os.getuid()}-"
            target = self.folder / f"{prefix}{self._digest()}"
            work = "decodes" if self.bytes >= SAY_BYTES else ""
            OnceANode(target, prefix, self._is_whole, self._decode, work).hold(keep=False)
            # "c": torch warns of arrays that cannot be written. What would be written does not reach the file.
            return {part: np.load(target / f"{part}.npy", mmap_mode="c") for part in PARTS}
        except ImageError as error:
            if self.source.config.on_bad_image == "fail" and not isinstance(error, OtherSizeError):
                raise  # the first epoch would end by it anyway
            raise NotKept(str(error)) from None
        except OSError as error:
            raise NotKept(f"{error.filename or self.folder}: {error.strerror or error}") from None

    def _digest(self) -> str:
        config = self.source.config
        facts = (self.shapes, config.augment.enabled, config.val_crop, _code())
        digest = hashlib.sha256(repr(facts).encode())
        for images in self.source.parts:
            assert isinstance(images, WholeImages)
            digest.update(images.content())
        return digest.hexdigest()[:16]

    def _is_whole(self, target: Path) -> bool:
        try:
            found = {part: np.load(target / f"{part}.npy", mmap_mode="r").shape for part in PARTS}
            # In /tmp another user may have made a folder of this name.
            return found == self.shapes and target.stat().st_uid == os.getuid()
        except (OSError, ValueError):
            return False

    def _decode(self, partial: Path) -> None:
        """With as many processes as the source would read with."""
        if missing := room_missing(self.folder, self.bytes):
            raise NotKept(f"decoded, the images are {self.bytes / 1e9:.3g} GB; {missing}")
        given, info = self.source.config, self.source.info
        if self.bytes >= SAY_BYTES:
            print(f"decoding {info.name} ({self.bytes / 1e9:.3g} GB) in {self.folder}", file=sys.stderr, flush=True)
        side, val = self.shapes["train"][1], self.shapes["val"][1]
        # Whole images, as they are stored: the device cuts and mirrors them. Nothing goes to a device here.
        augment = dataclasses.replace(given.augment, enabled=False)
        loader = dataclasses.replace(given.loader, name="ring", pin_memory=False)
        config = dataclasses.replace(
            given, val_image_size=val, augment=augment, loader=loader, on_bad_image="fail"
        )  # fmt: skip
        info = dataclasses.replace(info, image_size=side)
        images = self.source.parts[0]
        train = _Whole(images, info.train_size) if given.augment.enabled else images
        source = LoadedSource(config, info, train, self.source.parts[1], self.source.mean, self.source.std)
        try:
            for part, shape in self.shapes.items():
                rows = np.arange(shape[0])
                batches = [rows[first : first + BATCH] for first in range(0, len(rows), BATCH)]
                read = source.read_train(batches, Epoch(0, 0)) if part == "train" else source.read_val(batches)
                array = np.lib.format.open_memmap(partial / f"{part}.npy", "w+", np.uint8, shape)
                for batch, (pixels, _) in zip(batches, read, strict=True):
                    array[batch[0] : batch[-1] + 1] = pixels
                array.flush()
        finally:
            source.close()


class _Whole(RepeatedImages):
    """What is to be kept of each image, for a loader that reads images as validation sees them."""

    def open_plain(self, index: int) -> WriteImage:
        assert isinstance(self._images, WholeImages)
        return self._images.open_whole(index)


def _memory_bytes(device: torch.device | None) -> float | None:
    if device is None or device.type != "cuda":
        return None
    return torch.cuda.get_device_properties(device).total_memory * memory_part(trials_on_gpu())


@cache
def _code() -> str:
    """A digest of what makes pixels of files."""
    digest = hashlib.sha256(f"{metadata.version('pillow')} {torch.__version__}".encode())
    data = Path(__file__).parent.parent
    for path in sorted((*data.glob("pixels/*.py"), *data.glob("packed/*.py"), *data.glob("sets/*.py"), Path(__file__))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def with_whole_images(source: LoadedSource, device: torch.device | None, note: Callable[[str], None]) -> LoadedSource:
    """The same images, kept whole on the device if they suit, unless ``data.loader.name`` is ``ring``.

    Args:
        device: where the model is; None: nothing trains, and nothing is kept.
        note: is told why they are not kept, if that is news.
    """
    if source.config.loader.name != "auto" or device is None:
        return source
    try:
        return DeviceSource(source, WholeSet.of(source, device).read())
    except NotKept as why:
        if why.worth_a_note:
            note(f"images are decoded in each epoch, not kept on the device: {why}")
        return source


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
