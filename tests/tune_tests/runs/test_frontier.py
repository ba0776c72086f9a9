"""The frontier of a study: rows, intervals, the answer, its file and its table. References are written in the test."""

import dataclasses
import io
import json
import math
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from scipy.stats import beta

from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.budget.ledger import DeviceSeconds
from bigbatch.tune.console.answer_words import answer_in_words
from bigbatch.tune.console.findings import print_findings
from bigbatch.tune.console.frontier_table import frontier_lines
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.runs.frontier import FrontierFacts, frontier_of
from bigbatch.tune.runs.learned import CHOSEN
from bigbatch.tune.runs.objective import POINTS, Tolerance
from bigbatch.tune.runs.reported import Examples
from bigbatch.tune.runs.run import CONFIRMS_ATTR, CONTINUES_ATTR, DIVERGED_ATTR, EPOCH_ATTR, PAUSED_ATTR, counted_trials
from bigbatch.tune.storage.frontier_file import FRONTIER_FILE, config_file, frontier_json
from bigbatch.tune.storage.store import StudyStore
from helpers.lone_studies import new_study

BATCHES = (128, 256, 512, 1024)
FACTS = FrontierFacts("global_batch_size", BATCHES, examples=Examples(2000, 2000), workers=2)


def within(amount: float, unit: str = POINTS) -> FrontierFacts:
    return dataclasses.replace(FACTS, tolerance=Tolerance(amount, unit))


EPOCHS = 3


