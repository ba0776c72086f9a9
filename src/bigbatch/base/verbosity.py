"""``--quiet`` and ``--verbose``: how much a command says.

What ``--verbose`` adds is logged where it happens, as ``info`` of a logger of ours. Without it nobody hears that.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import sys
from collections.abc import Iterator

STEPS = "also print when each step of the start was done, and where Ray's logs and files are"


def add_verbosity(parser: argparse._ActionsContainer, quiet: str, verbose: str = STEPS) -> None:
    """The two options, of which at most one is given.

    Args:
        quiet, verbose: what they do, for ``--help``.
    """
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--quiet", action="store_true", help=quiet)
    either.add_argument("--verbose", action="store_true", help=verbose)


def log_steps(verbose: object) -> None:
    """If ``verbose``: what our loggers say goes to standard error, after the seconds since the command began."""
    ours = logging.getLogger("bigbatch")
    if not verbose or ours.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Seconds())
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    # Libraries give the root logger handlers of their own, which would print each line again.
    ours.propagate = False


class _Seconds(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """``[1.2 s] what was said``."""
        return f"[{record.relativeCreated / 1000:.1f} s] {record.getMessage()}"


@contextlib.contextmanager
def silent_output(quiet: bool) -> Iterator[None]:
    """Within the block nothing that this process prints reaches standard output, if ``quiet``. Errors do."""
    if not quiet:
        yield
        return
    with contextlib.redirect_stdout(Nowhere()):
        yield


class Nowhere(io.StringIO):
    """A file that forgets what is written to it."""

    def write(self, text: str) -> int:
        """Forget the text."""
        return len(text)
