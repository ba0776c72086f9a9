"""Text on terminals of any width: no word is cut, and a line goes on below its own text."""

import io
import random
import re
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from bigbatch.tune.commands.show import study_text
from bigbatch.tune.commands.studies import studies_text
from bigbatch.tune.console.findings import print_plan
from bigbatch.tune.console.wrapped import say, say_command, wrapped, wrapped_command
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.storage.summary import summarize
from helpers.invented_studies import invented_study


def terminal(width: int) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None, highlight=False)


def shown(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 120])
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
    words = ["bigbatch", "tune", "--resume", "--study", "two words", "--output", "/a/b c/d"]
    words += ["--budget-gpu-hours", "0.5"]
    for width in (30, 40, 60, None):
        text = wrapped_command(shlex.join(words) + "\n  (a remark)", width)
        command, _, remark = text.rpartition("\n")
        assert shlex.split(command.replace("\\\n", "")) == words and remark == "  (a remark)"
        assert width is not None or "\\" not in command
    console = terminal(40)
    say_command(console, shlex.join(words), "Continue with:")
    first, *lines = shown(console)
    assert first == "Continue with:" and len(lines) > 1 and all(line.endswith(" \\") for line in lines[:-1])


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return invented_study(tmp_path_factory.mktemp("runs") / "kept", 40)


@pytest.mark.parametrize("width", [60, 80])
def test_a_shown_study_fits_the_terminal_and_says_what_it_leaves_out(study: Path, width: int) -> None:
    found = summarize(study)
    narrow, wide = (study_text(found, width=w) for w in (width, None))
    lines = narrow.splitlines()
    assert all(len(line) <= width or "/" in line.split()[-1] for line in lines), "only a path may be longer"
    (left_out,) = re.findall(r"A wider terminal also shows ([^.]*)\.", " ".join(narrow.split()))
    (head,) = (line.split() for line in lines if " TRIAL " in line)
    (all_columns,) = (line.split() for line in wide.splitlines() if " TRIAL " in line)
    assert head[:2] == ["TRIAL", "STATE"] and head[-3:] == ["EPOCHS", "VALUE", "HOURS"]
    assert head[:-3] + left_out.upper().split(", ") == all_columns[:-3], "the last settings are left out first"
    words = set(wide.split()) - set(all_columns)
    prose = [word for word in words if re.fullmatch(r"[a-z]{5,}", word)]
    assert set(prose) <= set(narrow.split()), "no word is cut"


def test_a_list_of_studies_goes_on_below_its_last_column(study: Path) -> None:
    found = summarize(study)
    found.why = "a reason that is longer than what is left of this line"
    lines = studies_text([found], width=70).splitlines()
    assert len(lines) > 2 and all(len(line) <= 70 for line in lines)
    at = lines[1].index("a reason")
    assert all(line[:at].isspace() for line in lines[2:])
    assert found.why in studies_text([found])


@pytest.mark.parametrize("width", [20, 60, None])
def test_a_study_whose_row_is_wider_than_the_terminal_is_listed(study: Path, tmp_path: Path, width: int | None) -> None:
    odd = invented_study(tmp_path / "a study of\nmany words that fill a whole line of a terminal", 2)
    lines = studies_text([summarize(study), summarize(odd)], width=width).splitlines()
    assert [line.split()[0] for line in lines] == ["STUDY", "kept", "a"]
    assert "a study of?many words" in lines[-1], "a row is one line"
