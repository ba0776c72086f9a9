"""A report that is written again when its studies have changed, as long as somebody looks at it on a server here.

The server listens on loopback, and answers whoever knows the token in its address. Other users of a login node reach
its loopback too, so the token is a part of each path. It is in no cookie, because cookies are sent to every port of a
host, and in no header: pages are told to send no referrer.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path

from bigbatch.tune.storage.summary import who_runs

LOOKED_AT_S = 60.0
"""Nothing is written if no page has asked for this long, and two looks."""
MOST_SHARE = 0.01
"""While a study runs, writing takes at most this part of the time: its cores may be those of the search, login nodes
are shared, and a large study takes seconds."""
WATCHED = ("study.json", "optuna.journal", "trials.parquet", "frontier.json")
"""Files that change when a report would. The ledger, which changes every 10 s, is not among them."""


@dataclass(frozen=True)
class WrittenReport:
    """One version of the page."""

    tag: str
    """Of the studies' files; empty before the first version."""
    page: bytes = b""
    """As it is sent. Its figures and their script are compressed within it: to compress it again takes longer than it
    is worth."""
    written_at: str = ""
    """Date and time in UTC."""
    problem: str = ""
    """Why it could not be written again; empty if it could."""


class LiveReport:
    """The report of some studies, in a thread of its own.

    Args:
        make: writes the page of these folders, as UTF-8.
        every_s: how often the studies' files are looked at.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        make: Callable[[Sequence[Path]], bytes],
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folders, self._make, self._every_s, self._clock = folders, make, every_s, clock
        self._asked_at = clock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="live-report")
        self.latest = WrittenReport("")

    def start(self) -> None:
        """Begin with the first version."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the version that it writes now."""
        self._stop.set()
        self._thread.join(30)

    def state(self) -> bytes:
        """What a page asks for to learn whether there is a newer version, as JSON. Keeps the report alive."""
        self._asked_at = self._clock()
        latest = self.latest
        return json.dumps({"tag": latest.tag, "written_at": latest.written_at, "problem": latest.problem}).encode()

    def _run(self) -> None:
        self.look()  # counts for nothing: it loads modules too, and for that the page would be old for minutes
        next_at, running = self._clock(), self._running()
        while not self._stop.wait(self._every_s):
            if self._clock() < next_at and self._running() == running:  # the end of a search is seen at once
                continue
            began = self._clock()
            self.look()
            next_at = self._clock() + (self._clock() - began) * (1 / MOST_SHARE - 1)
            running = self._running()

    def _running(self) -> list[str]:
        return [who_runs(folder) for folder in self._folders]

    def look(self) -> None:
        """Write the report if somebody asks for it and the studies have changed."""
        if self._clock() - self._asked_at > LOOKED_AT_S + 2 * self._every_s:
            return
        tag = _tag(self._folders)
        if tag == self.latest.tag:
            return
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        try:
            self.latest = WrittenReport(tag, self._make(self._folders), now)
        except Exception as error:  # files that someone edits may hold anything; the version before stays
            before, reason = self.latest, " ".join(f"{type(error).__name__}: {error}".split())[:200]
            self.latest = WrittenReport(before.tag, before.page, before.written_at, reason)


def _tag(folders: Sequence[Path]) -> str:
    """A digest of the sizes and times of the studies' files, and of who runs them."""
    seen: list[tuple[str, object, object]] = []
    for folder in folders:
        seen.append((str(folder), bool(who_runs(folder)), 0))  # a killed driver changes no file
        for name in WATCHED:
            try:
                stat = (folder / name).stat()
            except OSError:
                seen.append((name, 0, 0))
                continue
            seen.append((name, stat.st_size, stat.st_mtime_ns))
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:16]


LOOPBACK = "127.0.0.1"
FRAME_FILE = "watch.html"
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; frame-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Of the page around the report. The report has a stricter one of its own."""


class WatchServer(ThreadingHTTPServer):
    """Answers ``/TOKEN/``, ``/TOKEN/report`` and ``/TOKEN/state``; everything else is not found.

    Args:
        port: 0: a free one.

    Raises OSError if the port is taken.
    """

    daemon_threads = True
    allow_reuse_address = False

    def __init__(self, live: LiveReport, port: int = 0) -> None:
        super().__init__((LOOPBACK, port), _WatchHandler)
        self.live = live
        self.token = secrets.token_urlsafe(24)
        self.frame = resources.files("bigbatch.tune.report").joinpath(FRAME_FILE).read_bytes()

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a reader that has gone, as a page does that is loaded again. Other errors are printed."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        """The page's address, with the token."""
        return f"http://{LOOPBACK}:{self.port}/{self.token}/"


class _WatchHandler(BaseHTTPRequestHandler):
    server: WatchServer
    # By default each answer tells Python's version.
    server_version, sys_version = "bigbatch", ""

    def do_GET(self) -> None:
        """Answer a request of the page."""
        _, _, rest = self.path.partition("?")[0].partition("/")
        token, slash, what = rest.partition("/")
        # A plain comparison takes the longer the more of a guess is right.
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            what = "unknown"
        if what == "" and not slash:  # the page's own addresses are relative
            self._send_to(f"/{token}/")
        elif what == "":
            self._answer(self.server.frame, "text/html; charset=utf-8", {"Content-Security-Policy": POLICY})
        elif what == "state":
            self._answer(self.server.live.state(), "application/json", {})
        elif what == "report" and self.server.live.latest.page:
            more = {"Content-Security-Policy": "frame-ancestors 'self'"}
            self._answer(self.server.live.latest.page, "text/html; charset=utf-8", more)
        else:
            self.send_error(404)

    def _send_to(self, path: str) -> None:
        self.send_response(301)
        for name, value in (("Location", path), ("Referrer-Policy", "no-referrer"), ("Content-Length", "0")):
            self.send_header(name, value)
        self.end_headers()

    def _answer(self, content: bytes, kind: str, headers: dict[str, str]) -> None:
        fixed = {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        self.send_response(200)
        for name, value in {**fixed, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: each line would hold the token."""
