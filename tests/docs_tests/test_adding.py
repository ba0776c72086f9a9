"""The examples of ``docs/adding.md`` work as they stand on the page; the names that it mentions exist."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bigbatch.cluster.host import profiles
from bigbatch.cluster.submission.batch_script import submit
from bigbatch.search_spaces.workload import Workload
from helpers.paths import ROOT, TUNE

PAGE = (ROOT / "docs" / "adding.md").read_text(encoding="utf-8")


def example(title: str) -> str:
    """The code under a title of the page."""
    found = re.search(rf'^```\w+ title="{re.escape(title)}"\n(.*?)^```$', PAGE, flags=re.MULTILINE | re.DOTALL)
    assert found, f"docs/adding.md has no example {title}"
    return found[1]


def run(title: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(example(title), title, "exec"), names)
    return names


@pytest.mark.parametrize("workers", range(1, 9))
def test_the_space_suits_any_number_of_workers(workers: int) -> None:
    workload = Workload("digits", 1437, num_classes=10, image_size=8, model="resnet18", epochs=6, workers=workers)
    trial = SimpleNamespace(suggest_float=lambda name, low, high, log: (low * high) ** 0.5)
    batch = run("my_space.py")["space"](trial, workload).batch.global_size
    assert batch % workers == 0 and 256 - 8 * workers < batch <= 256


def test_the_space_is_accepted_and_shows_its_two_ranges(tmp_path: Path) -> None:
    (tmp_path / "my_space.py").write_text(example("my_space.py"))
    command = [sys.executable, str(TUNE), "--space", "my_space.py", "--dry-run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert re.search(r"lr\s+0\.5 … 16 \(log\)", done.stdout), done.stdout
    assert re.search(r"8 of at most 6 epochs", done.stdout), done.stdout


def test_the_metric_counts_what_a_loop_over_the_images_counts() -> None:
    rows = [[0.1, 0.9, 0.5, 0.0], [4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0]]
    labels = [2, 3, 3]
    for k in (1, 2, 3, 4, 5):  # five: more than there are classes
        expected = sum(y in sorted(range(4), key=row.__getitem__)[-k:] for row, y in zip(rows, labels, strict=True))
        counted = run("train_loop/loop/metrics.py")["correct_in_top"](torch.tensor(rows), torch.tensor(labels), k)
        assert int(counted) == expected


def test_the_site_is_read_as_the_page_says_and_gets_a_batch_script(tmp_path: Path) -> None:
    path = tmp_path / "my_cluster.toml"
    path.write_text(example("cluster/sites/my_cluster.toml"))
    site = profiles.load_site(path)
    assert (site.name, site.login_host, site.default_partition) == ("my_cluster", "login.example.org", "gpu")
    assert site.partitions["gpu"].max_time_s == 2 * 24 * 3600
    script = submit("--space", "smoke", site=str(path), nodes=2, dry_run=True, check=False)
    assert "--partition=gpu" in script and "--cpus-per-task=64" in script


def test_each_file_to_touch_exists_and_holds_the_names_that_its_row_mentions() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (.*) \|$", PAGE, flags=re.MULTILINE)
    assert len(rows) > 25
    for file, task in rows:
        path = ROOT / re.sub(r"[^/]*<name>.*", "", file)
        assert path.exists(), file
        if path.suffix == ".py":
            text = path.read_text(encoding="utf-8")
            names = [name.removesuffix("()") for name in re.findall(r"`(\w+(?:\(\))?)`", task)]
            assert all(name in text for name in names), (file, names)
