"""What a constant prediction reaches, against values computed by hand, and when a run measures it."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from bigbatch.train_loop.distributed import World
from bigbatch.train_loop.loop import validation
from bigbatch.train_loop.loop.metrics import MeanOfFunction, MeterObject
from bigbatch.train_loop.loop.validation import SeenTargets, constant_values
from helpers.loop_references import run
from helpers.tiny_training import CONFIG, StopsAt, TinySource, install

torchmetrics = pytest.importorskip("torchmetrics")
WORLD = World(0, 1, torch.device("cpu"))
IMBALANCED = torch.tensor([2, 0, 0, 1, 0, 0, 2, 0, 1, 0])
"""Of four classes, in ten examples: six, two, two, none."""


def constants(
    targets: torch.Tensor, outputs: tuple[int, ...], loss: Callable[..., torch.Tensor], **metrics: Any
) -> dict[str, float]:
    """Of a set that is validated in batches of 4; ``outputs`` is the shape of one example's."""
    seen = SeenTargets()
    for batch in targets.split(4):
        seen.add(torch.randn(len(batch), *outputs), batch)
    return constant_values(seen, "val", loss, metrics, WORLD)


def by_example(function: Callable[..., torch.Tensor]) -> MeanOfFunction:
    return MeanOfFunction("own.py:it", function, WORLD)


def test_of_classes_it_is_the_majoritys_share_and_the_entropy_of_their_frequencies() -> None:
    entropy = -(0.6 * math.log(0.6) + 2 * 0.2 * math.log(0.2))
    recall = MeterObject("it", torchmetrics.classification.MulticlassRecall(3, average="macro"), WORLD)
    found = constants(IMBALANCED, (3,), F.cross_entropy, recall=recall)
    assert found == pytest.approx({"val_top1": 0.6, "val_loss": entropy, "val_recall": 1 / 3}, rel=1e-6)
    masks = IMBALANCED.reshape(10, 1, 1).expand(10, 2, 3).contiguous()
    assert constants(masks, (3, 2, 3), F.cross_entropy)["val_loss"] == pytest.approx(entropy, rel=1e-6)
    with_empty_class = constants(IMBALANCED, (4,), F.cross_entropy)
    assert with_empty_class == pytest.approx({"val_top1": 0.6, "val_loss": entropy}, rel=1e-6)


def test_what_does_not_take_constant_outputs_has_no_baseline_and_ends_nothing() -> None:
    def refuses(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        raise ValueError(f"{outputs.std(0)} of a constant")

    found = constants(IMBALANCED, (3,), refuses, it=by_example(refuses), mean=by_example(lambda o, t: o.exp().sum(1)))
    assert found == pytest.approx({"val_top1": 0.6, "val_mean": 1.0})
    assert constants(IMBALANCED[:1], (3,), lambda o, t: o.zero_().sum(), mean=by_example(lambda o, t: o.sum(1).exp()))[
        "val_mean"
    ] != pytest.approx(1.0), "a function that changes its outputs changes no other's"
    assert constants(IMBALANCED, (3,), lambda o, t: o.sum() * math.nan) == pytest.approx({"val_top1": 0.6})


@pytest.mark.parametrize(
    ("outputs", "targets"),
    [
        ({"scores": torch.zeros(2, 3)}, torch.zeros(2, dtype=torch.long)),
        (torch.zeros(2, 3), {"boxes": torch.zeros(2, 4)}),
        (torch.zeros(2, 3), torch.zeros(2, 5)),
        (torch.zeros(2, 3), torch.zeros(5, dtype=torch.long)),
        (torch.zeros(2, 3), (torch.zeros(2), torch.zeros(2))),
        (torch.zeros(2, 3), torch.zeros(2)),
        (torch.zeros(2, 1), torch.zeros(2, dtype=torch.long)),
    ],
)
def test_other_structures_have_none(outputs: Any, targets: Any) -> None:
    seen = SeenTargets()
    seen.add(outputs, targets)
    assert constant_values(seen, "val", F.cross_entropy, {}, WORLD) == {} and not seen.batches


def test_many_targets_have_none_and_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "MOST_BYTES", 8 * 9)
    assert constants(IMBALANCED[:9], (3,), F.cross_entropy)
    assert constants(IMBALANCED, (3,), F.cross_entropy) == {}


def _share_and_entropy(rows: torch.Tensor) -> list[float]:
    counts = [rows.tolist().count(label) for label in set(rows.tolist())]
    return [max(counts) / len(rows), -sum(n / len(rows) * math.log(n / len(rows)) for n in counts)]


def test_a_run_measures_it_with_its_first_epoch_alone_and_on_the_holdout_too(monkeypatch: pytest.MonkeyPatch) -> None:
    source = TinySource(holdout=9)
    source.val = source.val[0], torch.tensor([0, 3, 3, 1, 3, 3, 3, 2, 3, 0, 1, 3, 3, 3, 0, 3, 3, 2, 3, 0, 3, 3, 1])
    install(monkeypatch.setattr, source=source)
    first, *others = (record.baseline for record in run(CONFIG))
    assert first is not None and others == [None, None]
    parts = {"val": source.val_batches(100, 0, 1), "holdout": source.holdout_batches(100, 0, 1)}
    for name, batches in parts.items():
        labels = torch.cat([labels for _, labels in batches])
        assert len(labels) == {"val": 14, "holdout": 9}[name]
        assert [first[f"{name}_top1"], first[f"{name}_loss"]] == pytest.approx(_share_and_entropy(labels), rel=1e-6)


def test_a_resumed_run_has_it_once(built, tmp_path):
    """Stopped within the first epoch, and within the second."""
    whole = [record.baseline for record in run(CONFIG)]
    for polls in (3, 6):
        with pytest.raises(RuntimeError, match="stopped on request"):
            run(CONFIG, reporter=StopsAt(polls), checkpoint_dir=tmp_path / str(polls))
        run(CONFIG, checkpoint_dir=tmp_path / str(polls))
        history = torch.load(tmp_path / str(polls) / "latest.pt", weights_only=True)["progress"]["history"]
        assert whole[0] and [record["baseline"] for record in history] == whole
