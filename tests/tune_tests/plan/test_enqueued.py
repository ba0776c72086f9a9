"""``--enqueue`` and ``--warm-start``: published settings, own files, and the trials of other studies."""

import dataclasses
import runpy
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState

from bigbatch.search_spaces.check import nearest_parameters
from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.enqueued import enqueue_first_trials, in_words, read_sources
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.plan.warm_start import best_known
from bigbatch.tune.storage.store import StudyStore
from helpers import refusals
from helpers.bridges import make_bridge
from helpers.lone_studies import made
from helpers.paths import ROOT

OWN_SPACE = """
def space(trial, workload):
    return workload.config({"optimizer": "sgd", "peak_lr": trial.suggest_float("lr", 0.1, 1.0)})
"""


def plan_of(folder: Path, **options: Any) -> SearchPlan:
    given: dict[str, Any] = {"output": str(folder / "runs"), "model": "resnet18", "max_epochs": 12}
    return make_plan(SearchOptions(**given | options))


def refusal(folder: Path, **options: Any) -> str:
    return refusals.refusal(lambda: plan_of(folder, **options))


@pytest.fixture(scope="module")
def batch_scaling() -> Iterator[dict[str, Any]]:
    """The benchmark whose rows "published recipe" a search must reach."""
    before = list(sys.path)
    yield runpy.run_path(str(ROOT / "benchmarks" / "batch_scaling.py"))
    sys.path[:] = before


@pytest.mark.parametrize("batch", [16, 1024])
def test_a_search_at_one_batch_tries_what_the_benchmark_calls_published(
    tmp_path: Path, batch_scaling: dict[str, Any], batch: int
) -> None:
    settings = batch_scaling["parse"]([])
    tried = {t.config.optimizer.name: t.config for t in plan_of(tmp_path, batch=str(batch), trials=16).enqueued}
    for method in ("lars", "lamb"):
        published = batch_scaling["configuration"](method, batch, settings)
        ours, theirs = vars(tried[method].optimizer), vars(published.optimizer)
        assert ours == {**theirs, "peak_lr": pytest.approx(theirs["peak_lr"])}
        ours, theirs = vars(tried[method].schedule), vars(published.schedule)
        assert ours == {**theirs, "warmup_epochs": pytest.approx(theirs["warmup_epochs"], rel=0.005)}
        for name in ("epochs", "label_smoothing", "loss", "model"):
            assert getattr(tried[method], name) == getattr(published, name), name
        assert tried[method].batch.global_size == batch
    sgd = tried["sgd"].optimizer
    assert sgd.peak_lr == pytest.approx(0.1 * batch / 256) and sgd.nesterov, "Goyal et al. 2017, equation 2"


