"""Processes of the virtual cluster's nodes, looked at from the machine through /proc."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from virtual_config import CONTROLLER

DAEMONS = {"slurmctld", "slurmscriptd", "slurmd", "slurmstepd", "munged", "unshare"}
"""What root runs on every node; not what tests look for."""


class Listener(NamedTuple):
    """A TCP socket that waits for connections."""

    port: int
    address: str
    pid: int
    command: str


def listeners(text: str) -> list[Listener]:
    """From the output of ``ss -Htlnp``."""
    found = []
    for line in text.splitlines():
        address, port = line.split()[3].rsplit(":", 1)
        owner = re.search(r'\("(.*?)",pid=(\d+)', line)
        name, pid = (owner[1], int(owner[2])) if owner else ("", 0)
        found.append(Listener(int(port), address.strip("[]"), pid, name))
    return sorted(found)


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _command_line(pid: int) -> list[str]:
    """Empty for one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def _status(pid: int) -> dict[str, list[str]]:
    """The fields of /proc/PID/status, split; empty for one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.split() for name, _, value in (line.partition(":") for line in lines)}


def alive(pid: int) -> bool:
    return _status(pid).get("State", ["Z"])[0] not in "ZX"


def command(role: str, *arguments: object) -> list[str]:
    """Starts a role of virtual_init; without site packages, which take time to find."""
    script = Path(__file__).with_name("virtual_init.py")
    return [sys.executable, "-S", "-B", str(script), role, *map(str, arguments)]


def with_command(*arguments: str) -> int | None:
    """The process that was started as this role of virtual_init, or None."""
    wanted = command(*arguments)[1:]
    for pid in _pids():
        line = _command_line(pid)[1:]
        # ``unshare`` has the same words later in its own command line, and so has a child before its exec.
        if line[: len(wanted)] == wanted and _status(pid).get("NSpid", ["0"])[-1] in (str(pid), "1"):
            return pid
    return None


def init_of(folder: str, node: str) -> int | None:
    """Process 1 of a node, by its number on this machine; None when the node is off."""
    return with_command(CONTROLLER, folder) if node == CONTROLLER else with_command("node", folder, node)


def members(init: int) -> list[int]:
    """Every living process of the node whose process 1 this is."""
    return [pid for pid in _pids() if _namespace(pid) == _namespace(init) and alive(pid)]


def _namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


def signal_all(init: int, number: int, user: int | None = None) -> int:
    """Signal all processes of a node, or a user's; returns how many had not been stopped before.

    One that waits in the kernel (D) stops when it wakes: the parent of a child that was stopped in vfork never does.
    """
    moving = 0
    for pid in members(init):
        status = _status(pid)
        if not status or (user is not None and int(status["Uid"][0]) != user):
            continue
        moving += status["State"][0] not in "TD"
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
    return moving


def on_node(init: int, user: int | None = None) -> list[tuple[int, str]]:
    """(process id on the node, command line) of all but process 1 and the daemons."""
    found = []
    for pid in members(init):
        status, line = _status(pid), _command_line(pid)
        if pid == init or not status or (user is not None and int(status["Uid"][0]) != user):
            continue
        # Daemons that fork write over their command lines: "slurmstepd: [7.batch]", ": slurmscriptd".
        words = {os.path.basename(word.strip(":")) for word in " ".join(line[:1]).split()}
        if int(status["Uid"][0]) == 0 and words & DAEMONS:
            continue
        found.append((int(status["NSpid"][-1]), " ".join(line) or status["Name"][0]))
    return sorted(found)
