"""The figures of the repository's structure, on a small made-up repository whose figures are known by hand."""

import json
import subprocess
import sys
from pathlib import Path

import house
import pytest

from helpers.paths import ROOT

# <> stands for "bigbatch.".
FILES = {
    "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = [".", "tests", "tests/helpers"]\n',
    "README.md": "# Two words\n\n```bash\nnot counted\n```\nmore [a link](https://not.counted) | — |\n",
    "docs/page.md": "| three | words |\n",
    "docs/decisions/001-one.md": "# 001: One\n",
    "docs/decisions/index.md": "list\n",
    "cluster/__init__.py": "",
    "cluster/host/__init__.py": "",
    "cluster/host/files.py": "def write(): ...\n",
    "cluster/sites/generic.toml": "",
    "cluster/slurm.py": "from <>cluster.host import files\ndef f():\n    import <>tune.search\n",
    "search_spaces/__init__.py": "",
    "search_spaces/registry.py": "from <>train_loop.config import Config\nfrom <>train_loop import loop\n",
    "tests/helpers/tools.py": "from test_a import x\n",
    "tests/test_a.py": "from tools import y\n",
    "train_loop/__init__.py": "",
    "train_loop/config.py": "class Config: ...\n",
    "train_loop/data/__init__.py": "from <>train_loop.data import sets\nclass Info: ...\n",
    "train_loop/data/pixels.py": "from . import sets\n",
    "train_loop/data/sets/__init__.py": "",
    "train_loop/data/sets/digits.py": "from ... import config\nfrom <>train_loop.data import Info\n",
    "train_loop/loop.py": (
        "from typing import TYPE_CHECKING\nfrom <>train_loop import data\nfrom <>cluster.host.files import write\n"
        "if TYPE_CHECKING:\n    from <>train_loop.run import main\n"
    ),
    "train_loop/run.py": "import <>train_loop.loop\ndef main():\n    from <>train_loop.loop import train\n",
    "tune/__init__.py": "",
    "tune/plan/__init__.py": "LIMIT = 1\n",
    "tune/plan/capacity.py": "from ..study import read\n",
    "tune/plan/machine.py": "from <>tune.study import read\n",
    "tune/search.py": (
        "from <>tune.plan import LIMIT, capacity\nfrom <>search_spaces import registry\nimport <>cluster.slurm\n"
    ),
    "tune/study.py": "def read():\n    from <>tune import search\n",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The repository of ``FILES``, whose ``bigbatch/`` links to the packages."""
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text.replace("<>", "bigbatch."))
    (tmp_path / "bigbatch").mkdir()
    (tmp_path / "bigbatch/__init__.py").write_text("")
    for package in ("cluster", "search_spaces", "train_loop", "tune"):
        (tmp_path / "bigbatch" / package).symlink_to(f"../{package}")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    (tmp_path / "tune/not_tracked.py").write_text("import tune.search\n")
    return tmp_path


def test_rooms_and_arrows(root: Path) -> None:
    figures, lists = house.measure(root)
    counts = {f: (figures[f"{f}: rooms"], figures[f"{f}: arrows"]) for f in house.FOLDERS}
    assert counts == {"train_loop": (4, 4), "train_loop/data": (2, 1), "cluster": (2, 1), "tune": (3, 3)}
    in_functions = "arrows of imports in functions alone"
    assert figures[f"tune: {in_functions}"] == 1 and figures[f"train_loop: {in_functions}"] == 0
    assert figures["train_loop/data: files that import its __init__"] == 1
    assert figures["train_loop/data: files that its __init__ imports"] == 1
    assert (figures["documentation words"], figures["decisions"]) == (5 + 3 + 1, 1)  # as `wc -w` counts
    assert lists["tune: circles of rooms"] == ["plan search study"]
    assert lists["tune: arrows back up"] == ["study -> search"]
    assert lists["train_loop: circles of rooms"] == ["loop run"]
    assert lists["train_loop: arrows back up"] == ["loop -> run"]
    assert lists["cluster: circles of rooms"] == lists["train_loop/data: circles of rooms"] == []


def test_circles_between_files_and_broken_floors(root: Path) -> None:
    _, lists = house.measure(root)
    everywhere = ["tests/helpers/tools.py tests/test_a.py", "train_loop/loop.py train_loop/run.py"]
    assert lists["circles between files, module level"] == everywhere
    within = "cluster/slurm.py tune/plan/capacity.py tune/search.py tune/study.py"
    assert lists["circles between files, all imports"] == [within, *everywhere]
    upwards = "cluster/slurm.py imports tune/search.py"
    too_much = "search_spaces/registry.py imports train_loop/loop.py"
    assert lists["imports that break the floors"] == [upwards, too_much, "tune/search.py imports cluster/slurm.py"]
    subprocess.run(["git", "rm", "-rqf", "cluster/host"], cwd=root, check=True)
    assert house.measure(root)[1]["imports that break the floors"] == [upwards, too_much]


def test_a_circle_through_the_package_that_links_to_the_folders_is_found(root: Path) -> None:
    (root / "bigbatch/command.py").write_text("def cluster():\n    from bigbatch.cluster import cli\n")
    (root / "cluster/cli.py").write_text("def main():\n    from bigbatch import command\n")
    subprocess.run(["git", "add", "."], cwd=root, check=True)
    _, lists = house.measure(root)
    assert "bigbatch/command.py cluster/cli.py" in lists["circles between files, all imports"]
    assert "cluster/cli.py imports bigbatch/command.py" in lists["imports that break the floors"]


def test_how_much_there_is_to_read(root: Path) -> None:
    figures, lists = house.measure(root)
    assert figures["README: words, as wc -w counts"] == 13
    assert (figures["tune: lines"], figures["tests: lines"]) == (8, 2)
    of_one = "modules with one importer and under 60 lines"
    small = {line.partition(" ")[0]: line.rpartition(" ")[2] for line in lists[of_one]}
    assert small["tune/plan/capacity.py"] == "tune/search.py" and figures[of_one] == len(small)
    assert "tune/study.py" not in small, "capacity and machine import it"
    (root / "tune/plan/capacity.py").write_text("\n" * 60)
    assert "tune/plan/capacity.py" not in "".join(house.measure(root)[1][of_one])


def test_a_target_is_missed_beyond_its_limit_alone() -> None:
    limits = {**house.AT_MOST, **house.AT_LEAST}
    assert house.missed(limits) == []
    for name, limit in limits.items():
        beyond = limit - 0.01 if name in house.AT_LEAST else limit + 1
        assert house.missed({**limits, name: beyond}) == [name]
    assert house.missed({**limits, "README word of the first command": 0}) == ["README word of the first command"]


def test_the_command_prints_a_table_arrows_and_what_is_missed(root: Path) -> None:
    done = _run("--root", str(root), "--check")
    last = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 1 and last["figures"]["tune: rooms"] == 3
    assert "tune: arrows back up" in last["missed"] and "tune: rooms" not in last["missed"]
    table = done.stdout.split("\n\n")[0]
    rows = {line[:52].strip(): line.split()[-1] for line in table.splitlines()}
    assert rows["tune: arrows back up"] == "no" and rows["tune: rooms"] == "yes"
    assert _run("--root", str(root)).returncode == 0
    lines = _run("--root", str(root), "--arrows", "tune/").stdout.splitlines()
    assert "study -> search: tune/study.py imports tune/search.py (in a function)" in lines
    assert "search -> plan: tune/search.py imports tune/plan/__init__.py" in lines
    assert json.loads(lines[-1]) == {"folder": "tune", "rooms": 3, "arrows": 3}
    refused = _run("--root", str(root), "--arrows", "nowhere")
    assert refused.returncode == 1 and refused.stderr.startswith("--arrows nowhere: git tracks no Python file there")


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, house.__file__, *words], capture_output=True, text=True)


def test_this_repository_reaches_every_target() -> None:
    """What breaks one: `python benchmarks/house.py`, then `--arrows FOLDER` for the imports behind each arrow."""
    figures, lists = house.measure(ROOT)
    assert len([name for name in house.AT_MOST if ": " in name]) == 4 * len(house.FOLDERS)
    assert {name: lists.get(name, figures[name]) for name in house.missed(figures)} == {}
