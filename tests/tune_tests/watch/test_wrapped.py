"""Text on terminals of any width: no word is cut, and a line goes on below its own text."""

from __future__ import annotations

import io
import random
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.watch.findings import print_plan
from bigbatch.tune.watch.wrapped import say, say_command, wrapped, wrapped_command


def terminal(width: int) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None, highlight=False)


def shown(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_plan_breaks_between_words_and_hangs_under_its_own_column(tmp_path: Path, width: int) -> None:
    plan = make_plan(SearchOptions(study="s", output=str(tmp_path / "runs"), trials=2, model="resnet50"))
    wide, narrow = terminal(10_000), terminal(width)
    print_plan(plan, wide)
    print_plan(plan, narrow)
    lines = shown(narrow)
    assert " ".join(lines).split() == " ".join(shown(wide)).split(), "the same words, none cut"
    assert len(lines) > len(shown(wide))
    for line in lines:
        assert len(line) <= width or len(line.split()) <= 2, "a path is longer than a line"
        assert line[:11].endswith(" ") and (line[0] == " ") == (line[:11] == " " * 11), "keys alone begin at the left"


def test_a_plan_that_is_piped_keeps_its_lines(tmp_path: Path) -> None:
    plan = make_plan(SearchOptions(study="s", output=str(tmp_path / "runs"), trials=2))
    piped, wide = Console(file=io.StringIO(), width=60, soft_wrap=True, highlight=False), terminal(10_000)
    print_plan(plan, piped)
    print_plan(plan, wide)
    assert shown(piped) == shown(wide)


def test_any_text_keeps_its_words_and_its_lines_their_indent() -> None:
    rng = random.Random(0)
    for _ in range(200):
        width, words = rng.randint(24, 100), ["x" * rng.randint(1, 30) for _ in range(rng.randint(1, 40))]
        first = " " * rng.randint(0, 3) + "key".ljust(rng.choice([3, 11])) + " "
        found = wrapped(" ".join(words), width, first).split("\n")
        assert " ".join(found).split() == ["key", *words]
        assert all(line.startswith(" " * min(len(first), width - 20)) for line in found[1:])
        assert all(len(line) <= width or len(line.split()) <= 2 for line in found)
    console = terminal(30)
    say(console, "\nOne sentence that is longer than thirty characters:\n  and a line with an indent of its own")
    assert shown(console) == [
        "", "One sentence that is longer", "than thirty characters:", "  and a line with an indent of", "  its own",
    ]  # fmt: skip


def test_a_broken_command_can_be_pasted() -> None:
    words = [
        "bigbatch",
        "tune",
        "--resume",
        "--study",
        "two words",
        "--output",
        "/a/b c/d",
        "--budget-gpu-hours",
        "0.5",
    ]
    for width in (30, 40, 60, None):
        text = wrapped_command(shlex.join(words) + "\n  (a remark)", width)
        command, _, remark = text.rpartition("\n")
        assert shlex.split(command.replace("\\\n", "")) == words and remark == "  (a remark)"
        assert width is not None or "\\" not in command
    console = terminal(40)
    say_command(console, shlex.join(words))
    assert len(shown(console)) > 1 and all(line.endswith(" \\") for line in shown(console)[:-1])
