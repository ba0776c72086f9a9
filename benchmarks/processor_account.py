"""Processor seconds of a command and of all that it starts, also of daemons that outlive their parents.

Linux counts them by control group. Other work on the machine delays a command, but hardly changes what it computes:
where a machine is not idle, these seconds compare and wall times do not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
LEAVES_S = 20.0


class ProcessorAccount:
    """A control group of its own, version 1 (``cpuacct``) or 2; needs root. Raises OSError where none can be made."""

    def __init__(self) -> None:
        first = [GROUPS / name for name in ("cpuacct", "cpu,cpuacct") if (GROUPS / name).is_dir()]
        self._folder = (first[0] if first else GROUPS) / f"bigbatch-{os.getpid()}-{time.monotonic_ns()}"
        self._folder.mkdir()
        self._version = 1 if first else 2

    def counted(self, words: Sequence[str]) -> list[str]:
        """The command line that runs ``words`` within the group."""
        return ["/bin/sh", "-c", f'echo $$ >"{self._folder}/cgroup.procs" && exec "$@"', "sh", *words]

    def seconds(self) -> float:
        """Of all processes of the group until now, user and system."""
        if self._version == 1:
            return int((self._folder / "cpuacct.usage").read_text()) / 1e9
        lines = (self._folder / "cpu.stat").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("usage_usec")) / 1e6

    def of_processes(self) -> dict[tuple[int, int], tuple[str, float]]:
        """Of each process that lives now: its command line and its own seconds, by its number and start."""
        tick, found = os.sysconf("SC_CLK_TCK"), {}
        for number in (self._folder / "cgroup.procs").read_text().split():
            try:
                stat = Path("/proc", number, "stat").read_text().rpartition(")")[2].split()
                line = Path("/proc", number, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue  # it has ended
            found[int(number), int(stat[19])] = (line.strip(), (int(stat[11]) + int(stat[12])) / tick)
        return found

    def close(self) -> None:
        """Remove the group when its last process has left. Raises OSError if one stays."""
        until = time.monotonic() + LEAVES_S
        while (self._folder / "cgroup.procs").read_text().strip() and time.monotonic() < until:
            time.sleep(0.1)
        self._folder.rmdir()


def open_account() -> ProcessorAccount | None:
    """A group to count processor time; None where this user cannot make one."""
    try:
        return ProcessorAccount()
    except OSError:
        return None
