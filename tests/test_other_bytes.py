"""Names whose bytes are no UTF-8: a path is refused by every command in one line, images and classes are read."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bigbatch.cluster.cli import COMMANDS as CLUSTER_COMMANDS
from bigbatch.command import COMMANDS, main
from bigbatch.train_loop.config import ConfigError, DataConfig
from bigbatch.train_loop.data.catalogue import describe_data_set, open_data
from bigbatch.train_loop.data.packing import command as pack_command
from bigbatch.train_loop.data.source import Epoch
from bigbatch.train_loop.errors import ImageError
from bigbatch.tune.plan.options import SearchOptions

NAME = os.fsdecode(b"bil\xff")
LINES = {
    **{name: [name, NAME] for name in COMMANDS if name != "cluster"},
    **{f"cluster {name}": ["cluster", name, NAME] for name in CLUSTER_COMMANDS},
    **{f"tune {option}": ["tune", option, f"{NAME}/it", "--dry-run"] for option in
       ("--data", "--model", "--trainable", "--space", "--output", "--storage", "--metric", "--set", "--stage")},
    "train --output=": ["train", "--model", "resnet18", f"--output={NAME}"],
    "pack's destination": ["pack", "here", NAME],
    "a command of one's own": ["cluster", "submit", "--dry-run", "--cpus-per-node", "2", "--", "python", NAME],
}  # fmt: skip


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    try:
        code = main(words)
    except SystemExit as end:
        code = int(end.code or 0)
    out, error = capsys.readouterr()
    assert code == 2 and out == "" and len(error.splitlines()) == 1, (code, out, error)
    error.encode()  # it can be written to any terminal and log
    return error


@pytest.mark.parametrize("line", LINES)
def test_every_command_refuses_such_a_path(line: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    error = said(LINES[line], capsys)
    assert "must be UTF-8; got b'" in error and "bil\\xff" in error and "Rename" in error
    assert not os.listdir(tmp_path)


def test_the_folders_around_a_command_must_be_utf8_too(tmp_path: Path, monkeypatch, capsys) -> None:
    (tmp_path / NAME).mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / NAME))
    assert "the variable TMPDIR must be UTF-8" in said(["tune", "--dry-run"], capsys)
    monkeypatch.delenv("TMPDIR")
    monkeypatch.chdir(tmp_path / NAME)
    assert "the current folder must be UTF-8" in said(["tune", "--dry-run"], capsys)
    with pytest.raises(ConfigError, match=r"--data must be UTF-8; got b'.*bil.xff'"):  # from Python
        SearchOptions(data=str(tmp_path / NAME))


def test_images_and_classes_of_such_names_are_read_and_shown(tmp_path: Path, monkeypatch, capsys) -> None:
    """Also through a link with another name, and where one of them is no image."""
    for part, count in (("train", 4), ("val", 2)):
        for shade, name in enumerate((b"ant", b"caf\xe9")):
            folder = tmp_path / NAME / part / os.fsdecode(name)
            folder.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (8, 8), (200 * shade, number, 0)).save(folder / os.fsdecode(b"\xe9%d.png" % number))
    (tmp_path / NAME / "train" / os.fsdecode(b"x.\xe9")).touch()
    (tmp_path / "link").symlink_to(NAME, target_is_directory=True)
    source = open_data(DataConfig(name=str(tmp_path / "link"), image_size=8))
    ((images, labels),) = source.val_batches(8, 0, 1)
    assert labels.tolist() == [0, 0, 1, 1]
    assert np.unique(source.finish(images)[:, 0].numpy().round(3)).size == 2
    monkeypatch.chdir(tmp_path)
    assert pack_command.main(["link", "packed", "--workers", "1"]) == 0
    assert pack_command.main(["--info", "--verify", "packed"]) == 0
    out = capsys.readouterr().out
    out.encode()
    assert "12 images in 2 shards are as they were packed" in out and r"2: ant, 'caf\udce9'" in out
    assert r"1 file left out: '.\udce9' 1" in out
    bad = tmp_path / NAME / "train" / "ant" / os.fsdecode(b"\xe90.png")
    bad.write_bytes(b"no image")
    with pytest.raises(ConfigError, match="it is no image") as refused:
        describe_data_set(DataConfig(name=str(tmp_path / "link")), open_some=True)
    with pytest.raises(ImageError, match="cannot read image") as unread:
        list(source.read_train([np.arange(8)], Epoch(0, 0)))
    for error in (refused, unread):
        str(error.value).encode()
