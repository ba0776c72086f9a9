"""What a trial is worth, what is tolerated, and which are best, against numbers written by hand."""

import json
import math
from pathlib import Path

import optuna
import pyarrow.parquet as pq
import pytest
from optuna.trial import FrozenTrial, TrialState, create_trial

from bigbatch.search_spaces.trial import Constraint
from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.errors import FailureKind
from bigbatch.train_loop.reporter import EpochRecord
from bigbatch.tune.runs import metrics
from bigbatch.tune.runs.learned import baseline_of
from bigbatch.tune.runs.objective import UNREACHED_H, Objective, Reported, failure_of_epoch, read_tolerance
from bigbatch.tune.runs.objectives import Objectives, objectives_of, read_objectives
from bigbatch.tune.runs.verdict import verdict_on
from bigbatch.tune.storage.store import StudyStore
from helpers.refusals import refusal


def records(*top1: float, **more: float) -> list[dict[str, object]]:
    return [{"epoch": n, "val_top1": v, "val_loss": 1 - v, "train_s": 1800.0, **more} for n, v in enumerate(top1, 1)]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("val_loss", "val_loss:min"),
        ("val_top1", "val_top1:max"),
        ("val_loss:max", "val_loss:max"),
        ("val_top1:max, gpu_hours", "val_top1:max,gpu_hours:min"),
        ("val_top1=0.759", "val_top1=0.759"),
    ],
)
def test_the_direction_is_stated_or_natural_and_the_text_can_be_read_again(text, meant):
    found = read_objectives("--objectives", text, Reported(10))
    assert found.text == meant and read_objectives("study.json", found.text, Reported(10)) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("val_los", "Did you mean 'val_loss'"),
        ("val_loss:down", "Write val_loss:max or val_loss:min"),
        ("loader_processes", "Write loader_processes:max or loader_processes:min"),
        ("val_loss:min,val_loss:max", "got val_loss:min and val_loss:max"),
        ("gpu_hours:min", "--target val_top1=0.759"),
        ("", "names a metric"),
        ("val_top1=75.9", "a number above 0 and at most 1"),
        ("val_top1=high", "a number above 0"),
        ("val_loss=-1", "a number above 0"),
        ("gpu_hours=3", "a metric that training improves"),
        ("noise_scale=3", "got 'noise_scale'"),
    ],
)
def test_what_is_no_objective_is_refused_in_one_line(text, said):
    assert said in refusal(lambda: read_objectives("--objective", text, Reported(10)))


def test_every_number_of_a_record_is_a_metric_or_says_where_the_run_is():
    fields = set(EpochRecord.columns())
    assert fields == set(metrics.known_metrics()) - {"epoch_s", "gpu_hours"} | {*metrics.POSITIONS, *metrics.NOT_ALWAYS}


def test_a_metric_of_a_run_is_its_last_epochs_but_the_median_time_and_the_peak_of_memory():
    run = [{"val_loss": 3.0, "train_s": 9.0, "val_s": 1.0, "memory_bytes": 7}, {"val_loss": 2.0, "train_s": 2.0}]
    run.append({"val_loss": 1.0, "train_s": 3.0, "memory_bytes": 5})
    assert metrics.of_run("val_loss", run) == 1.0
    assert metrics.of_run("epoch_s", run) == 3.0, "of 10, 2 and 3 seconds"
    assert metrics.of_run("memory_bytes", run) == 7
    assert metrics.of_run("gpu_hours", run, 0.25) == 0.25 and math.isnan(metrics.of_run("val_loss", []))


def test_time_to_a_target_counts_the_devices_of_the_epochs_until_it_is_reached():
    goal = read_objectives("--target", "val_top1=0.7", Reported(10)).first
    assert goal.final(records(0.5, 0.7, 0.9), devices=4) == pytest.approx(4 * 2 * 0.5), "two epochs of half an hour"
    missed = [goal.final(records(*curve), devices=4) for curve in ([0.63, 0.56], [0.1, 0.35])]
    assert missed == pytest.approx([UNREACHED_H + 0.1, UNREACHED_H + 0.5]), "0.63 and 0.35 of 0.7"
    assert goal.final(records(0.7), devices=1000) < missed[0] < missed[1]
    loss = read_objectives("--target", "val_loss=0.4", Reported(10)).first
    assert loss.final(records(0.5, 0.6)) == pytest.approx(1.0)
    assert loss.final(records(0.5)) == pytest.approx(UNREACHED_H + 0.25), "0.5 is a quarter above 0.4"


