"""Room for results: on a real file system of a few inodes, by a site's quota command, what is needed, and without."""

import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bigbatch.cluster.host import quota
from bigbatch.train_loop.config import ConfigError, DataConfig, ModelConfig, TrainConfig
from bigbatch.train_loop.data.catalogue import describe_data_set
from bigbatch.train_loop.data.packing import command as pack_command
from bigbatch.train_loop.errors import OwnCodeError
from bigbatch.train_loop.host import disk_space
from bigbatch.train_loop.host.disk_space import NO_ROOM, DiskFull, LogFile
from bigbatch.train_loop.launch import checks
from bigbatch.train_loop.launch.command import make_run_plan
from bigbatch.train_loop.loop.checkpoint import CheckpointFolder
from bigbatch.train_loop.model.networks import build_model
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from helpers.loop_references import run
from helpers.packed_sets import write_images
from helpers.small_disk import mounted
from helpers.tiny_training import CONFIG as OF_THE_LOOP, untimed

CONFIG = TrainConfig(precise_bn="off").replace_keys({"batch.global_size": 128, "model.name": "resnet18"})

# As Lustre's documentation and users' pages show it.
LFS = """Disk quotas for usr me (uid 1000):
     Filesystem  kbytes   quota   limit   grace   files   quota   limit   grace
       /scratch 285181364  5242880000 5347737600       -  316399  500000 1000000       -
"""
LFS_WRAPPED = """Disk quotas for usr me (uid 1000):
      Filesystem  kbytes   quota   limit   grace   files   quota   limit   grace
/home/lab/m/me
                 95747836*       0 104857600       -  908722       0       0       -
uid 1000 is using default block quota setting
"""
LFS_NONE = """Disk quotas for user root (uid 0):
    Filesystem  kbytes   quota   limit   grace   files   quota   limit   grace
        /univ_1 [10200224]       0       0       -   17724       0       0       -
"""


@pytest.fixture(autouse=True)
def _ask_anew() -> Iterator[None]:
    disk_space.site_quota.cache_clear()
    yield
    disk_space.site_quota.cache_clear()


@pytest.fixture
def tiny(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system with the given mount options; skipped where nobody may mount one."""
    with mounted(request.param) as folder:
        yield folder


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Make this a site whose quota command prints a text."""

    def make(text: str) -> str:
        command, profile = tmp_path / "myquota", tmp_path / "mine.toml"
        command.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
        command.chmod(0o755)
        profile.write_text(f'name = "mine"\n[storage]\nquota_command = "{command}"\n')
        monkeypatch.setenv("BIGBATCH_SITE", str(profile))
        disk_space.site_quota.cache_clear()
        return str(command)

    return make


def config_file(folder: Path) -> Path:
    path = folder / "config.json"
    path.write_text(CONFIG.to_json())
    return path


@pytest.mark.parametrize("tiny", ["size=8g,nr_inodes=10"], indirect=True)
def test_runs_that_lack_inodes_are_refused_before_anything_is_written(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"up to [\d,]+ inodes .*; got 9 left for .*{tiny}.* by the file system"):
        make_run_plan(["--config", str(config_file(tmp_path)), "--output", str(tiny / "run")], "run.py", None)
    with pytest.raises(ConfigError, match="up to .* inodes"):
        make_plan(SearchOptions(space="smoke", output=str(tiny), study="s"))
    assert list(tiny.iterdir()) == []


@pytest.mark.parametrize("tiny", ["size=8m"], indirect=True)
def test_runs_that_lack_bytes_are_refused_with_the_numbers(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"up to 28\d.\d\d MB \(3 checkpoints of 89.\d\d MB\); got 8.39 MB left"
    ) as caught:
        make_run_plan(["--config", str(config_file(tmp_path)), "--output", str(tiny / "run")], "run.py", None)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"\d+ checkpoints of .* and the logs of \d+ trials"):
        make_plan(SearchOptions(space="smoke", output=str(tiny), study="s"))
    assert list(tiny.iterdir()) == []
    make_plan(SearchOptions(space="smoke", output=str(tmp_path), study="s"))


def test_the_quota_of_lustre_is_read() -> None:
    scratch = quota.parse_quota_left(LFS.splitlines(), Path("/scratch/me/runs"))
    assert scratch == quota.QuotaLeft((5347737600 - 285181364) * 1024, 1000000 - 316399)
    assert quota.parse_quota_left(LFS.splitlines(), Path("/scratch2/me")) is None
    home = quota.parse_quota_left(LFS_WRAPPED.splitlines(), Path("/home/lab/m/me/runs"))
    assert home == quota.QuotaLeft((104857600 - 95747836) * 1024, None)
    assert quota.parse_quota_left(LFS_NONE.splitlines(), Path("/univ_1/me")) == quota.QuotaLeft(None, None)
    of_user_and_group = (LFS + LFS.replace("316399", "999990")).splitlines()
    assert quota.parse_quota_left(of_user_and_group, Path("/scratch/me")).inodes == 10  # the less
    for text in ("", "17 of 20 TiB", "\n".join(LFS.splitlines()[:2]), LFS.replace("1000000", "many")):
        assert quota.parse_quota_left(text.splitlines(), Path("/scratch/me")) is None


