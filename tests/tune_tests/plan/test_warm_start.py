"""``--warm-start``: trials of other studies are read as they are, or refused in one line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.plan.warm_start import MOST_TRIALS, best_known, known_in_words
from bigbatch.tune.runs.knowledge import stored_knowledge
from bigbatch.tune.search.first_trials import enqueue_first_trials
from bigbatch.tune.storage.store import StudyStore

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


def plan_of(folder: Path, **options: Any) -> SearchPlan:
    return make_plan(SearchOptions(**{"output": str(folder / "runs"), "model": "resnet18", "trials": 8, **options}))


def ended(lr: float, values: Sequence[float], batch: int = 64, state: TrialState = TrialState.COMPLETE) -> FrozenTrial:
    """A trial of eight epochs, with an epoch's record for each value."""
    records = {f"epoch/{i:05d}": {"epoch": i, "val_top1": v, "val_loss": 1.0} for i, v in enumerate(values, 1)}
    return create_trial(
        state=state,
        value=values[-1] if state != TrialState.FAIL else None,
        params={"lr": lr, "global_batch_size": batch},
        distributions={"lr": RATE, "global_batch_size": BATCH},
        intermediate_values=dict(enumerate(values, 1)) if state != TrialState.FAIL else {},
        user_attrs={"config": {"epochs": 8}, **records},
    )


def old_study(folder: Path, space: str, trials: Sequence[FrozenTrial], name: str = "old", **options: Any) -> str:
    """A study on disk that holds these trials, and that no driver holds any more."""
    plan = plan_of(folder, study=name, space=space, **options)
    store = StudyStore.create(plan.folder, plan.study, plan.to_dict(), None)
    for trial in trials:
        store.study.add_trial(trial)
    store.refresh(force=True)
    store.close()
    return str(plan.folder)


