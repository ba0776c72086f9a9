"""Ask Ray's GCS from a separate process: ``python -m bigbatch.cluster.node.gcs watch``, ``… drain REASON IP…`` and
``… gone JOB REASON IP…``.

So the job itself does not load Ray. Address and token come from the environment.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from typing import Any

from bigbatch.cluster.node.node_status import RayNode

POLL_S = 0.2
ANSWER_TIMEOUT_S = 5
DRAIN_DEADLINE_S = 30
PREEMPTION = 2  # autoscaler.proto: DRAIN_NODE_REASON_PREEMPTION
LOST = 2  # common.proto: NodeDeathInfo.UNEXPECTED_TERMINATION


def watch() -> int:
    """Print the living nodes as a line of JSON whenever they change, until this process is ended."""
    client, last = _client(), None
    # A job that is killed cannot end this process. It is a child of process 1 from then on.
    while os.getppid() != 1:
        try:
            nodes = living_ray_nodes(client)
        except Exception:  # Ray raises whatever its transport raised; the head's step says if it is dead
            time.sleep(POLL_S)
            continue
        if nodes != last:
            print(json.dumps([asdict(node) for node in nodes]), flush=True)
            last = nodes
        time.sleep(POLL_S)
    return 0


def drain(addresses: list[str], reason: str) -> int:
    """Tell Ray that the nodes at ``addresses`` will leave: it places nothing new there, and training saves itself."""
    client = _client()
    by_address = {node.ip: node.id for node in living_ray_nodes(client)}
    for address in addresses:
        if address in by_address:
            deadline_ms = int((time.time() + DRAIN_DEADLINE_S) * 1000)
            client.drain_node(by_address[address], PREEMPTION, reason, deadline_ms)
    return 0


def gone(job: str, addresses: list[str], reason: str) -> int:
    """Tell Ray that the nodes of ``job`` at ``addresses`` have ended: what ran there fails at once.

    Ray itself finds that after 15 s if the node still answers, and after 65 s if it is frozen or without power. A Ray
    that lacks the private names is asked to drain the nodes.
    """
    client = _client()
    # With the label as well as the address: two jobs may have a node in common, and only this one's is gone.
    nodes = [node for node in living_ray_nodes(client) if node.ip in addresses and node.job == job]
    try:
        from ray._private.grpc_utils import init_grpc_channel  # with the job's token and certificates
        from ray.core.generated import common_pb2, gcs_service_pb2, gcs_service_pb2_grpc

        head = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(init_grpc_channel(os.environ["RAY_ADDRESS"]))
        death = common_pb2.NodeDeathInfo(reason=LOST, reason_message=reason)
    except (ImportError, AttributeError):
        return drain([node.ip for node in nodes], reason)
    for node in nodes:
        request = gcs_service_pb2.UnregisterNodeRequest(node_id=bytes.fromhex(node.id), node_death_info=death)
        head.UnregisterNode(request, timeout=ANSWER_TIMEOUT_S)
    return 0


def living_ray_nodes(client: Any) -> list[RayNode]:
    """The living nodes, sorted by id."""
    found = []
    for node_id, node in client.get_all_node_info(timeout=ANSWER_TIMEOUT_S).items():
        if node.state == 0:  # gcs.proto: GcsNodeInfo.ALIVE
            total = dict(node.resources_total)
            found.append(
                RayNode(
                    id=node_id.hex(),
                    ip=node.node_manager_address,
                    cpus=int(total.get("CPU", 0)),
                    gpus=int(total.get("GPU", 0)),
                    job=dict(node.labels).get("slurm_job", ""),
                )
            )
    return sorted(found, key=lambda node: node.id)


def _client() -> Any:
    """Ray's own client (``GcsClient``)."""
    import ray

    try:  # a private name of Ray; all others are in train_loop/launch, which this file cannot import
        return ray._raylet.GcsClient(address=os.environ["RAY_ADDRESS"])
    except AttributeError:
        sys.exit(f"error: a job needs Ray's GcsClient; Ray {ray.__version__} has none. Install Ray 2.60.")


def main(argv: list[str]) -> int:
    """Run the command. Returns the exit code."""
    if argv[:1] == ["gone"]:
        return gone(argv[1], argv[3:], argv[2])
    return drain(argv[2:], argv[1]) if argv[:1] == ["drain"] else watch()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
