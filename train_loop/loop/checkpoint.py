"""Checkpoints hold everything that a run needs to continue as if it had never stopped. They are written atomically.

A checkpoint is a dict: ``format``, ``config`` (TrainConfig's dict), ``data`` (sizes of the data
set), ``model``, ``optimizer``, ``scaler`` (state dicts), ``progress`` (``RunState``'s dict), ``micro_size`` (images of
a micro-batch), ``steps_per_epoch``, and with ``ema_decay`` ``average`` (``WeightAverage.tensors``). Of a sharded
network also ``shards``: see ``sharded_state.py``.

It contains no generator state: the order of images, their augmentation and the seed of each micro-batch are
functions of (seed, epoch, step), so the position is enough, for any number of ranks. The learning rate is a
function of the position, too.
"""

from __future__ import annotations

import contextlib
import io
import logging
import threading
import time
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bigbatch.base.atomic_files import replacing
from bigbatch.train_loop.config import ConfigError, TrainConfig, differing_keys
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.train_loop.distributed import World
from bigbatch.train_loop.errors import CheckpointError
from bigbatch.train_loop.host.disk_space import DiskFull, full_disk_named
from bigbatch.train_loop.loop import metrics
from bigbatch.train_loop.loop.sharded_state import check_shards, remove_unnamed, write_shards
from bigbatch.train_loop.plugins.nested import map_tensors

Content = dict[str, Any]
"""The content of a checkpoint, by name: plain values, and torch's state dicts."""

ALONE = World(0, 1, torch.device("cpu"))
_log = logging.getLogger(__name__)
_GOES_ON = "%s. Training continues; if it stops, it resumes from the last checkpoint that was written"

FORMAT = 4
LATEST, PREVIOUS = "latest.pt", "previous.pt"


@dataclass
class RunState:
    """The position of a run."""

    epoch: int = 0
    """Finished epochs."""
    step: int = 0
    """Finished steps of the unfinished epoch, with skipped ones: the sampler's position."""
    skipped_steps: int = 0
    """Steps that fp16's scaler had left out when the ranks last met."""
    learning_rate: float = 0.0
    """Learning rate of the last step."""
    sums: list[float] = field(default_factory=lambda: [*metrics.Sums()])
    """Sums of the unfinished epoch over all ranks: see ``metrics.Sums``."""
    gradient_norms: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    """Gradient norms of the unfinished epoch over all ranks: see ``noise_scale.GradientNorms``."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Times of the unfinished epoch: see ``chronometer.PARTS``."""
    gpu_energy_j: float = 0.0
    """Energy of the GPUs in the unfinished epoch; NaN if it was not measured."""
    history: list[dict[str, float | None]] = field(default_factory=list)
    """Records of the finished epochs, as dicts."""


class CheckpointFolder:
    """A folder with the latest checkpoint and the one before it. Rank 0 alone reads and writes.

    During a run a thread writes (``save_behind``). The next save, ``load`` and the end of ``writing`` wait for it.
    Without a folder, nothing is due and nothing is loaded.
    """

    def __init__(self, folder: Path | None, every_s: float) -> None:
        self.folder = folder
        self.write_s = 0.0
        """Seconds that the last write took, in this process."""
        self._every_s = every_s
        self._last = time.monotonic()
        self._writer: threading.Thread | None = None
        self._error: Exception | None = None

    def due(self, *, within_epoch: bool) -> bool:
        """Whether ``every_s`` have passed since the last checkpoint or the start; 0: only at the end of an epoch."""
        if self.folder is None or (within_epoch and self._every_s <= 0):
            return False
        return time.monotonic() - self._last >= self._every_s

    def restart_clock(self) -> None:
        """Count the time to the next checkpoint from now."""
        self._last = time.monotonic()

    def save_behind(self, content: Content) -> None:
        """Copy ``content``, and let a thread write the copy while training changes the original.

        If the disk is full, a warning says so, and the latest checkpoint stays. The next ``wait`` raises any other
        error of the write. With ``every_s`` 0 the file is written at once: the epoch's report needs it.
        """
        if self.folder is None:
            return
        self.wait()
        if self._every_s <= 0:
            self._write_behind(content)
            self.wait()
            return
        self._writer = threading.Thread(target=self._write_behind, args=(_copied(content),), name="checkpoint")
        self._writer.start()

    def save_sharded(self, content: Content, world: World, *, last: bool) -> None:
        """Write a checkpoint of a sharded network, at once: each rank its own part. All ranks call this.

        ``last``: it is the run's result, whose weights are not sharded. DiskFull is raised only then.
        """
        if self.folder is None:
            return
        try:
            content = write_shards(content, self.folder, world, whole=last)
        except DiskFull as full:
            if last:
                raise
            _log.warning(_GOES_ON, full)
            return
        if world.rank:
            return
        if last:
            self.save(content)
        else:
            self._write_behind(content)
            self.wait()

    def wait(self) -> None:
        """Wait for the thread that writes, if there is one. Raises the error of its write."""
        self._join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """The end of the block waits for the thread. If the block raises, an error of the thread is only logged."""
        try:
            yield
        except BaseException:
            self._join()
            if self._error is not None:
                _log.warning("the last checkpoint is not written: %s", self._error)
            raise
        self.wait()

    def _join(self) -> None:
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def _write_behind(self, content: Content) -> None:
        try:
            self.save(content)
        except DiskFull as full:
            _log.warning(_GOES_ON, full)
        except Exception as error:
            self._error = error

    def save(self, content: Content) -> None:
        """Write a checkpoint. After a crash at any moment the previous one can still be loaded.

        Raises DiskFull if there is no room. The latest checkpoint then still exists.
        """
        if self.folder is None:
            return
        began = time.perf_counter()
        self.folder.mkdir(parents=True, exist_ok=True)
        latest, previous = self.folder / LATEST, self.folder / PREVIOUS
        _write(latest, previous, content)
        remove_unnamed(self.folder, (latest, previous))
        self.write_s = time.perf_counter() - began

    def load(self, world: World = ALONE) -> Content | None:
        """The latest readable checkpoint, on all ranks of ``world``; None if there is none at all.

        Rank 0 reads it, once, and hands it to the others. If the latest is damaged or lost, uses the previous one, with
        a warning. Raises CheckpointError, on all ranks, if neither can be read.
        """
        if self.folder is None:
            return None
        self.wait()
        data: bytes | None = None
        content: Content | None = None
        error: CheckpointError | None = None
        if world.rank == 0:
            try:
                data, content = self._newest(self.folder)
            except CheckpointError as damaged:
                error = damaged
        found, error = world.of_first((data is not None, error))
        if error is not None:
            raise error
        if found and world.workers > 1:
            sent = world.bytes_of_first(data)
            content = _parse(sent) if content is None else content
        return content

    def _newest(self, folder: Path) -> tuple[bytes | None, Content | None]:
        """The bytes of the latest readable checkpoint, and what is in them."""
        damage: list[str] = []
        for path in (folder / LATEST, folder / PREVIOUS):
            try:
                data = path.read_bytes()
                content = _parse(data)
                check_shards(content, folder)
            except FileNotFoundError:
                continue
            except Exception as error:  # a damaged archive may raise almost any of them
                damage.append(f"{path} ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})")
                continue
            if damage:
                warnings.warn(f"damaged checkpoint {damage[0]}; the run goes on from {path}", stacklevel=2)
            return data, content
        if damage:
            raise CheckpointError(
                f"a checkpoint must be readable; got a damaged {' and '.join(damage)}. "
                f"Remove the files to start again from the first epoch, or use another folder."
            )
        return None, None


