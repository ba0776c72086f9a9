"""What a command says, and how much: ``--quiet``, ``--verbose``, and streams that survive the loss of their reader.

A reader is lost by ``| head``, a closed terminal, a full disk. What ``--verbose`` adds is logged where it happens, as
``info`` of a logger of ours. Without it nobody hears that.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

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


class _Patient:
    """A text stream that silently discards its text after its reader has left.

    A character that the stream's encoding lacks becomes ``?``.

    Args:
        ends: for a command that only shows something: raise SystemExit(0) when the reader has left. For a full disk,
            raise SystemExit with a message.
    """

    def __init__(self, stream: TextIO | None, ends: bool = False) -> None:
        self._stream = stream if stream is not None else open(os.devnull, "w")  # None: closed before the start
        self._ends, self._over = ends, False
        if hasattr(self._stream, "reconfigure"):
            self._stream.reconfigure(errors="replace")

    def write(self, text: str) -> int:
        try:
            return int(self._stream.write(text))
        except OSError as error:
            self._cannot(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._cannot(error)

    def finish(self) -> None:
        """Flush at the end. The exit code stays the command's own, even if nobody reads the output."""
        self._over = True
        self.flush()

    def _cannot(self, error: OSError) -> None:
        # Python flushes its streams once more when it ends, and would meet the same error.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        if self._ends and not isinstance(error, BrokenPipeError):
            raise SystemExit(f"error: the output cannot be written: {error.strerror}. Write it elsewhere.") from None
        if self._ends and not self._over:
            raise SystemExit(0) from None

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


@contextmanager
def reader_may_leave(ends: bool = False) -> Iterator[None]:
    """Within the block, a closed pipe at stdout or stderr does not end the run. With ``ends``, one at stdout ends it
    with exit code 0. Blocks may be nested: the inner one decides.
    """
    before = sys.stdout, sys.stderr
    out, err = (stream._stream if isinstance(stream, _Patient) else stream for stream in before)
    patient_out, patient_err = _Patient(out, ends), _Patient(err)
    sys.stdout, sys.stderr = patient_out, patient_err
    try:
        yield
    finally:
        try:
            patient_out.finish()
            patient_err.finish()
        finally:
            sys.stdout, sys.stderr = before
