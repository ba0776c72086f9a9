"""The README's picture of a terminal: a real search, recorded in a pseudo terminal, drawn as SVG.

    python benchmarks/default_run.py --picture     runs the main command, stores the screen, draws it
    python benchmarks/terminal_picture.py          draws the stored screen again

The stored screen (``results/terminal_2cpu.json``) is the text that the terminal showed, colours included, when eight
trials had ended, with where it comes from. The study lies in a temporary folder, which command and screen call
``runs``. A test draws the screen again, and compares its words with those that the display writes today.
"""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import termios
from io import StringIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RAW = ROOT / "benchmarks" / "results" / "terminal_2cpu.json"
PICTURE = ROOT / "docs" / "pictures" / "terminal.svg"
COMMAND = ("python", "tune/run.py", "--space", "large_batch", "--study", "first", "--output", "runs")
COLUMNS, LINES, ENDED = 108, 50, 8
REDRAW = re.compile(r"(?:\r|\x1b\[2K|\x1b\[1A)*\x1b\[1A(?:\r|\x1b\[2K|\x1b\[1A)*")
"""What rich writes before it draws a table over the one before."""
CURSOR = re.compile(r"\x1b\[\?25[lh]|\x1b\[2K|\r")
SVG = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: {char_height}px;
line-height: {line_height}px; font-variant-east-asian: full-width; white-space: pre; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: arial, sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""rich's own, without its fonts from another server."""


def record(command: list[str]) -> str:
    """All that a terminal of ``COLUMNS`` × ``LINES`` gets from a command.

    Raises SystemExit with the end of it where the command fails, or SIGTERM asks this process to end.
    """
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    others = ("RAY_", "SLURM_", "NO_COLOR", "FORCE_COLOR", "COLORTERM", "COLUMNS", "LINES")
    env = {key: value for key, value in os.environ.items() if not key.startswith(others)}
    process = subprocess.Popen(command, cwd=ROOT, stdout=theirs, stderr=theirs, env={**env, "TERM": "xterm-256color"})
    os.close(theirs)
    decoder, parts = codecs.getincrementaldecoder("utf-8")(), list[str]()

    def cut(*_: object) -> None:
        raise SystemExit(f"the search was cut; it showed:\n{''.join(parts)[-3000:]}")

    before = signal.signal(signal.SIGTERM, cut)
    try:
        with contextlib.suppress(OSError):  # Linux: the other end is closed
            while data := os.read(ours, 65536):
                parts.append(decoder.decode(data))
        code = process.wait()
    finally:
        signal.signal(signal.SIGTERM, before)
        os.close(ours)
    text = "".join(parts)
    if code:
        raise SystemExit(f"the search failed with {code}:\n{text[-3000:]}")
    return text


def screen(text: str, ended: int) -> str:
    """The plan and the table below it, as they stood when the first ``ended`` trials had ended."""
    frames = REDRAW.split(text)
    plan, _, first = frames[0].partition("\x1b[?25l")
    for frame in [first, *frames[1:]]:
        words = CURSOR.sub("", frame).rstrip("\n")
        if f"{ended} of " in words and words.count("running") >= 2:
            return CURSOR.sub("", plan).rstrip("\n") + "\n\n" + words + "\n"
    raise SystemExit(f"no moment with {ended} ended trials and two running ones was drawn; run it again")


def draw(stored: dict[str, Any]) -> str:
    """A stored screen as SVG, with the command above it."""
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=stored["columns"], file=StringIO(), force_terminal=True, legacy_windows=False)
    console.print(Text.assemble(("$ ", "bold green"), (" ".join(stored["command"]), "bold")))
    for line in Text.from_ansi(stored["screen"].rstrip("\n")).split("\n", allow_blank=True):
        for part in line.divide(range(console.width, len(line), console.width)):  # as a terminal breaks lines
            console.print(part, soft_wrap=True)
    return console.export_svg(title="BigBatch", code_format=SVG, unique_id="bigbatch")


def take(text: str, provenance: dict[str, Any]) -> None:
    """Store the screen of a recorded main command, and draw it."""
    from store import store

    facts = {"benchmark": "terminal_picture", "command": COMMAND, "columns": COLUMNS, "ended": ENDED}
    store({**facts, "screen": screen(text, ENDED), "provenance": provenance}, RAW)
    main()


def main() -> None:
    PICTURE.write_text(draw(json.loads(RAW.read_text())), encoding="utf-8")
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
