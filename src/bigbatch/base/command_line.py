"""A command line parser that reports an error in one line, and values of options as people type them.

All packages use it. The parsing functions are ``type`` arguments for argparse. Their ArgumentTypeError has the rule,
the value met, the fix. For a mistyped word this file finds the nearest known word.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

NEAR = 0.65
"""A word with at least this difflib ratio counts as mistyped. Three letters with two of them swapped have 0.67."""


def parse_whole_number(text: str) -> int:
    """Parse ``1000``, ``1e3`` or ``1_000``."""
    value: float | None
    try:
        value = int(text)
    except ValueError:
        value = _float(text)
    _refuse_negative(text, value, "e.g. 10")
    if value is not None and value < 2**63 and value == int(value):  # no NaN is less
        return int(value)
    bound = " below 2^63" if value is not None and value >= 2**63 else ""
    raise argparse.ArgumentTypeError(f"must be a whole number{bound}; got {text!r}. Write e.g. 10.")


def parse_decimal_number(text: str) -> float:
    """Parse a number. Whether ``nan`` and ``inf`` make sense is the rule of the option."""
    value = _float(text)
    if value is None:
        raise argparse.ArgumentTypeError(f"must be a number; got {text!r}. Write e.g. 0.5.")
    _refuse_negative(text, value, "e.g. 0.5")
    return value


def parse_fraction(text: str) -> float:
    """A part of a whole: ``0.1`` or ``10%``."""
    percent = _float(text.rstrip()[:-1]) if text.rstrip().endswith("%") else None
    value = percent / 100 if percent is not None else _float(text)
    if value is None:
        raise argparse.ArgumentTypeError(f"must be a part of the whole; got {text!r}. Write e.g. 0.1 or 10%.")
    _refuse_negative(text, value, "e.g. 0.1 or 10%")
    return value


def _refuse_negative(text: str, value: float | None, example: str) -> None:
    """No option of ours takes a number below 0."""
    if value is not None and value < 0:
        raise argparse.ArgumentTypeError(f"must not be negative; got {text}. Write {example}.")


def nearest_word(word: str, known: Iterable[str]) -> str | None:
    """The known word that the user probably meant, ignoring case; None if none is near enough.

    The beginning of a single known word, two letters or more, means that word: ``on`` for ``online``.
    """
    by_lower = {one.lower(): one for one in known}
    begun = [one for one in by_lower if one.startswith(word.lower())] if len(word) > 1 else []
    if len(begun) == 1:
        return by_lower[begun[0]]
    found = difflib.get_close_matches(word.lower(), list(by_lower), n=1, cutoff=NEAR)
    return by_lower[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """What to write in place of an unknown word: the nearest known one; else ``otherwise``, or one of all."""
    near = nearest_word(word, known)
    return f"Did you mean {near!r}?" if near else otherwise or f"Write one of {', '.join(known)}."


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


Commands = Mapping[str, tuple[Callable[[Sequence[str]], int], str]]
"""Name of a command → a function that runs it with its arguments and returns the exit code, and a short description."""

DONE, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130


OURS = (
    (r"^argument (\S+): (?=must (?:not )?be )", r"\1 "),
    (
        r"^argument (\S+): expected .*argument.*",
        r"\1 takes a value; got none. Write one after it, one that begins with - as \1=-…; see --help.",
    ),
    (r"^argument (\S+): ignored explicit argument (.*)", r"\1 takes no value; got \2. Write \1 alone."),
    (
        r"^argument (\S+): invalid choice: (.*) \(choose from (.*)\)",
        r"\1 must be one of \3; got \2. Write one of them.",
    ),
    (
        r"^argument (\S+): not allowed with argument (\S+)",
        r"\2 and \1 exclude each other; got both. Leave out one of them.",
    ),
    (r"^the following arguments are required: (.*)", r"the command needs \1; got none. See --help."),
    (r"^one of the arguments (.*) is required", r"the command needs one of \1; got none. See --help."),
)
"""Turns argparse's messages into ours: the rule, the value met, and the fix."""


class WrongCommandLine(SystemExit):
    """Ends a command with exit code 2 after its message was printed. A caller from Python finds it in ``message``."""

    def __init__(self, message: str) -> None:
        super().__init__(WRONG_INPUT)
        self.message = message


class OneLineParser(argparse.ArgumentParser):
    """Reports an error in one line, with the nearest option, and exits with 2. It refuses an empty value
    and an abbreviated option."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})
        self.register("type", int, parse_whole_number)  # argparse's own message has neither rule nor fix
        self.register("type", float, parse_decimal_number)
        # So that "--time-budget -4h" has a value, as "--trials -4" has. Newer versions of argparse do the same.
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        # Every value of every option and positional comes here. An empty value would count as the default.
        if not arg_string.strip():
            self.error(empty_value(_name_of(action), arg_string))
        return super()._get_value(action, arg_string)

    def error(self, message: str) -> NoReturn:
        """Print the message in our form and exit with 2."""
        for argparses, ours in OURS:
            message = re.sub(argparses, ours, message)
        prefix = "unrecognized arguments: "
        if message.startswith(prefix):
            word = next(iter(message[len(prefix) :].split()), " ")
            message = no_such_option(word, [name for action in self._actions for name in action.option_strings])
        print(f"{self.prog}: error: {message}", file=sys.stderr)
        raise WrongCommandLine(message)


def _name_of(action: argparse.Action) -> str:
    return action.option_strings[-1] if action.option_strings else str(action.metavar or action.dest)


def empty_value(name: str, value: str) -> str:
    """The message for an option or argument with an empty value. The cause is often an unset shell variable."""
    return f"{name} must not be empty; got {value!r}. Write a value; is a shell variable not set?"


def check_study_name(name: str, error: type[ValueError]) -> None:
    """Raise ``error`` for a name that no new study may have."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise error(
            "--study names a folder: at most 100 letters, digits, '.', '_' or '-', the first a letter or digit; got "
            f"{name!r}. Write e.g. first-try."
        )


CALLED_ELSEWHERE = {"--sampler": "--strategy", "--pruner": "--stopping", "--scheduler": "--stopping"}
"""Names in Optuna and Ray Tune for options of ours."""


def no_such_option(word: str, known: Sequence[str]) -> str:
    """The message for an unknown option, with the nearest known one."""
    if not word.startswith("-"):
        fix = f"Write --set {word}." if "=" in word and "--set" in known else "Options begin with --; see --help."
        return f"an argument must belong to an option; got {word!r}. {fix}"
    name = word.split("=")[0]
    near = elsewhere if (elsewhere := CALLED_ELSEWHERE.get(name)) in known else nearest_word(name, known)
    return f"no such option; got {word!r}. " + (f"Did you mean {near}?" if near else "See --help for all of them.")


def run_command(prog: str, commands: Commands, argv: Sequence[str]) -> int:
    """Run the command that the first argument names. Returns its exit code, or 2 if there is no such command."""
    if not argv or argv[0] in ("-h", "--help"):
        width = max(map(len, commands)) + 2
        print(f"usage: {prog} COMMAND …\n")
        print("\n".join(f"  {name:{width}}{what}" for name, (_, what) in commands.items()))
        return DONE if argv else WRONG_INPUT
    if argv[0] not in commands:
        print(f"{prog}: error: no such command; got {argv[0]!r}. {did_you_mean(argv[0], commands)}", file=sys.stderr)
        return WRONG_INPUT
    return commands[argv[0]][0](argv[1:])
