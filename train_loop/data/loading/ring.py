"""A ring of batch slots in shared memory, and the loader processes that write images into them.

    this process ── Task (slot, places) ──▶ one socket that all loader processes take from
         ▲                                          │ decode, resize, write into the slot
         └───────── Answer (batch, bad images) ◀────┘

Pixels never cross a pipe: a batch is a view of its slot, and the slot is used again when the last tensor on it is
gone. No lock and no semaphore is shared, so a process that is killed at any moment leaves none of them locked:
the sockets keep whole messages (SOCK_SEQPACKET). The memory has no name (memfd): it goes with the last process that
maps it, however those end, and loader processes end when their socket does, so after their parent.
"""

from __future__ import annotations

import contextlib
import gc
import mmap
import multiprocessing
import os
import pickle
import select
import signal
import socket
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from multiprocessing import reduction, util
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from bigbatch.train_loop.data.loading.counts import AUTO_SLOTS, memory_per_rank_bytes, slot_count
from bigbatch.train_loop.data.loading.loader_processes import LoaderProcesses
from bigbatch.train_loop.data.loading.malloc import raise_malloc_thresholds
from bigbatch.train_loop.data.loading.page_locked import page_lock
from bigbatch.train_loop.data.loading.read_ahead import (
    MAX_TASKS_ASKED_AT_ONCE,
    Indices,
    ReadAheadDepth,
    UpcomingIndices,
)
from bigbatch.train_loop.errors import ImageError, LoaderError

RESERVED_SLOTS = 2
"""Slots that the consumer never holds. If it holds all others, further batches are copied, so reading never waits."""
IMAGES_AHEAD = 16
"""A process, in all slots: enough that it does not wait while a small batch is consumed."""
IMAGES_PER_TASK = 16
TASKS_PER_BATCH = 32
MAX_QUEUED_TASKS = 128
"""Tasks that wait, at most: they must fit a socket's buffer, or sender and receiver would wait for each other."""
MESSAGE_BYTES = 1 << 18
PAGE = mmap.PAGESIZE

BadImage = tuple[int, int | None, str]
"""An image that could not be read: its place in the batch, the place whose image stands there now, why."""
FillBatch = Callable[[Any, Indices, torch.Tensor, range, Indices], list[BadImage]]
"""Writes the images of some places: what is read (a job), the batch's indices, its pixels, the places, and the indices
of images to ask the system for."""


def ring_is_supported() -> bool:
    """Whether this system supports the ring: Linux does, macOS does not."""
    return hasattr(os, "memfd_create") and hasattr(socket, "SOCK_SEQPACKET")


@dataclass(frozen=True)
class FillTask:
    """Places ``first`` to ``last`` of a batch; its indices lie in the slot before its pixels.

    A task is short however large the batch is: all that are queued must fit the socket's buffer.
    """

    batch: int
    slot: int
    images: int
    first: int
    last: int
    size: int
    """Pixels a side."""
    ahead: tuple[int, int]
    """Where, of those in the slot, the indices lie that this task asks the system for."""
    job: object


