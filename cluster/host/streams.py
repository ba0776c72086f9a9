"""Output whose reader may leave: ``| head``, a closed terminal, a full disk."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Patient:
    """A text stream that writes to nowhere once its reader has left, and says nothing of it.

    What the stream's encoding lacks becomes ``?``.

    Args:
        ends: a command that only shows something has nothing more to do then: SystemExit(0). A full disk is another
            thing: SystemExit with a line that says so.
    """

    def __init__(self, stream: Any, ends: bool = False) -> None:
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
        """Flush at the end: what the command has found out is its exit code, whether somebody reads it or not."""
        self._over = True
        self.flush()

    def _cannot(self, error: OSError) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        if self._ends and not isinstance(error, BrokenPipeError):
            raise SystemExit(f"error: the output cannot be written: {error.strerror}. Write it elsewhere.") from None
        if self._ends and not self._over:
            raise SystemExit(0) from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def reader_may_leave(ends: bool = False) -> Iterator[None]:
    """Within it, a closed pipe behind stdout or stderr ends no run; with ``ends``, one behind stdout ends it with 0.

    Contexts may be nested: the inner one decides.
    """
    before = sys.stdout, sys.stderr
    out, err = (stream._stream if isinstance(stream, _Patient) else stream for stream in before)
    shown, said = _Patient(out, ends), _Patient(err)
    sys.stdout, sys.stderr = shown, said
    try:
        yield
    finally:
        try:
            shown.finish()
            said.finish()
        finally:
            sys.stdout, sys.stderr = before


def exit_code_after_output(code: int) -> int:
    """``code``, once a program has said all. Ctrl-C ends the process with it from now on.

    After torch and Ray it takes Python seconds to clear up, and an interrupt in that would be a traceback.
    """
    signal.signal(signal.SIGINT, lambda *_: os._exit(code))
    return code