def test_a_search_for_a_target_ends_a_trial_with_the_epoch_that_reaches_it():
    goal = read_objectives("--target", "val_top1=0.7", Reported(10))
    assert verdict_on(records(0.5), epochs=9, objectives=goal) is None
    ended = verdict_on(records(0.5, 0.75), epochs=9, objectives=goal, devices=2)
    assert ended is not None and ended.state == TrialState.COMPLETE
    assert ended.values == pytest.approx([2.0]) and ended.because == "reached val_top1=0.7 after epoch 2"


def test_the_front_is_optunas_and_the_best_is_the_first_objectives():
    objectives = read_objectives("--objectives", "val_top1:max,gpu_hours:min", Reported(10))
    study = optuna.create_study(directions=["maximize", "minimize"])
    for values in ((0.9, 4.0), (0.8, 1.0), (0.9, 3.0), (0.7, 2.0), (0.5, 0.5), (0.9, 3.0)):
        study.add_trial(create_trial(values=values))
    front = objectives.front(study.trials)
    assert sorted(t.number for t in front) == sorted(t.number for t in study.best_trials)
    best = objectives.best(study.trials)
    assert best is not None and best.number == 2 == front[0].number, "as accurate as 0, and cheaper; earlier than 5"
    assert objectives.best([]) is None and objectives.front([]) == []


def test_a_bound_ends_a_trial_as_infeasible_in_words():
    bounds = [Constraint("epoch_s", at_most=60), Constraint("memory_bytes", at_most=2**30)]
    fast, slow = records(0.9, train_s=50.0, memory_bytes=2**29), records(0.9, train_s=90.0, memory_bytes=2**29)
    assert verdict_on(fast, epochs=2, objectives=Objectives(), constraints=bounds) is None
    ended = verdict_on(slow, epochs=1, objectives=Objectives(), constraints=bounds)
    assert ended is not None and ended.state == TrialState.PRUNED, "also when it was its last epoch"
    assert ended.because == "infeasible after epoch 1: epoch time is 90 s, allowed is at most 60 s"
    hiccup = [*fast, *fast, {**slow[0], "epoch": 3}]
    assert verdict_on(hiccup, epochs=9, objectives=Objectives(), constraints=bounds) is None, "one slow epoch of three"


def test_a_trial_without_the_metric_of_its_objective_fails_with_its_name():
    ended = verdict_on(records(0.9), epochs=1, objectives=read_objectives("--objective", "memory_bytes", Reported(10)))
    assert ended is not None and (ended.state, ended.because) == (TrialState.FAIL, "memory_bytes was not measured")


def test_a_studys_files_follow_its_objectives_also_after_it_was_killed(tmp_path: Path):
    described = {"objective": "val_loss:min,gpu_hours:min", "num_classes": 10}
    store = StudyStore.create(tmp_path / "s", "s", described, None)
    for number, (loss, hours) in enumerate(((0.5, 2.0), (0.4, 3.0), (0.6, 4.0))):
        trial = store.study.ask()
        trial.set_user_attr("config", TrainConfig(epochs=1, label_smoothing=number / 10).to_dict())
        trial.set_user_attr("epoch/00001", {"epoch": 1, "val_loss": loss, "val_top1": 0.5})
        store.study.tell(trial, values=[loss, hours])
    running = store.study.ask()
    running.set_user_attr("config", TrainConfig(epochs=1).to_dict())
    running.set_user_attr("epoch/00001", {"epoch": 1, "val_loss": 0.1, "val_top1": 0.9})
    store.close()
    store = StudyStore.open(tmp_path / "s", None)
    assert store.objectives == objectives_of(described)
    store.recover()
    late = store.study.trials[3]
    assert late.state == TrialState.COMPLETE and late.values == [0.1, 0.0]
    store.refresh(force=True)
    assert TrainConfig.from_json(store.best_file.read_text()).label_smoothing == 0.0
    front = json.loads((store.folder / "pareto.json").read_text())
    assert [row["trial"] for row in front["front"]] == [3] and front["objectives"][1]["direction"] == "minimize"
    table = pq.read_table(store.folder / "trials.parquet")
    assert table.schema.metadata[b"bigbatch.objective"] == b"val_loss:min,gpu_hours:min"
    rows = table.to_pylist()
    assert [row["value"] for row in rows] == [0.5, 0.4, 0.6, 0.1]
    assert json.loads(rows[1]["values"]) == {"val_loss": 0.4, "gpu_hours": 3.0} and rows[1]["best_value"] == 0.4
    store.close()


