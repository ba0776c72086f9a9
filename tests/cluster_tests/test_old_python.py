"""What a login node's Python must be able to read, without torch and Ray."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from helpers.paths import ROOT
from helpers.processes import clean_environment

MODULES = sorted((ROOT / "cluster").rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_code_parses_with_python_3_9(path):
    try:
        ast.parse(path.read_text(), feature_version=(3, 9))
    except SyntaxError as error:
        pytest.fail(f"{path}:{error.lineno}: {error.msg}")


def test_importing_the_package_loads_neither_torch_nor_ray():
    paths = [p.relative_to(ROOT).with_suffix("") for p in MODULES if p.stem not in ("__init__", "__main__")]
    names = ", ".join(".".join(("bigbatch", *path.parts)) for path in paths)
    check = (
        f"import sys, {names}; print([m for m in ('torch', 'ray', 'optuna', 'numpy', 'psutil') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", check], cwd=ROOT / "src", env=clean_environment(), capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]", done.stderr
