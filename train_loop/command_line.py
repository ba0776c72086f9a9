"""Command lines that say what is wrong in one line."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from pathlib import Path
from typing import NoReturn

from train_loop.config import ConfigError

WRONG_INPUT = 2
INTERRUPTED = 130


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line, with the nearest option, and ends with 2."""

    def error(self, message: str) -> NoReturn:
        prefix = "unrecognized arguments: "
        if message.startswith(prefix):
            word = message.removeprefix(prefix).split()[0]
            known = [name for action in self._actions for name in action.option_strings]
            near = difflib.get_close_matches(word.split("=")[0], known, n=1)
            fix = f"Did you mean {near[0]}?" if near else "See --help for all of them."
            message = f"no such option; got {word!r}. {fix}"
        print(f"{self.prog}: error: {message}", file=sys.stderr)
        raise SystemExit(WRONG_INPUT)


def check_writable(option: str, folder: Path) -> None:
    """Raise ConfigError, naming ``option``, unless ``folder`` is there to be written or could be made."""
    try:
        parent = next(p for p in (folder, *folder.parents) if p.exists())
        possible = parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)
        reason = f"{str(parent)!r} cannot"
    except OSError as error:  # a name that is too long
        possible, reason = False, str(error.strerror)
    if not possible:
        raise ConfigError(
            f"{option} must be a folder that can be written; got {str(folder)!r}: {reason}. "
            f"Write {option} with another folder."
        )