def _copied(content: Content) -> Content:
    """A copy of ``content`` in host memory. A GPU's tensors go to page-locked memory, the fastest, while there is some.

    Tensors that share memory share it in the copy, too.
    """
    copies: dict[tuple[object, ...], torch.Tensor] = {}
    devices: set[torch.device] = set()
    locks = True

    def room(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal locks
        on_gpu = tensor.device.type == "cuda"
        try:
            return torch.empty_like(tensor, device="cpu", pin_memory=on_gpu and locks, requires_grad=False)
        except RuntimeError:  # CUDA's "out of memory" would be mistaken for the device's
            if not (on_gpu and locks):
                raise
            locks = False
            return room(tensor)

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        which = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if which not in copies:
            devices.update({tensor.device} if tensor.device.type == "cuda" else ())
            copies[which] = room(tensor).copy_(tensor.detach(), non_blocking=True)
        return copies[which]

    copied: Content = map_tensors(copy, content)
    for device in devices:
        torch.cuda.current_stream(device).synchronize()
    return copied


def _write(latest: Path, previous: Path, content: Content) -> None:
    folder = latest.parent
    new_file = replacing(latest, durable=True, one_writer=True, previous=previous)
    # Check twice: torch gives no reason, so look while the disk is still full; and the last flush may fail later.
    with full_disk_named(folder), new_file as file, full_disk_named(folder):
        on_host = map_tensors(torch.Tensor.cpu, content)  # so that a machine without this GPU can load the file
        torch.save({"format": FORMAT, **on_host}, file)


def _parse(data: bytes | bytearray) -> Content:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:  # torch.load does not check the checksums
        damaged = archive.testzip()
    if damaged is not None:
        raise CheckpointError(f"wrong checksum of {damaged!r}")
    content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    for key in ("format", "config", "data", "model", "optimizer", "scaler", "progress"):
        if key not in content:
            raise CheckpointError(f"no {key!r} in it")
    return content


def describe_data(info: DataInfo) -> dict[str, Any]:
    """The facts of the data that must not change during a run: they decide sampler positions and model outputs."""
    facts = {"train_size": info.train_size, "val_size": info.val_size, "num_classes": info.num_classes}
    facts |= {"holdout_size": info.holdout_size} if info.holdout_size else {}
    content = {"content": info.content} if info.content else {}
    return facts | content | {"class_names": list(info.class_names)}


def check_same_run(
    content: Content, config: TrainConfig, info: DataInfo, folder: Path, *, halved: bool = False
) -> None:
    """Raise ConfigError if the checkpoint belongs to another configuration or other data.

    A longer run is also another configuration: its schedule differs from the first step. ``halved``: the micro-batch
    may be another one.
    """
    if content["format"] != FORMAT:
        raise ConfigError(
            f"this version reads checkpoint format {FORMAT}; got {content['format']!r} in {str(folder)!r}. "
            "Use the bigbatch that wrote it, or another folder."
        )
    # A checkpoint from before a key existed was trained with the key's default.
    stored = TrainConfig.from_dict(content["config"]).to_dict()
    if halved:
        stored["batch"] |= {"micro_size": config.batch.micro_size, "max_micro_size": config.batch.max_micro_size}
    changes = differing_keys(stored, config.to_dict())
    before, now = dict(content["data"]), describe_data(info)
    # Compare names one by one: the message shows only the first.
    names = zip(before.pop("class_names"), now.pop("class_names"), strict=False)
    changes += differing_keys(before, now, "data.")
    changes += [f"class {label} {old!r} → {new!r}" for label, (old, new) in enumerate(names) if old != new][:1]
    if changes:
        raise ConfigError(
            f"a checkpoint resumes the run that wrote it; {str(folder)!r} holds one with other values: "
            f"{', '.join(changes)}. Use another folder, or the configuration that is stored there."
        )
