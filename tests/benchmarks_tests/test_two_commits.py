"""The benchmark of two commits: how their figures are compared, and what it refuses."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import two_commits as bench

from bigbatch.train_loop.config import TrainConfig


def test_ratios_are_of_each_round_and_what_was_not_measured_is_left_out() -> None:
    rounds = [
        {"before": {"folder": 10.0, "train": None}, "after": {"folder": 11.0, "train": 3.0}},
        {"before": {"folder": 20.0, "train": 4.0}, "after": {"folder": 19.0, "train": 3.0}},
        {"before": {"folder": 16.0, "train": 4.0}, "after": {"folder": 16.0, "train": 3.0}},
    ]
    found = bench.compared(rounds)
    assert list(found) == ["folder"]
    assert found["folder"]["ratios"] == pytest.approx([1.1, 0.95, 1.0])
    assert (found["folder"]["median"], found["folder"]["range"]) == (1.0, pytest.approx([0.95, 1.1]))
    assert (found["folder"]["before"], found["folder"]["after"], found["folder"]["noise"]) == (16.0, 16.0, 2.0)


def test_the_files_of_a_commit_lie_beside_those_of_another(tmp_path: Path, monkeypatch: Any) -> None:
    repository = tmp_path / "repository"
    git = ["git", "-C", str(repository), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    for text in ("one", "two"):
        (repository / "file").write_text(text)
        subprocess.run([*git, "add", "file"], check=True)
        subprocess.run([*git, "commit", "-qm", text], check=True)
    monkeypatch.setattr(bench, "ROOT", repository)
    names = [bench.check_out(commit, tmp_path / text) for commit, text in (("HEAD~1", "one"), ("HEAD", "two"))]
    assert [(tmp_path / text / "file").read_text() for text in ("one", "two")] == ["one", "two"]
    assert names[0] != names[1] and {len(name) for name in names} == {40}
    with pytest.raises(SystemExit, match="a commit of this repository is needed; got 'nowhere'"):
        bench.check_out("nowhere", tmp_path / "three")


def test_what_is_trained_is_a_configuration_of_ours() -> None:
    config = TrainConfig.from_dict(json.loads(json.dumps(bench.RUN)))
    assert (config.epochs, config.data.name) == (2, "digits")
    assert (config.model.name, config.batch.global_size) == ("resnet18", 64)
