"""Check ``--metrics-port``: whether Prometheus' port is free on this machine."""

from __future__ import annotations

import socket
from collections.abc import Callable

from bigbatch.train_loop.config import ConfigError


def check_metrics_port(port: int | None, address: str, sweep: Callable[[], None] = lambda: None) -> None:
    """Raise ConfigError if a search with its own Ray could not show its metrics at this port of loopback.

    The nodes of another cluster have opened their ports already.

    Args:
        port: None: none was asked for.
        address: the value of ``--address``.
        sweep: ends what killed searches have left behind: it may be what holds the port.
    """
    if port is None or address != "local":
        return
    try:
        _try(port)
    except OSError:
        sweep()
        try:
            _try(port)
        except OSError as error:
            raise ConfigError(
                f"--metrics-port must be a free port of this machine; got {port} ({error.strerror}). "
                f"Write another, e.g. {port + 1 if port < 65535 else port - 1}, or leave the option out."
            ) from None


def _try(port: int) -> None:
    """Raise OSError if nobody can listen there."""
    with socket.socket() as probe:
        # As servers do: connections of a search that has just ended must not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        probe.listen(1)