def record(epoch: int, value: float, batch: int, **more: object) -> dict[str, object]:
    return {
        "epoch": epoch, "epochs": EPOCHS, "val_top1": value, "val_loss": 1.0, "train_loss": 1.0, "learning_rate": 0.1,
        "optimizer_steps": epoch * (1437 // batch), "skipped_steps": 0, "images_per_s": 100.0 * epoch,
        "train_s": 10.0 * epoch, "bn_s": 1.0, "val_s": 2.0, "checkpoint_s": 0.5,
        "noise_scale": (None, 100.0, 300.0)[epoch - 1], **more,
    }  # fmt: skip


def begin(study: optuna.Study, batch: int | None = 128, **attrs: object) -> optuna.Trial:
    study.enqueue_trial({} if batch is None else {"global_batch_size": batch}, user_attrs=attrs)
    trial = study.ask({} if batch is None else {"global_batch_size": CategoricalDistribution(BATCHES)})
    config = TrainConfig(epochs=EPOCHS).replace_keys({"batch.global_size": batch or 128, "optimizer.peak_lr": 0.25})
    trial.set_user_attr("config", config.to_dict())
    return trial


def finish(study: optuna.Study, batch: int | None, value: float, **attrs: object) -> int:
    trial = begin(study, batch, **attrs)
    for epoch in range(1, EPOCHS + 1):
        trial.set_user_attr(f"{EPOCH_ATTR}{epoch:05d}", record(epoch, value, batch or 128))
        trial.report(value, epoch)
    study.tell(trial, value)
    return trial.number


def trials_of(values: dict[int, list[float]]) -> list[FrozenTrial]:
    study = new_study()
    for batch, ends in values.items():
        for value in ends:
            finish(study, batch, value)
    return study.trials


def clopper_pearson(right: int, images: int, rate: float) -> tuple[float, float]:
    return (
        float(beta.ppf(rate / 2, right, images - right + 1)),
        float(beta.ppf(1 - rate / 2, right + 1, images - right)),
    )


def test_each_value_has_its_best_trial_and_what_a_full_run_costs():
    trials = trials_of({128: [0.90, 0.95], 512: [0.94]})
    found = frontier_of(trials, FACTS)
    small, empty, large, _ = found.rows
    assert small.best is not None and large.best is not None and empty.best is None
    assert (small.best.trial, small.best.objective, small.finished) == (1, 0.95, 2)
    assert large.best.optimizer_steps == EPOCHS * (1437 // 512)
    # Epochs took 13.5, 23.5 and 33.5 s; the run has three of them, on two workers.
    assert (large.best.epoch_s, large.best.images_per_s) == (23.5, 200.0)
    assert large.best.gpu_hours == pytest.approx(3 * 23.5 * 2 / 3600)
    assert large.best.noise_scale == 200.0, "the median of the epochs that measured it"
    assert TrainConfig.from_dict(large.best.config).batch.global_size == 512


@pytest.mark.parametrize(
    ("values", "answer"),
    [
        ({128: [0.97], 256: [0.96], 512: [0.9651], 1024: [0.90]}, 512),
        ({128: [0.97], 512: [0.965], 1024: [0.9649]}, 512),  # 0.97 − 0.965 is above 0.005 in binary
        ({128: [0.97], 256: [0.9649], 512: [0.96]}, 128),
        ({128: [0.90], 1024: [0.97]}, 1024),
    ],
)
def test_the_answer_is_the_largest_value_within_the_tolerance(values, answer):
    found = frontier_of(trials_of(values), FACTS)
    assert found is not None and found.answer_row is not None and found.answer_row.value == answer


def test_every_kind_of_end_is_counted_once():
    study = new_study()
    finish(study, 1024, 0.9)
    diverged = begin(study, 1024)
    diverged.set_user_attr(DIVERGED_ATTR, True)
    study.tell(diverged, state=TrialState.FAIL)
    study.tell(begin(study, 1024), state=TrialState.FAIL)  # a lost process says nothing about hyperparameters
    paused = begin(study, 1024)
    paused.set_user_attr(PAUSED_ATTR, 1)
    study.tell(paused, state=TrialState.PRUNED)
    finish(study, 1024, 0.8, **{CONTINUES_ATTR: paused.number})
    finish(study, 1024, 0.99, **{CONFIRMS_ATTR: 4})
    study.enqueue_trial({"global_batch_size": 1024})
    found = frontier_of(study.trials, FACTS)
    row = found.rows[-1]
    assert (row.tried, row.finished, row.diverged) == (4, 2, 1)
    assert shown(study.trials)[0].endswith("2/4, 1 div.")
    assert [t.number for t in counted_trials(study.trials)] == [0, 1, 2, 4, 6]


def test_the_interval_is_that_of_the_best_of_so_many():
    """Clopper-Pearson at 5 % / k, from scipy's beta distribution."""
    found = frontier_of(trials_of({128: [0.90, 0.95, 0.92], 256: [0.94]}), FACTS)
    first, second = found.rows[0].best.reported, found.rows[1].best.reported
    assert (first.low, first.high) == pytest.approx(clopper_pearson(1900, 2000, 0.05 / 3))
    assert (second.low, second.high) == pytest.approx(clopper_pearson(1880, 2000, 0.05))
    assert first.by == second.by == CHOSEN


def test_how_much_worse_a_value_may_be_is_newcombes_bound():
    found = frontier_of(trials_of({128: [0.97], 512: [0.966]}), FACTS)
    _, above = clopper_pearson(1940, 2000, 0.05)
    below, _ = clopper_pearson(1932, 2000, 0.05)
    expected = 0.004 + math.hypot(above - 0.97, 0.966 - below)
    answer = found.answer_row
    assert answer is not None and answer.value == 512
    assert answer.worse_by == pytest.approx(0.004)
    assert answer.worse_at_most == pytest.approx(expected)
    assert found.is_certain is False
    wide = frontier_of(trials_of({128: [0.97], 512: [0.966]}), within(3))
    assert wide is not None and wide.is_certain is True


# In the study's folder


def stored(tmp_path: Path, **options: Any) -> StudyStore:
    plan = make_plan(SearchOptions(output=str(tmp_path), study="s", **options))
    return StudyStore.create(plan.folder, plan.study, plan.to_dict(), None)


def test_best_json_is_the_answer_and_each_row_can_be_trained(tmp_path):
    store = stored(tmp_path)
    for batch, value in ((128, 1.0), (256, 0.99), (512, 0.997), (1024, 0.5)):
        number = finish(store.study, batch, value)
        store.checkpoint_folder(number).mkdir()
    lost = finish(store.study, 128, 0.6)
    store.checkpoint_folder(lost).mkdir()
    store.drop_checkpoints()
    store.refresh(force=True)
    assert TrainConfig.from_json(store.best_file.read_text()).batch.global_size == 512
    values = json.loads((store.folder / FRONTIER_FILE).read_text())
    assert values["schema_version"] == 1 and values["answer"]["trial"] == 2
    assert [row["value"] for row in values["rows"]] == [128, 256, 512, 1024]
    for row in values["rows"]:
        config = TrainConfig.from_json((store.folder / "frontier" / f"{row['value']}.json").read_text())
        assert config == TrainConfig.from_dict(row["config"]) and config.batch.global_size == row["value"]
    kept = sorted(path.name for path in (store.folder / "checkpoints").iterdir())
    assert kept == [f"trial-{number:04d}" for number in range(4)]
    store.close()


def test_without_a_frontier_the_best_trial_is_the_best(tmp_path):
    store = stored(tmp_path, space="smoke")
    finish(store.study, None, 0.9)
    best = finish(store.study, None, 0.95)
    store.refresh(force=True)
    values = json.loads((store.folder / FRONTIER_FILE).read_text())
    assert values["dimension"] is None and values["answer"] == {"value": None, "trial": best, "is_certain": None}
    assert not (store.folder / "frontier").exists()
    assert json.loads(store.best_file.read_text()) == store.study.trials[best].user_attrs["config"]
    store.close()


def shown(trials: list[FrozenTrial], facts: FrontierFacts = FACTS) -> tuple[str, str]:
    found = frontier_of(trials, facts)
    values = json.loads(json.dumps(frontier_json(found)))
    lines = frontier_lines(values, "GPU h")
    return "\n".join(line for line, _ in lines), " ".join(answer_in_words(values, "GPU h"))


def test_the_findings_follow_the_answer(tmp_path):
    plan = make_plan(SearchOptions(output=str(tmp_path), study="s"))
    store = StudyStore.create(plan.folder, plan.study, plan.to_dict(), None)
    for batch, value in ((128, 1.0), (512, 0.998), (512, 0.9), (1024, 0.5)):
        finish(store.study, batch, value)
    store.refresh(force=True)
    out = io.StringIO()
    found = json.loads((store.folder / FRONTIER_FILE).read_text())
    print_findings(plan, store.study.trials, 1.0, DeviceSeconds(), Console(file=out, width=200), found)
    text = out.getvalue()
    assert "The answer is batch 512 (trial 1): validation top-1 99.8 %" in text
    assert text.count("onfirmed with fresh seeds") == 1
    assert "VALUE.json" in text
    store.close()


def test_each_value_has_a_file_of_its_own():
    assert config_file(8192) == "frontier/8192.json" and config_file("resnet50") == "frontier/resnet50.json"
    names = [config_file(value) for value in ("a/b", "a:b", "a_b", "../x", "ä", "..", ".", "", "x" * 300)]
    assert len(set(names)) == len(names)
    assert all(Path(name).parent == Path("frontier") and name.isascii() for name in names)
    assert all(Path(name).name[0] != "." and len(Path(name).name) < 256 for name in names)
