"""Called by ``ray start`` (RAY_START_HOOK) before it starts anything."""

from __future__ import annotations

from typing import Protocol


class RayParameters(Protocol):
    """What is used here of Ray's own parameters of a node."""

    ray_client_server_port: int | None


def without_client_server(parameters: RayParameters, head: bool) -> None:
    """No ``ray://`` server on the head: nobody uses it, and it is one more port and 100 MB.

    ``ray start`` has no option for that; a port of None is what its library understands.
    """
    parameters.ray_client_server_port = None
