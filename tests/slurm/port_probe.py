"""What somebody gets from a port: ``python port_probe.py HOST PORT METHODS TOKEN …`` prints one JSON object.

Each port is asked in both languages that Ray speaks: HTTP paths and gRPC methods. METHODS is a JSON file with the
gRPC methods and the bodies of their requests in hexadecimal (``everything``, ``harmless``). A TOKEN is ``none``, the
content of a file (``@FILE``), or the word itself; ``bare`` is none, and a request without the metadata of Ray's own.
An answer is a list, one status a token.
"""

from __future__ import annotations

import http.client
import json
import re
import sys
from pathlib import Path

PATHS = (
    *("/", "/metrics", "/nodes?view=summary", "/api/jobs/", "/api/v0/tasks", "/api/job_agent/jobs/", "/api/version"),
    "/api/gcs_healthz",
)
POSTS = ("/get_or_create_runtime_env", "/get_runtime_envs_info")
TIMEOUT_S = 1.5
BARE = "bare"
READ_ONLY = (
    "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "/ray.rpc.InternalKVGcsService/InternalKVKeys",
    "/ray.rpc.NodeManagerService/GetNodeStats",
    "/ray.rpc.CoreWorkerService/GetCoreWorkerStats",
    "/ray.rpc.ReporterService/GetTraceback",
    "/opencensus.proto.agent.metrics.v1.MetricsService/Export",
    "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    "/grpc.health.v1.Health/Check",
)
PULL = "/ray.rpc.ObjectManagerService/Pull"
PUSH = "/ray.rpc.ObjectManagerService/Push"
START_SYNC = "/ray.rpc.syncer.RaySyncer/StartSync"
SYNCER_METADATA = ("node_id", "f" * 56)
"""Which StartSync is sent with; Ray 2.60 ends itself where it is missing."""
BINARIES = ("core/src/ray/raylet/raylet", "core/src/ray/gcs/gcs_server", "_raylet.so")


def field(number: int, value: bytes) -> bytes:
    """A field of bytes, shorter than 128, as protobuf writes it."""
    return bytes([number << 3 | 2, len(value)]) + value


def transfers(node_id: bytes, object_id: bytes) -> dict[str, bytes]:
    """Requests that the object manager understands (object_manager.proto of Ray 2.60).

    Pull asks for the object to be sent to the node; Push brings a chunk of it, "x", which nobody has asked for.
    """
    owner = field(1, node_id)  # common.proto: Address
    data_size, metadata_size = bytes([6 << 3, 1]), bytes([7 << 3, 0])
    push = field(1, b"p" * 16) + field(2, object_id) + field(3, node_id) + field(4, owner)
    return {PULL: field(1, node_id) + field(2, object_id), PUSH: push + data_size + metadata_size + field(8, b"x")}


def harmless(node_id: bytes, object_id: bytes) -> dict[str, bytes]:
    """What may be asked of a cluster that is to live on."""
    return {**dict.fromkeys(READ_ONLY, b""), **transfers(node_id, object_id)}


def everything(ray_package: Path, node_id: bytes, object_id: bytes) -> dict[str, bytes]:
    """All gRPC methods that Ray's binaries name, also those that would end it; only transfers have a body."""
    named = set()
    for binary in BINARIES:
        text = (ray_package / binary).read_bytes()
        named |= {match.decode() for match in re.findall(rb"/ray\.rpc\.[A-Za-z.]+/[A-Za-z]+(?=\0)", text)}
    return {**dict.fromkeys(sorted(named), b""), **harmless(node_id, object_id)}


def over_http(host: str, port: int, method: str, path: str, token: str | None) -> str | None:
    """Status and size of the answer, None where nobody speaks HTTP."""
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        headers = {"Authorization": f"Bearer {token}"} if token not in (None, BARE) else {}
        connection.request(method, path, headers=headers, body=b"" if method == "POST" else None)
        answer = connection.getresponse()
        return f"{answer.status} {len(answer.read())} bytes"
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def over_grpc(host: str, port: int, methods: dict[str, bytes], token: str | None) -> dict[str, str]:
    """The status of each method, without those that the port does not have."""
    import grpc

    found = {}
    metadata = [("authorization", f"Bearer {token}")] if token not in (None, BARE) else []
    metadata += [SYNCER_METADATA] if token != BARE else []
    with grpc.insecure_channel(f"{host}:{port}") as channel:
        for method, body in methods.items():
            call = channel.unary_unary(method, request_serializer=bytes, response_deserializer=bytes)
            try:
                found[method] = f"OK {len(call(body, timeout=TIMEOUT_S, metadata=metadata))} bytes"
            except grpc.RpcError as error:
                found[method] = error.code().name
                if error.code().name == "UNAVAILABLE" and len(found) == 1:
                    return {}  # no gRPC here
                if [*found.values()] == ["DEADLINE_EXCEEDED"] * 3:
                    break  # nor here
    return {method: code for method, code in found.items() if code != "UNIMPLEMENTED"}


def ask(host: str, port: int, methods: dict[str, bytes], token: str | None) -> dict[str, str]:
    """The answers of one port to one asker, by path or method."""
    if over_http(host, port, "GET", "/", token) is None:
        return over_grpc(host, port, methods, token)
    answers = {path: over_http(host, port, "GET", path, token) for path in PATHS}
    answers |= {path: over_http(host, port, "POST", path, token) for path in POSTS}
    return {path: answer for path, answer in answers.items() if answer and not answer.startswith("404")}


def main() -> None:
    host, port, methods_file, *words = sys.argv[1:]
    methods = {name: bytes.fromhex(body) for name, body in json.loads(Path(methods_file).read_text()).items()}
    tokens = [Path(word[1:]).read_text() if word.startswith("@") else word for word in words]
    answers = [ask(host, int(port), methods, None if token == "none" else token) for token in tokens]
    print(json.dumps({name: [a.get(name, "nothing") for a in answers] for name in {**answers[0], **answers[-1]}}))


if __name__ == "__main__":
    main()
