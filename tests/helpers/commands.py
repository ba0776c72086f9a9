"""Commands run to their end, in this process or in one of their own."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from bigbatch.tune.commands import export
from bigbatch.tune.commands.tune import tune_main
from helpers.processes import clean_environment
from helpers.refusals import refused_command


def run(
    *arguments: object, cwd: Path, main: Callable[[Sequence[str]], int] = tune_main, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, which has its libraries loaded, as if a shell in ``cwd`` had started it."""
    words, out, errors = [*map(str, arguments)], io.StringIO(), io.StringIO()
    with _shell(cwd, env), contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            code = main(words)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return subprocess.CompletedProcess(words, code, out.getvalue(), errors.getvalue())


@contextlib.contextmanager
def _shell(folder: Path, env: dict[str, str]) -> Iterator[None]:
    """Folder, variables and signal handlers of a new process; those of this one come back."""
    before, variables = Path.cwd(), dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    os.environ.clear()
    os.environ.update(clean_environment() | env)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ.update(variables)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def run_process(*command: object, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, where that is what is tested."""
    environment = {**clean_environment(), **env}
    words = [*map(str, command)]
    return subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600)


def refused_export(capsys: pytest.CaptureFixture[str], folder: Path, *options: object) -> str:
    """The one line of an export that is refused."""
    error = refused_command(capsys, export.main, [str(folder), *map(str, options)])
    assert error.startswith("bigbatch export: error: ")
    return error
