"""Called by ``ray start`` (RAY_START_HOOK) before it starts anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bigbatch.base import fork_server

FORKS = "ray-forks"
"""The server's socket, beside Ray's folder."""


_kept: list[object] = []
"""Holds the server: it ends when its standard input is closed, which happens when nothing refers to it."""


def before_start(parameters: Any, head: bool) -> None:
    """Make this node start its worker processes as forks of a process that has loaded torch.

    Start no ``ray://`` server on the head. Nobody uses it, and it takes a port and 100 MB. ``ray start`` has no option
    for this; its library understands a port of None.

    Args:
        parameters: Ray's parameters of this node.
    """
    parameters.ray_client_server_port = None
    from ray._private import services

    popen = services.ConsolePopen
    path = str(Path(parameters.temp_dir).with_name(FORKS))
    _kept.append(fork_server.launch(path))

    def start(command: list[str], *args: object, **more: object) -> object:
        return popen(fork_server.instead_of_python(command, path), *args, **more)

    services.ConsolePopen = start
