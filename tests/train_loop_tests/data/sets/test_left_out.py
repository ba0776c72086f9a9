"""What a folder of images holds besides images: training, searching and packing read, name or refuse it alike."""

import os
import socket
import tarfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bigbatch.train_loop.config import ConfigError, DataConfig
from bigbatch.train_loop.data.catalogue import describe_data_set, look, open_data
from bigbatch.train_loop.data.packing import command as pack_command
from bigbatch.train_loop.data.packing.sources import PackSource, find_source
from bigbatch.train_loop.data.sets.scan import FolderScan, scan_folder
from bigbatch.train_loop.data.sets.subset import hold_out
from bigbatch.train_loop.launch.command import announce, make_run_plan
from bigbatch.tune.commands.tune import tune_main
from helpers.packed_sets import pack_here
from helpers.refusals import refusal

CLASSES = ("ant", "bee", "cat")


def write(path: Path, shade: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = {".jfif": "JPEG", ".JPE": "JPEG"}.get(path.suffix)
    Image.new("RGB", (20, 20), (shade % 256, 0, 0)).save(path, kind)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Eight training and two validation images of each class."""
    for part, count in (("train", 8), ("val", 2)):
        for label, name in enumerate(CLASSES):
            for number in range(count):
                write(tmp_path / "set" / part / name / f"{number}.png", 60 * label + number)
    return tmp_path / "set"


def training(root: Path) -> tuple[list[str], list[str], Sequence[str]]:
    """The training and the validation images by their names in the folder, and what is said of it."""
    looked = look(DataConfig(name=str(root)))
    assert looked.scan is not None
    return *names(looked.scan), looked.info.notes


def names(scan: FolderScan) -> tuple[list[str], list[str]]:
    train, val = (
        [os.path.relpath(part.path(index), scan.root) for index in range(len(part.labels))]
        for part in (scan.train, scan.val)
    )
    return train, val


def packed_names(source: PackSource) -> tuple[list[str], list[str]]:
    return [item.entry.name for item in source.train], [item.entry.name for item in source.val]


def others(root: Path) -> None:
    for number in range(15):
        (root / "train" / "ant" / f"{number}.gif").write_bytes(b"GIF89a")
    (root / "val" / "bee" / "notes.txt").touch()
    (root / "val" / "labels.csv").touch()
    (root / "train" / "README").touch()
    (root / "train" / "bee" / ".hidden.gif").touch()
    (root / "train" / "bee" / "._0.png").touch()
    (root / "train" / ".ipynb_checkpoints").mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(root / "train" / "bee" / "talk.sock"))


def linked_folders(root: Path) -> None:
    elsewhere = root.parent / "elsewhere"
    write(elsewhere / "deep" / "far.png")
    (root / "train" / "ant" / "more").symlink_to(elsewhere, target_is_directory=True)
    (root / "val" / "bee" / "1.png").rename(root.parent / "one.png")
    (root / "val" / "bee" / "1.png").symlink_to("../../../one.png")
    (root / "train" / "cat").rename(root.parent / "cats")
    (root / "train" / "cat").symlink_to(root.parent / "cats", target_is_directory=True)


def of_both_parts(change: Callable[[Path], object]) -> Callable[[Path], object]:
    """``change`` gets the folder of a class ``dog`` in training's images, and in validation's."""
    return lambda root: [change(root / part / "dog") for part in ("train", "val")]


TEST_VALIDATES = "test/ validates, as there is no val/; --val-part 10% would hold training images out instead"
READ: dict[str, tuple[Callable[[Path], object], int, int, tuple[str, ...]]] = {
    "others": (others, 24, 6, ("19 files left out: .gif 15, .csv 1, .sock 1, .txt 1, without suffix 1",)),
    "a part for tests": (
        lambda root: (write(root / "test" / "1.png"), (root / "annotations").mkdir()),
        24, 6, ("left out: annotations/, test/",),
    ),
    "only a test part": (lambda root: (root / "val").rename(root / "test"), 24, 6, (TEST_VALIDATES,)),
    "linked folders": (linked_folders, 25, 6, ()),
}  # fmt: skip


@pytest.mark.parametrize("change", READ)
def test_all_read_the_same_and_say_what_they_leave_out(change, root, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make, train_size, val_size, expected = READ[change]
    make(root)
    train, val, notes = training(root)
    assert (len(train), len(val), notes) == (train_size, val_size, expected)
    source = find_source(str(root))
    assert (*packed_names(source), source.notes) == (train, val, notes)
    if not notes:
        return
    # each command says so
    plan = make_run_plan(["--model", "resnet18", "--data", str(root), "--set", "batch=8", "--no-check"], "run.py", None)
    announce(plan)
    assert tune_main(["--data", str(root), "--model", "resnet18", "--space", "smoke", "--dry-run"]) == 0
    assert pack_command.main([str(root), "packed", "--workers", "1"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for note in expected:
        assert said.count(" ".join(note.split())) == 3, said


REFUSED: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "nothing behind an image": (
        lambda root: (root / "train/ant/9.jpg").symlink_to("/mnt/gone/9.jpg"),
        ("/train/ant/9.jpg': No such file", "Mount the target of the link or remove it", "-xtype l"),
    ),
    "nothing behind a class": (
        of_both_parts(lambda dog: dog.symlink_to(f"/mnt/gone/{dog.parent.name}")),
        ("/dog': No such file", "Mount the target"),
    ),
    "link upwards": (
        lambda root: (root / "train/ant/up").symlink_to("../..", target_is_directory=True),
        ("/up/train/ant/up'", "Too many levels of symbolic links"),
    ),
    "empty class": (of_both_parts(Path.mkdir), ("at least one image; got none in ", "/dog'", "remove the folder")),
    "class without validation": (
        lambda root: write(root / "train/dog/1.png"), ("same classes; got no 'dog' in ", "(1 missing)"),
    ),
    "nothing": (lambda root: root.rename(root.parent / "away") and root.mkdir(),
                ("needs train/", "an empty folder", "train/<class>")),
    "no training": (lambda root: (root / "train").rename(root.parent / "away"), ("needs train/", "val/")),
    "no validation": (
        lambda root: (root / "val").rename(root.parent / "away"),
        ("needs val/, validation/, valid/, test/", "train/"),
    ),
    "one class": (
        lambda root: [(root / part / name).rename(root.parent / f"{part}-{name}")
                      for part in ("train", "val") for name in ("bee", "cat")],
        ("at least 2 classes", "got 1"),
    ),
    "image in no class": (
        lambda root: write(root / "train/preview.png"), ("needs a class folder; got 'train/preview.png'",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", REFUSED)
def test_what_would_be_lost_is_refused_alike_in_one_line(change: str, root: Path) -> None:
    make, words = REFUSED[change]
    make(root)
    said = refusal(lambda: training(root))
    assert all(word in said for word in words), said
    if change == "one class":  # which may be packed
        packed = pack_here(root, root.parent / "packed")
        assert said.replace(str(root), str(packed)) == refusal(lambda: training(packed))
    else:
        packing = refusal(lambda: find_source(str(root)))
        assert said == packing


@pytest.mark.parametrize("layout", ["train and nothing else", "train and test", "classes"])
def test_the_held_out_images_are_those_of_a_packed_set(layout: str, root: Path, tmp_path: Path) -> None:
    """Each class gives its share, whatever reads it: the folder or its packed set."""
    if layout == "train and test":
        (root / "val").rename(root / "test")
    else:
        for path in sorted((root / "val").rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        (root / "val").rmdir()
    folder = root / "train" if layout == "classes" else root
    scan = scan_folder(str(folder), 0.25)
    train, val = names(scan)
    assert [sum(f"{name}/" in path for path in val) for name in CLASSES] == [2, 2, 2]
    assert len(train) == 18 and not set(train) & set(val)
    source = find_source(str(folder), 0.25)
    assert packed_names(source) == (train, val) and source.notes == scan.notes
    assert scan.notes[0] == "25 % of each class's training images are held out to validate"
    assert ("left out: test/" in scan.notes) == (layout == "train and test")
    # other parts are other images, the same part always the same ones
    assert names(scan_folder(str(folder), 0.25)) == (train, val)
    # what is trained on: every pixel of both
    assert pack_command.pack(source, tmp_path / "packed", pack_command.PackProfile(), 1, 1 << 30) == 0
    by_folder = open_data(DataConfig(name=str(folder), val_part=0.25, image_size=8))
    by_set = open_data(DataConfig(name=str(tmp_path / "packed"), image_size=8))
    assert by_folder.val_labels().tolist() == by_set.val_labels().tolist()


@pytest.mark.parametrize("part", [0.05, 0.34, 0.5, 0.9, 0.99])
def test_a_class_keeps_an_image_to_train_on(part: float) -> None:
    """Also a class of one image, and a part that would take all of a class."""
    labels = np.repeat(np.arange(5), [1, 2, 3, 50, 1])
    train, val = hold_out([f"{row}.jpg" for row in range(len(labels))], labels, part)
    assert set(labels[train]) == set(range(5))
    assert sorted([*train, *val]) == list(range(len(labels)))
    assert abs(np.bincount(labels[val], minlength=5)[3] - min(part * 50, 49)) <= 1
    with pytest.raises(ConfigError, match="classes that have more than one; got"):
        hold_out(["a", "b"], np.array([0, 1]), part)


def test_validation_images_and_a_held_out_part_exclude_each_other(root: Path, tmp_path: Path) -> None:
    rule = "--val-part holds images out where a data set has none to validate on; got 0.1 for "
    pack_command.pack(find_source(str(root)), tmp_path / "packed", pack_command.PackProfile(), 1, 1 << 30)
    for name in (str(root), str(tmp_path / "packed"), "digits"):
        assert "data.val_part=0" in refusal(partial(describe_data_set, DataConfig(name, val_part=0.1)), rule)
    with pytest.raises(ConfigError, match="write --val-part 10% to hold training images out"):
        describe_data_set(DataConfig(name=str(root / "train")))


def test_a_tar_says_what_the_folder_does(root: Path, tmp_path: Path) -> None:
    (root / "train" / "ant" / "1.gif").touch()
    write(root / "train" / "ant" / ".thumbs" / "0.png")
    (root / "train" / "ant" / "same.png").symlink_to("0.png")
    write(root / "val" / "dog" / "1.png")
    with tarfile.open(tmp_path / "set.tar", "w") as archive:
        archive.add(root, arcname=".")
    with pytest.raises(ConfigError, match="a class that training has too; got 'val/dog/1.png' of 'dog'"):
        find_source(str(tmp_path / "set.tar"))
    write(root / "train" / "dog" / "1.png")
    with tarfile.open(tmp_path / "set.tar", "w") as archive:
        archive.add(root, arcname=".")
    source = find_source(str(tmp_path / "set.tar"))
    assert len(source.train) == 25 and source.notes == ("1 file left out: .gif 1",)
