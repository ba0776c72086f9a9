"""Data sets of a user's own: the same items whoever reads them, exact sampling, and one clear line for bad ones."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bigbatch.train_loop.config import BatchSplit, ConfigError, data_config
from bigbatch.train_loop.data import sampling
from bigbatch.train_loop.data.catalogue import describe_data_set, open_data
from bigbatch.train_loop.data.source import DataSource
from bigbatch.train_loop.errors import OwnCodeError
from helpers.own_sets import write_points
from helpers.packed_sets import same


def source(word: str, workers: int = 0, **keys: object) -> DataSource:
    return open_data(data_config({"data.name": word, "data.loader.workers": workers, **keys}))


def test_what_it_is_follows_from_lengths_and_the_first_item(tmp_path: Path) -> None:
    info = describe_data_set(data_config({"data.name": write_points(tmp_path)}), open_some=True)
    assert (info.train_size, info.val_size, info.num_classes, info.image_size) == (50, 21, 2, 0)
    assert info.are_classes and info.path == str(tmp_path / "own_points.py") + ":points"
    images = "\n\ndef images():\n    return [(torch.zeros(3, 9, 9), 1.5)] * 4, [(torch.zeros(3, 9, 9), 0.5)]\n"
    other = describe_data_set(data_config({"data.name": write_points(tmp_path, images).replace(":points", ":images")}))
    assert (other.input_shape, other.image_size, other.num_classes, other.are_classes) == ((3, 9, 9), 9, 0, False)


def test_batches_are_the_same_for_any_number_of_processes_and_leave_the_generators_alone(tmp_path: Path) -> None:
    word, split = write_points(tmp_path), BatchSplit(1, 2, 8)
    here, beside = source(word, 0), source(word, 2)
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    before = random.getstate(), torch.get_rng_state()
    for epoch in (0, 1):
        one, two = (list(s.train_batches(7, epoch, split, 0)) for s in (here, beside))
        assert len(one) == 3 and all(same(a, b) for a, b in zip(one, two, strict=True))
    assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[1])
    later = list(beside.train_batches(7, 1, split, 0, start_step=2))
    assert len(later) == 1 and same(later[0], two[2])  # a run that resumes within the epoch
    again = list(here.train_batches(7, 0, split, 0))
    assert not same(again[0], one[0])  # another epoch has other draws
    here.close(), beside.close()


def test_the_order_is_that_of_every_data_set_and_integers_stay_integers(tmp_path: Path) -> None:
    inputs, targets = next(iter(source(write_points(tmp_path)).train_batches(3, 0, BatchSplit(1, 1, 10), 0)))[0]
    assert inputs["grid"][:, 0].tolist() == sampling.train_order(50, 3, 0)[:10].tolist()
    assert inputs["grid"].dtype == targets.dtype == torch.int64
    assert inputs["points"].dtype == torch.float32  # NumPy's doubles are computed in single precision


def test_subset_and_holdout_are_of_each_class_alike_where_the_set_names_its_targets(tmp_path: Path) -> None:
    parts: dict[str, Any] = {"data.subset": 0.4, "data.holdout": 0.3}
    part = source(write_points(tmp_path), **parts)
    assert (part.info.train_size, part.info.val_size, part.info.holdout_size) == (20, 15, 6)
    seen = torch.cat([b[0]["grid"][:, 0] for s in part.train_batches(0, 0, BatchSplit(1, 1, 10), 0) for b in s])
    classes = np.random.default_rng(50).integers(0, 2, 50)
    assert len(set(seen.tolist())) == 20
    assert abs(classes[seen].mean() - classes.mean()) <= 1 / 20
    chooses, reports = sampling.holdout_rows(np.random.default_rng(21).integers(0, 2, 21), 6)
    got = [b[0]["grid"][:, 0].tolist() for b in part.holdout_batches(10, 0, 1)]
    assert got == [reports.tolist()] and not set(reports) & set(chooses)


ITEM = "torch.ones(2), 1"
CLASSED = "type('Set', (list,), dict(num_classes=2))"
BAD = [
    ("return 3", "must return a pair (train, val)"),
    ("return [(1, 2)], None", "must return a pair (train, val)"),
    ("return [], [(1, 2)]", "got no training items. Look where"),
    ("return [(1, 2)], []", "got no validation items. Look where"),
    ("return iter([1]), [(1, 2)]", "map-style"),
    ("return [5], [5]", "pairs (inputs, target); got a int as training item 0"),
    (f"return [({ITEM}), ({ITEM}), (torch.ones(3), 1)], [({ITEM})]", "got training items of which torch says: stack"),
    (f"return [({ITEM})], [(torch.ones(2), 'cat')]", "an entry for each item; got none for 1 items"),
    (
        f"return {CLASSED}([({ITEM}), (torch.ones(2), 2)]), [({ITEM})]",
        "classes from 0 to 1, below its num_classes; got 2",
    ),
    (f"return {CLASSED}([({ITEM}), (torch.ones(2), -1)]), [({ITEM})]", "below its num_classes; got -1 in training"),
]


def test_a_network_that_needs_classes_refuses_numbers_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "floats.py"
    items = "[(torch.ones(3, 8, 8), 1.0)]"
    file.write_text(f"import torch\n\ndef data():\n    return {items}, {items}\n")
    info = describe_data_set(data_config({"data.name": f"{file}:data"}))
    with pytest.raises(ConfigError, match="targets that are no whole numbers"):
        info.check_images("resnet18")


@pytest.mark.parametrize(("body", "words"), BAD)
def test_what_is_no_data_set_is_refused_in_one_line(tmp_path: Path, body: str, words: str) -> None:
    file = tmp_path / "bad.py"
    file.write_text(f"import torch\n\ndef data():\n    {body}\n")
    with pytest.raises(ConfigError) as refused:
        describe_data_set(data_config({"data.name": f"{file}:data"}), open_some=True)
    assert "\n" not in str(refused.value)
    assert words in str(refused.value)


def test_an_item_that_torchs_losses_leave_out_is_allowed(tmp_path: Path) -> None:
    file = tmp_path / "left_out.py"
    file.write_text(
        f"import torch\n\ndef data():\n    return {CLASSED}([({ITEM}), (torch.ones(2), -100)]), [({ITEM})]\n"
    )
    assert describe_data_set(data_config({"data.name": f"{file}:data"}), open_some=True).train_size == 2


def test_classes_may_be_of_a_type_that_does_not_reach_their_number(tmp_path: Path) -> None:
    file = tmp_path / "small.py"
    items = "[(torch.ones(2), torch.tensor(i, dtype=torch.int8)) for i in (0, 99)]"
    small = f"type('Set', (list,), dict(num_classes=1000))({items})"
    file.write_text(f"import torch\n\ndef data():\n    return {small}, {small}\n")
    assert describe_data_set(data_config({"data.name": f"{file}:data"}), open_some=True).num_classes == 1000


@pytest.mark.parametrize("workers", [0, 1])
def test_an_exception_of_an_item_is_the_users_traceback_alone(tmp_path: Path, workers: int) -> None:
    more = """

