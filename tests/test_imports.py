"""What importing our packages loads: nothing heavy, and in ``cluster`` the standard library alone."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import bigbatch
from helpers.paths import ROOT, TRAIN, TUNE
from helpers.processes import clean_environment

HEAVY = ("torch", "torchvision", "ray", "optuna", "numpy", "pyarrow", "scipy", "PIL", "wandb", "rich", "IPython")
NEEDS_STUDY = {"Study", "open_study", "search"}
LIGHT = f"""
import bigbatch.search_spaces.large_batch, bigbatch.train_loop.optim.schedules
import bigbatch.tune.plan.arguments, bigbatch.tune.console.plan_notes
from bigbatch import {", ".join(sorted({*bigbatch.__all__} - NEEDS_STUDY))}
from bigbatch.train_loop.config.own_names import with_absolute_words
own = {{key: '{ROOT}/examples/own_cnn.py:net' for key in ('model.name', 'loss', 'optimizer.name')}}
with_absolute_words(TrainConfig().replace_keys(own))
from bigbatch.command import console
console(['--version'])
"""
CODE = {
    LIGHT: HEAVY,
    "import bigbatch.cluster": (*HEAVY, "bigbatch.cluster.host", "bigbatch.cluster.submission"),
    f"from bigbatch import {', '.join(bigbatch.__all__)}": ("torch", "ray", "plotly", "IPython"),
}
"""What is done, and what it must not load."""
WHERE_THERE = {
    ("cluster/doctor/probe.py", "torch"),
    ("cluster/node/gcs.py", "ray"),
    ("cluster/node/ray_start_hook.py", "ray"),
}
"""Imported where it is there: to test the environment of a job, and to speak with Ray."""


@pytest.mark.parametrize("code", CODE, ids=lambda code: code.split("\n")[-2:][0])
def test_nothing_heavy_is_loaded(code: str) -> None:
    look = f"import sys\n{code}\nprint('loaded', *({{*{CODE[code]}}} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=120)
    assert (done.stdout.splitlines()[-1:], done.stderr) == (["loaded"], "")


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


# Python imports a file of this name by itself. When a process ends it writes down its loaded files and their names.


# Python imports a file of this name by itself. When a process ends it writes down its loaded files and their names.
SITE = """
import atexit, collections, json, os, sys

def look():
    loaded = collections.defaultdict(dict)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and name != "__main__":
            loaded[os.path.realpath(file)][id(module)] = name
    ours = {file: sorted(names.values()) for file, names in loaded.items() if file.startswith(os.environ["OUR_ROOT"])}
    with open(os.environ["LOADED"], "w") as out:
        json.dump(ours, out)

atexit.register(look)
"""


def loaded_by(folder: Path, *words: object, cwd: Path) -> tuple[subprocess.CompletedProcess[str], dict[str, list[str]]]:
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(SITE)
    files = {"LOADED": str(folder / "loaded.json"), "OUR_ROOT": f"{ROOT}/"}
    env = {**clean_environment(), **files, "PYTHONPATH": str(folder / "site"), "BIGBATCH_HOME": str(folder / "home")}
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=cwd, env=env, capture_output=True, text=True, timeout=240
    )
    return done, json.loads((folder / "loaded.json").read_text())


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((TUNE, "--dry-run"), 0),
        (("-m", "bigbatch", "tune", "--dry-run"), 0),
        ((TRAIN, "--config", "/nosuch.json"), 2),
    ],
    ids=lambda words: " ".join(map(str, words)).replace(str(ROOT), "") if isinstance(words, tuple) else "",
)
def test_each_of_our_files_is_loaded_once(words, code, tmp_path):
    done, loaded = loaded_by(tmp_path, *words, cwd=ROOT)
    assert done.returncode == code, done.stdout + done.stderr
    assert any(name.startswith("bigbatch.") for names in loaded.values() for name in names)
    assert {file: names for file, names in loaded.items() if len(names) > 1} == {}
