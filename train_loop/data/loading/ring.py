"""A ring of batch slots in shared memory, and the loader processes that write images into them.

    this process ── Task (slot, places) ──▶ one socket that all loader processes take from
         ▲                                          │ decode, resize, write into the slot
         └────────── Answer (batch, error) ◀────────┘

Pixels never cross a pipe: a batch is a view of its slot, and the slot is reused when no tensor refers to it any more.
No lock and no semaphore is shared, so a process that is killed at any moment leaves none of them locked: the sockets
keep whole messages (SOCK_SEQPACKET). The memory has no name (memfd): it is freed with the last process that maps it,
however that process ends. Loader processes end when their socket is closed, so after their parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import mmap
import multiprocessing
import os
import pickle
import select
import signal
import socket
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing import util
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bigbatch.train_loop.data.loading.counts import memory_per_rank_bytes, slot_count
from bigbatch.train_loop.data.loading.upload import page_lock
from bigbatch.train_loop.errors import ImageError, LoaderError

RESERVED_SLOTS = 2
"""Slots that the consumer never holds. If it holds all others, further batches are copied, so reading never waits."""
IMAGES_IN_SLOTS = 16
"""Images for each process, over all slots: enough that it does not wait while a small batch is consumed."""
IMAGES_PER_TASK = 16
TASKS_PER_BATCH = 32
MAX_QUEUED_TASKS = 128
"""The most tasks that wait: they must fit a socket's buffer, or sender and receiver would wait for each other."""
MESSAGE_BYTES = 1 << 18
PAGE = mmap.PAGESIZE
IMAGES_AHEAD = 256
"""Images that each process asks the system for before any process reads them: at most 28 MB of ImageNet's files."""
MAX_TASKS_ASKED_AT_ONCE = 2
"""A task asks for at most this many times its own images, so that distant images do not delay near ones."""
BEGIN_S = 60.0
"""Seconds until a process must have begun. CPython below 3.11.10 copies a lock that another thread holds at the fork,
and the child waits for it for ever (python/cpython#112275)."""

KEPT_FREE_BYTES = 32 << 20
"""Keep at most this much free memory at the end of the heap: an RGB image of 10 million pixels."""

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_USER_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")

Indices = npt.NDArray[np.int64]
FillBatch = Callable[[Any, Indices, torch.Tensor, range, Indices], None]
"""Writes the images of some places: what is read (a job), the batch's indices, its pixels, the places, and the indices
of images to ask the system for."""


def ring_is_supported() -> bool:
    """Whether this system supports the ring: Linux does, macOS does not."""
    return hasattr(os, "memfd_create") and hasattr(socket, "SOCK_SEQPACKET")


class UpcomingIndices:
    """The indices of a read, in the order in which the system is asked for their images.

    Files are read by all processes of a node through one memory (the page cache), so a process asks for images that
    any of them may read.
    """

    def __init__(self, batches: Sequence[Indices]) -> None:
        self._left = itertools.chain.from_iterable(batches)
        self._ahead = 0

    def take(self, images: int, ahead: int) -> Indices:
        """The indices to ask for before the next ``images`` are read, so that the system also knows ``ahead`` more.

        At most ``MAX_TASKS_ASKED_AT_ONCE`` times ``images``.
        """
        count = max(min(images + ahead - self._ahead, MAX_TASKS_ASKED_AT_ONCE * images), 0)
        found = np.fromiter(itertools.islice(self._left, count), np.int64)
        self._ahead += len(found) - images
        return found


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
    """Begin and end, in the slot's ``ahead``, of the indices that this task asks the system for."""
    job: object


