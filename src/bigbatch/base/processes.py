"""End the processes that were started here, and no others: descendants found in /proc, never by name.

Ray's processes change their parents and groups. A process that adopts its orphans (Linux) keeps them as descendants, so
that ending all descendants ends everything.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
PROC = Path("/proc")


def adopt_orphans() -> None:
    """From now on, orphaned descendants become children of this process, not of init."""
    with contextlib.suppress(OSError, AttributeError):  # without it, ending the process group must suffice
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(of: int) -> list[int]:
    """Living processes below ``of``, parents before children."""
    children: dict[int, list[int]] = {}
    for pid, fields in _stats():
        # A zombie has ended, and nothing can end it again.
        if fields[0] != "Z":
            children.setdefault(int(fields[1]), []).append(pid)
    found, queue = [], [of]
    while queue:
        below = children.get(queue.pop(0), [])
        found += below
        queue += below
    return found


def end_descendants(grace_s: float) -> list[int]:
    """Send SIGTERM to every descendant of this process, and SIGKILL after ``grace_s``. Returns the killed ones."""
    alive = descendants(os.getpid())
    _send(alive, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while alive and time.monotonic() < deadline:
        time.sleep(0.05)
        reap()
        alive = descendants(os.getpid())
    killed = list(alive)
    for _ in range(20):  # a dying parent may just have started another process
        if not alive:
            break
        _send(alive, signal.SIGKILL)
        time.sleep(0.05)
        reap()
        alive = descendants(os.getpid())
    return killed


def reap(keep: Sequence[int] = ()) -> None:
    """Collect adopted orphans that have ended, except children in ``keep``: someone else waits for those."""
    for pid, fields in _stats():
        if fields[0] == "Z" and int(fields[1]) == os.getpid() and pid not in keep:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


TITLE = "ray::"
"""How the command lines of Ray's agents and workers begin."""


def end_processes_of(folder: Path, program: str = "", grace_s: float = 2.0) -> None:
    """End this user's Ray processes whose command line names a file in ``folder``. Other readers are left alone.

    Ray's agents replace their command line by a title. They are known by that title and their open logs.
    ``program``: end only processes whose command line contains it.
    """

    def of_ray() -> list[int]:
        lines = {pid: _command_line(pid) for pid in _own_pids()}
        found = [pid for pid, line in lines.items() if f"{folder}/" in line]
        # The folder's own name may contain the word.
        named = [pid for pid in found if re.search(r"\bray\b", lines[pid].replace(str(folder), ""))]
        titled = [pid for pid, line in lines.items() if line.startswith(TITLE) and _has_open(pid, folder)]
        return [pid for pid in (*named, *titled) if program in lines[pid]]

    _send(of_ray(), signal.SIGTERM)
    if not wait_until(lambda: not of_ray(), grace_s):
        _send(of_ray(), signal.SIGKILL)
        wait_until(lambda: not of_ray(), grace_s)


def signal_group(leader: int, number: int) -> None:
    """Signal the process group that ``leader`` leads, if it is still there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def wait_until(condition: Callable[[], bool], timeout_s: float, poll_s: float = 0.05) -> bool:
    """Poll until ``condition`` holds. Returns whether it held in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(poll_s)
    return True


RAY_THREADS, HEAD_THREADS = 150, 300
"""The least limit ``ulimit -u`` with which Ray works, on a node and on the head: with 2 CPUs and no work, Ray 2.60 has
about 100 and 350 threads, and each thread counts. Beyond the limit its processes end without a message."""


NOT_FOR_RAY = ("PYTHONWARNINGS", "PYTHONOPTIMIZE")
"""Variables of the user's Python that Ray's processes must not have. With ``error``, or with ``2``, which removes
docstrings, the dashboard of Ray 2.60 does not start, and so Ray does not start."""


LEAST_FILES = 128
"""With 2 CPUs and no work, Ray 2.60 opens 80 files in one process. With fewer, its start waits for minutes."""


def check_limits(threads: int) -> None:
    """Raise this process's limits of open files and of processes and threads, if they are too low for Ray.

    Raises OSError, in one line, if they cannot be raised far enough. Ray needs ``threads`` threads; root has no limit.
    """
    needs = [(resource.RLIMIT_NOFILE, LEAST_FILES, "open files", "-n")]
    # Trials will have threads, too, and nobody knows how many: so raise this limit as far as possible.
    needs += [(resource.RLIMIT_NPROC, threads, "processes and threads", "-u")] if os.geteuid() else []
    for which, least, what, option in needs:
        limit, most = resource.getrlimit(which)
        if limit not in (most, resource.RLIM_INFINITY) and (limit < least or option == "-u"):
            resource.setrlimit(which, (most, most))
            limit = most
        if limit != resource.RLIM_INFINITY and limit < least:
            raise OSError(
                f"Ray needs at least {least} {what} on {os.uname().nodename}; got {limit} (ulimit {option}). "
                f"Raise it in the shell that starts or submits this: ulimit {option} {10 * least}."
            )


def _send(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _stats() -> list[tuple[int, list[str]]]:
    """Every process's state and parent, as the fields of /proc/PID/stat after the name."""
    found = []
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                # A process's name stands in brackets, and may hold spaces and brackets itself.
                found.append((int(entry.name), (entry / "stat").read_text().rpartition(")")[2].split()))
    return found


def _own_pids() -> list[int]:
    found = []
    for entry in PROC.iterdir():
        try:
            if entry.name.isdigit() and int(entry.name) != os.getpid() and entry.stat().st_uid == os.getuid():
                found.append(int(entry.name))
        except OSError:
            pass
    return found


def _has_open(pid: int, folder: Path) -> bool:
    """Whether a process has a file in ``folder`` open."""
    try:
        descriptors = list((PROC / str(pid) / "fd").iterdir())
    except OSError:  # it has ended
        return False
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            if os.readlink(descriptor).startswith(f"{folder}/"):
                return True
    return False


def _command_line(pid: int) -> str:
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
