"""Packed sets that are damaged, replaced or cut short: at --verify and --info, before a run and under it."""

import dataclasses
import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from bigbatch.train_loop.config import BatchSplit, ConfigError, DataConfig, LoaderConfig
from bigbatch.train_loop.data.catalogue import describe_data_set, open_data
from bigbatch.train_loop.data.packing import command
from bigbatch.train_loop.errors import ImageError
from helpers.packed_sets import pack_here, rows
from helpers.refusals import refused_command


def copy(packed: Path, target: Path) -> Path:
    return Path(shutil.copytree(packed, target))


def flip(shard: Path, place: int, bits: int) -> None:
    data = bytearray(shard.read_bytes())
    data[place] ^= bits
    shard.write_bytes(data)


def test_info_and_verify_do_both_and_find_a_flipped_byte(packed: Path, tmp_path: Path, capsys) -> None:
    shown = copy(packed, tmp_path / "shown")
    (shown / "rejected.parquet").unlink()  # as of a staged copy
    assert command.main(["--info", "--verify", str(shown)]) == 0
    said = capsys.readouterr().out
    assert "15 training, 6 validation, 0 rejected" in said and "ant, bee, cat" in said
    assert "21 images in 2 shards are as they were packed" in said
    image, shard = rows(packed, "train")[7]["image"], shown / "train-00000.arrow"
    flip(shard, shard.read_bytes().find(image) + len(image) // 2, 1)
    assert command.main(["--verify", "--info", str(shown)]) == 1
    shown_then, said = capsys.readouterr()
    assert "15 training, 6 validation" in shown_then
    assert f"the bytes of train-00000.arrow in {shown} have changed (SHA-256)" in said


def test_info_shows_what_the_profile_uses(packed: Path, images: Path, tmp_path: Path, capsys) -> None:
    fast = pack_here(images, tmp_path / "fast", name="fast", short_side=128)
    for folder, profile in (
        (packed, "full, jpegtran False, quality 90 for what is no plain JPEG"),
        (fast, "fast, short side 128, quality 90"),
    ):
        assert command.main(["--info", str(folder)]) == 0
        assert f"profile        {profile}\n" in capsys.readouterr().out


def test_a_shard_that_is_cut_short_or_gone_is_refused(packed: Path, tmp_path: Path) -> None:
    damaged = copy(packed, tmp_path / "damaged")
    path = damaged / "val-00000.arrow"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ConfigError, match="must be as it was packed"):
        describe_data_set(DataConfig(name=str(damaged)))
    path.unlink()
    with pytest.raises(ConfigError, match="no such file"):
        describe_data_set(DataConfig(name=str(damaged)))


def replace_by_zeros(shard: Path) -> None:
    shard.write_bytes(bytes(shard.stat().st_size))


def cut_short(shard: Path) -> None:
    os.truncate(shard, 1000)


@pytest.mark.parametrize(
    ("workers", "read", "harm", "said"),
    [
        (0, 0, replace_by_zeros, ".*bytes have changed"),
        (1, 0, cut_short, ".*train-00000.arrow: the shard is cut short"),
        (0, 1, cut_short, r".*train-00000.arrow: the shard is cut short\."),  # it is open
    ],
)
def test_a_shard_that_changes_under_a_run_is_named(packed, tmp_path, workers, read, harm, said):
    damaged = copy(packed, tmp_path / "damaged")
    source = open_data(DataConfig(name=str(damaged), image_size=32, loader=LoaderConfig(workers=workers)))
    batches = source.train_batches(0, 0, BatchSplit(1, 1, 5), 0)
    for _ in range(read):
        next(batches)
    harm(damaged / "train-00000.arrow")
    with pytest.raises(ImageError, match=rf"record \d+ \(train/{said}"):
        next(batches)
    source.close()