OWN = Reported(10, ("net.py:miou", "net.py:scores"))


def test_a_metric_of_the_users_own_is_an_objective_with_its_direction():
    found = read_objectives("--objective", "val_miou:max", OWN).first
    assert (found.text, found.metric.title, found.metric.short) == ("val_miou:max", "validation miou", "miou")
    assert math.isnan(found.worst) and not found.metric.is_proportion  # nobody knows chance, or what it counts
    record = {"epoch": 1, "val_loss": 1.0, "val_top1": None, "metrics": {"val_miou": 0.5, "val_scores_dice": None}}
    assert found.value(record) == 0.5 and failure_of_epoch(found, record) is None
    dice = read_objectives("study.json", "val_scores_dice:max", Reported(10, None)).first
    assert failure_of_epoch(dice, record) == ("validation was not finite in epoch 1", FailureKind.DIVERGED)
    goal = read_objectives("--target", "val_miou:max=0.45", OWN).first
    assert goal.is_reached(record) and read_objectives("study.json", goal.text, Reported(10, None)).first == goal


def test_a_trial_diverges_by_any_of_several_objectives_but_not_by_a_cost():
    record = {"epoch": 1, "val_loss": 1.0, "val_top1": 0.5, "metrics": {"val_miou": None}}
    ended = verdict_on([record], epochs=9, objectives=read_objectives("x", "val_top1:max,val_miou:max", OWN))
    assert ended is not None and ended.failure == FailureKind.DIVERGED
    assert (
        verdict_on([record], epochs=9, objectives=read_objectives("x", "val_top1,memory_bytes,gpu_hours", OWN)) is None
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("val_miou", "needs a direction for val_miou"),
        ("val_mio:max", "Did you mean 'val_miou'"),
        ("miou:max", "Did you mean 'val_miou'"),
        ("val_miou=0.5", "needs a direction"),
    ],
)
def test_a_metric_that_no_run_reports_is_refused(text, said):
    refusal(lambda: read_objectives("--objective", text, OWN), said)


def test_a_trial_whose_targets_are_no_classes_says_so_instead_of_diverging():
    record = {"epoch": 1, "val_loss": 1.0, "val_top1": None, "metrics": {"val_miou": 0.5}}
    text, kind = failure_of_epoch(Objective(), record)
    assert kind == FailureKind.CONFIGURATION and "got val_loss, val_miou" in text


def test_a_value_at_chance_is_known_of_classes_and_built_in_losses_alone():
    assert read_objectives("--objective", "val_loss", Reported(10)).first.worst == pytest.approx(math.log(10))
    assert math.isnan(read_objectives("--objective", "val_loss", Reported(10, own_loss=True)).first.worst)
    assert math.isnan(read_objectives("--objective", "val_loss", Reported(0)).first.worst)
    own = {"objective": "val_loss:min", "num_classes": 10, "overrides": {"loss": "/a/net.py:dice"}}
    assert math.isnan(objectives_of(own).first.worst)
    assert math.isnan(objectives_of({**own, "overrides": {}, "are_classes": False}).first.worst)
    assert objectives_of({**own, "overrides": {}}).first.worst == pytest.approx(math.log(10))


TOP1, LOSS, IOU = Objective(), Objective("val_loss", "minimize", 2.3), Objective("val_iou", "maximize", math.nan)


