"""A Ray cluster of several nodes on this machine, for tests; told by lines on its standard input what to do.

``python ray_nodes.py HEAD [NODE …]``, each a JSON object of what ``Cluster.add_node`` takes. It prints the address.
``add JSON`` adds a node, ``remove`` takes the last one away as a power cut would; each is answered by a line.
"""

from __future__ import annotations

import json
import sys

from ray.cluster_utils import Cluster


def main() -> None:
    head, *others = (json.loads(text) for text in sys.argv[1:])
    cluster = Cluster(initialize_head=True, head_node_args={"include_dashboard": True, **head})
    nodes = [cluster.add_node(**other) for other in others]
    print(cluster.address, flush=True)
    try:
        for line in sys.stdin:
            word, _, rest = line.strip().partition(" ")
            if word == "add":
                nodes.append(cluster.add_node(**json.loads(rest)))
            elif word == "remove":
                cluster.remove_node(nodes.pop(), allow_graceful=False)
            print("done", flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
