"""Each path that README, CONTRIBUTING or a page of the documentation names leads somewhere; they are not too long."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = ("benchmarks", "cluster", "docs", "examples", "search_spaces", "src", "tests", "train_loop", "tune")
PLACEHOLDER = re.compile(r"<|\*|…|NAME|NNN")
"""What a path holds that stands for many."""
OF_USERS = {"my_space.py", "my.py", "net.py", "FILE.py", "torch.py", "tune.py", "cluster.py"}
"""Python files that a user has beside the data or the search."""


def tracked() -> set[str]:
    """Every file that git tracks, and every folder above one."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    return {str(path) for name in names if name for path in (PurePosixPath(name), *PurePosixPath(name).parents)}


def paths_in(text: str) -> list[str]:
    """Paths that begin with a folder of this repository; those of other trees and of URLs have something before.

    Titles of code blocks are left out: they name files that the reader is to write.
    """
    text = re.sub(r'(?<=title=)"[^"]*"', "", text)
    words = re.findall(rf"(?<![\w./~$}}>-])(?:{'|'.join(FOLDERS)})/[\w./<>*…-]*", text)
    return [word.rstrip("./") for word in words if not PLACEHOLDER.search(word)]


def python_names_in(text: str) -> list[str]:
    """Names of Python files and batch scripts in code, without a folder."""
    return re.findall(r"`([\w-]+\.(?:py|slurm))`", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_path_and_file_name_of_a_page_exists(page: Path) -> None:
    there, text = tracked(), page.read_text(encoding="utf-8")
    names = {PurePosixPath(path).name for path in there} | OF_USERS
    assert [path for path in paths_in(text) if path not in there] == []
    assert [name for name in python_names_in(text) if name not in names] == []


def test_what_counts_as_a_path() -> None:
    text = "see `tune/run.py`, [x](https://a.b/tune/other), `my/tests/x.py`, docs/decisions/NNN-title.md, `grant.py`"
    assert paths_in(f"{text} and cluster/job/.") == ["tune/run.py", "cluster/job"]
    assert python_names_in(text) == ["grant.py"]


def test_there_are_no_more_words_than_a_reader_can_take() -> None:
    """As ``wc -w`` counts. Where this fails: say it in fewer words, or rewrite the decision that is superseded."""
    words = {page: len(page.read_text(encoding="utf-8").split()) for page in PAGES}
    assert words[ROOT / "README.md"] <= 950
    assert sum(count for page, count in words.items() if page.is_relative_to(ROOT / "docs")) <= 45_000
    assert len(list((ROOT / "docs" / "decisions").glob("[0-9]*.md"))) <= 25
