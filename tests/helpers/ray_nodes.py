"""A Ray cluster of several nodes on this machine, for tests; told by lines on its standard input what to do.

``python ray_nodes.py HEAD [NODE …]``, each a JSON object of what ``Cluster.add_node`` takes. It prints the address.
``add JSON`` adds a node, ``remove`` takes the last one away as a power cut would; each is answered by a line.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import sys
import tempfile
from collections.abc import Callable
from typing import Any

ATTEMPTS = 8
"""Ray gives a node 30 s to start, which is short on a busy machine."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def insist(start: Callable[[], Any]) -> Any:
    """``start``, until it succeeds."""
    for attempt in range(ATTEMPTS):
        try:
            return start()
        except Exception as error:
            print(f"start {attempt + 1} of {ATTEMPTS}: {error}", file=sys.stderr, flush=True)
    raise RuntimeError("Ray's nodes do not start")


def main() -> None:
    from ray.cluster_utils import Cluster  # only now: it reads RAY_TMPDIR

    head, *others = (json.loads(text) for text in sys.argv[1:])

    def start() -> Cluster:
        # Ray itself takes no other port for the dashboard where somebody has the usual one.
        dashboard = {"include_dashboard": True, "dashboard_port": free_port()}
        return Cluster(initialize_head=True, head_node_args={**dashboard, **head})

    cluster = insist(start)
    nodes = [insist(functools.partial(cluster.add_node, **other)) for other in others]
    print(cluster.address, flush=True)
    try:
        for line in sys.stdin:
            word, _, rest = line.strip().partition(" ")
            if word == "add":
                nodes.append(insist(functools.partial(cluster.add_node, **json.loads(rest))))
            elif word == "remove":
                cluster.remove_node(nodes.pop(), allow_graceful=False)
            print("done", flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    # Of its own: Ray notes the address of its last cluster in this folder, for others to join.
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="rn", ignore_cleanup_errors=True) as folder:
        os.environ["RAY_TMPDIR"] = folder
        main()
