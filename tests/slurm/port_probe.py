"""What a stranger gets from a port: ``python port_probe.py HOST PORT [TOKEN FILE]`` prints one JSON object.

Each port is asked in both languages that Ray speaks: HTTP paths and gRPC methods, all of them read-only.
"""

from __future__ import annotations

import http.client
import json
import sys
from pathlib import Path

PATHS = ("/", "/metrics", "/nodes?view=summary", "/api/jobs/", "/api/v0/tasks", "/api/job_agent/jobs/", "/api/version")
POSTS = ("/get_or_create_runtime_env", "/get_runtime_envs_info")
TIMEOUT_S = 1.5
METHODS = (
    "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "/ray.rpc.InternalKVGcsService/InternalKVKeys",
    "/ray.rpc.NodeManagerService/GetNodeStats",
    "/ray.rpc.ObjectManagerService/FreeObjects",
    "/ray.rpc.CoreWorkerService/GetCoreWorkerStats",
    "/ray.rpc.ReporterService/GetTraceback",
    "/opencensus.proto.agent.metrics.v1.MetricsService/Export",
    "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    "/grpc.health.v1.Health/Check",
)


def over_http(host: str, port: int, method: str, path: str, token: str | None) -> str | None:
    """Status and size of the answer, None where nobody speaks HTTP."""
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request(method, path, headers=headers, body=b"" if method == "POST" else None)
        answer = connection.getresponse()
        return f"{answer.status} {len(answer.read())} bytes"
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def over_grpc(host: str, port: int, token: str | None) -> dict[str, str]:
    """The status of each method, without those that the port does not have."""
    import grpc

    found = {}
    metadata = [("authorization", f"Bearer {token}")] if token else []
    with grpc.insecure_channel(f"{host}:{port}") as channel:
        for method in METHODS:
            call = channel.unary_unary(method, request_serializer=bytes, response_deserializer=bytes)
            try:
                found[method] = f"OK {len(call(b'', timeout=TIMEOUT_S, metadata=metadata))} bytes"
            except grpc.RpcError as error:
                found[method] = error.code().name
                if error.code().name == "UNAVAILABLE":
                    return {}  # no gRPC here
    return {method: code for method, code in found.items() if code != "UNIMPLEMENTED"}


def main() -> None:
    host, port = sys.argv[1], int(sys.argv[2])
    token = Path(sys.argv[3]).read_text() if len(sys.argv) > 3 else None
    if over_http(host, port, "GET", "/", token) is None:
        print(json.dumps(over_grpc(host, port, token)))
        return
    answers = {path: over_http(host, port, "GET", path, token) for path in PATHS}
    answers |= {path: over_http(host, port, "POST", path, token) for path in POSTS}
    print(json.dumps({path: answer for path, answer in answers.items() if answer and not answer.startswith("404")}))


if __name__ == "__main__":
    main()
