"""Data sets by name, from an archive that is made here; and a part of the training images."""

import hashlib
import io
import itertools
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image

from bigbatch.train_loop.config import AugmentConfig, BatchSplit, ConfigError, DataConfig
from bigbatch.train_loop.data.catalogue import describe_data_set, open_data
from bigbatch.train_loop.data.packing import fetch
from bigbatch.train_loop.data.sets.subset import subset_rows
from helpers.packed_sets import cifar_pickles, pack_here, rows, write_images, write_small_images


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With one core: a fetch packs in this process."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    monkeypatch.setenv("BIGBATCH_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def publish(monkeypatch: pytest.MonkeyPatch, name: str, folder: Path, archive: Path) -> str:
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, arcname=folder.name)
    digest = "md5:" + hashlib.md5(archive.read_bytes()).hexdigest()
    monkeypatch.setitem(fetch.SETS, name, fetch.PublicSet(archive.as_uri(), digest, 1))
    return digest


def test_fetched_sets_are_found_by_name(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="Run, where there is a network: bigbatch fetch cifar10"):
        describe_data_set(DataConfig(name="cifar10"))
    publish(monkeypatch, "cifar10", cifar_pickles(tmp_path / "cifar-10-batches-py"), tmp_path / "c.tar.gz")
    assert fetch.main(["cifar10"]) == 0
    info = describe_data_set(DataConfig(name="cifar10"))
    assert (info.train_size, info.val_size, info.image_size, info.path) == (100, 20, 32, str(home / "cifar10"))
    assert [path.name for path in home.iterdir()] == ["cifar10"]
    pickled = pickle.loads((tmp_path / "cifar-10-batches-py" / "data_batch_1").read_bytes())
    stored = rows(home / "cifar10", "train")
    for row, pixels, label in zip(stored, pickled[b"data"], pickled[b"labels"], strict=False):
        image = np.asarray(Image.open(io.BytesIO(row["image"])))
        assert np.array_equal(image.transpose(2, 0, 1).reshape(-1), pixels) and row["label"] == label

    publish(monkeypatch, "imagenette", write_images(tmp_path / "imagenette2-320"), tmp_path / "i.tgz")
    assert fetch.main(["imagenette", "--from", str(tmp_path / "i.tgz")]) == 0
    assert describe_data_set(DataConfig(name="imagenette")).class_names == ("ant", "bee", "cat")


class Python2(pickle._Pickler):  # typeshed leaves out what Python's own pickler is made of
    """Writes as Python 2 did, which the published files are of: bytes and text are both ``BINSTRING``."""

    write: Any
    memoize: Any
    dispatch: ClassVar[dict[type, Any]] = dict(pickle._Pickler.dispatch)

    def save_string(self, value: bytes | str) -> None:
        data = value if isinstance(value, bytes) else value.encode()
        self.write(pickle.BINSTRING + len(data).to_bytes(4, "little") + data)
        self.memoize(value)

    dispatch[bytes] = dispatch[str] = save_string


def test_the_published_cifar_pickles_are_of_python_2(home: Path, tmp_path: Path, monkeypatch) -> None:
    root = cifar_pickles(tmp_path / "cifar-10-batches-py")
    for path in root.iterdir():
        loaded, buffer = pickle.loads(path.read_bytes()), io.BytesIO()
        Python2(buffer, protocol=2).dump(loaded)
        path.write_bytes(buffer.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    assert b"numpy.core.multiarray" in (root / "test_batch").read_bytes()
    publish(monkeypatch, "cifar10", root, tmp_path / "c.tar.gz")
    assert fetch.main(["cifar10"]) == 0
    info = describe_data_set(DataConfig(name="cifar10"))
    assert info.class_names == tuple(f"kind{i}" for i in range(10)) and info.train_size == 100


def test_a_pickle_that_would_run_code_is_refused(home: Path, tmp_path: Path, monkeypatch) -> None:
    root = cifar_pickles(tmp_path / "cifar-10-batches-py")
    (root / "batches.meta").write_bytes(pickle.dumps({b"label_names": os.system}))
    publish(monkeypatch, "cifar10", root, tmp_path / "c.tar.gz")
    with pytest.raises(pickle.UnpicklingError, match="holds arrays"):
        fetch.main(["cifar10"])


def test_imagenet_is_a_name_once_it_was_packed(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="ILSVRC2012_img_train.tar") as caught:
        describe_data_set(DataConfig(name="imagenet"))
    message = str(caught.value)
    assert f"bigbatch pack FOLDER {home / 'imagenet'}" in message
    assert "\n" not in message and "./imagenet" not in message
    (tmp_path / "imagenet").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="write ./imagenet"):
        describe_data_set(DataConfig(name="imagenet"))
    assert fetch.main(["imagenet"]) == 2
    pack_here(write_images(tmp_path / "images"), home / "imagenet")
    assert describe_data_set(DataConfig(name="imagenet")).class_names == ("ant", "bee", "cat")


