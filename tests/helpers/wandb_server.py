"""A stand-in of W&B's server on loopback: the part of its protocol with which ``wandb sync`` uploads a run.

It keeps what it was sent. Like the real one, it puts the lines of a run's history where their offset says. While it is
cut off, it closes each connection without an answer.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class UploadedRun:
    """What the server has of a run."""

    config: dict = field(default_factory=dict)
    names: dict = field(default_factory=dict)
    """Variables of the latest UpsertBucket: displayName, groupName, …"""
    lines: dict[int, dict] = field(default_factory=dict)
    """Offset → line of the history."""
    exit_codes: list[int] = field(default_factory=list)

    @property
    def history(self) -> list[dict]:
        """The lines in order, from the first to the last; a gap is an error."""
        assert sorted(self.lines) == list(range(len(self.lines)))
        return [self.lines[offset] for offset in sorted(self.lines)]


class WandbServer:
    """Use it with ``with``. ``environment`` makes W&B's programs speak to it."""

    def __init__(self) -> None:
        self.runs: dict[str, UploadedRun] = {}
        self.starts: list[str] = []
        """Names of the runs in the order in which uploads of them began."""
        self.began_together = False
        self.cut = threading.Event()
        self.unknown: list[str] = []
        self._lock = threading.Lock()
        self._barrier: threading.Barrier | None = None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def environment(self) -> dict[str, str]:
        return {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": "0" * 40, "no_proxy": "127.0.0.1"}

    def begin_together(self, count: int) -> None:
        """Let each run's first request wait until ``count`` runs have begun, which uploads one by one never do."""
        self._barrier = threading.Barrier(count, timeout=60)

    def __enter__(self) -> WandbServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle(self) -> None:
                with contextlib.suppress(ConnectionError):  # a client that was ended
                    super().handle()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if server.cut.is_set():
                    self.close_connection = True
                    return
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                answer = server.answer(self.path, body)
                content = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_PUT = do_POST  # noqa: N815  # http.server's names

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        return Handler

    def answer(self, path: str, body: bytes) -> object:
        if path == "/graphql":
            return {"data": self._graphql(json.loads(body))}
        stream = re.fullmatch(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", path)
        if stream:
            self._take_lines(stream[1], json.loads(body))
        elif not path.startswith("/storage/"):
            self.unknown.append(path)
        return {}

    def _graphql(self, asked: dict) -> dict:
        query, given = asked["query"], asked.get("variables") or {}
        name = re.search(r"(?:query|mutation)\s+(\w+)", query)
        operation = name[1] if name else ""
        if operation == "UpsertBucket":
            return {"upsertBucket": self._upsert(given)}
        if operation == "CreateRunFiles":
            files = [{"name": one, "uploadUrl": f"{self.url}/storage/{one}"} for one in given["files"]]
            return {"createRunFiles": {"runID": "storage-id", "uploadHeaders": [], "files": files}}
        if operation == "Viewer":
            return {"viewer": {"id": "1", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}}
        if operation == "RunResumeStatus":
            lines = self.runs[given["name"]].lines if given["name"] in self.runs else None
            return {"model": {"bucket": None if lines is None else {"historyLineCount": len(lines)}}}
        self.unknown.append(operation)
        return {}

    def _upsert(self, given: dict) -> dict:
        is_new = given["name"] not in self.starts
        run = self._run(given["name"])
        with self._lock:
            self.starts.append(given["name"])
        if is_new and self._barrier is not None:
            self._barrier.wait()
            self.began_together = True
        with self._lock:
            if given.get("config"):
                run.config = json.loads(given["config"])
            run.names |= {key: value for key, value in given.items() if value}
        bucket = {
            "id": "storage-id", "name": given["name"], "displayName": given.get("displayName"), "sweepName": None,
            "historyLineCount": None, "config": "{}",
            "project": {"id": "1", "name": given.get("project") or "p", "entity": {"id": "1", "name": "me"}},
        }  # fmt: skip
        return {"bucket": bucket, "inserted": True}

    def _take_lines(self, name: str, sent: dict) -> None:
        run = self._run(name)
        with self._lock:
            part = (sent.get("files") or {}).get("wandb-history.jsonl")
            for number, line in enumerate(part["content"] if part else ()):
                run.lines[part["offset"] + number] = json.loads(line)
            if sent.get("complete"):
                run.exit_codes.append(sent.get("exitcode"))

    def _run(self, name: str) -> UploadedRun:
        with self._lock:
            return self.runs.setdefault(name, UploadedRun())