class Slots:
    """The shared memory: a page with the number of the oldest batch that is wanted and which processes have begun, then
    the slots."""

    def __init__(self, count: int, images: int, image_bytes: int, descriptor: int | None = None) -> None:
        self.count, self.images, self.image_bytes = count, images, image_bytes
        self._index_bytes = _index_bytes(images)
        self.slot_bytes = slot_bytes(images, image_bytes)
        self.bytes = PAGE + count * self.slot_bytes
        if descriptor is None:
            # CLOEXEC: programs that this process starts must not keep the memory.
            descriptor = os.memfd_create("bigbatch-loader", os.MFD_CLOEXEC)
            os.ftruncate(descriptor, self.bytes)
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)
        # All else is a view of this array, which goes before the mapping: of that a weak reference hears too late.
        self.memory = np.frombuffer(mmap.mmap(descriptor, self.bytes), np.uint8)
        self.oldest = self.memory[:8].view(np.int64)
        # 8: before it stands the number of the oldest batch.
        self.begun = self.memory[8:PAGE]

    def __reduce__(self) -> tuple[object, ...]:
        # The descriptor travels beside the pickle of a process that is being started.
        return _attach, (self.count, self.images, self.image_bytes, reduction.DupFd(self._descriptor))

    def indices(self, slot: int, images: int) -> Indices:
        """Where the indices of a batch of ``images`` stand in a slot, int64 ``[images]``, shared with all processes."""
        begin = self._begin(slot)
        return self.memory[begin : begin + 8 * images].view(np.int64)

    def ahead(self, slot: int) -> Indices:
        """Indices of images that some process reads later. The slot's tasks request them."""
        begin = self._begin(slot) + 8 * self.images
        return self.memory[begin : begin + 8 * MAX_TASKS_ASKED_AT_ONCE * self.images].view(np.int64)

    def pixels(self, slot: int, images: int, size: int) -> npt.NDArray[np.uint8]:
        """``[images, size, size, 3]``."""
        begin = self._begin(slot) + self._index_bytes
        return self.memory[begin : begin + images * size * size * 3].reshape(images, size, size, 3)

    def _begin(self, slot: int) -> int:
        return PAGE + slot * self.slot_bytes

    def fit(self, images: int, size: int) -> bool:
        """Whether a batch of ``images`` of ``size`` pixels a side has room in a slot."""
        return images <= self.images and images * size * size * 3 <= self.images * self.image_bytes


class _Duplicated(Protocol):
    """A descriptor on its way to another process (``reduction.DupFd``)."""

    def detach(self) -> int: ...


def _attach(count: int, images: int, image_bytes: int, descriptor: _Duplicated) -> Slots:
    return Slots(count, images, image_bytes, descriptor.detach())


def slot_bytes(images: int, image_bytes: int) -> int:
    """Bytes of one slot for a batch of ``images`` of ``image_bytes`` each, in whole pages."""
    return _index_bytes(images) + _whole_pages(images * image_bytes)


def _index_bytes(images: int) -> int:
    return _whole_pages(8 * (1 + MAX_TASKS_ASKED_AT_ONCE) * images)


def _whole_pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


