"""``bigbatch --print-completion SHELL``: a script with which a shell completes our commands, options and their values.

It is made of the parsers themselves, so it knows what they know. The shell then starts no Python at a TAB. Only shtab
is needed for it (extra ``completion``), neither torch nor Ray.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence

from bigbatch.base.command_line import DONE, FAILED, Commands, OneLineParser, met_parser
from bigbatch.cluster.cli import COMMANDS as CLUSTER_COMMANDS

SHELLS = ("bash", "zsh", "tcsh")
FILES = re.compile(r"\b(FILE|PATH|URI|DST|IMAGE)\b|^KIND$")
FOLDERS = re.compile(r"\b(DIR|FOLDER)\b|^STUDY\|PATH$")
WORDS = re.compile(r"^[a-z_]+(\|[a-z_]+)+$")
"""A metavar that lists all values: ``fail|skip``."""


def known_values() -> Mapping[str, Sequence[str]]:
    """Option or positional → the names that it takes. With a file's metavar it also takes files."""
    from bigbatch.cluster.host.profiles import profile_paths
    from bigbatch.search_spaces.registry import BUILT_IN
    from bigbatch.train_loop.config.given import recipe_names
    from bigbatch.train_loop.data.packing.fetch import SETS
    from bigbatch.train_loop.launch.wandb_run import MODES
    from bigbatch.tune.models.names import STOPPINGS, STRATEGIES

    recipes = recipe_names()
    return {
        "--space": tuple(BUILT_IN),
        "--data": ("digits", *SETS),
        "name": tuple(SETS),
        "--strategy": tuple(STRATEGIES),
        "--stopping": tuple(STOPPINGS),
        "--recipe": recipes,
        "--enqueue": (*(f"recipe:{name}" for name in recipes), "none"),
        "--site": sorted(profile_paths()),
        "--wandb": MODES,
        "--confirm": ("auto", "none"),
        "--address": ("local", "auto"),
    }


def completion_parser(commands: Commands) -> tuple[argparse.ArgumentParser, dict[str, str]]:
    """One parser of all commands as subcommands, for shtab; and the functions of shells that its values name."""
    root = argparse.ArgumentParser(prog="bigbatch", add_help=False)
    root.add_argument("-h", "--help", action="help", help="print the commands")
    root.add_argument("--version", action="store_true", help="print the version")
    root.add_argument("--print-completion", choices=SHELLS, help="print a script of completion for this shell")
    values = known_values()
    below = root.add_subparsers()
    for name, (run, what) in commands.items():
        if name == "cluster":
            cluster = below.add_parser(name, help=what)
            inner = cluster.add_subparsers()
            for word, (run_inner, explained) in CLUSTER_COMMANDS.items():
                parsers = [met_parser(run_inner)]
                if word == "submit":  # it takes the options of a search too
                    parsers.append(met_parser(commands["tune"][0]))
                _add(inner, word, explained, parsers, values)
        elif not name.startswith("-"):
            _add(below, name, what, [met_parser(run)], values)
    return root, _functions(values)


def _functions(values: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """By shell: functions for values that are names or files, which shtab has not."""
    words = {_function_of(option): " ".join(names) for option, names in values.items()}
    bash = [f'{name}() {{ compgen -W "{names}" -f -- "$1"; }}' for name, names in words.items()]
    zsh = [f"{name}() {{ _alternative 'names:name:({names})' 'files:file:_files' }}" for name, names in words.items()]
    return {"bash": "\n".join(bash), "zsh": "\n".join(zsh)}


def _function_of(option: str) -> str:
    return f"_bigbatch_{re.sub(r'[^a-z]', '_', option.strip('-'))}"


def _add(
    below: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    what: str,
    parsers: Sequence[argparse.ArgumentParser],
    values: Mapping[str, Sequence[str]],
) -> None:
    """A command with the options of ``parsers``, and how their values are completed."""
    # resolve: submit and a search have options of the same name.
    added = below.add_parser(name, help=what, parents=parsers, add_help=False, conflict_handler="resolve")
    # argparse has no public list of a parser's options.
    for action in added._actions:
        if action.nargs == 0 or action.choices is not None:
            continue
        option = action.option_strings[0] if action.option_strings else action.dest
        for spelled in action.option_strings:
            option = spelled if spelled in values else option
        shown = action.metavar if isinstance(action.metavar, str) else ""
        is_file, names = bool(FILES.search(shown)), values.get(option)
        if names is not None and is_file:
            name = _function_of(option)
            action.complete = {"bash": name, "zsh": name, "tcsh": "f"}  # type: ignore[attr-defined]
        elif names is not None:
            action.choices = list(names)
        elif WORDS.match(shown):
            action.choices = shown.split("|")
        elif FOLDERS.search(shown):
            action.complete = {"bash": "_shtab_compgen_dirs", "zsh": "_files -/", "tcsh": "d"}  # type: ignore[attr-defined]
        elif is_file:
            action.complete = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}  # type: ignore[attr-defined]


def print_completion(argv: Sequence[str], commands: Commands) -> int:
    """Print the script for a shell. Returns the exit code: 0, 1 (shtab is missing), 2 (wrong input)."""
    parser = OneLineParser(prog="bigbatch --print-completion")
    parser.add_argument("shell", choices=SHELLS)
    shell = parser.parse_args(argv).shell
    try:
        import shtab
    except ModuleNotFoundError:
        line = "completion needs shtab, which is missing. Run: pip install 'bigbatch[completion]'"
        print(f"bigbatch --print-completion: error: {line}", file=sys.stderr)
        return FAILED
    root, preamble = completion_parser(commands)
    print(shtab.complete(root, shell, preamble=preamble.get(shell, "")))
    return DONE
