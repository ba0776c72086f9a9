"""Files in folders that may not be entered: one line each, as for files that are not there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from bigbatch.cluster.host.profiles import profile_paths
from bigbatch.command import main
from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions


@pytest.fixture
def closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder into which the file system lets nobody; root may enter all, so permissions alone show nothing."""
    stat, listdir, folder = os.stat, os.listdir, tmp_path / "closed"

    def checked(path: object) -> None:
        if str(path).startswith(str(folder)):
            raise PermissionError(13, "Permission denied", str(path))

    def stat_of_a_user(path, *args, **options):
        checked(path)
        return stat(path, *args, **options)

    def listdir_of_a_user(path="."):
        checked(path)
        return listdir(path)

    monkeypatch.setattr(os, "stat", stat_of_a_user)
    monkeypatch.setattr(os, "listdir", listdir_of_a_user)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.parametrize(
    ("option", "name", "said"),
    [
        ("warm_start", "study", "--warm-start takes folders of studies"),
        ("enqueue", "best.json", "--enqueue takes recipe:NAME"),
        ("space", "own.py", "--space must name a readable Python file"),
    ],
)
def test_a_file_in_a_closed_folder_meets_one_line(closed, option, name, said):
    path = str(closed / name)
    options: dict[str, Any] = {option: path if option == "space" else (path,)}
    with pytest.raises(ConfigError) as refused:
        make_plan(SearchOptions(**options))
    assert said in str(refused.value) and "Check the path" in str(refused.value) and "\n" not in str(refused.value)


COMMANDS = [
    ("pack", ("{}/x", "out"), "the source must exist"),
    ("pack", ("images", "{}/x"), "DST must be a writable folder"),
    ("train", ("--model", "{}/x.py:f", "--data", "digits"), "must name a Python file that is there"),
    ("tune", ("--dry-run", "--strategy", "{}/x.py:f"), "must name a Python file that is there"),
    ("scale", ("--config", "{}/x"), "--config must be a readable file"),
    ("wandb-sync", ("{}/x",), "wandb-sync sends offline runs"),
]


@pytest.mark.parametrize(("command", "words", "said"), COMMANDS, ids=[" ".join((c, *w)) for c, w, _ in COMMANDS])
def test_a_command_about_a_closed_folder_meets_one_line(closed, command, words, said, capsys):
    assert main([command, *(word.format(closed) for word in words)]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_an_output_whose_link_leads_nowhere_is_refused_before_the_search(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(ConfigError, match="--output must be a writable folder; got .*/link' cannot"):
        make_plan(SearchOptions(space="smoke", output=str(tmp_path / "link")))


def test_a_home_that_may_not_be_entered_has_no_profiles_of_its_own(closed, tmp_path):
    assert profile_paths({"XDG_CONFIG_HOME": str(closed)}) == profile_paths({"XDG_CONFIG_HOME": str(tmp_path)})
