"""Runs that meet an image that cannot be read: who says so, and how they go on."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bigbatch.train_loop.config import ConfigError, DataConfig, TrainConfig
from bigbatch.train_loop.data import sampling
from bigbatch.train_loop.data.catalogue import look
from bigbatch.train_loop.data.packing.command import main as pack
from bigbatch.train_loop.data.pixels.crops import decode_rgb
from bigbatch.train_loop.data.sets.scan import scan_folder
from bigbatch.train_loop.errors import ImageError
from bigbatch.train_loop.launch import command as train_command, lr_find
from helpers.ranks import SMALL as CONFIG, start_ranks, write_config


def spoil(path: Path) -> bytes:
    """The header stays, so that a look before the start finds nothing. Returns what was there."""
    whole = path.read_bytes()
    path.write_bytes(whole[:120])
    return whole


@pytest.fixture
def images(tiny_images: Path, tmp_path: Path) -> Path:
    shutil.copytree(tiny_images, tmp_path / "images")
    return tmp_path / "images"


@pytest.fixture
def config(images: Path, tmp_path: Path) -> Path:
    return write_config(tmp_path, images)


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
    """Without the file the data would be others, on which no run resumes: so the message speaks of no removal, and says
    that a run on packed images is another.
    """
    path = images / "val" / "dark" / "000.png"
    change(path)
    with pytest.raises(ImageError) as error:
        decode_rgb(str(path))
    assert str(error.value) == (
        f"cannot read image {str(path)!r}: {reason}. Replace the file and repeat the command. "
        "Or begin anew on what `bigbatch pack` makes: it omits damaged images."
    )


def test_pack_omits_the_images_that_a_run_and_its_start_refuse(images: Path, tmp_path: Path) -> None:
    no_image, cut = (images / "train" / "dark" / f"{number:03d}.png" for number in (0, 1))
    spoil(cut)
    no_image.write_text("no picture")
    with pytest.raises(ImageError, match="`bigbatch pack` makes: it omits damaged images"):
        decode_rgb(str(cut))
    with pytest.raises(ConfigError, match="`bigbatch pack` makes: it omits damaged images"):
        look(DataConfig(str(images)), open_some=True)
    assert pack([str(images), str(tmp_path / "packed")]) == 0
    omitted = pq.read_table(tmp_path / "packed" / "rejected.parquet")["key"].to_pylist()
    assert omitted == ["train/dark/000.png", "train/dark/001.png"]


def test_a_run_that_died_of_it_goes_on_once_it_is_replaced(config, images, tmp_path, capsys, monkeypatch):
    """In the default folder, whose name says nothing of how fast a run is."""
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):  # as torchrun starts it: no Ray
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    path = images / "val" / "dark" / "000.png"
    whole = spoil(path)
    command = ["--config", str(config), "--checkpoint-every-s", "0.001", "--set"]
    assert train_command.main([*command, "data.loader.workers=0"]) == 1
    assert "failed: cannot read image" in capsys.readouterr().err
    path.write_bytes(whole)
    assert train_command.main([*command, "data.loader.workers=1"]) == 0
    (folder,) = (tmp_path / "runs" / "train").iterdir()
    history = json.loads((folder / "result.json").read_text())["history"]
    assert history[0]["resumed_from_epoch"] == 0, "the first run's checkpoint was taken up"


def test_the_default_folder_is_of_what_decides_the_outcome() -> None:
    loader = {"data.loader.workers": 3, "data.loader.pin_memory": False}
    assert CONFIG.replace_keys(loader).outcome_json() == CONFIG.outcome_json()
    assert TrainConfig.from_json(CONFIG.outcome_json()) == CONFIG
    assert CONFIG.replace_keys({"seed": 1}).outcome_json() != CONFIG.outcome_json()


def test_the_range_test_ends_in_one_line(config, images, capsys):
    for path in (images / "train").rglob("*.png"):
        spoil(path)
    assert lr_find.main(["--config", str(config)]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and "failed: cannot read image" in said[0]
