"""Find hung nodes: their heartbeat stops while those of others continue."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from bigbatch.base import waits

HUNG_S = float(os.environ.get("BIGBATCH_HUNG_S") or waits.HUNG_S)
HEARTBEAT_S = min(waits.HEARTBEAT_S, HUNG_S / 4)


class Heartbeats:
    """Remembers when each node's heartbeat last changed. Call ``hung`` often."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}

    def hung(self, beats: Mapping[str, int], limit_s: float = HUNG_S) -> list[str]:
        """Nodes that have reported once and whose heartbeat has stopped while others continue.

        If all have stopped, the shared file system is the cause: a full quota, or a server that does not answer.

        Args:
            beats: each node's last heartbeat; 0: it has not reported yet.
            limit_s: without a heartbeat for this long a node is hung.
        """
        now = time.monotonic()
        for name, beat in beats.items():
            if name not in self._seen or self._seen[name][0] != beat:
                self._seen[name] = (beat, now)
        still = {name: now - self._seen[name][1] for name, beat in beats.items() if beat}
        if not any(seconds < limit_s / 2 for seconds in still.values()):
            return []
        return [name for name, seconds in still.items() if seconds > limit_s]
