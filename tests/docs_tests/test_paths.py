"""Each path that README, CONTRIBUTING or a page of the documentation names leads somewhere, and each open path of
Ray's is named."""

import ast
import importlib.util
import re
import subprocess
from pathlib import Path, PurePosixPath

import pytest

from helpers.paths import ROOT

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


def test_the_readme_has_no_more_words_than_a_reader_can_take() -> None:
    """As ``wc -w`` counts. All pages together: benchmarks/house.py."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 950


def test_every_path_that_rays_dashboard_serves_without_a_token_is_named():
    """Ray's own list, read in its source: a new version may leave more open."""
    package = Path(str(importlib.util.find_spec("ray").origin)).parent
    tree = ast.parse((package / "dashboard" / "http_server_head.py").read_text())
    lists = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and "public_" in node.targets[0].id
    }
    assert set(lists) == {"public_exact_paths", "public_path_prefixes"}
    text = (ROOT / "docs" / "security.md").read_text()
    harmless = {"/favicon.ico", "/-/healthz"}  # a picture, and a path of Ray Serve, which does not run
    opened = set().union(*lists.values()) - harmless
    assert "/api/gcs_healthz" in opened and [path for path in sorted(opened) if f"`{path}`" not in text] == []
