"""Serve a live report on loopback, to whoever knows the token in its address.

Other users of a login node reach its loopback too, so the token is a part of each path. It is in no cookie, because
cookies are sent to every port of a host, and in no header: pages are told to send no referrer.
"""

from __future__ import annotations

import hmac
import secrets
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources

from bigbatch.tune.report.live_report import LiveReport

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