class Slots:
    """The shared memory: a page that says which processes have begun, then the slots."""

    def __init__(self, count: int, images: int, image_bytes: int) -> None:
        self.count, self.images, self.image_bytes = count, images, image_bytes
        self._index_bytes = _index_bytes(images)
        self.slot_bytes = slot_bytes(images, image_bytes)
        self.bytes = PAGE + count * self.slot_bytes
        # CLOEXEC: programs that this process starts must not keep the memory.
        descriptor = os.memfd_create("bigbatch-loader", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, self.bytes)
            # All other arrays are views of this one. A weak reference to it is called before the mapping is gone.
            self.memory = np.frombuffer(mmap.mmap(descriptor, self.bytes), np.uint8)
        finally:
            os.close(descriptor)
        self.begun = self.memory[:PAGE]

    def indices(self, slot: int, images: int) -> Indices:
        """The indices of a batch of ``images`` in a slot, int64 ``[images]``, shared with all processes."""
        begin = self._begin(slot)
        return self.memory[begin : begin + 8 * images].view(np.int64)

    def ahead(self, slot: int) -> Indices:
        """Indices of images that some process reads later. The slot's tasks ask for them."""
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
        fill: called in the loader processes, which are forks.
        images: the most images of a batch.
        pin: page-lock the slots if CUDA is in use.
    """

    def __init__(self, fill: FillBatch, workers: int, images: int, size: int, pin: bool = False) -> None:
        needed, image_bytes = RESERVED_SLOTS + -(-IMAGES_IN_SLOTS * workers // images), size * size * 3
        count = slot_count(needed, slot_bytes(images, image_bytes), memory_per_rank_bytes())
        self.workers = workers
        self.slots = Slots(count, images, image_bytes)
        self._free = deque(range(self.slots.count))
        self._queued = 0
        self._next = 0
        self._left: dict[int, int] = {}
        """Batch → number of its tasks that are not answered yet."""
        self.given = self.copied = 0
        """Batches so far, and how many were copied because the consumer held too many slots."""
        self._start_processes(fill)
        self._poll = select.poll()
        # A process that dies sends no answer: its sentinel ends the wait.
        for descriptor in (self._results.fileno(), *(process.sentinel for process in self.processes)):
            self._poll.register(descriptor, select.POLLIN)
        if pin:
            page_lock(self.slots.memory)

    def _start_processes(self, fill: FillBatch) -> None:
        """Start the loader processes, each at the other ends of our two sockets."""
        self._tasks, task_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._results, result_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._tasks, result_end):
            # By default a socket need not hold MAX_QUEUED_TASKS.
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_BYTES)
        context, ours = multiprocessing.get_context("fork"), (self._tasks, self._results)
        self.processes: list[BaseProcess] = []
        # Before multiprocessing's own exit handler, which asks with SIGTERM and then waits.
        self._close = util.Finalize(self, _shut_down, (self.processes, ours), exitpriority=10)
        try:
            for number in range(self.workers):
                work = (number, fill, self.slots, task_end, result_end, ours)
                process = context.Process(target=_work, args=work, name=f"loader {number}", daemon=True)
                process.start()
                self.processes.append(process)
        except BaseException:  # after Ctrl-C, too
            self.close()
            raise
        finally:
            task_end.close()
            result_end.close()

    @property
    def open(self) -> bool:
        """Whether the processes still run."""
        return self._close.still_active()

    def close(self) -> None:
        """End the processes. Batches that are still held stay valid."""
        self._close()

    def read(self, job: object, batches: Sequence[Indices], size: int) -> Iterator[torch.Tensor]:
        """Each batch's pixels, uint8 ``[N, size, size, 3]``, in order. Whoever leaves early must close the ring.

        Raises LoaderError naming a process that ended, ImageError as ``fill`` does.
        """
        begin, sent, coming = self._next, 0, UpcomingIndices(batches)
        self._next += len(batches)
        slot_of: dict[int, int] = {}
        for number, indices in enumerate(batches, begin):
            while self._left.get(number, 1):  # 1: not sent yet
                while sent < len(batches) and self._free and self._queued < MAX_QUEUED_TASKS:
                    slot_of[begin + sent] = self._send(begin + sent, batches[sent], size, job, coming)
                    sent += 1
                self._receive()
            del self._left[number]
            # Without a name: the slot is free once the consumer has let go of it.
            yield self._view(slot_of.pop(number), len(indices), size)

    def _send(self, number: int, indices: Indices, size: int, job: object, coming: UpcomingIndices) -> int:
        slot = self._free.popleft()
        self.slots.indices(slot, len(indices))[:] = indices
        # Small enough that all processes share a batch, not more than a batch needs.
        step = max(min(IMAGES_PER_TASK, -(-len(indices) // (2 * self.workers))), -(-len(indices) // TASKS_PER_BATCH))
        firsts, ahead, asked = range(0, len(indices), step), self.slots.ahead(slot), 0
        self._left[number] = len(firsts)
        for first in firsts:
            last = min(first + step, len(indices))
            found = coming.take(last - first, self.workers * IMAGES_AHEAD)
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
        """Wait for an answer."""
        results = self._results.fileno()
        # Wait without limit once all have begun: storage may answer late.
        ready = dict(self._poll.poll(None if self._have_begun() else 1000 * BEGIN_S))
        if not ready:
            if self._have_begun():
                return
            self.close()
            raise LoaderError(
                "a loader process did not begin. Repeat the command, write data.loader.workers=0, or use Python "
                "3.11.10 or newer (python/cpython#112275)."
            )
        message = self._results.recv(MESSAGE_BYTES) if results in ready else b""
        if not message:  # some processes have ended; if all have, the socket has, too
            raise self._end_of([p for p in self.processes if p.sentinel in ready] or self.processes)
        batch, error = pickle.loads(message)
        self._queued -= 1
        self._left[batch] -= 1
        if error is not None:
            raise error

    def _have_begun(self) -> bool:
        return bool(self.slots.begun[: self.workers].all())

    def _end_of(self, processes: Sequence[BaseProcess]) -> LoaderError:
        """Close, and name the first of ``processes`` that has ended, or soon will because its sockets are closed."""
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
        # The tensor's storage holds the array. When the array is freed, in any thread, the slot is free.
        weakref.finalize(pixels, self._free.append, slot).atexit = False
        return torch.from_numpy(pixels)


def _shut_down(processes: Sequence[BaseProcess], ends: Sequence[socket.socket]) -> None:
    for end in ends:
        end.close()
    for process in processes:
        process.kill()  # they only read files
    for process in processes:
        # Not for ever: a process that waits for a dead file system does not die.
        process.join(5.0)


# --- in a loader process ---


@cache
def raise_malloc_thresholds() -> None:
    """Tell this process's allocator to keep up to ``KEPT_FREE_BYTES``, unless it is not glibc's or the user has set its
    parameters (mallopt(3)). By default large blocks go back to the system, and the next image's pages are mapped anew.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # none in musl and macOS
    if mallopt is None or any(name in os.environ for name in _USER_SETTINGS):
        return
    # glibc raises the two thresholds by itself when blocks are freed, up to the largest block so far. Setting one stops
    # that for both, so this sets both. glibc accepts at most 32 MB as the threshold for mapping.
    for parameter, value in ((_MMAP_THRESHOLD, 1), (_TRIM_THRESHOLD, 1), (_TOP_PAD, 8)):
        mallopt(parameter, KEPT_FREE_BYTES // value)


def _work(
    number: int,
    fill: FillBatch,
    slots: Slots,
    tasks: socket.socket,
    results: socket.socket,
    parents: Sequence[socket.socket],
) -> None:
    slots.begun[number] = 1
    for end in parents:  # with these open, this process would not notice its parent's end
        end.close()
    # A terminal and Slurm signal all processes; the trainer answers, and needs batches until its checkpoint is written.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(ignored, signal.SIG_IGN)
    torch.set_num_threads(1)  # there are as many processes as cores
    raise_malloc_thresholds()
    gc.freeze()  # torch's own objects are never garbage, so the collector need not search them
    with contextlib.suppress(ConnectionError):  # the parent has ended
        while message := tasks.recv(MESSAGE_BYTES):
            task = pickle.loads(message)
            results.send(pickle.dumps((task.batch, _error_of(fill, slots, task))))


def _error_of(fill: FillBatch, slots: Slots, task: FillTask) -> Exception | None:
    try:
        pixels = torch.from_numpy(slots.pixels(task.slot, task.images, task.size))
        indices = slots.indices(task.slot, task.images)
        ahead = slots.ahead(task.slot)[slice(*task.ahead)]
        fill(task.job, indices, pixels, range(task.first, task.last), ahead)
    except ImageError as error:
        return error
    except Exception:
        return LoaderError(f"a loader process failed (process {os.getpid()}):\n{traceback.format_exc(limit=8)}")
    return None
