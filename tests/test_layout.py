"""The order of the tests: folders mirror the packages, no test file imports another, each test claims something."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.paths import ROOT

TESTS = ROOT / "tests"
FILES = sorted(TESTS.rglob("test_*.py"))
MIRRORS = ("base", "benchmarks", "cluster", "docs", "search_spaces", "train_loop", "tune")
APART = ("helpers", "slurm")
"""Folders of ``tests/`` that mirror nothing: helpers, jobs in a real Slurm."""
CLAIMS = (
    *("raises", "warns", "fail"),
    *("assert_close", "assert_allclose", "assert_array_equal"),
    *("wait_until", "wait_log", "wait_end", "wait_state", "check_against", "check_whole", "same_after_kills"),
    *("refusal", "refused_command"),
)
"""The names of calls that fail where a claim does not hold: pytest's, those of torch and NumPy, and of our helpers."""


def folders() -> Iterator[Path]:
    """Each folder below ``tests/`` that has test files, relative to it."""
    yield from sorted({path.parent.relative_to(TESTS) for path in FILES} - {Path(".")})


@pytest.mark.parametrize("folder", list(folders()), ids=str)
def test_a_folder_of_tests_has_the_name_of_the_wing_that_it_tests(folder: Path) -> None:
    first, *wing = folder.parts
    if first in APART:
        assert not wing, f"tests/{first} has no further folders of tests"
        return
    package = first.removesuffix("_tests")
    assert first == f"{package}_tests" and package in MIRRORS, f"write one of {[f'{name}_tests' for name in MIRRORS]}"
    place = "src/bigbatch/base" if package == "base" else package
    assert ROOT.joinpath(place, *wing).is_dir(), f"there is no {'/'.join((package, *wing))}"


def test_tests_are_no_packages() -> None:
    """A package of tests named as one of ours would hide it."""
    assert [str(path) for path in TESTS.rglob("__init__.py")] == []


def test_no_test_file_imports_from_another() -> None:
    names = {path.stem for path in FILES} | {"conftest"}
    found = []
    for path in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [f"{path.relative_to(ROOT)}: {m}" for m in modules if m.rsplit(".", 1)[-1] in names]
    assert found == [], "what several files need belongs in tests/helpers, or in a conftest.py as a fixture"


def test_every_test_claims_something() -> None:
    silent = []
    for path in FILES:
        functions = {n.name: n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)}
        claiming = {name for name, function in functions.items() if claims(function, set())}
        claiming = {name for name, function in functions.items() if claims(function, claiming)}
        silent += [
            f"{path.relative_to(ROOT)}::{name}"
            for name, function in functions.items()
            if name.startswith("test_") and not claims(function, claiming)
        ]
    assert silent == [], "a test that only runs says so by an assertion about what came out"


def claims(function: ast.FunctionDef, claiming: set[str]) -> bool:
    """Whether it asserts, itself or by a function of its file that does."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).split(".")[-1]
            if name in (*CLAIMS, *claiming):
                return True
    return False
