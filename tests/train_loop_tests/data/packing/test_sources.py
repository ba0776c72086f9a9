"""What can be packed: trees, tars, Parquet, WebDataset, and what people's folders are like."""

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.data.packing.sources import find_source, read_entry
from helpers.packed_sets import CLASSES


def tar_of(folder: Path, target: Path, prefix: str = "") -> Path:
    with tarfile.open(target, "w") as archive:
        archive.add(folder, arcname=prefix or ".")
    return target


def contents(items: list[Any]) -> list[tuple[int, bytes]]:
    return sorted((item.label, read_entry(item.entry)) for item in items)


def test_a_tar_and_tars_in_a_tar_hold_the_same_as_the_folder(images: Path, tmp_path: Path) -> None:
    expected = find_source(str(images))
    flat = find_source(str(tar_of(images, tmp_path / "flat.tar")))
    nested_folder, inner = tmp_path / "ILSVRC", tmp_path / "inner"
    nested_folder.mkdir(), inner.mkdir()
    for name in CLASSES:
        tar_of(images / "train" / name, inner / f"{name}.tar")
    tar_of(inner, nested_folder / "ILSVRC2012_img_train.tar")
    tar_of(images / "val", nested_folder / "some_val.tar")
    nested = find_source(str(nested_folder))
    for source in (flat, nested):
        assert source.class_names == expected.class_names
        assert contents(source.train) == contents(expected.train) and contents(source.val) == contents(expected.val)


def test_hugging_face_parquet(images: Path, tmp_path: Path) -> None:
    expected = find_source(str(images))
    names = {"info": {"features": {"label": {"names": list(CLASSES)}}}}
    for part, items in (("train", expected.train), ("validation", expected.val)):
        shuffled = [items[i] for i in np.random.default_rng(0).permutation(len(items))]
        columns = {
            "image": [{"bytes": read_entry(item.entry), "path": item.entry.name} for item in shuffled],
            "label": [item.label for item in shuffled],
        }
        table = pa.table(columns).replace_schema_metadata({"huggingface": json.dumps(names)})
        pq.write_table(table, tmp_path / f"{part}-00000-of-00001.parquet", row_group_size=4)
    source = find_source(str(tmp_path))
    assert source.class_names == CLASSES
    assert contents(source.train) == contents(expected.train)
    assert [item.entry.offset for item in source.train] == list(range(len(source.train)))  # a row group at a time


def test_a_hub_set_with_a_test_part_without_labels(images: Path, tmp_path: Path) -> None:
    """As the hub has ImageNet (test labels of -1), and Tiny ImageNet, whose validation file begins with ``valid``."""
    for part, labels in (("train", [0, 1, 0]), ("valid", [1]), ("test", [-1, -1])):
        data = (images / "train" / "ant" / "0.jpg").read_bytes()
        table = pa.table({"image": [{"bytes": data, "path": None}] * len(labels), "label": labels})
        pq.write_table(table, tmp_path / f"{part}-00000-of-00001.parquet")
    source = find_source(str(tmp_path))
    assert [[item.label for item in items] for items in (source.train, source.val)] == [[0, 1, 0], [1]]
    (tmp_path / "valid-00000-of-00001.parquet").unlink()
    with pytest.raises(ConfigError, match=r"labels must be whole numbers from 0, .* got -1 in '.*test-0"):
        find_source(str(tmp_path))


@pytest.mark.parametrize(("train", "val"), [([0, 1], [0, 2]), ([1, 2], [0, 1])])
def test_parquet_whose_validation_has_a_class_that_training_lacks_is_refused(tmp_path: Path, train, val) -> None:
    for part, labels in (("train", train), ("test", val)):
        table = pa.table({"image": [{"bytes": b"", "path": None}] * len(labels), "label": labels})
        pq.write_table(table, tmp_path / f"a-{part}.parquet")
    with pytest.raises(ConfigError, match="each image needs a class that training has too; got 'a-test.parquet/"):
        find_source(str(tmp_path))