def refusal(folder: Path, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        plan_of(folder, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


RISING = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
TRIALS = (
    ended(0.1, RISING),
    ended(0.01, RISING[:4], state=TrialState.PRUNED),
    ended(0.5, [0.1] * 8, batch=256),
    ended(0.2, [*RISING[:7], 0.9], batch=256),
    ended(0.05, RISING[:2], state=TrialState.FAIL),
)


def test_a_study_is_read_as_it_is_while_another_driver_holds_it(tmp_path, space):
    path = old_study(tmp_path, space, TRIALS)
    held = StudyStore.open(Path(path), None)
    before = {file: file.read_bytes() for file in Path(path).rglob("*") if file.is_file()}
    (known,) = plan_of(tmp_path, space=space, warm_start=(path,)).warm_start
    assert {file: file.read_bytes() for file in Path(path).rglob("*") if file.is_file()} == before
    held.close()
    first, stopped, *_ = known.trials
    assert [t.number for t in known.trials] == [0, 1, 2, 3], "a failed process says nothing about hyperparameters"
    assert first.values == {1: 0.1, 2: 0.2, 4: 0.4, 8: 0.8} and first.finished
    assert first.params == {"lr": 0.1, "global_batch_size": 64} and first.group == 64
    assert stopped.values == {1: 0.1, 2: 0.2, 4: 0.4} and not stopped.finished and stopped.epochs == 8
    assert known_in_words(known).endswith("old: 4 trials, 3 of them finished, at 64, 256")


def test_a_resumed_study_keeps_what_was_read(tmp_path, space):
    path = old_study(tmp_path, space, TRIALS)
    plan = plan_of(tmp_path, study="new", space=space, warm_start=(path,))
    assert stored_knowledge(json.loads(json.dumps(plan.to_dict()))) == plan.warm_start != ()
    StudyStore.create(plan.folder, plan.study, plan.to_dict(), None).close()
    for file in sorted(Path(path).rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    for again in ((), (path,)):  # a job that is put back into the queue repeats the option
        resumed = make_plan(SearchOptions(resume=True, study="new", output=str(tmp_path / "runs"), warm_start=again))
        assert resumed.warm_start == plan.warm_start


def test_values_outside_are_left_out_and_another_batch_is_the_nearest(tmp_path, space):
    path = old_study(tmp_path, space, TRIALS)
    narrow = tmp_path / "narrow.py"
    narrow.write_text(Path(space).read_text().replace("0.001", "0.15").replace("[16, 64, 256]", "[32, 512]"))
    (known,) = plan_of(tmp_path, space=str(narrow), warm_start=(path,)).warm_start
    assert [(t.number, t.params["global_batch_size"], t.group) for t in known.trials] == [(2, 512, 256), (3, 512, 256)]
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
    (one,) = {
        params["lr"] for _, params in best_known(plan_of(tmp_path, space=space, batch="256", warm_start=(path,)))[:1]
    }
    assert one in (0.1, 0.2)


def test_what_does_not_fit_meets_one_line(tmp_path, space):
    path = old_study(tmp_path, space, TRIALS)
    empty = old_study(tmp_path, space, (), name="empty")
    loss = old_study(tmp_path, space, TRIALS, name="loss", objective="val_loss:min")
    assert "which holds no study.json" in refusal(tmp_path, space=space, warm_start=("runs/nothing",))
    assert "with trials that have ended" in refusal(tmp_path, space=space, warm_start=(empty,))
    assert "with val_loss:min" in refusal(tmp_path, space=space, warm_start=(loss,))
    for same in (path, f"{path}/../{Path(path).name}/"):
        assert "each study once" in refusal(tmp_path, space=space, warm_start=(path, same))
    several = {"objectives": "val_top1:max,gpu_hours:min"}
    assert "a search for one metric" in refusal(tmp_path, space=space, warm_start=(path,), **several)
    assert "'lr', which this one has not" in refusal(tmp_path, space="large_batch", warm_start=(path,))
    more = tmp_path / "more.py"
    more.write_text(Path(space).read_text().replace("return", "trial.suggest_float('other', 0, 1)\n    return"))
    assert "no 'other'" in refusal(tmp_path, space=str(more), warm_start=(path,))
    Path(path, "study.json").write_text("{")
    assert "study.json must be readable JSON" in refusal(tmp_path, space=space, warm_start=(path,))


def test_a_study_that_began_without_knowledge_takes_none_later(tmp_path, space):
    path = old_study(tmp_path, space, TRIALS)
    again = {"resume": True, "study": "old", "warm_start": (path,)}
    assert "got --resume of one that began without it" in refusal(tmp_path, **again)


def test_of_a_large_study_the_best_are_kept_and_some_others(tmp_path, space):
    trials = [ended(0.001 * 1.01**i, [0.001 * i], state=TrialState.PRUNED) for i in range(300)]
    (known,) = plan_of(tmp_path, space=space, warm_start=(old_study(tmp_path, space, trials),)).warm_start
    numbers = [t.number for t in known.trials]
    assert len(numbers) == MOST_TRIALS and set(range(200, 300)) <= set(numbers)
    assert len([n for n in numbers if n < 100]) == 50


def test_a_warmup_keeps_its_share_of_a_longer_run(tmp_path):
    file = tmp_path / "warm.py"
    file.write_text(
        "def space(trial, workload):\n"
        "    low, high = 0.05 * workload.epochs, 0.35 * workload.epochs\n"
        '    return workload.config({"warmup_epochs": trial.suggest_float("warmup_epochs", low, high)})\n'
    )
    before = FloatDistribution(0.05 * 8, 0.35 * 8)
    trials = [
        create_trial(
            value=0.5,
            params={"warmup_epochs": warmup},
            distributions={"warmup_epochs": before},
            user_attrs={"config": {"epochs": 8}, "epoch/00008": {"epoch": 8, "val_top1": 0.5, "val_loss": 1.0}},
        )
        for warmup in (before.low, 2.0, before.high)
    ]
    path = old_study(tmp_path, str(file), trials, max_epochs=8)
    (known,) = plan_of(tmp_path, space=str(file), max_epochs=30, warm_start=(path,)).warm_start
    assert [t.params["warmup_epochs"] for t in known.trials] == pytest.approx([1.5, 7.5, 10.5])
    longest: Any = max((t.params["warmup_epochs"] for t in known.trials), key=float)  # type: ignore[arg-type]
    assert longest <= 0.35 * 30