class Ring:
    """Loader processes and their slots, for any number of epochs. One ``read`` at a time.

    Args:
        fill: called in the loader processes; goes there by fork or pickle.
        images: of a batch, at most.
        slots: as many as there is memory for; 0 takes as many as are good, see ``slot_count``.
        pin: page-lock the slots where CUDA is in use.
        context: how processes start; default: as ``multiprocessing`` is set.
    """

    def __init__(
        self,
        fill: FillBatch,
        workers: int,
        images: int,
        size: int,
        slots: int = AUTO_SLOTS,
        pin: bool = False,
        context: BaseContext | None = None,
    ) -> None:
        needed, image_bytes = RESERVED_SLOTS + -(-IMAGES_AHEAD * workers // images), size * size * 3
        count = slot_count(slots, needed, slot_bytes(images, image_bytes), memory_per_rank_bytes())
        self.workers = workers
        self.slots = Slots(count, images, image_bytes)
        self._free = deque(range(self.slots.count))
        self._queued = 0
        self._next = 0
        self._left: dict[int, int] = {}
        """Batch → number of its tasks that are not answered yet."""
        self._bad: dict[int, list[BadImage]] = {}
        self.given = self.copied = 0
        """Batches so far, and those of them that were copied because the consumer held too many slots."""
        self._depth = ReadAheadDepth(workers)
        self._start_processes(fill, context or multiprocessing.get_context())
        self._poll = select.poll()
        # A process that dies sends no answer: its sentinel ends the wait.
        for descriptor in (self._results.fileno(), *(process.sentinel for process in self.processes)):
            self._poll.register(descriptor, select.POLLIN)
        if pin:
            page_lock(self.slots.memory)

    def _start_processes(self, fill: FillBatch, context: BaseContext) -> None:
        """Start the loader processes, each at the other ends of our two sockets."""
        self._tasks, task_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._results, result_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._tasks, result_end):
            # By default a socket need not hold MAX_QUEUED_TASKS.
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_BYTES)
        forked = context.get_start_method() == "fork"
        # A forked child has this process's ends too: if it kept them, it would not see this process end.
        ours, slots = (self._tasks, self._results) if forked else (), self.slots

        def make(number: int) -> BaseProcess:
            work = (number, fill, slots, task_end, result_end, ours)
            made: BaseProcess = context.Process(target=_work, args=work, name=f"loader {number}", daemon=True)  # type: ignore[attr-defined]
            return made

        self._started = LoaderProcesses(make, slots.begun[: self.workers], (task_end, result_end), forked=forked)
        # Before multiprocessing's own exit handler, which asks with SIGTERM and then waits.
        self._close = util.Finalize(self, _shut_down, (self._started, self._tasks, self._results), exitpriority=10)
        try:
            self._started.start()
        except BaseException:  # after Ctrl-C, too
            self.close()
            raise

    @property
    def processes(self) -> list[BaseProcess]:
        """The loader processes."""
        return self._started.all

    @property
    def open(self) -> bool:
        """Whether the processes still run."""
        return self._close.still_active()

    def close(self) -> None:
        """End the processes. Batches that are still held stay valid."""
        self._close()

    def read(
        self, job: object, batches: Sequence[Indices], size: int
    ) -> Generator[tuple[torch.Tensor, list[BadImage]], None, None]:
        """Each batch's pixels, uint8 ``[N, size, size, 3]``, and its bad images, in order.

        Raises LoaderError naming a process that ended, ImageError as ``fill`` does.
        """
        begin, sent, coming = self._next, 0, UpcomingIndices(batches)
        self._next += len(batches)
        slot_of: dict[int, int] = {}
        try:
            for number, indices in enumerate(batches, begin):
                while self._left.get(number, 1):  # 1: not sent yet
                    while sent < len(batches) and self._free and self._queued < MAX_QUEUED_TASKS:
                        slot_of[begin + sent] = self._send(begin + sent, batches[sent], size, job, coming)
                        sent += 1
                    self._receive()
                del self._left[number]
                # Without a name: the slot is free once the consumer has let go of it.
                yield self._view(slot_of.pop(number), len(indices), size), sorted(self._bad.pop(number))
        finally:
            if self.open:
                self._cancel(slot_of)

    def _send(self, number: int, indices: Indices, size: int, job: object, coming: UpcomingIndices) -> int:
        slot = self._free.popleft()
        self.slots.indices(slot, len(indices))[:] = indices
        # Small enough that all processes share a batch, not more than a batch needs.
        step = max(min(IMAGES_PER_TASK, -(-len(indices) // (2 * self.workers))), -(-len(indices) // TASKS_PER_BATCH))
        firsts, ahead, asked = range(0, len(indices), step), self.slots.ahead(slot), 0
        self._left[number], self._bad[number] = len(firsts), []
        for first in firsts:
            last = min(first + step, len(indices))
            found = coming.take(last - first, self.workers * self._depth.images)
            ahead[asked : asked + len(found)] = found
            task = FillTask(number, slot, len(indices), first, last, size, (asked, asked + len(found)), job)
            asked += len(found)
            try:
                self._tasks.send(pickle.dumps(task))
            except ConnectionError:  # the receiver is gone
                raise self._end_of(self.processes) from None
        self._queued += len(firsts)
        return slot

    def _receive(self) -> None:
        """Wait for an answer, or until a process that has not begun is started again."""
        results = self._results.fileno()
        patience_s = self._started.patience_s
        ready = dict(self._poll.poll(None if patience_s is None else 1000 * patience_s))
        if not ready:
            self._start_again()
            return
        message = self._results.recv(MESSAGE_BYTES) if results in ready else b""
        if not message:  # some have ended; where all have, the socket is at its end too
            raise self._end_of([p for p in self.processes if p.sentinel in ready] or self.processes)
        batch, bad, error, waited_s, seconds = pickle.loads(message)
        self._depth.note(waited_s, seconds)
        self._queued -= 1
        self._left[batch] -= 1
        self._bad[batch] += bad
        if error is not None:
            raise error

    def _start_again(self) -> None:
        for old, new in self._started.start_again():
            self._poll.unregister(old.sentinel)
            self._poll.register(new.sentinel, select.POLLIN)

    def _end_of(self, processes: Sequence[BaseProcess]) -> LoaderError:
        """Close, and name the first of ``processes`` that has ended or, its sockets closed, is about to."""
        for process in processes:
            process.join(1.0)
        process = next((p for p in processes if p.exitcode is not None), processes[0])
        code = process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self.close()
        return LoaderError(
            f"{process.name} (process {process.pid}) {how}. Too little memory is the usual reason: "
            "give the job more, or write a smaller data.loader.workers.",
            killed=code == -signal.SIGKILL,
        )

    def _view(self, slot: int, images: int, size: int) -> torch.Tensor:
        pixels = self.slots.pixels(slot, images, size)
        self.given += 1
        if len(self._free) + len(self._left) < RESERVED_SLOTS:
            self.copied += 1
            self._free.append(slot)  # nothing is sent before the copy is made
            return torch.from_numpy(pixels.copy())
        # The tensor's storage holds the array, and the array's end frees the slot, in whatever thread.
        weakref.finalize(pixels, self._free.append, slot).atexit = False
        return torch.from_numpy(pixels)

    def _cancel(self, slot_of: dict[int, int]) -> None:
        """After a read that ended early: processes skip the tasks that they have not begun."""
        self.slots.oldest[0] = self._next
        while self._queued:
            # Nobody wants these tasks any more, nor their bad images.
            with contextlib.suppress(ImageError):
                self._receive()
        self._left.clear()
        self._bad.clear()
        self._free.extend(slot_of.values())


def _shut_down(processes: LoaderProcesses, *ends: socket.socket) -> None:
    for end in ends:
        end.close()
    processes.close()


# --- in a loader process ---


def _work(
    number: int,
    fill: FillBatch,
    slots: Slots,
    tasks: socket.socket,
    results: socket.socket,
    parents: Sequence[socket.socket],
) -> None:
    slots.begun[number] = 1
    for end in parents:
        end.close()
    # A terminal and Slurm signal all processes; the trainer answers, and needs batches until its checkpoint is written.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(ignored, signal.SIG_IGN)
    torch.set_num_threads(1)  # there are as many processes as cores
    raise_malloc_thresholds()
    gc.freeze()  # what torch has brought along is never garbage, and need not be looked through again and again
    with contextlib.suppress(ConnectionError):  # the parent has ended
        while message := tasks.recv(MESSAGE_BYTES):
            results.send(_answer(fill, slots, pickle.loads(message)))


def _answer(fill: FillBatch, slots: Slots, task: FillTask) -> bytes:
    bad: list[BadImage] = []
    error: Exception | None = None
    began, computed = time.perf_counter(), time.thread_time()
    try:
        if task.batch >= slots.oldest[0]:
            pixels = torch.from_numpy(slots.pixels(task.slot, task.images, task.size))
            indices = slots.indices(task.slot, task.images)
            ahead = slots.ahead(task.slot)[slice(*task.ahead)]
            bad = fill(task.job, indices, pixels, range(task.first, task.last), ahead)
    except ImageError as found:
        error = found
    except Exception:
        error = LoaderError(f"a loader process failed (process {os.getpid()}):\n{traceback.format_exc(limit=8)}")
    seconds = time.perf_counter() - began
    # Wall time less the thread's own: the time in which it waited.
    return pickle.dumps((task.batch, bad, error, seconds - (time.thread_time() - computed), seconds))
