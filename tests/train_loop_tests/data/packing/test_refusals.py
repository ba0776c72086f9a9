"""What ``bigbatch pack`` refuses: options that would change nothing, and what is packed already."""

import os
import shutil
from pathlib import Path

import pytest

from bigbatch.train_loop.data.packing import command
from helpers.packed_sets import rows
from helpers.refusals import refused_command


def run(*words: object) -> int:
    return command.main([str(word) for word in words])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("{images} set --short-side 160", "Write --profile fast, or leave --short-side out."),
        ("{images} set --profile full --short-side 160", "--short-side is an option of the fast profile"),
        ("{images} set --val-part 0.1", "got 0.1 for"),
        ("{images} set --val-part 10%", "which has val/. Leave --val-part out"),
        ("{images} set --val-part 1.5", "--val-part must be above 0 and below 1"),
        ("{images} set --workers many", "--workers must be a whole number"),
        ("{images} set --workers 0", "--workers must be 1 to"),
        ("{images} set --quality 200 --profile fast", "--quality must be 1 to 100"),
        ("/nowhere set", "must exist"),
        (". set", "needs train/; got an empty folder"),
        ("{images} {packed}", "must not exist"),
        ("{packed} set", "which is packed already. Use it as it is (--data)"),
        ("{images}", "SRC DST"),
        ("--verify {images}", "take one packed folder"),
    ],
)
def test_wrong_words_and_options_that_would_change_nothing(
    words, said, images, packed, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    error = refused_command(capsys, command.main, words.format(images=images, packed=packed).split())
    assert said in error and not os.listdir(tmp_path)


def test_a_set_within_its_source_is_refused_and_one_beside_it_is_made(images: Path, tmp_path: Path, capsys) -> None:
    """It would be a class of the next training, without validation images."""
    images = Path(shutil.copytree(images, tmp_path / "photos"))
    before = sorted(images.rglob("*"))
    for destination in ("train/new", "val/ant/new", "new"):
        error = refused_command(capsys, command.main, [str(images), str(images / destination)])
        assert "must lie beside the source" in error and sorted(images.rglob("*")) == before
    assert run(images / "train", images / "new", "--val-part", "34%", "--workers", 1) == 0
    assert len(rows(images / "new", "val")) == 5