def test_a_short_search_tries_one_recipe_a_batch_and_leaves_two_thirds_of_its_trials(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    assert plan.trials == 12
    assert [(t.source, t.config.batch.global_size) for t in plan.enqueued] == [
        ("recipe:nus-lars-32k", 1024),
        ("recipe:lamb-32k", 512),
        ("recipe:goyal-sgd-8k", 256),
        ("recipe:nus-lars-32k", 128),
    ]
    assert in_words(plan.enqueued).startswith("recipe:nus-lars-32k at 1,024, 128;")
    assert {t.config.seed for t in plan_of(tmp_path, seed=7).enqueued} == {7}


def test_a_file_is_tried_at_its_own_batch_as_it_is_and_scaled_at_the_others(tmp_path: Path) -> None:
    own = TrainConfig(epochs=24).replace_keys(
        {"optimizer.name": "lamb", "peak_lr": 0.02, "global_size": 512, "warmup": 6, "ema_decay": 0.9, "seed": 5}
    )
    file = tmp_path / "best.json"
    file.write_text(own.to_json())
    trials = plan_of(tmp_path, enqueue=(str(file),)).enqueued
    assert [t.config.batch.global_size for t in trials] == [512, 1024, 256, 128]
    assert trials[0].config.optimizer == own.optimizer
    assert (trials[0].config.schedule.warmup_epochs, trials[0].config.epochs) == (3.0, 12), "a quarter of the run"
    assert (trials[0].config.ema_decay, trials[0].config.seed) == (0.9, 0)
    assert trials[1].config.optimizer.peak_lr == pytest.approx(0.02 * 2**0.5)


def test_steps_of_a_schedule_keep_their_share_of_the_run(tmp_path: Path) -> None:
    trial = plan_of(tmp_path, batch="512", enqueue=("recipe:goyal-sgd-8k",), max_epochs=9).enqueued[0]
    assert trial.config.schedule.step_epochs == (3.0, 6.0, 8.0)
    assert trial.config.schedule.warmup_epochs == pytest.approx(0.5)


def test_refusals_are_one_line(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(OWN_SPACE)
    steps, text = tmp_path / "steps.json", tmp_path / "text.json"
    steps.write_text(TrainConfig(epochs=90).replace_keys({"warmup_steps": 700, "global_size": 256}).to_json())
    text.write_text("hello")
    recipe = "recipe:lamb-32k"
    assert "Did you mean 'lamb-32k'?" in refusal(tmp_path, enqueue=("recipe:lamb-32",))
    assert "Write --enqueue recipe:lamb-32k." in refusal(tmp_path, enqueue=("lamb-32k",))
    assert "which is no file" in refusal(tmp_path, enqueue=(str(tmp_path / "nothing.json"),))
    assert f"{text}: a configuration is JSON" in refusal(tmp_path, enqueue=(str(text),))
    assert "or none alone" in refusal(tmp_path, enqueue=("none", recipe))
    assert len(read_sources((recipe, recipe))) == 1
    assert "without parameters_of" in refusal(tmp_path, space=str(own), enqueue=(recipe,))
    assert "--set optimizer.name=lars" in refusal(tmp_path, enqueue=(recipe,), set=("optimizer=lars",))
    assert "--set lr_multiplier=1.0" in refusal(tmp_path, enqueue=(recipe,), set=("lr_multiplier=1",))
    assert "Write --trials 4 or more" in refusal(tmp_path, enqueue=(recipe, "recipe:nus-lars-4k"), trials=3)
    assert "schedule.warmup_epochs in the file" in refusal(tmp_path, enqueue=(str(steps),))
    adamw = tmp_path / "adamw.json"
    adamw.write_text(TrainConfig().replace_keys({"optimizer.name": "adamw", "global_size": 256}).to_json())
    assert "adamw at batch 256, and space 'large_batch'" in refusal(tmp_path, enqueue=(str(adamw),))
    # A space that does not list its batches: a configuration keeps its own.
    own.write_text(
        f"{OWN_SPACE}\ndef parameters_of(config, workload):\n    return {{'lr': config.optimizer.peak_lr}}\n"
    )
    text.write_text(TrainConfig().replace_keys({"optimizer.name": "sgd", "global_size": 2048}).to_json())
    assert "at most the 1437 training images; got" in refusal(tmp_path, space=str(own), enqueue=(str(text),))


def test_a_trial_trains_exactly_the_recipe_and_the_study_has_the_nearest_parameters(tmp_path: Path) -> None:
    plan = dataclasses.replace(plan_of(tmp_path, max_epochs=4, seed=3), strategy="qmc")  # no initial points
    store = StudyStore.create(tmp_path / "s", "s", {}, None)
    bridge = make_bridge(store, trials=6, concurrency=6)
    enqueue_first_trials(dataclasses.replace(plan, enqueued=plan.enqueued[:1]), store.study)  # killed after the first
    for _ in range(2):
        enqueue_first_trials(plan, store.study)
    tasks: list[Any] = [bridge.suggest(f"r{i}") for i in range(5)]
    trials = store.study.trials
    assert len(trials) == 5 == len(plan.enqueued) + 1, "each once, then the sampler's own"
    for asked, task, trial in zip(plan.enqueued, tasks, trials, strict=False):
        assert isinstance(task, dict) and TrainConfig.from_dict(task["config"]) == asked.config
        assert trial.user_attrs["enqueued"] == asked.label
        assert trial.params == nearest_parameters(plan.space, asked.config, plan.workload, plan.overrides)
    assert "enqueued" not in trials[4].user_attrs
    store.close()


SPACE = """
FRONTIER = "global_batch_size"


def space(trial, workload):
    batch = trial.suggest_categorical("global_batch_size", [16, 64, 256])
    return workload.config(
        {"optimizer": "sgd", "global_batch_size": batch, "peak_lr": trial.suggest_float("lr", 0.001, 1.0, log=True)}
    )
"""
RATE, BATCH = FloatDistribution(0.001, 1.0, log=True), CategoricalDistribution([16, 64, 256])


@pytest.fixture
def space(tmp_path: Path) -> str:
    """A rate and a batch."""
    file = tmp_path / "own.py"
    file.write_text(SPACE)
    return str(file)


def ended(lr: float, values: Sequence[float], batch: int = 64, state: TrialState = TrialState.COMPLETE) -> FrozenTrial:
    """A trial of eight epochs, with an epoch's record for each value."""
    records = {f"epoch/{i:05d}": {"epoch": i, "val_top1": v, "val_loss": 1.0} for i, v in enumerate(values, 1)}
    names, params = {"lr": RATE, "global_batch_size": BATCH}, {"lr": lr, "global_batch_size": batch}
    told = dict(enumerate(values, 1)) if state != TrialState.FAIL else {}
    return made(params, names, told, state, config={"epochs": 8}, **records)


def old_study(folder: Path, space: str, trials: Sequence[FrozenTrial], name: str = "old", **options: Any) -> str:
    """A study on disk that holds these trials, and that no driver holds any more."""
    plan = plan_of(folder, study=name, space=space, **options)
    store = StudyStore.create(plan.folder, plan.study, plan.to_dict(), None)
    for trial in trials:
        store.study.add_trial(trial)
    store.refresh(force=True)
    store.close()
    return str(plan.folder)


RISING = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
TRIALS = (
    ended(0.1, RISING),
    ended(0.01, RISING[:4], state=TrialState.PRUNED),
    ended(0.5, [0.1] * 8, batch=256),
    ended(0.2, [*RISING[:7], 0.9], batch=256),
    ended(0.05, RISING[:2], state=TrialState.FAIL),
)


def test_values_outside_are_left_out_and_another_batch_is_the_nearest(tmp_path, space):
    path = old_study(tmp_path, space, TRIALS)
    narrow = tmp_path / "narrow.py"
    narrow.write_text(Path(space).read_text().replace("0.001", "0.15").replace("[16, 64, 256]", "[32, 512]"))
    (known,) = plan_of(tmp_path, space=str(narrow), warm_start=(path,)).warm_start
    assert [(c.number, c.params["global_batch_size"], c.group) for c in known.curves] == [(2, 512, 256), (3, 512, 256)]
    narrow.write_text(Path(space).read_text().replace("0.001", "0.9"))
    assert "with 4, all outside" in refusal(tmp_path, space=str(narrow), warm_start=(path,))


def test_the_best_of_the_nearest_batch_is_tried_first_at_each_batch(tmp_path, space):
    path = old_study(tmp_path, space, TRIALS)
    plan = plan_of(tmp_path, space=space, study="new", trials=12, warm_start=(path,))
    found = [(params["global_batch_size"], params["lr"]) for _, params in best_known(plan)]
    assert found == [(256, 0.2), (64, 0.1), (16, 0.1)], "a quarter of 12 trials"
    store = StudyStore.create(plan.folder, plan.study, plan.to_dict(), None)
    try:
        for _ in range(2):
            enqueue_first_trials(plan, store.study)
        waiting = store.study.get_trials(deepcopy=False)
        assert [t.system_attrs["fixed_params"]["lr"] for t in waiting] == [0.2, 0.1, 0.1], "once each, after a kill too"
    finally:
        store.close()
    (_, first), *_ = best_known(plan_of(tmp_path, space=space, batch="256", warm_start=(path,)))
    assert first["lr"] in (0.1, 0.2)


def test_none_is_a_value_that_trials_compare(tmp_path):
    file, choices = tmp_path / "kinds.py", CategoricalDistribution([None, "x"])
    begin = 'FRONTIER = "kind"\ndef space(trial, workload):\n    trial.suggest_categorical("kind", [None, "x"])\n'
    file.write_text(
        f'{begin}    return workload.config({{"peak_lr": trial.suggest_float("lr", 0.001, 1.0, log=True)}})'
    )
    record: dict[str, Any] = {"config": {"epochs": 1}, "epoch/00001": {"epoch": 1, "val_top1": 0.5}}
    names = {"lr": RATE, "kind": choices}
    trials = [made({"lr": lr, "kind": kind}, names, {1: 0.5}, **record) for lr, kind in ((0.1, "x"), (0.2, None))]
    path = old_study(tmp_path, str(file), trials)
    plan = plan_of(tmp_path, space=str(file), trials=8, warm_start=(path,))
    assert [params for _, params in best_known(plan)] == [{"kind": "x", "lr": 0.1}, {"kind": None, "lr": 0.2}]
    fixed = plan_of(tmp_path, space=str(file), trials=8, warm_start=(path,), set=("kind=x",))
    assert [params for _, params in best_known(fixed)] == [{"lr": 0.1}, {"lr": 0.2}], "the values take turns"


def test_what_does_not_fit_meets_one_line(tmp_path, space):
    path = old_study(tmp_path, space, TRIALS)
    empty = old_study(tmp_path, space, (), name="empty")
    loss = old_study(tmp_path, space, TRIALS, name="loss", objective="val_loss:min")
    assert "which holds no study.json" in refusal(tmp_path, space=space, warm_start=("runs/nothing",))
    assert "with trials that have ended" in refusal(tmp_path, space=space, warm_start=(empty,))
    assert "with val_loss:min" in refusal(tmp_path, space=space, warm_start=(loss,))
    for same in (path, f"{path}/../{Path(path).name}/"):
        assert len(plan_of(tmp_path, space=space, warm_start=(path, same)).warm_start) == 1
    several = {"objectives": "val_top1:max,gpu_hours:min"}
    assert "a search for one metric" in refusal(tmp_path, space=space, warm_start=(path,), **several)
    assert "'lr', which this one has not" in refusal(tmp_path, space="large_batch", warm_start=(path,))
    more = tmp_path / "more.py"
    more.write_text(Path(space).read_text().replace("return", "trial.suggest_float('other', 0, 1)\n    return"))
    assert "no 'other'" in refusal(tmp_path, space=str(more), warm_start=(path,))
    later = {"resume": True, "study": "old", "warm_start": (path,)}
    assert "got --resume of one that began without it" in refusal(tmp_path, **later)
    Path(path, "study.json").write_text("{")
    assert "study.json must be readable JSON" in refusal(tmp_path, space=space, warm_start=(path,))
