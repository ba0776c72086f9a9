"""Further metrics of validation: each example counts once over any number of ranks, and wrong ones are refused."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.train_loop.distributed import World
from bigbatch.train_loop.errors import OwnCodeError
from bigbatch.train_loop.loop import assembly, metrics
from bigbatch.train_loop.loop.metrics import MetricSums
from bigbatch.train_loop.reporter import EpochRecord, epoch_line
from helpers import own_metrics
from helpers.loop_references import run
from helpers.own_metrics import write_metrics
from helpers.own_sets import write_points
from helpers.point_net import PointNet
from helpers.tiny_training import two_ranks

torchmetrics = pytest.importorskip("torchmetrics")
CPU = torch.device("cpu")


def config(folder: Path, *metrics: str, **keys: object) -> TrainConfig:
    file = write_metrics(folder)
    words = [word if "/" in word else f"{file}:{word}" for word in metrics]
    return TrainConfig().replace_keys(
        {
            "data.name": keys.get("data.name") or write_points(folder), "data.loader.workers": 0, "epochs": 2,
            "batch.global_size": 8, "batch.micro_size": 4, "optimizer.peak_lr": 0.3, "metrics": words, **keys,
        }
    )  # fmt: skip


def trained(config: TrainConfig, patch: pytest.MonkeyPatch) -> tuple[list[EpochRecord], nn.Module]:
    models: list[nn.Module] = []
    patch.setattr(assembly, "build_model", lambda *_: models.append(PointNet()) or models[-1])
    return run(config), models[0]


def validation(folder: Path, model: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and targets of the whole validation set, read without the loop."""
    namespace: dict[str, object] = {}
    exec((folder / "own_points.py").read_text(), namespace)
    items = [namespace["points"]()[1][index] for index in range(21)]  # type: ignore[operator]
    points = torch.stack([torch.as_tensor(i["points"]).float() for i, _ in items])
    inputs = {"points": points, "grid": torch.stack([i["grid"] for i, _ in items])}
    return model.eval()(inputs).detach(), torch.tensor([target for _, target in items])


WORDS = ("Balanced", "margin", "mean_margin", "torchmetrics/MulticlassF1Score")


def test_values_are_those_of_the_whole_set_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records, model = trained(config(tmp_path, *WORDS), monkeypatch)
    outputs, targets = validation(tmp_path, model)
    recall = torch.stack([(outputs.argmax(1)[targets == k] == k).float().mean() for k in (0, 1)]).mean()
    margin = (outputs[:, 1] - outputs[:, 0]).abs().mean()
    f1 = torchmetrics.classification.MulticlassF1Score(num_classes=2)(outputs, targets)
    expected: dict[str, Any] = {"balanced_recall": recall, "balanced_count": 21, "margin": margin}
    expected |= {"mean_margin": margin, "multiclass_f1_score": f1}
    want = {f"val_{name}": pytest.approx(float(value), rel=1e-5) for name, value in expected.items()}
    assert records[-1].metrics == want
    assert f"val_balanced_recall {float(recall):.4g}" in epoch_line(records[-1])


def test_two_ranks_report_what_one_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same micro-batches, so the same weights to rounding; the shares of validation differ in size, 11 and 10."""
    whole = config(tmp_path, "fussy", *WORDS, **{"data.holdout": 0.3})
    (tmp_path / "config.json").write_text(whole.to_json())
    seen = [rank["records"] for rank in two_ranks("own_metrics", tmp_path, own_metrics.__file__)]
    records, _ = trained(whole, monkeypatch)
    for one, first, second in zip(records, *seen, strict=True):
        assert first["metrics"] == second["metrics"]
        assert first["metrics"] == pytest.approx(one.metrics, rel=1e-4)
        assert {name.partition("_")[0] for name in first["metrics"]} == {"val", "holdout"}
        assert first["val_loss"] == pytest.approx(one.val_loss, rel=1e-4)
    first, second = (rank[0]["baseline"] for rank in seen)
    assert first == second == pytest.approx(records[0].baseline, rel=1e-6)
    names = set(records[0].metrics) - {"val_fussy", "holdout_fussy"}
    assert set(first) == names | {"val_loss", "val_top1", "holdout_loss", "holdout_top1"}


def test_targets_that_are_no_classes_have_no_top1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = """

class Heights(Points):
    def __getitem__(self, index):
        inputs, target = super().__getitem__(index)
        return inputs, {"height": target + 0.5}


def heights():
    return Heights(50, 5, True), Heights(21, 5, False)


def squares(outputs, targets):
    return (outputs[:, 0] - targets["height"]).square().mean()
"""
    word = write_points(tmp_path, more).replace(":points", ":heights")
    keys = {"data.name": word, "loss": word.replace(":heights", ":squares"), "epochs": 6, "optimizer.peak_lr": 0.02}
    records, model = trained(config(tmp_path, **keys), monkeypatch)
    assert [record.train_top1 for record in records] == [record.val_top1 for record in records] == [None] * 6
    outputs, targets = validation(tmp_path, model)
    assert records[-1].val_loss == pytest.approx((outputs[:, 0] - targets - 0.5).square().mean().item(), rel=1e-4)
    assert "top-1" not in epoch_line(records[-1]) and records[-1].val_loss < records[0].val_loss


def test_what_is_no_finite_number_is_null(tmp_path, monkeypatch):
    records, _ = trained(config(tmp_path, "Plain"), monkeypatch)
    assert [record.metrics for record in records] == [{"val_plain": None}] * 2


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (("nothing",), ConfigError, "Functions there"),
        (("torchmetrics/NoSuchScore",), ConfigError, "class of torchmetrics"),
        (("torchmetrics/FBetaScore",), ConfigError, "needs arguments"),
        (("net/f1",), ConfigError, "FILE.py:FUNCTION or a class"),
        (("margin", "margin"), ConfigError, "names of their own"),
        (("wrong",), ConfigError, "number for each of its"),
        (("several",), ConfigError, "must return the batch's mean.* got a dict. Several numbers need"),
        (("failing",), OwnCodeError, "no metric today"),
    ],
)
def test_what_is_no_metric_is_refused(tmp_path, monkeypatch, words, error, message):
    with pytest.raises(error, match=message):
        trained(config(tmp_path, *words), monkeypatch)


def test_an_object_that_cannot_share_its_sums_is_refused_over_several_workers(tmp_path: Path) -> None:
    world = World(rank=0, workers=2, device=CPU)
    info = DataInfo("d", None, 8, 8, 2, 0, 0, (), "small")
    with pytest.raises(ConfigError, match="no torchmetrics.Metric"):
        metrics.build_metrics([f"{write_metrics(tmp_path)}:Plain"], info, world)


@pytest.mark.parametrize(("scores", "right"), [(1, None), (2, 2.0)])
def test_the_largest_of_one_score_is_no_answer(scores: int, right: float | None) -> None:
    """A network with one logit for two classes would always "choose" class 0."""
    sums = MetricSums(CPU)
    sums.add(torch.tensor(0.5), torch.zeros(3, scores), torch.tensor([0, 1, 0]))
    found = sums.values[1].item()
    assert found == right if right is not None else math.isnan(found)