def test_a_run_is_refused_by_the_sites_quota(tmp_path: Path, site) -> None:
    command = site(LFS.replace("/scratch", str(tmp_path)).replace("316399", "999997"))
    arguments = ["--config", str(config_file(tmp_path)), "--output", str(tmp_path / "run")]
    with pytest.raises(ConfigError, match=f"got 3 left for .* by {command}"):
        make_run_plan(arguments, "run.py", None)
    site(LFS.replace("/scratch", str(tmp_path)).replace("285181364", "5347737000"))
    with pytest.raises(ConfigError, match=r"got 0.61 MB left for"):
        make_run_plan(arguments, "run.py", None)
    site(LFS.replace("/scratch", str(tmp_path)))
    make_run_plan(arguments, "run.py", None)


def test_a_quota_in_an_unknown_format_is_shown(tmp_path: Path, site, capsys: pytest.CaptureFixture[str]) -> None:
    command = site("WORK: 17 of 20 TiB, 99 % of the inodes")
    assert disk_space.quota_lines() == [f"quota by {command}:", "  WORK: 17 of 20 TiB, 99 % of the inodes"]
    images = write_images(tmp_path / "images")
    assert pack_command.main([str(images), str(tmp_path / "packed"), "--workers", "1"]) == 0
    assert "17 of 20 TiB" in capsys.readouterr().out
    site("x")
    Path(command).unlink()  # no answer: a run goes on
    assert disk_space.quota_lines() == []


@pytest.mark.parametrize("name", [*checks._RESNETS, "mobilenet_v3_small"])
@pytest.mark.parametrize("classes", [10, 1000])
def test_parameters_are_counted(name: str, classes: int) -> None:
    info = dataclasses.replace(describe_data_set(DataConfig(image_size=224)), num_classes=classes)
    with torch.device("meta"):
        model = build_model(ModelConfig(name=name), info)
    assert checks.parameter_count(ModelConfig(name=name), info) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("optimizer", "average"), [("sgd", 0.0), ("lamb", 0.9)])
def test_a_checkpoint_is_as_large_as_foreseen(tmp_path: Path, optimizer: str, average: float) -> None:
    """Written by a real run; between the estimate and 5 % less, for the reserve is 5 %."""
    keys = {"epochs": 1, "data.subset": 0.02, "batch.global_size": 8, "ema_decay": average, "data.image_size": 8}
    config = CONFIG.replace_keys({**keys, "optimizer.name": optimizer})
    run(config, checkpoint_dir=tmp_path)
    assert CheckpointFolder(tmp_path, 0).load()
    real = (tmp_path / "latest.pt").stat().st_size
    expected = checks.checkpoint_bytes(config.model, describe_data_set(config.data), optimizer, average > 0)
    assert 0.97 * expected < real < disk_space.RESERVE * expected


def test_a_resume_counts_what_is_there_as_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "latest.pt").write_bytes(bytes(1000))
    left = disk_space.SpaceLeft(500, 3, "the file system", "the file system")
    monkeypatch.setattr(disk_space, "space_left", lambda folder: left)
    disk_space.check_disk_space("--output", tmp_path, disk_space.SpaceNeeded(1400, 4, "a test"))
    for needed, words in (((1500, 4), "got 0.00 MB left"), ((1400, 5), "5 inodes")):
        with pytest.raises(ConfigError, match=words):
            disk_space.check_disk_space("--output", tmp_path, disk_space.SpaceNeeded(*needed, "a test"))


@pytest.mark.parametrize("last", [False, True], ids=["there is room for the last", "never any room"])
def test_checkpoints_without_room_are_left_out_but_for_the_last(last, built, monkeypatch, tmp_path, caplog):
    expected = untimed(run(OF_THE_LOOP, checkpoint_dir=tmp_path / "a", checkpoint_every_s=1e-9))
    real, tried = CheckpointFolder.save, []

    def save(self, content):
        tried.append(content["progress"]["epoch"])
        if last or content["progress"]["epoch"] < OF_THE_LOOP.epochs:
            raise DiskFull(f"{NO_ROOM}: the file system /scratch is full")
        real(self, content)

    monkeypatch.setattr(CheckpointFolder, "save", save)
    if last:
        with pytest.raises(DiskFull, match="/scratch"):
            run(OF_THE_LOOP, checkpoint_dir=tmp_path / "b", checkpoint_every_s=1e-9)
        return
    assert untimed(run(OF_THE_LOOP, checkpoint_dir=tmp_path / "b", checkpoint_every_s=1e-9)) == expected
    assert len(tried) > 1 and "/scratch is full" in caplog.text


@pytest.mark.parametrize(("left", "met"), [(0, DiskFull), (1 << 30, OwnCodeError)])
def test_a_training_functions_torch_save_meets_a_full_disk_as_the_loops_does(left, met, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(disk_space, "free_bytes", lambda folder: left)
    with pytest.raises(met), disk_space.full_disk_named(tmp_path):
        raise OwnCodeError("own.py raised RuntimeError.") from RuntimeError("PytorchStreamWriter failed writing file")


def test_a_line_of_a_users_file_that_speaks_of_a_full_disk_is_none(tmp_path: Path) -> None:
    text = 'own.py raised ValueError.\n  File "own.py", line 3\n    save(net)  # "quota exceeded" passes\nValueError: 3'
    with pytest.raises(OwnCodeError), disk_space.full_disk_named(tmp_path):
        raise OwnCodeError(text) from ValueError(3)


def test_a_log_without_room_is_closed_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    """Else a run in which all else goes on would end while it closes its log. /dev/full has no room for a byte."""
    log = LogFile("/dev/full", encoding="utf-8")
    log.handle(logging.makeLogRecord({"msg": "a line"}))
    log.close()
    assert capfd.readouterr() == ("", "")
