"""Runs that meet an image that cannot be read: who says so, and how they go on."""

import itertools
import json
import logging
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from bigbatch.train_loop.config import ConfigError, DataConfig, TrainConfig
from bigbatch.train_loop.data import sampling
from bigbatch.train_loop.data.catalogue import describe_data_set
from bigbatch.train_loop.data.packed.schema import PackedFiles
from bigbatch.train_loop.data.packing import command as pack_command
from bigbatch.train_loop.data.pixels.crops import decode_rgb
from bigbatch.train_loop.data.sets.scan import scan_folder
from bigbatch.train_loop.errors import ImageError, TrainingStopped
from bigbatch.train_loop.launch import command as train_command
from bigbatch.train_loop.launch import lr_find
from bigbatch.train_loop.loop.train import train
from bigbatch.train_loop.reporter import ListReporter
from helpers.commands import run_process
from helpers.paths import TRAIN
from helpers.ranks import SMALL as CONFIG
from helpers.ranks import start_ranks, write_config
from helpers.tiny_training import StopsAt


def spoil(path: Path) -> None:
    """The header stays, so that a look before the start finds nothing."""
    path.write_bytes(path.read_bytes()[:120])


@pytest.fixture
def images(tiny_images: Path, tmp_path: Path) -> Path:
    shutil.copytree(tiny_images, tmp_path / "images")
    return tmp_path / "images"


