"""Look at a running search as people do: what ``monitoring_overhead.py`` does to one of its arms."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

from processor_account import ProcessorAccount

ROOT = Path(__file__).resolve().parent.parent
POLL_S, ANSWER_S = 3.0, 10.0
"""The page's own pace, and how long an answer may take."""


class Spectators:
    """Look at a running search as people do, until they are told to stop."""

    def __init__(self, study: Path, account: ProcessorAccount | None) -> None:
        self._study, self._over, self._account = study, threading.Event(), account
        self.seen = {"states": 0, "reports": 0, "terminal_bytes": 0}
        self._thread = threading.Thread(target=self._browse, daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """The search has ended."""
        self._over.set()
        self._thread.join(60)

    def terminal(self, reader: int) -> None:
        """Read what the search draws, until it ends."""
        with contextlib.suppress(OSError):  # the other end is closed
            while content := os.read(reader, 65536):
                self.seen["terminal_bytes"] += len(content)

    def _browse(self) -> None:
        while not (self._study / "study.json").exists():
            if self._over.wait(0.2):
                return
        words = [sys.executable, "-m", "bigbatch", "watch", self._study.name, "--output", str(self._study.parent)]
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        words = self._account.counted(words) if self._account else words
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env) as server:
            assert server.stdout is not None
            url = next((line.strip() for line in server.stdout if line.strip().startswith("http://")), "")
            tag = ""
            while not self._over.wait(POLL_S):
                with contextlib.suppress(OSError, ValueError):
                    state = json.loads(answer(f"{url}state"))
                    self.seen["states"] += 1
                    if state["tag"] != tag:
                        answer(f"{url}report")
                        self.seen["reports"], tag = self.seen["reports"] + 1, state["tag"]
            server.terminate()


def answer(url: str) -> bytes:
    """What a server on this machine answers. Raises OSError."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=ANSWER_S) as response:
        content: bytes = response.read()
    return content
