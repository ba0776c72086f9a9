"""What importing our packages loads: nothing heavy, and in ``cluster`` Python's standard library alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.paths import ROOT

HEAVY = ("torch", "torchvision", "ray", "optuna", "numpy", "pyarrow", "scipy", "PIL", "wandb", "rich")
WHERE_THERE = {
    ("cluster/doctor/probe.py", "torch"),
    ("cluster/node/gcs.py", "ray"),
}
"""Imported where it is there: to test the environment of a job, and to speak with Ray."""


@pytest.mark.parametrize(
    "module",
    [
        "bigbatch",
        "bigbatch.command",
        "bigbatch.cluster",
        "bigbatch.search_spaces, bigbatch.search_spaces.large_batch",
        "bigbatch.train_loop.config",
        "bigbatch.tune.plan.arguments, bigbatch.tune.console.plan_notes",
    ],
)
def test_an_import_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def imports_of(path: Path) -> Iterator[tuple[str, bool]]:
    """Each imported module, and whether the file needs it to be imported itself: not in a function or a ``try``."""
    module = ast.parse(path.read_text())
    later = {
        node
        for block in ast.walk(module)
        if isinstance(block, ast.FunctionDef | ast.AsyncFunctionDef | ast.Try)
        for node in ast.walk(block)
    }
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node not in later) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or ""), node not in later


def test_cluster_imports_the_standard_library_alone() -> None:
    files = sorted([*(ROOT / "cluster").rglob("*.py"), *(ROOT / "src/bigbatch/base").rglob("*.py")])
    assert len(files) > 40
    others = [
        (path.relative_to(ROOT).as_posix(), name, at_once)
        for path in files
        for name, at_once in imports_of(path)
        if name.split(".")[0] not in sys.stdlib_module_names
        and not f"{name}.".startswith(("bigbatch.cluster.", "bigbatch.base."))
    ]
    named = {(path, name) for path, name, _ in others}
    assert {(path, name.split(".")[0]) for path, name in named} == WHERE_THERE
    assert [(path, name) for path, name, at_once in others if at_once] == []
