"""Chromium without a window, driven by its DevTools protocol: what a page draws, says and asks the network for."""

import asyncio
import base64
import itertools
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp

from helpers.waiting import wait_until

LIMIT_S = 180.0
DRAWN = """new Promise((done) => { const look = setInterval(() => {
  const read = document.readyState === "complete";
  if (read && (document.documentElement.dataset.drawn || !document.querySelector("[data-figure]"))) {
    clearInterval(look); requestAnimationFrame(() => done(performance.now()));
  } }, 10); })"""
"""Milliseconds from the navigation until the page was read and every figure was drawn."""
EMPTY_FIGURES = """[...document.querySelectorAll("[data-figure]")].filter((slot) =>
  !slot.querySelector(".scatterlayer .point, .scatterlayer .js-line, .barlayer .point")).map((s) => s.dataset.figure)"""
"""The figures in which nothing is drawn: no mark, no line, no bar."""
WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
"""Pixels by which the page is wider than the window."""
CUT = """[...document.querySelectorAll("[data-figure] .main-svg")].filter((one) =>
  one.getBoundingClientRect().right > one.closest("figure").getBoundingClientRect().right + 1).length"""
"""Figures that reach out of their frame."""
OWN = ("file:", "data:", "blob:")


def chromium() -> str | None:
    """The program; None where there is none."""
    return next((path for name in ("chromium", "google-chrome") if (path := shutil.which(name))), None)


class Page:
    """One tab. Events are taken in while it waits for an answer."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, loop: asyncio.AbstractEventLoop) -> None:
        self._socket, self._loop, self._ids = socket, loop, itertools.count(1)
        self.errors: list[str] = []
        """What the page wrote into its console as an error, and what it threw."""
        self.requests: list[str] = []
        """The addresses that it asked for, but for its own file and what it carries in itself."""

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and wait for its answer."""
        return self._loop.run_until_complete(asyncio.wait_for(self._send(method, params), LIMIT_S))

    async def _send(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        number = next(self._ids)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async for message in self._socket:
            answer = json.loads(message.data)
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])
            self._take(answer.get("method", ""), answer.get("params", {}))
        raise ConnectionError("the browser has gone")

    def _take(self, event: str, about: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(about["exceptionDetails"])[:2000])
        elif event == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.errors.append(about["entry"]["text"])
        elif event == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(about["args"])[:2000])
        elif event == "Network.requestWillBeSent" and not about["request"]["url"].startswith(OWN):
            self.requests.append(about["request"]["url"])

    def evaluate(self, expression: str) -> Any:
        """The value of an expression; a promise is waited for."""
        found = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def look(self, width: int = 1280, height: int = 900, *, dark: bool = False, mobile: bool = False) -> None:
        """How wide the window is, and which look its owner prefers."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, path: Path) -> float:
        """Open a file and wait until its figures are drawn. Returns the milliseconds that this took."""
        self.send("Page.navigate", url=path.resolve().as_uri())
        return float(self.evaluate(DRAWN))

    def screenshot(self, path: Path, *, whole: bool = True, scale: float = 1.0) -> None:
        """Store what is seen, or the whole page, as PNG."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": scale} if whole else None
        picture = self.send("Page.captureScreenshot", captureBeyondViewport=whole, **({"clip": clip} if clip else {}))
        path.write_bytes(base64.b64decode(picture["data"]))

    def pdf(self, path: Path) -> None:
        """Print on A4."""
        size = {"paperWidth": 8.27, "paperHeight": 11.69, "marginLeft": 0.5, "marginRight": 0.5}
        path.write_bytes(base64.b64decode(self.send("Page.printToPDF", printBackground=True, **size)["data"]))


class _Connection:
    def __init__(self, port: int) -> None:
        self.loop = asyncio.new_event_loop()
        self._port = port

    def __enter__(self) -> Page:
        return self.loop.run_until_complete(self._connect())

    async def _connect(self) -> Page:
        self._session = aiohttp.ClientSession()
        async with self._session.get(f"http://127.0.0.1:{self._port}/json") as answer:
            pages = [one for one in await answer.json(content_type=None) if one["type"] == "page"]
        socket = await self._session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0)
        return Page(socket, self.loop)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.loop.run_until_complete(self._session.close())
        self.loop.close()


@contextmanager
def opened_browser() -> Iterator[Page]:
    """A tab of a new Chromium that ends with the block. Raises FileNotFoundError where there is none."""
    program = chromium()
    if program is None:
        raise FileNotFoundError("needs Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory(prefix="bb-browser-", ignore_cleanup_errors=True) as home:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
                 "--disable-dev-shm-usage", "--remote-debugging-port=0", f"--user-data-dir={home}"]  # fmt: skip
        process = subprocess.Popen(
            [program, *flags, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            noted = Path(home, "DevToolsActivePort")
            wait_until(lambda: noted.exists() and noted.read_text().strip() != "", "Chromium's port")
            with _Connection(int(noted.read_text().split()[0])) as page:
                for domain in ("Page", "Runtime", "Log", "Network"):
                    page.send(f"{domain}.enable")
                page.look()
                yield page
        finally:
            process.terminate()
            process.wait(LIMIT_S)
