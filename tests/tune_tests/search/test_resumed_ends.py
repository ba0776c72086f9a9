"""A resumed study that seems to have everything, and a budget that has no room for what waits."""

from __future__ import annotations

from pathlib import Path

from optuna.trial import TrialState

from bigbatch.tune.budget.budget import Budget, Limits
from bigbatch.tune.budget.pace import Pace
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.runs.run import CONFIRMS_ATTR
from bigbatch.tune.search import driver
from bigbatch.tune.search.first_trials import enqueue_first_trials
from bigbatch.tune.search.running import configurations_of, is_complete, strategy_of
from bigbatch.tune.simulate.replay import MemoryKeeper
from bigbatch.tune.simulate.stand_ins import SimulatedClock
from bigbatch.tune.storage.store import StudyStore
from bigbatch.tune.trials.admission import Admission
from bigbatch.tune.trials.live_trial import Over
from bigbatch.tune.trials.trial_manager import TrialManager
from helpers.planned import PlannedSearch


def test_confirmations_that_ran_when_the_driver_was_killed_are_left(tmp_path: Path) -> None:
    """They are RUNNING in the study: neither missing nor waiting, until somebody repairs them."""
    plan = make_plan(
        SearchOptions(
            output=str(tmp_path / "runs"), model="resnet18", study="s", batch="128,256", trials=6, max_epochs=3,
            set=("optimizer=sgd",), enqueue=("none",), confirm="1x1", stopping="none", strategy="random",
        )
    )  # fmt: skip
    search = PlannedSearch(plan, lambda config, epoch: 0.5 + 0.1 * epoch)
    while sum(CONFIRMS_ATTR in t.user_attrs for t in search.trials if t.state == TrialState.RUNNING) < 2:
        search.step()
    search.store.close()  # what a kill leaves: nobody tells the two trials
    store = StudyStore.open(plan.folder, None)
    assert is_complete(plan, store), "nothing seems to be left"
    assert not driver._has_nothing_to_do(plan, store)
    waiting = [t for t in store.study.trials if t.state == TrialState.WAITING]
    assert len(waiting) == 2 and all(CONFIRMS_ATTR in t.user_attrs for t in waiting)
    store.close()


def test_many_trials_that_wait_for_a_budget_are_no_invalid_configurations(tmp_path: Path) -> None:
    """27 published recipes wait, and the budget has room for two."""
    batches = "64,96,128,192,256,384,512,768,1024"
    plan = make_plan(
        SearchOptions(
            output=str(tmp_path / "runs"), model="resnet18", trials=100, batch=batches, budget_gpu_hours=1.0,
            max_epochs=4, stopping="none", strategy="tpe", confirm="none",
        )
    )  # fmt: skip
    clock = SimulatedClock()
    keeper = MemoryKeeper(tmp_path / "study", clock, plan.objectives.first)
    enqueue_first_trials(plan, keeper.study)
    waiting = len(keeper.study.trials)
    assert waiting > 20
    budget = Budget(
        Limits(device_s=95.0), Pace(), held_s=lambda: clock.now_s, devices=lambda: 1, clock=clock, ending_s=0.0
    )
    manager = TrialManager(
        keeper, strategy_of(plan), configurations_of(plan), objective=plan.objectives.first, trials=plan.trials,
        workers=1, observers=[], clock=clock, admission=Admission(budget, 1, None),
    )  # fmt: skip
    begun = 0
    try:
        while manager.next_trial(f"t{begun}") is not None:
            for epoch in range(1, 5):
                clock.now_s += 10.0
                record: dict[str, object] = {
                    "epoch": epoch,
                    "val_top1": 0.5,
                    "val_loss": 1.0,
                    "train_s": 10.0,
                    "optimizer_steps": epoch,
                }
                manager.take_in(f"t{begun}", record)
            begun += 1
    except Over:
        pass
    assert begun == 2 and manager.fatal is None and budget.refused is not None
    assert sum(t.state == TrialState.WAITING for t in keeper.study.trials) == waiting - begun
