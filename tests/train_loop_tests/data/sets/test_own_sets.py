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


LARGE = """
import gc, weakref
from torch.utils.data import Dataset
made = weakref.WeakSet()

class Large(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return float(index), index % 2

def data(name):
    gc.collect()
    print("made while there are", len(made))
    sets = Large(), Large()
    made.update(sets)
    return sets
"""


def test_the_function_is_called_once_and_no_two_data_sets_are_held(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.py").write_text(LARGE)
    for name in ("a", "b"):
        config = data_config({"data.name": f"{tmp_path}/own.py:data", "data.options": {"name": name}})
        describe_data_set(config, open_some=True)  # as a plan does, then the check of two batches and the run
        open_data(config).close()
    assert capsys.readouterr().out.splitlines() == ["made while there are 0"] * 2


FEATURES = """
import torch


class Features(torch.utils.data.Dataset):
    network = torch.nn.Linear(2, 3)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.network(torch.full((2,), float(index))), index % 2


def data():
    return Features(), Features()
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_items_that_a_network_makes_are_data_without_gradients(tmp_path: Path, workers: int) -> None:
    (tmp_path / "own.py").write_text(FEATURES)
    features = source(f"{tmp_path}/own.py:data", workers)
    [[(inputs, _)]] = list(features.train_batches(0, 0, BatchSplit(1, 1, 8), 0))
    assert inputs.shape == (8, 3) and not inputs.requires_grad
    features.close()


ON_DEVICE = """
import torch
from torch.utils.data import TensorDataset


def data(device="meta"):
    sets = [TensorDataset(torch.ones(size, 3).to(device), torch.arange(size) % 2) for size in (12, 4)]
    return sets[0], sets[1]
"""


@pytest.mark.parametrize("device", ["meta", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_items_on_a_device_are_read_by_the_training_process_and_stay_there(tmp_path: Path, device: str) -> None:
    """torch's device ``meta``, like ``cuda``, is one whose tensors a loader process cannot send and nobody can pin."""
    (tmp_path / "on.py").write_text(ON_DEVICE)
    word, notes = f"{tmp_path}/on.py:data", list[str]()
    config = data_config({"data.name": word, "data.loader.workers": 2, "data.options.device": device})
    opened = open_data(config, note=notes.append)
    assert opened.processes == 0 and device in notes[0] and "no loader processes" in notes[0]
    read = [batch for step in opened.train_batches(1, 0, BatchSplit(1, 1, 4), 0) for batch in step]
    assert [(images.device.type, labels.device.type) for images, labels in read] == [(device, "cpu")] * 3


def test_the_order_is_that_of_every_data_set_and_integers_stay_integers(tmp_path: Path) -> None:
    inputs, targets = next(iter(source(write_points(tmp_path)).train_batches(3, 0, BatchSplit(1, 1, 10), 0)))[0]
    assert inputs["grid"][:, 0].tolist() == sampling.train_order(50, 3, 0)[:10].tolist()
    assert inputs["grid"].dtype == targets.dtype == torch.int64
    assert inputs["points"].dtype == torch.float32  # NumPy's doubles are computed in single precision


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "int8", "int32"])
def test_labels_of_any_whole_dtype_of_numpy_can_be_compared_with_classes(tmp_path: Path, dtype: str) -> None:
    pairs = f"[(np.zeros(2, np.float32), np.{dtype}(i % 3)) for i in range(30)]"
    (tmp_path / "labels.py").write_text(f"import numpy as np\n\n\ndef data():\n    return {pairs}, {pairs}\n")
    opened = open_data(data_config({"data.name": f"{tmp_path}/labels.py:data"}))
    _, targets = next(iter(opened.train_batches(3, 0, BatchSplit(1, 1, 10), 0)))[0]
    assert (targets == torch.arange(10) % 3).shape == (10,) and set(targets.tolist()) == {0, 1, 2}


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


def test_without_targets_the_split_is_drawn_and_said(tmp_path: Path) -> None:
    more = "\n\ndef plain():\n    return [(torch.ones(2), 0.5)] * 30, [(torch.ones(2), 0.5)] * 10\n"
    word, notes = write_points(tmp_path, more).replace(":points", ":plain"), list[str]()
    config = data_config({"data.name": word, "data.holdout": 0.5, "data.loader.workers": 0})
    opened = open_data(config, None, notes.append)
    assert (opened.info.val_size, opened.info.holdout_size) == (5, 5)
    assert len(notes) == 1 and "drawn at random" in notes[0]


ITEM = "torch.ones(2), 1"
BAD = [
    ("return 3", "must return a pair (train, val)"),
    ("return [(1, 2)], None", "got none"),
    ("return [], [(1, 2)]", "train of length 0"),
    ("return iter([1]), [(1, 2)]", "map-style"),
    ("return [5], [5]", "pairs (inputs, target); got a int as training item 0"),
    ("return [(1, 2, 3)], [(1, 2)]", "got 3 values as training item 0"),
    (f"return [({ITEM}), ({ITEM}), (torch.ones(3), 1)], [({ITEM})]", "training items 0 and 2"),
    (f"return [({ITEM})], [(torch.ones(2), 1.5)]", "a whole number in training and a number in validation"),
    (f"return [({ITEM}), (torch.ones(2), 1.5)], [({ITEM})]", "item 0 and a number of item 1"),
    (f"return [({ITEM})], [(torch.ones(2), 'cat')]", "targets of one type|make a batch"),
    (
        f"return type('', (), dict(train=[({ITEM}), (torch.ones(2), 2)], val=[({ITEM})], num_classes=2))",
        "below its num_classes, 2; got 2 as the target of training item 1",
    ),
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
    assert any(word in str(refused.value) for word in words.split("|")), str(refused.value)


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
    assert "own_source" not in text and "site-packages" not in text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data.image_size", 64), ("data.augment.enabled", False), ("data.mix.mixup_alpha", 0.2),
        ("data.loader.name", "ring"),
    ],
)  # fmt: skip
def test_keys_of_images_are_refused(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key):
        describe_data_set(data_config({"data.name": write_points(tmp_path), key: value}))


def test_options_are_the_functions_arguments(tmp_path: Path) -> None:
    word = write_points(tmp_path)
    assert describe_data_set(data_config({"data.name": word, "data.options": {"size": 33}})).train_size == 33
    with pytest.raises(ConfigError, match="sizze"):
        describe_data_set(data_config({"data.name": word, "data.options": {"sizze": 33}}))