@pytest.mark.parametrize("loader_workers", [0, 1])
def test_a_flipped_byte_that_decodes_is_named_by_a_run(packed: Path, tmp_path: Path, loader_workers: int) -> None:
    damaged = copy(packed, tmp_path / "damaged")
    path = damaged / "train-00000.arrow"
    image = rows(packed, "train")[7]["image"]
    for place in range(len(image) // 2, len(image)):  # until Pillow does not mind it
        changed = bytearray(image)
        changed[place] ^= 4
        try:
            pixels = np.asarray(Image.open(io.BytesIO(changed)))
        except OSError:
            continue
        if not np.array_equal(pixels, np.asarray(Image.open(io.BytesIO(image)))):
            break
    flip(path, path.read_bytes().find(image) + place, 4)
    config = DataConfig(name=str(damaged), image_size=32, loader=LoaderConfig(workers=loader_workers))
    source = open_data(config)
    with pytest.raises(ImageError, match=r"record 7 \(train/bee/2.jpg\) in .*00.arrow: its bytes have changed"):
        list(source.train_batches(0, 0, BatchSplit(1, 1, 15), 0))
    source.close()


def change_index(
    packed: Path, target: Path, labels: list[int] | None = None, checksum: bool = True, **info: object
) -> Path:
    """A copy whose index says something else, beside the checksum of what it said."""
    changed = copy(packed, target)
    table = pa.ipc.open_file(changed / "index.arrow").read_all()
    if labels is not None:
        place = table.schema.get_field_index("label")
        table = table.set_column(place, table.schema.field("label"), pa.array(labels, pa.int32()))
    values = json.loads(table.schema.metadata[b"bigbatch"]) | info
    metadata = {**(table.schema.metadata if checksum else {}), b"bigbatch": json.dumps(values).encode()}
    table = table.replace_schema_metadata(metadata).combine_chunks()
    (changed / "index.arrow").unlink()
    with pa.ipc.new_file(changed / "index.arrow", table.schema) as file:
        file.write_table(table)
    return changed


def test_a_damaged_index_is_refused_as_its_labels_have_no_other_checksum(packed: Path, tmp_path: Path, capsys) -> None:
    labels = pa.ipc.open_file(packed / "index.arrow").read_all()["label"].to_pylist()
    wrong = change_index(packed, tmp_path / "wrong", labels=[*labels[:4], 2, *labels[5:]])  # a class of the set
    assert labels[4] != 2
    with pytest.raises(ConfigError, match=r"an index must be as it was packed; got other bytes \(CRC-32\) in .*wrong"):
        describe_data_set(DataConfig(name=str(wrong)), open_some=True)
    for option in ("--verify", "--info"):
        assert "an index must be" in refused_command(capsys, command.main, [option, str(wrong)])
    other = change_index(packed, tmp_path / "other", std=[0.2, 0.2, 0.2])  # which normalises small images
    with pytest.raises(ConfigError, match="an index must be as it was packed"):
        describe_data_set(DataConfig(name=str(other)), open_some=True)
    without = change_index(packed, tmp_path / "without", labels=[*labels[:4], 3, *labels[5:]], checksum=False)
    with pytest.raises(ConfigError, match="an index must be as it was packed"):
        describe_data_set(DataConfig(name=str(without)), open_some=True)


def test_each_damage_of_an_index_is_refused_or_harmless(packed: Path, tmp_path: Path) -> None:
    """Bits flipped all over the file: labels and sizes are as they were, or it is refused in words."""
    damaged = copy(packed, tmp_path / "damaged")
    path = damaged / "index.arrow"
    whole = path.read_bytes()
    before = open_data(DataConfig(name=str(packed), image_size=32)).info
    labels = pa.ipc.open_file(path).read_all()["label"].to_pylist()
    refused = 0
    for place in range(3, len(whole), 23):
        path.unlink()
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        try:
            info = describe_data_set(DataConfig(name=str(damaged), image_size=32), open_some=True)
        except ConfigError:
            refused += 1
        else:
            assert dataclasses.replace(info, path=before.path, name=before.name) == before
            assert pa.ipc.open_file(path).read_all()["label"].to_pylist() == labels
    assert refused > 50


def test_an_empty_part_and_another_format_are_refused(packed: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="got none in val"):
        describe_data_set(DataConfig(name=str(change_index(packed, tmp_path / "empty", val_size=0))))
    with pytest.raises(ConfigError, match="reads packed format 1; got 99"):
        describe_data_set(DataConfig(name=str(change_index(packed, tmp_path / "other", checksum=False, format=99))))