@pytest.fixture
def config(images: Path, tmp_path: Path) -> Path:
    return write_config(tmp_path, images)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As torchrun starts one process: no Ray."""
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)


def test_the_rank_that_meets_it_says_so(config: Path, images: Path) -> None:
    split = CONFIG.batch.split(2)
    (first,) = next(sampling.train_micro_batches(64, CONFIG.seed, 0, split, 1))
    spoil(Path(scan_folder(str(images)).train.path(int(first[0]))))
    ranks = start_ranks(config)
    said = ranks[1].communicate(timeout=300)[1].splitlines()
    ranks[0].kill()
    ranks[0].communicate()
    assert ranks[1].returncode == 1 and len(said) == 1 and "failed: cannot read image" in said[0], said


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (Path.unlink, "No such file or directory"),
        (lambda path: path.write_text("no picture"), "it is no image"),
        (lambda path: path.write_bytes(path.read_bytes()[:100]), "image file is truncated"),
    ],
)
def test_of_an_image_that_changed_meanwhile_is_said_what_lets_the_run_go_on(change, reason, images: Path) -> None:
    """Without the file the data would be others, on which no run resumes: so the message speaks of no removal."""
    path = images / "val" / "dark" / "000.png"
    change(path)
    with pytest.raises(ImageError) as error:
        decode_rgb(str(path))
    advice = "Replace the file and repeat the command, or write --on-bad-image skip."
    assert str(error.value) == f"cannot read image {str(path)!r}: {reason}. {advice}"


@pytest.mark.usefixtures("alone")
def test_a_run_that_died_of_it_goes_on_with_skip(config, images, tmp_path, capsys):
    """In the default folder, whose name says nothing of how fast a run is and what it forgives."""
    spoil(images / "val" / "dark" / "000.png")
    # The ring reads images as it needs them: those of training before the bad one, which validation meets.
    command = ["--config", str(config), "--checkpoint-every-s", "0.001", "--set", "data.loader.name=ring"]
    assert train_command.main(command) == 1
    assert "failed: cannot read image" in capsys.readouterr().err
    assert train_command.main([*command, "data.loader.workers=1", "--on-bad-image", "skip"]) == 0
    (folder,) = (tmp_path / "runs" / "train").iterdir()
    history = json.loads((folder / "result.json").read_text())["history"]
    assert [record["bad_images"] for record in history] == [1, 1]
    assert history[0]["resumed_from_epoch"] == 0, "the first run's checkpoint was taken up"


def test_an_epoch_that_was_interrupted_counts_its_bad_images_once(images: Path, tmp_path: Path) -> None:
    """One is met before the first stop, one between the two, one in validation."""
    config = CONFIG.replace_keys({"data.name": str(images), "epochs": 1, "data.on_bad_image": "skip"})
    listing = scan_folder(str(images))
    steps = list(sampling.train_micro_batches(64, config.seed, 0, config.batch.split(1), 0))
    for step in (0, 1):
        spoil(Path(listing.train.path(int(steps[step][0][3]))))
    spoil(Path(listing.val.path(0)))
    for number in (1, 1):  # after its first step, and after the next one
        with pytest.raises(TrainingStopped):
            train(config, reporter=StopsAt(number), checkpoint_dir=tmp_path / "run", device=torch.device("cpu"))
    resumed, whole = (
        train(config, reporter=ListReporter(), checkpoint_dir=folder, device=torch.device("cpu")).record
        for folder in (tmp_path / "run", None)
    )
    assert (resumed.bad_images, resumed.resumed_from_epoch) == (3, 0)
    assert whole.bad_images == 3 and resumed.val_loss == whole.val_loss


def test_the_default_folder_is_of_what_decides_the_outcome() -> None:
    loader = {"data.loader.workers": 3, "data.loader.slots": 16, "data.loader.pin_memory": False}
    assert CONFIG.replace_keys({"data.on_bad_image": "skip", **loader}).outcome_json() == CONFIG.outcome_json()
    assert TrainConfig.from_json(CONFIG.outcome_json()) == CONFIG
    assert CONFIG.replace_keys({"seed": 1}).outcome_json() != CONFIG.outcome_json()


def test_skip_is_not_refused_for_what_it_skips(images: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    assert pack_command.main([str(images), str(packed), "--workers", "1"]) == 0
    files = PackedFiles(str(packed))
    with (packed / files.info.shards[0].file).open("r+b") as shard:
        shard.seek(int(files.columns()["offset"][0]))
        shard.write(bytes(100))
    (images / "train" / "dark" / "000.png").write_bytes(b"no image")
    for path, message in ((images, "000.png"), (packed, "must be as it was packed")):
        with pytest.raises(ConfigError, match=message):
            describe_data_set(DataConfig(name=str(path)), open_some=True)
        assert describe_data_set(DataConfig(name=str(path), on_bad_image="skip"), open_some=True).train_size == 64


def test_the_range_test_ends_in_one_line(config, images, tmp_path, capsys):
    for path in (images / "train").rglob("*.png"):
        spoil(path)
    assert lr_find.main(["--config", str(config), "--output", str(tmp_path / "found")]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and "failed: cannot read image" in said[0]


def test_bad_images_are_named_in_the_log_of_the_trial_that_met_them(tmp_path: Path) -> None:
    """One process of Ray's serves one trial after the other, and a trial again."""
    from bigbatch.train_loop.launch.ray_worker import _trial_log

    logger, ours = logging.getLogger("bigbatch.train_loop"), logging.getLogger("bigbatch.train_loop.data.source")
    before = (list(logger.handlers), logger.propagate, logger.level)
    try:
        for name, rank in (("a", 0), ("b", 1), ("a", 0)):
            _trial_log(tmp_path / f"{name}.log", rank)
            ours.warning("met in %s", name)
    finally:
        for handler in logger.handlers:
            handler.close()
        logger.handlers[:], logger.propagate, level = before
        logger.setLevel(level)
    assert (tmp_path / "a.log").read_text().count("rank 0 WARNING met in a") == 2
    assert (tmp_path / "b.log").read_text().count("rank 1 WARNING met in b") == 1


@pytest.mark.exhaustive  # two starts of Ray; the parts are tested above
def test_under_ray_it_is_one_line_and_skip_goes_on(config: Path, images: Path) -> None:
    numbers = itertools.chain(*(np.arange(8), np.arange(32, 40)))
    listing = scan_folder(str(images)).train
    for number in numbers:
        spoil(Path(listing.path(int(number))))
    command = [sys.executable, str(TRAIN), "--config", str(config), "--output", "out", "--workers", "2"]

    def finish(*more: str) -> subprocess.CompletedProcess[str]:
        return run_process(*command, *more, cwd=config.parent)

    failed, log = finish(), config.parent / "out" / "train.log"
    said = failed.stderr.splitlines()
    assert failed.returncode == 1 and len(said) == 1 and "failed: cannot read image" in said[0], failed.stderr
    assert log.read_text().count("in train_worker") <= 2, "each rank was started once to train"
    done = finish("--on-bad-image", "skip")
    assert done.returncode == 0, done.stderr
    assert "replaced by the next image of its batch" in log.read_text()
