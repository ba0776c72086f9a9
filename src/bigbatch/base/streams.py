"""Streams that survive the loss of their reader, by ``| head``, a closed terminal, a full disk."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


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
