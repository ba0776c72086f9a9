"""What ``bigbatch pack`` refuses: options that would change nothing, and what is packed already."""

import os
import shutil
from pathlib import Path

import pytest

from bigbatch.train_loop.data.packing import command
from helpers.packed_sets import CLASSES, pack_here, rows, write_images
from helpers.photographs import photograph


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images") / "photos", train=3, val=1)


@pytest.fixture(scope="module")
def packed(images: Path) -> Path:
    return pack_here(images, images.parent / "packed")


def run(*words: object) -> int:
    return command.main([str(word) for word in words])


def size_of(packed: Path) -> int:
    return sum(len(row["image"]) for row in rows(packed, "train"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--short-side 160", "Write --profile fast --short-side 160, or leave --short-side out."),
        ("--profile full --short-side 160", "--short-side is an option of the fast profile"),
        ("--quality 80", "Write --profile fast --quality 80, or leave --quality out."),
        ("--profile full --quality 80", "got --quality 80 for a source of JPEGs alone"),
        ("--val-part 0.1", "got 0.1 for"),
        ("--val-part 10%", "which has val/. Leave --val-part out"),
        ("--val-part 1.5", "--val-part must be above 0 and below 1"),
        ("--workers many", "--workers must be a whole number"),
        ("--quality 200 --profile fast", "--quality must be 1 to 100"),
    ],
)
def test_options_that_would_change_nothing_are_refused(options, said, images, tmp_path, capsys) -> None:
    try:
        code = run(images, tmp_path / "set", *options.split())
    except SystemExit as end:
        code = int(end.code or 0)
    error = capsys.readouterr().err
    assert code == 2 and len(error.splitlines()) == 1 and said in error, error
    assert not os.listdir(tmp_path)


def test_the_same_options_count_where_they_change_something(images: Path, tmp_path: Path) -> None:
    fast = ("--profile", "fast", "--short-side", 64, "--workers", 1)
    for quality in (30, 90):
        assert run(images, tmp_path / f"q{quality}", *fast, "--quality", quality) == 0
    assert all(min(row["height"], row["width"]) == 64 for row in rows(tmp_path / "q30", "train"))
    assert size_of(tmp_path / "q30") < size_of(tmp_path / "q90")
    # full: what is no JPEG is encoded
    for name in CLASSES:
        for part in ("train", "val"):
            (tmp_path / "png" / part / name).mkdir(parents=True)
            photograph(200, 160, 1).save(tmp_path / "png" / part / name / "0.png")
    for quality in (30, 95):
        assert run(tmp_path / "png", tmp_path / f"p{quality}", "--profile", "full", "--quality", quality) == 0
    assert size_of(tmp_path / "p30") < size_of(tmp_path / "p95")
    # one part only: it is held out
    assert run(images / "train", tmp_path / "held", "--val-part", "34%", "--workers", 1) == 0
    assert len(rows(tmp_path / "held", "val")) == 3


def test_a_packed_set_is_no_source_and_is_said_to_be_one(packed: Path, images: Path, tmp_path: Path, capsys) -> None:
    is_set = "9 training and 3 validation images of 3 classes, profile full, made of 'photos'"
    for source in (packed, packed / "index.arrow", packed / "train-00000.arrow"):
        assert run(source, tmp_path / "again") == 2
        error = capsys.readouterr().err
        assert len(error.splitlines()) == 1 and is_set in error and f"--data {packed}" in error
    assert run(images, packed) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and f"a packed set: {is_set}" in error
    (tmp_path / "set.packing").mkdir()
    (tmp_path / "set.packing" / "plan.json").write_text("{}")
    assert run(tmp_path / "set.packing", tmp_path / "other") == 2
    assert f"it continues and makes {tmp_path / 'set'}" in capsys.readouterr().err
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "index.arrow").write_text("no index")
    for words in ((images, damaged), (damaged, tmp_path / "new")):
        assert run(*words) == 2
        assert "a damaged one" in capsys.readouterr().err


def test_info_and_verify_do_both(packed: Path, tmp_path: Path, capsys) -> None:
    folder = Path(shutil.copytree(packed, tmp_path / "set"))
    assert run("--info", "--verify", folder) == 0
    shown = capsys.readouterr().out
    assert "9 training, 3 validation" in shown and "12 images in 2 shards are as they were packed" in shown
    shard = folder / "train-00000.arrow"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    assert run("--verify", "--info", folder) == 1
    shown = capsys.readouterr()
    assert "9 training, 3 validation" in shown.out and "its bytes have changed" in shown.out
    assert run("--verify", folder, "--quality", 3) == 2
    assert "got --quality. Leave it out." in capsys.readouterr().err