def test_wrong_archive_no_network_and_unknown_name_in_one_line(home, tmp_path, monkeypatch, capsys):
    digest = publish(monkeypatch, "cifar10", cifar_pickles(tmp_path / "cifar-10-batches-py"), tmp_path / "c.tar.gz")
    other = tmp_path / "other"
    other.write_bytes(b"another file")
    nowhere = fetch.PublicSet("http://127.0.0.1:9/set.tgz", digest, 1)
    monkeypatch.setitem(fetch.SETS, "imagewoof", nowhere)
    cases = [
        (["cifar10", "--from", str(other)], 1, "not the published file"),
        (["cifar10", "--from", str(tmp_path / "none")], 2, "--from must be a file"),
        (["imagewoof"], 1, "a login node"),
        (["cifar100"], 2, "must be one of cifar10"),
    ]
    for arguments, status, words in cases:
        assert fetch.main(arguments) == status
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1


def test_a_fetch_that_was_interrupted_goes_on_with_its_archive_and_leaves_nothing(home, tmp_path, monkeypatch):
    archive = tmp_path / "c.tar.gz"
    publish(monkeypatch, "cifar10", cifar_pickles(tmp_path / "cifar-10-batches-py"), archive)

    def interrupted(*arguments: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fetch, "pack", interrupted)
        assert fetch.main(["cifar10"]) == 130
    archive.unlink()
    assert fetch.main(["cifar10"]) == 0
    assert [path.name for path in home.iterdir()] == ["cifar10"]


def test_small_images_are_shifted_and_mirrored(tmp_path: Path) -> None:
    """Against the definition: each augmented image is the plain one, padded by 4, cut at some place, or its mirror."""
    packed = str(pack_here(write_small_images(tmp_path / "small"), tmp_path / "packed"))
    sources = (open_data(DataConfig(packed, augment=AugmentConfig(enabled=on))) for on in (False, True))
    plain, moved = (next(source.train_batches(0, 0, BatchSplit(1, 1, 50), 0))[0][0] for source in sources)
    mirrored, places = 0, set()
    for image, seen in zip(plain, moved, strict=True):
        found = []
        for flip, y, x in itertools.product((False, True), range(9), range(9)):
            padded = torch.zeros(40, 40, 3, dtype=torch.uint8)
            padded[4:36, 4:36] = image.flip(1) if flip else image
            if torch.equal(padded[y : y + 32, x : x + 32], seen):
                found.append((flip, (y, x)))
        ((flip, place),) = found
        mirrored += flip
        places.add(place)
    assert 10 < mirrored < 40 and len(places) > 25


@pytest.mark.parametrize("part", [0.01, 0.1, 0.5, 1.0])
def test_a_subset_takes_its_share_of_each_class(part: float) -> None:
    labels = np.random.default_rng(0).integers(0, 7, 1000)
    rows = subset_rows(labels, part)
    assert len(set(rows.tolist())) == len(rows) == round(1000 * part) and (np.diff(rows) > 0).all()
    for label in range(7):
        assert abs((labels[rows] == label).sum() - part * (labels == label).sum()) <= 1
    assert np.array_equal(rows, subset_rows(labels, part))


def test_subsets_of_all_kinds_of_data(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", train=8)
    packed = pack_here(images, tmp_path / "packed")
    for name, whole in (("digits", 1437), (str(images), 24), (str(packed), 24)):
        config = DataConfig(name=name, subset=0.25, image_size=16)
        source = open_data(config)
        size = round(whole * 0.25)
        assert describe_data_set(config).train_size == source.info.train_size == size
        batches = [step[0] for step in source.train_batches(0, 0, BatchSplit(1, 1, size), 0)]
        counts = batches[0][1].bincount()
        assert len(batches) == 1 and counts.max() - counts.min() <= 3
        assert source.info.val_size == describe_data_set(DataConfig(name=name)).val_size
    both = (open_data(DataConfig(str(path), 16, subset=0.25)) for path in (images, packed))
    labels = [next(source.train_batches(0, 0, BatchSplit(1, 1, 6), 0))[0][1] for source in both]
    assert torch.equal(*labels)
