"""Called by ``ray start`` (RAY_START_HOOK) before it starts anything."""

from __future__ import annotations

from typing import Protocol


class RayParameters(Protocol):
    """What is used here of Ray's own parameters of a node."""

    ray_client_server_port: int | None


def without_client_server(parameters: RayParameters, head: bool) -> None:
    """Start no ``ray://`` server on the head. Nobody uses it, and it takes a port and 100 MB.

    ``ray start`` has no option for this; its library understands a port of None.
    """
    parameters.ray_client_server_port = None