class Broken(Points):
    def __getitem__(self, index):
        if index == 40:
            raise KeyError("no scan 40")
        return super().__getitem__(index)


def broken():
    return Broken(50, 5, True), Points(21, 5, False)
"""
    word = write_points(tmp_path, more).replace(":points", ":broken")
    assert describe_data_set(data_config({"data.name": word}), open_some=True).train_size == 50  # 40 is not looked at
    opened = source(word, workers)
    with pytest.raises(OwnCodeError) as raised:
        list(opened.train_batches(0, 0, BatchSplit(1, 1, 10), 0))
    opened.close()
    text = str(raised.value)
    assert "no scan 40" in text and 'raise KeyError("no scan 40")' in text and "own_points.py" in text
    assert "own_sets" not in text and "site-packages" not in text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data.image_size", 64), ("data.augment", False), ("data.mix", 0.2),
        ("data.loader.name", "ring"),
    ],
)  # fmt: skip
def test_keys_of_images_are_refused(tmp_path: Path, key: str, value: object) -> None:
    whole = {"data.augment": "data.augment.enabled", "data.mix": "data.mix.mixup_alpha"}.get(key, key)
    with pytest.raises(ConfigError, match=key):
        describe_data_set(data_config({"data.name": write_points(tmp_path), whole: value}))


def test_options_are_the_functions_arguments(tmp_path: Path) -> None:
    word = write_points(tmp_path)
    assert describe_data_set(data_config({"data.name": word, "data.options": {"size": 33}})).train_size == 33
    with pytest.raises(ConfigError, match="sizze"):
        describe_data_set(data_config({"data.name": word, "data.options": {"sizze": 33}}))
