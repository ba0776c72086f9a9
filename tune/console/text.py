"""Texts for a terminal: paths as one would type them, rows in columns, and errors in one line."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bigbatch.base.command_line import DONE, WRONG_INPUT
from bigbatch.train_loop.config import ConfigError


def from_here(path: Path) -> Path:
    """The path as a user would type it in the current folder."""
    with contextlib.suppress(ValueError, OSError):
        return path.relative_to(Path.cwd())
    return path


def aligned(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Rows of texts in columns. A name that breaks a line has "?" in place of the break, so a row is one line.

    Args:
        right: the columns that are aligned to the right.
    """
    rows = [["?".join(text.splitlines()) for text in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            text.rjust(width) if column in right else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join(lines)


def said_in_one_line(prog: str, run: Callable[[], None]) -> int:
    """Run a command, and report a ConfigError in one line. Returns the exit code."""
    try:
        run()
    except ConfigError as error:
        print(f"{prog}: error: {error}", file=sys.stderr)
        return WRONG_INPUT
    return DONE
