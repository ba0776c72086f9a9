"""A command line that says what is wrong in one line.

Of the project's packages ``cluster`` is the lowest and imports no other; ``train_loop`` and ``tune`` use this parser.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from typing import NoReturn

DONE, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line, with the nearest option, and ends with 2."""

    def error(self, message: str) -> NoReturn:
        prefix = "unrecognized arguments: "
        if message.startswith(prefix):
            word = message[len(prefix) :].split()[0]
            message = no_such_option(word, [name for action in self._actions for name in action.option_strings])
        print(f"{self.prog}: error: {message}", file=sys.stderr)
        raise SystemExit(WRONG_INPUT)


def parser(command: str, description: str) -> OneLineParser:
    return OneLineParser(prog=f"bigbatch cluster {command}", description=description, allow_abbrev=False)


def no_such_option(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word.split("=")[0], known, n=1)
    return f"no such option; got {word!r}. " + (f"Did you mean {near[0]}?" if near else "See --help for all of them.")
