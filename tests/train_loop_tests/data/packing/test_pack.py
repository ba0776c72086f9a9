"""Packing: what is stored, from which sources, what is refused; a killed pack; a packed set in training."""

import io
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from bigbatch.train_loop.config import AugmentConfig, BatchSplit, ConfigError, DataConfig, data_config
from bigbatch.train_loop.data.catalogue import describe_data_set, open_data
from bigbatch.train_loop.data.packing.shards import PackProfile, convert
from bigbatch.train_loop.data.sets import folder
from bigbatch.train_loop.data.sets.scan import scan_folder
from helpers.packed_sets import CLASSES, jpeg_bytes, pack_here, rows, run_pack, write_images, write_small_images


def test_shards_hold_the_folders_images_in_its_order(images: Path, packed: Path) -> None:
    scan = scan_folder(str(images))
    for part, listing in (("train", scan.train), ("val", scan.val)):
        stored = rows(packed, part)
        assert [row["label"] for row in stored] == listing.labels.tolist()
        for index, row in enumerate(stored):
            source = Image.open(listing.path(index))
            image = Image.open(io.BytesIO(row["image"]))
            assert image.size == source.size == (row["width"], row["height"])
            error = np.square(np.asarray(source, float) - np.asarray(image, float)).mean()
            assert 10 * np.log10(255**2 / max(error, 1e-9)) > 40  # dB
            assert listing.path(index).endswith(row["key"])


def test_index_states_classes_counts_checksums_and_statistics(images: Path, packed: Path) -> None:
    import hashlib

    metadata = pa.ipc.open_file(packed / "index.arrow").schema.metadata[b"bigbatch"]
    stated = json.loads(metadata)
    assert stated["class_names"] == list(CLASSES) and (stated["train_size"], stated["val_size"]) == (15, 6)
    for shard in stated["shards"]:
        assert hashlib.sha256((packed / shard["file"]).read_bytes()).hexdigest() == shard["sha256"]
    pixels = [np.asarray(Image.open(p)).reshape(-1, 3) / 255 for p in sorted((images / "train").rglob("*.jpg"))]
    np.testing.assert_allclose(stated["mean"], np.mean([p.mean(0) for p in pixels], axis=0), atol=0.01)
    std = np.sqrt(np.mean([np.square(p).mean(0) for p in pixels], axis=0) - np.square(stated["mean"]))
    np.testing.assert_allclose(stated["std"], std, atol=0.01)
    assert sorted(p.name for p in packed.iterdir()) == [
        "index.arrow", "rejected.parquet", "train-00000.arrow", "val-00000.arrow"
    ]  # fmt: skip


def test_odd_images_become_what_a_person_would_make_of_them() -> None:
    red = Image.new("RGB", (300, 200), (200, 30, 30))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: 300 × 200 is meant as 200 × 300
    png = io.BytesIO()
    red.save(png, "PNG")
    deep = io.BytesIO()
    Image.fromarray(np.full((200, 300), 40_000, np.uint16)).save(deep, "PNG")
    cases = {
        "cmyk": (jpeg_bytes(red.convert("CMYK")), (300, 200), (200, 30, 30)),
        "grey": (jpeg_bytes(red.convert("L")), (300, 200), red.convert("L").convert("RGB").getpixel((0, 0))),
        "rotated": (jpeg_bytes(red, exif=exif), (200, 300), (200, 30, 30)),
        "png": (png.getvalue(), (300, 200), (200, 30, 30)),
        "16 bits": (deep.getvalue(), (300, 200), (156, 156, 156)),
        "one pixel": (jpeg_bytes(red.resize((1, 1))), (1, 1), (200, 30, 30)),
        "progressive": (jpeg_bytes(red, progressive=True), (300, 200), (200, 30, 30)),
    }
    for name, (data, size, colour) in cases.items():
        for profile in (PackProfile(), PackProfile("fast", short_side=128)):
            stored = convert(data, profile)
            image = Image.open(io.BytesIO(stored.data)).convert("RGB")
            if profile.name == "full":
                assert image.size == size == (stored.width, stored.height), name
            middle = image.getpixel((image.width // 2, image.height // 2))
            assert np.abs(np.subtract(middle, colour)).max() <= 6, (name, middle)


def test_bad_images_are_listed_with_the_reason(tmp_path: Path) -> None:
    root = write_images(tmp_path / "images", train=2, val=1)
    whole = (root / "train" / "ant" / "0.jpg").read_bytes()
    for name, data in {"half": whole[: len(whole) // 2], "empty": b"", "text": b"no image"}.items():
        (root / "train" / "ant" / f"{name}.jpg").write_bytes(data)
    done = run_pack(root, tmp_path / "packed", "--workers", 2)
    assert done.returncode == 0, done.stderr
    assert "rejected 3 images" in done.stdout
    table = pq.read_table(tmp_path / "packed" / "rejected.parquet").to_pylist()
    reasons = {Path(row["key"]).stem: row["reason"] for row in table}
    assert reasons["empty"] == "zero bytes" and "truncated" in reasons["half"] and "no image" in reasons["text"]
    assert {row["part"] for row in table} == {"train"}
    assert describe_data_set(DataConfig(name=str(tmp_path / "packed"))).train_size == 6


def test_too_little_room_is_refused_with_the_numbers(images, tmp_path, monkeypatch):
    real = os.statvfs(tmp_path)

    class Left:
        f_blocks, f_frsize, f_bavail, f_files, f_favail = 2, real.f_frsize, 1, 100, 100

    monkeypatch.setattr(os, "statvfs", lambda path: Left)
    with pytest.raises(ConfigError, match=r"needs about 0\.\d\d MB; got 0\.00 MB left"):
        pack_here(images, tmp_path / "packed")
    assert list(tmp_path.iterdir()) == []


def test_crops_are_those_of_the_image_folder(images: Path, packed: Path) -> None:
    """The same images, crops and flips by seed, epoch and index; decoded and resized by other code."""
    for augment in (AugmentConfig(), AugmentConfig(enabled=False)):
        theirs, mine = (open_data(DataConfig(str(path), 96, augment=augment)) for path in (images, packed))
        (batch,), (reference,) = (next(s.train_batches(3, 2, BatchSplit(1, 1, 15), 0)) for s in (mine, theirs))
        assert torch.equal(batch[1], reference[1])
        difference = (mine.finish(batch[0]) - theirs.finish(reference[0])) * torch.tensor(folder.STD)[:, None, None]
        assert difference.abs().mean() < 0.01 and difference.square().mean().sqrt() < 0.015  # of 0 to 1
    images_, labels = next(mine.val_batches(100, 0, 1))
    expected = next(theirs.val_batches(100, 0, 1))
    assert torch.equal(labels, expected[1])
    assert (mine.finish(images_) - theirs.finish(expected[0])).abs().mean() < 0.03


@pytest.mark.parametrize("key", ["data.augment.min_crop_area", "data.augment.max_crop_ratio", "data.val_crop"])
def test_keys_of_crops_are_refused_where_nothing_is_cropped(tmp_path: Path, key: str) -> None:
    small = pack_here(write_small_images(tmp_path / "images"), tmp_path / "small")
    value = 1.5 if "ratio" in key else 0.5
    for name, what in (("digits", "digits are enlarged as a whole"), (str(small), "at most 64 px are shifted")):
        with pytest.raises(ConfigError, match=rf"{what}, not cropped; got {key}={value}. Leave {key} out"):
            describe_data_set(data_config({"data.name": name, key: value}))
    with pytest.raises(ConfigError, match=rf"{key} must be"):
        data_config({key: 0.0})
