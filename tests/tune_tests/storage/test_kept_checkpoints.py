"""Which checkpoints of ended trials stay, where several trials are equally good."""

from __future__ import annotations

from pathlib import Path

import pytest
from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState, create_trial

from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.runs.frontier import frontier_facts, frontier_of
from bigbatch.tune.storage.store import StudyStore

CONFIG = {"epochs": 2}


def add(store: StudyStore, value: float, batch: int, state: TrialState, **attrs: object) -> None:
    """Add a trial that has ended, with a checkpoint; a paused one has handed it over to its continuation."""
    store.study.add_trial(
        create_trial(
            state=state,
            value=value if state == TrialState.COMPLETE else None,
            params={"global_batch_size": batch},
            distributions={"global_batch_size": CategoricalDistribution((128, 256, 512, 1024))},
            user_attrs={"config": CONFIG, "epoch/00001": {"epoch": 1, "val_top1": value, "train_s": 1.0}, **attrs},
        )
    )
    if state == TrialState.COMPLETE:
        folder = store.checkpoint_folder(len(store.study.trials) - 1)
        folder.mkdir(parents=True)
        (folder / "latest.pt").write_text("weights")


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "after each trial"])
def test_the_best_of_each_batch_is_the_one_whose_checkpoint_stays(tmp_path: Path, at_once: bool) -> None:
    """At 1,024 a published recipe that was paused and continued is as good as an earlier trial, so it is the best."""
    plan = make_plan(SearchOptions(output=str(tmp_path / "runs"), model="resnet18", study="s"))
    store = StudyStore.create(plan.folder, plan.study, plan.to_dict(), None)
    trials: list[tuple[float, int, TrialState, dict[str, object]]] = [
        (0.9, 1024, TrialState.PRUNED, {"paused_in_epoch": 1, "given_config": CONFIG}),
        (1.0, 1024, TrialState.COMPLETE, {}),
        (1.0, 1024, TrialState.COMPLETE, {"continues": 0}),
        (1.0, 256, TrialState.COMPLETE, {}),
        (1.0, 256, TrialState.COMPLETE, {}),
        (0.9, 512, TrialState.COMPLETE, {}),
    ]
    for value, batch, state, attrs in trials:
        add(store, value, batch, state, **attrs)
        if not at_once:
            store.drop_checkpoints()
    store.drop_checkpoints()
    facts = frontier_facts(plan.to_dict(), plan.objectives.first)
    assert facts is not None
    frontier = frontier_of(store.study.trials, facts)
    assert frontier is not None and frontier.leading.trial == 2
    best = {row.best.trial for row in frontier.rows if row.best}
    there = {int(path.name.removeprefix("trial-")) for path in (store.folder / "checkpoints").iterdir()}
    assert best == {2, 3, 5} and there == best
    store.close()


def test_what_a_stopped_trial_writes_after_its_end_goes_too(tmp_path: Path) -> None:
    """The study stops it first, and its processes may just be writing a checkpoint then."""
    plan = make_plan(SearchOptions(output=str(tmp_path / "runs"), model="resnet18", study="s"))
    store = StudyStore.create(plan.folder, plan.study, plan.to_dict(), None)
    add(store, 0.9, 256, TrialState.COMPLETE)
    add(store, 0.1, 256, TrialState.PRUNED)
    late = store.checkpoint_folder(1)
    for _ in range(2):
        late.mkdir()
        (late / "latest.pt.partial").write_text("half")
        store.drop_checkpoints()
        assert not late.exists() and store.checkpoint_folder(0).exists()
    store.close()
