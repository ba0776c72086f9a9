"""Ask Ray's GCS from a separate process: ``python -m bigbatch.cluster.node.gcs watch``, ``… drain REASON IP`` and
``… gone REASON IP``.

So the job itself does not load Ray. Address and token come from the environment.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

POLL_S = 0.2
ANSWER_TIMEOUT_S = 5
DRAIN_DEADLINE_S = 30
PREEMPTION = 2  # autoscaler.proto: DRAIN_NODE_REASON_PREEMPTION
LOST = 2  # common.proto: NodeDeathInfo.UNEXPECTED_TERMINATION


def watch() -> int:
    """Print the numbers of living nodes, their CPUs and their GPUs whenever they change, until this process ends."""
    client, last = _client(), ""
    # A killed job cannot end this process. But from then on its parent is process 1.
    while os.getppid() != 1:
        try:
            nodes = living_nodes(client).values()
        except Exception:  # Ray passes any error of its transport on; the head's step reports whether the head is dead
            time.sleep(POLL_S)
            continue
        totals = [dict(node.resources_total) for node in nodes]
        cpus, gpus = (int(sum(total.get(kind, 0) for total in totals)) for kind in ("CPU", "GPU"))
        seen = f"{len(totals)} {cpus} {gpus}"
        if seen != last:
            print(seen, flush=True)
            last = seen
        time.sleep(POLL_S)
    return 0


def drain(reason: str, address: str) -> int:
    """Tell Ray that the node at ``address`` will leave: it places nothing new there, and training saves itself."""
    client = _client()
    for node_id, node in living_nodes(client).items():
        if node.node_manager_address == address:
            client.drain_node(node_id.hex(), PREEMPTION, reason, int((time.time() + DRAIN_DEADLINE_S) * 1000))
    return 0


def gone(reason: str, address: str) -> int:
    """Tell Ray that the node at ``address`` has ended: what ran there fails at once.

    Ray itself finds that after 15 s if the node still answers, and after 65 s if it is frozen or without power.
    """
    from ray._private.grpc_utils import init_grpc_channel  # with the job's token
    from ray.core.generated import common_pb2, gcs_service_pb2, gcs_service_pb2_grpc

    head = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(init_grpc_channel(os.environ["RAY_ADDRESS"]))
    death = common_pb2.NodeDeathInfo(reason=LOST, reason_message=reason)
    for node_id, node in living_nodes(_client()).items():
        if node.node_manager_address == address:
            request = gcs_service_pb2.UnregisterNodeRequest(node_id=bytes.fromhex(node_id.hex()), node_death_info=death)
            head.UnregisterNode(request, timeout=ANSWER_TIMEOUT_S)
    return 0


def living_nodes(client: Any) -> dict[Any, Any]:
    """Ray's id → facts of each living node."""
    nodes = client.get_all_node_info(timeout=ANSWER_TIMEOUT_S)
    return {node_id: node for node_id, node in nodes.items() if node.state == 0}  # gcs.proto: GcsNodeInfo.ALIVE


def _client() -> Any:
    """Ray's own client (``GcsClient``), a private name; all others are in train_loop/launch, which is not for here."""
    import ray

    return ray._raylet.GcsClient(address=os.environ["RAY_ADDRESS"])


def main(argv: list[str]) -> int:
    """Run the command. Returns the exit code."""
    command, *words = argv
    return watch() if command == "watch" else {"drain": drain, "gone": gone}[command](*words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
