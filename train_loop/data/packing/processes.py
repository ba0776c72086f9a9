"""Shards written by several processes: tasks go out and counts of images come back, through a pipe each.

    this process ── ShardTask ──▶ a process
         ▲                            │ reads, converts, writes
         └── images done, or None ────┘   None: give me a task

Nothing is shared but the pipes, so a process that is killed at any moment leaves no lock behind, and a process whose
pipe has lost its other end has lost its parent and ends.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
import traceback
from collections import deque
from collections.abc import Generator, Sequence
from multiprocessing import connection, resource_tracker
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess

from bigbatch.train_loop.data.packing.shard import ShardTask, write_shard

End = connection.Connection
"""Of a pipe. A process sends None, a count of images or an error, and gets tasks."""
TELL_S = 0.2
"""Seconds between a process's counts."""
WAKE_S = 0.5
"""Seconds without news, at most."""


class PackFailed(RuntimeError):
    """The pack ended early. Finished shards are kept."""


def write_shards(tasks: Sequence[ShardTask], workers: int) -> Generator[int, None, None]:
    """Write all shards. Yields the number of images seen so far, several times a second.

    To be closed: processes that still write are killed then, as a shard takes minutes and half of one is worth nothing.

    Raises OSError as ``write_shard`` does, PackFailed where a process was killed or failed in another way.
    """
    context = multiprocessing.get_context("spawn")  # fork would copy Arrow's threads in an unknown state
    waiting, images = deque(tasks), 0
    processes: dict[End, BaseProcess] = {}
    try:
        for _ in range(min(workers, len(tasks))):
            end, process = _start(context)
            processes[end] = process
        while processes:
            ready = connection.wait(list(processes), WAKE_S)
            for end in [end for end in processes if end in ready]:
                try:
                    news = end.recv()
                    task = waiting.popleft() if news is None and waiting else None
                    if task:
                        end.send(task)
                except (EOFError, ConnectionError):
                    raise PackFailed(
                        "a process was killed (memory?); the same command goes on from the finished shards"
                    ) from None
                if isinstance(news, Exception):
                    raise news
                if news is not None:
                    images += news
                elif task is None:
                    end.close()
                    processes.pop(end).join()
            yield images
    finally:
        # All first: one that is joined before the others are killed would keep them writing.
        for process in processes.values():
            process.kill()
        for end, process in processes.items():
            process.join()
            end.close()


def _start(context: SpawnContext) -> tuple[End, BaseProcess]:
    here, there = context.Pipe()
    # daemon: it must not outlive this process, whose end would otherwise wait for it.
    process = context.Process(target=_work, args=(there,), daemon=True)
    # Ctrl-C on a terminal reaches all processes: this one answers it. Blocked before its first line, for good.
    resource_tracker.ensure_running()  # which would unblock it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        there.close()  # or this process would not see the other one end
    return here, process


# --- in a process of its own ---


def _work(end: End) -> None:
    with contextlib.suppress(EOFError, ConnectionError):  # there is nothing more to do, or the parent has ended
        while True:
            end.send(None)
            task = end.recv()
            try:
                _write(task, end)
            except OSError as error:
                end.send(error)
            except Exception:
                end.send(PackFailed(f"a process failed:\n{traceback.format_exc(limit=8)}"))


def _write(task: ShardTask, end: End) -> None:
    told, images = time.monotonic(), 0

    def count_image() -> None:
        nonlocal told, images
        images += 1
        if time.monotonic() - told >= TELL_S:
            end.send(images)
            told, images = time.monotonic(), 0

    write_shard(task, count_image)
    end.send(images)
