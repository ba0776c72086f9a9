"""``bigbatch --print-completion``: bash itself completes commands, options and their values."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from bigbatch import command, completion
from bigbatch.base.command_line import met_parser
from bigbatch.cluster.cli import COMMANDS as CLUSTER_COMMANDS
from bigbatch.search_spaces.registry import BUILT_IN
from bigbatch.tune.models.names import STRATEGIES
from bigbatch.tune.plan.arguments import tune_parser
from helpers import commands
from helpers.paths import ROOT

ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
function_of_bigbatch=$(complete -p bigbatch | sed 's/.*-F \\([^ ]*\\).*/\\1/')
"$function_of_bigbatch" bigbatch "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def printed(shell: str) -> str:
    pytest.importorskip("shtab", reason="shtab is not installed (extra: completion)")
    done = commands.run("--print-completion", shell, cwd=ROOT, main=command.main)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "bigbatch.bash"
    path.write_text(printed("bash"))
    return path


def completed(script: Path, folder: Path, line: str) -> set[str]:
    """What bash offers at the end of the line."""
    words = ["bash", "--norc", "-c", ASK, "ask", str(script), *line.split(" ")]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=30)
    assert done.stderr == ""
    return {word.strip() for word in done.stdout.splitlines() if word.strip()}


def test_bash_completes_commands_options_and_values(script: Path, tmp_path: Path) -> None:
    (tmp_path / "my_space.py").touch()
    (tmp_path / "my_runs").mkdir()
    for line, expected in {
        "bigbatch tu": {"tune"},
        "bigbatch tune --str": {"--strategy"},
        "bigbatch tune --space smoke --max": {"--max-epochs"},
        "bigbatch tune --set epochs=3 --str": {"--strategy"},
        "bigbatch tune --strategy ": {*STRATEGIES},
        "bigbatch tune --space smo": {"smoke"},
        "bigbatch tune --space my": {"my_space.py", "my_runs"},
        "bigbatch train --config my": {"my_space.py", "my_runs"},
        "bigbatch tune --output my": {"my_runs"},
        "bigbatch train --on-bad-image ": {"fail", "skip"},
        "bigbatch scale --mode w": {"weak"},
        "bigbatch cluster lo": {"logs"},
        "bigbatch cluster logs --fol": {"--follow"},
        "bigbatch cluster submit --site gr": {"grete"},
        "bigbatch cluster submit --part": {"--partition"},
        "bigbatch cluster submit --spa": {"--space"},
        "bigbatch --print-completion ba": {"bash"},
    }.items():
        assert completed(script, tmp_path, line) == expected, line


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (found,) = [action.choices for action in parser._actions if isinstance(action.choices, dict)]
    return found


def test_it_knows_every_command_and_option() -> None:
    root, _ = completion.completion_parser(command.COMMANDS)
    below = subcommands(root)
    assert list(below) == [name for name in command.COMMANDS if not name.startswith("-")]
    inner = subcommands(below["cluster"])
    assert list(inner) == list(CLUSTER_COMMANDS)
    assert set(BUILT_IN) <= set(completion.known_values()["--space"])
    for name, (run, _) in {**command.COMMANDS, **CLUSTER_COMMANDS}.items():
        if name == "cluster" or name.startswith("-"):
            continue
        known = (below if name in below else inner)[name]._option_string_actions
        assert met_parser(run)._option_string_actions.keys() <= known.keys(), name
    assert tune_parser("t")._option_string_actions.keys() <= inner["submit"]._option_string_actions.keys()


def test_other_shells_get_a_script_too() -> None:
    assert printed("zsh").startswith("#compdef bigbatch") and "--strategy" in printed("tcsh")


def test_without_shtab_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert command.main(["--print-completion", "bash"]) == 1
    assert "pip install 'bigbatch[completion]'" in capsys.readouterr().err
    with pytest.raises(SystemExit) as refused:
        command.main(["--print-completion", "fish"])
    error = capsys.readouterr().err
    assert refused.value.code == 2 and error.count("\n") == 1 and all(name in error for name in completion.SHELLS)
