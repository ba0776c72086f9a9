"""However a command is started, each of our files is loaded once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.paths import ROOT, TRAIN, TUNE
from helpers.processes import clean_environment

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
        ((ROOT / "src" / "bigbatch" / "tune" / "run.py", "--dry-run"), 0),
        (("-m", "bigbatch", "tune", "--dry-run"), 0),
        ((TRAIN, "--config", "/nosuch.json"), 2),
        ((*"src/bigbatch cluster submit --dry-run --no-check --cpus-per-node 2 --space smoke".split(),), 0),
        (("-m", "bigbatch.cluster.job", "--space", "smoke"), 2),
    ],
    ids=lambda words: " ".join(map(str, words)).replace(str(ROOT), "") if isinstance(words, tuple) else "",
)
def test_each_of_our_files_is_loaded_once(words, code, tmp_path):
    done, loaded = loaded_by(tmp_path, *words, cwd=ROOT)
    assert done.returncode == code, done.stdout + done.stderr
    assert any(name.startswith("bigbatch.") for names in loaded.values() for name in names)
    assert {file: names for file, names in loaded.items() if len(names) > 1} == {}
