"""Text of a search on a terminal: lines break between words, and go on under their own text.

Where the output is no terminal, lines stay as they are: whoever reads a file or a pipe breaks them as they like.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bigbatch.base.command_line import DONE, WRONG_INPUT
from bigbatch.train_loop.config import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

NARROWEST = 20
"""Characters that a line has beside its indent, however narrow the terminal is."""


def from_here(path: Path) -> Path:
    """The path as a user would type it in the current folder."""
    with contextlib.suppress(ValueError, OSError):
        return path.relative_to(Path.cwd())
    return path


def terminal_width() -> int | None:
    """Characters of a line of standard output; None if it is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def wrapped(text: str, width: int | None, first: str = "") -> str:
    """``text`` after ``first``, in lines of at most ``width`` characters; a longer word has a line of its own.

    Each line of the text goes on below its own beginning: after its indent, and after a first column that two spaces
    or more end.

    Args:
        width: None: lines are not broken.
        first: what stands before the first line, e.g. the key of a plan's line. The others are indented by its length.
    """
    lines = []
    for number, line in enumerate(text.split("\n")):
        body = line.lstrip(" ")
        begins = (first if number == 0 else " " * len(first)) + " " * (len(line) - len(body))
        if width is None or not body or len(begins + body) <= width:  # textwrap makes no line of no words
            lines.append((begins + body).rstrip())
            continue
        column = re.match(r"\S+ {2,}", body)
        indent = min(len(begins) + (column.end() if column else 0), max(0, width - NARROWEST))
        room = max(width, indent + NARROWEST)
        lines += textwrap.wrap(
            body,
            room,
            initial_indent=begins,
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def wrapped_command(command: str, width: int | None) -> str:
    """A command of the shell as an indented line. Where it is broken, ``\\`` lets the lines be pasted together.

    What follows on further lines is a remark.
    """
    command, *remarks = command.split("\n")
    lines = [""]
    for word in re.findall(r"(?:'[^']*'|\"[^\"]*\"|\S)+", command):
        # 7: the indent of four, the space before the word, and the two characters that end a line.
        if width is not None and lines[-1] and len(lines[-1]) + len(word) + 7 > width:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    first = " \\\n".join([f"  {lines[0]}", *(f"    {line}" for line in lines[1:])])
    return "\n".join([first, *(wrapped(remark, width) for remark in remarks)])


def say(console: Console, text: str, first: str = "", style: str = "") -> None:
    """Print ``text`` in lines that fit the console; see ``wrapped``."""
    # rich would break lines by rules of its own.
    console.print(wrapped(text, width_of(console), first), style=style, soft_wrap=True)


def say_command(console: Console, command: str, before: str) -> None:
    """Print a sentence, and below it a command of the shell as an indented line, or several."""
    say(console, before)
    console.print(wrapped_command(command, width_of(console)), soft_wrap=True)


def width_of(console: Console) -> int | None:
    """Characters of the console's lines; None if it is no terminal."""
    return console.width if console.is_terminal else None


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