@pytest.mark.parametrize(
    ("text", "objective", "best", "allowance", "words"),
    [
        (None, TOP1, 0.97, 0.005, "0.5 points"),
        ("0.5pt", TOP1, 0.5, 0.005, "0.5 points"),
        ("1pt", TOP1, 0.5, 0.01, "1 point"),
        ("1%", TOP1, 0.5, 0.005, "1 %"),
        ("0.02", TOP1, 0.5, 0.02, "2 points"),
        (None, LOSS, 0.001, 0.00001, "1 %"),
        ("0.02", LOSS, 0.3, 0.02, "0.02"),
        ("2 %", IOU, -4.0, 0.08, "2 %"),
        ("0", TOP1, 0.9, 0.0, "0 points"),
    ],
)
def test_a_tolerance_has_a_unit(text, objective, best, allowance, words):
    found = read_tolerance(text, objective)
    assert found.allowance(best) == pytest.approx(allowance)
    assert found.words(objective.metric) == words
    assert read_tolerance(str(found), objective) == found


@pytest.mark.parametrize(
    ("text", "objective", "message"),
    [
        ("-1pt", TOP1, "1% or a number"),
        ("half", TOP1, "1% or a number in the metric's unit; got 'half'"),
        ("0.5", TOP1, "is 50 points; got 0.5. Write 0.5pt for 0.5 points"),
        ("0.5pt", LOSS, "in points is for a proportion; got 0.5pt for val_loss. Write e.g. 1%"),
        (
            "0.02",
            IOU,
            "needs a unit, because none is known of val_iou; got 0.02. Write a part of the best value, e.g. 1%",
        ),
        ("1e999pt", TOP1, "1% or a number"),
        ("200pt", TOP1, "1% or a number"),
    ],
)
def test_what_is_no_tolerance_is_refused_in_one_line(text, objective, message):
    assert message in refusal(lambda: read_tolerance(text, objective))


CLASSES = {"num_classes": 4, "are_classes": True, "overrides": {}}


def trial(*baselines: dict[str, float] | None) -> FrozenTrial:
    """With an epoch for each."""
    records = {f"epoch/{n:05d}": {"epoch": n, "val_top1": 0.5, "baseline": b} for n, b in enumerate(baselines, 1)}
    return create_trial(state=TrialState.RUNNING, user_attrs=records)


def test_what_is_stated_comes_first_then_the_first_that_was_measured_then_chance() -> None:
    trials = [trial(), trial(None), trial(None, {"val_top1": 0.6}), trial({"val_top1": 0.7, "val_iou": 0.2})]
    stated = {**CLASSES, "baseline": {"val_top1": 0.65}}
    assert baseline_of(trials, stated, Objective("val_top1")) == 0.65
    assert baseline_of(trials, CLASSES, Objective("val_top1")) == 0.6
    assert baseline_of(trials, stated, Objective("val_iou")) == 0.2, "another metric was stated"
    assert baseline_of(trials[:2], CLASSES, Objective("val_top1")) == 0.25
    assert baseline_of(trials, CLASSES, Objective("val_loss", "minimize")) == pytest.approx(math.log(4))
    assert baseline_of(trials, CLASSES, Objective("val_f1")) is None


def test_chance_is_known_of_classes_and_the_plain_loss_of_our_own_loop() -> None:
    top1, loss = Objective("val_top1"), Objective("val_loss", "minimize")
    own_loss = {**CLASSES, "overrides": {"loss": "net.py:focal"}}
    assert baseline_of([], own_loss, loss) is None and baseline_of([], own_loss, top1) == 0.25
    assert baseline_of([], {**CLASSES, "overrides": {"loss": "bce"}}, loss) == pytest.approx(math.log(4))
    assert baseline_of([], {**CLASSES, "are_classes": False}, loss) is None
    assert baseline_of([], {"num_classes": 0}, top1) is None and baseline_of([], {}, top1) is None
    function = {"trainable": "my.py:train", "num_classes": 4, "objective": "val_loss:min"}
    assert baseline_of([], function, objectives_of(function).first) is None
    assert baseline_of([], {**function, "baseline": {"val_loss": 2.5}}, objectives_of(function).first) == 2.5


@pytest.mark.parametrize("text", ["gpu_hours:min,val_loss:min", "epoch_s:min", "memory_bytes", "val_top1=0.7"])
def test_what_training_does_not_improve_has_none(text: str) -> None:
    description = {**CLASSES, "objective": text, "baseline": {"gpu_hours": 1.0, "epoch_s": 1.0, "memory_bytes": 1.0}}
    assert baseline_of([trial({"epoch_s": 1.0})], description, objectives_of(description).first) is None