@pytest.mark.parametrize("labels", [[0, None], [0, -1]])
def test_of_several_parquet_files_the_one_with_a_wrong_label_is_named(tmp_path: Path, labels) -> None:
    for part, given in (("train", labels), ("test", [0, 0])):
        table = pa.table({"image": [{"bytes": b"", "path": None}] * len(given), "label": given})
        pq.write_table(table, tmp_path / f"a-{part}.parquet")
    with pytest.raises(ConfigError, match=rf"got {labels[-1]} in '.*a-train.parquet'"):
        find_source(str(tmp_path))


@pytest.mark.parametrize("cut", ["at a header", "in a header", "in an image"])
def test_of_several_files_the_one_that_is_cut_short_is_named(images: Path, tmp_path: Path, cut: str) -> None:
    for part in ("train", "val"):
        with tarfile.open(tmp_path / f"some_{part}.tar", "w") as archive:
            archive.add(images / part, arcname=".")
    broken = tmp_path / "some_val.tar"
    with tarfile.open(broken) as archive:
        header = archive.getmembers()[-1].offset
    os.truncate(broken, header + {"at a header": 0, "in a header": 100, "in an image": 1000}[cut])
    with pytest.raises(ConfigError, match=r"a tar must be whole and not compressed; got '.*some_val.tar'"):
        find_source(str(tmp_path))
    for part in ("train", "val"):
        (tmp_path / f"some_{part}.tar").unlink()
        pq.write_table(pa.table({"image": [{"bytes": b""}], "label": [0]}), tmp_path / f"{part}.parquet")
    (tmp_path / "val.parquet").write_bytes((tmp_path / "val.parquet").read_bytes()[:50])
    with pytest.raises(ConfigError, match=r"a Parquet file must be whole.*; got '.*val.parquet'"):
        find_source(str(tmp_path))


def test_parquet_files_that_number_their_classes_differently_are_refused(tmp_path: Path) -> None:
    for part, names in (("train", ["cat", "dog"]), ("val", ["dog", "cat"])):
        named = {"huggingface": json.dumps({"info": {"features": {"label": {"names": names}}}})}
        table = pa.table({"image": [{"bytes": b"", "path": None}] * 2, "label": [0, 1]}).replace_schema_metadata(named)
        pq.write_table(table, tmp_path / f"{part}.parquet")
    with pytest.raises(ConfigError, match=r"must number the same classes alike; got others in '.*val.parquet'"):
        find_source(str(tmp_path))


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_metadata_of_hugging_face_that_are_no_json_are_refused(tmp_path: Path, text: str) -> None:
    table = pa.table({"image": [{"bytes": b"", "path": None}], "label": [0]})
    pq.write_table(table.replace_schema_metadata({"huggingface": text}), tmp_path / "train.parquet")
    with pytest.raises(ConfigError, match=r"its metadata JSON; got '.*train.parquet'"):
        find_source(str(tmp_path))


@pytest.mark.parametrize("image", [b"", {"path": "7.jpg"}, 7])
def test_parquet_without_the_bytes_of_an_image_is_refused(tmp_path: Path, image: object) -> None:
    for part in ("train", "val"):
        pq.write_table(pa.table({"image": [image], "label": [0]}), tmp_path / f"{part}.parquet")
    with pytest.raises(
        ConfigError, match=r"needs columns image \(struct<bytes, path>\) and label; got \['image', 'label'\]"
    ):
        find_source(str(tmp_path))


def test_a_class_of_webdataset_may_have_any_bytes(tmp_path: Path) -> None:
    for part in ("train", "val"):
        with tarfile.open(tmp_path / f"{part}.tar", "w") as archive:
            for name, data in (("7.jpg", b"image"), ("7.cls", b"caf\xe9\n")):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    assert find_source(str(tmp_path)).class_names == ("caf\udce9",)


def test_webdataset(images: Path, tmp_path: Path) -> None:
    expected = find_source(str(images))
    for part, items in (("train", expected.train), ("val", expected.val)):
        with tarfile.open(tmp_path / f"set-{part}-000000.tar", "w") as archive:
            for number, item in enumerate(items):
                for suffix, data in (("jpg", read_entry(item.entry)), ("cls", str(item.label).encode())):
                    member = tarfile.TarInfo(f"{number:06d}.{suffix}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
    source = find_source(str(tmp_path))
    assert source.class_names == ("0", "1", "2")
    found, wanted = ([(i.label, read_entry(i.entry)) for i in one.val] for one in (source, expected))
    assert found == wanted
