"""When trials pause at a look or stop, which go on, and which checkpoints make room."""

from collections.abc import Mapping, Sequence

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState

from bigbatch.train_loop.host.disk_space import SpaceLeft
from bigbatch.tune.models.protocol import Dimension, SearchFacts, Strategy, TrialDecision
from bigbatch.tune.proposers.samplers import make_pruner
from bigbatch.tune.proposers.shown_trials import SPARED_ATTR
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.run import CONTINUES_ATTR, DROPPED_ATTR, GIVEN_ATTR, PAUSED_ATTR, RETRIES_ATTR
from bigbatch.tune.storage import kept_checkpoints
from bigbatch.tune.storage.store import StudyStore
from bigbatch.tune.strategies import make_strategy
from helpers.lone_studies import begin, frozen, go, new_study

EPOCHS = 20
X = FloatDistribution(0.0, 1.0)
BATCH = CategoricalDistribution((256, 1024, 4096))


def facts_of(trials: int = 12, frontier: str | None = None) -> SearchFacts:
    dimensions = (Dimension("x", X), Dimension("batch", BATCH))
    return SearchFacts(dimensions, trials, EPOCHS, objective=Objective("v", worst=0.1), frontier=frontier)


@pytest.mark.parametrize(
    ("epochs", "warmup", "paused_in"), [(20, 0, 2), (20, 5, 6), (90, 8.2, 13), (5, 0, 1), (12, 1.2, 2), (3, 2.9, None)]
)
def test_a_trial_pauses_after_a_tenth_but_not_before_its_warmup_and_a_twentieth(epochs, warmup, paused_in):
    study, strategy = new_study(), make_strategy("random", "look", facts_of())
    trial = begin(study, {}, epochs=epochs, warmup=warmup)
    decision = go(study, strategy, trial, [0.5] * (epochs - 1))
    assert (decision, frozen(study, trial).last_step) == (
        (TrialDecision.GO_ON, epochs - 1) if paused_in is None else (TrialDecision.PAUSE, paused_in)
    )


def test_a_continuation_is_not_looked_at_again_nor_its_retry_but_a_retry_of_a_first_attempt_is():
    study, strategy = new_study(), make_strategy("random", "look", facts_of())
    first = begin(study, {}, epochs=EPOCHS)
    go(study, strategy, first, [0.5] * 19)
    study.tell(first, state=TrialState.PRUNED)
    for attrs, last in (({CONTINUES_ATTR: 0}, TrialDecision.GO_ON), ({RETRIES_ATTR: 1}, TrialDecision.GO_ON)):
        study.enqueue_trial({}, user_attrs=attrs)
        assert go(study, strategy, begin(study, {}, epochs=EPOCHS), [0.5] * 19) == last
    lost = begin(study, {}, epochs=EPOCHS)
    study.enqueue_trial({}, user_attrs={RETRIES_ATTR: lost.number})
    assert go(study, strategy, begin(study, {}, epochs=EPOCHS), [0.5] * 19) == TrialDecision.PAUSE


def a_trial(study: optuna.Study, strategy: Strategy, x: float, batch: int = 256, end: float | None = None) -> int:
    """Run a trial as far as the strategy lets it; its value rises to ``end``, half of the way in the first epoch."""
    study.enqueue_trial({"x": x, "batch": batch})
    return run_next(study, strategy, end)


def run_next(study: optuna.Study, strategy: Strategy, end: float | None = None) -> int:
    trial = study.ask()
    x, batch = trial._suggest("x", X), trial._suggest("batch", BATCH)
    end = 0.9 - 0.5 * abs(x - 0.3) - batch / 20000 if end is None else end
    trial.set_user_attr("config", {"epochs": EPOCHS, "batch": batch})
    decision = go(study, strategy, trial, [0.1 + (end - 0.1) * e / (e + 1) for e in range(1, EPOCHS)])
    if decision == TrialDecision.PAUSE:
        trial.set_user_attr(PAUSED_ATTR, frozen(study, trial).last_step)
        study.tell(trial, state=TrialState.PRUNED)
    else:
        trial.report(0.1 + (end - 0.1) * EPOCHS / (EPOCHS + 1), EPOCHS)
        study.tell(trial, end)
    return trial.number


def one_slot(study: optuna.Study, strategy: Strategy, number: int, batches: tuple[int, ...] = (256,)) -> str:
    """What a free slot does: the paused trial that it continues, or ``new``; ``over`` if nothing is left."""
    paused = strategy.to_continue(study)
    if paused is None:
        if number >= 12:
            return "over"
        a_trial(study, strategy, (0.37 * number) % 1, batches[number % len(batches)])
        return "new"
    study.enqueue_trial(paused.params, user_attrs={CONTINUES_ATTR: paused.number})
    run_next(study, strategy)
    return str(paused.number)


def whole_search(
    strategy: Strategy, batches: tuple[int, ...] = (256,), given: Sequence[tuple[float, int]] = ()
) -> tuple[optuna.Study, list[str]]:
    """A search that begins with the configurations (x, batch) that were given."""
    study, slots = new_study(), list[str]()
    for x, batch in given:
        study.enqueue_trial({"x": x, "batch": batch}, user_attrs={GIVEN_ATTR: {}})
        run_next(study, strategy)
    while not slots or slots[-1] != "over":
        slots.append(one_slot(study, strategy, len(given) + slots.count("new"), batches))
        assert len(slots) < 40
    return study, slots


def test_one_goes_on_after_the_first_round_then_at_every_fourth_slot_and_a_third_runs_to_the_end():
    strategy = make_strategy("random", "look", facts_of())
    study, slots = whole_search(strategy)
    new = [i for i, slot in enumerate(slots) if slot == "new"]
    assert len(new) == 12
    continued = [i for i, slot in enumerate(slots) if slot not in ("new", "over")]
    assert [i for i in continued if i < max(new)] == [8, 11], "not before there are eight to compare"
    done = [t for t in study.trials if t.state == TrialState.COMPLETE]
    assert len(done) == 4 and strategy.is_over(study)
    by_end = sorted((abs((0.37 * n) % 1 - 0.3), n) for n in range(12))
    of_best = {round((0.37 * n) % 1, 6) for _, n in by_end[:5]}
    assert {round(t.params["x"], 6) for t in done} <= of_best


def test_every_value_of_the_frontier_has_a_trial_that_ran_to_its_end():
    strategy = make_strategy("random", "look", facts_of(frontier="batch"))
    study, _ = whole_search(strategy, (256, 256, 256, 256, 1024, 4096))
    done = [t.params["batch"] for t in study.trials if t.state == TrialState.COMPLETE]
    assert set(done) == {256, 1024, 4096} and len(done) == 4


def test_the_best_of_the_configurations_that_were_given_for_a_value_runs_to_its_end_however_bad_it_looks():
    strategy = make_strategy("random", "look", facts_of(frontier="batch"))
    given = [(0.95, 256), (0.99, 256), (0.98, 1024)]  # the best possible is 0.3
    study, _ = whole_search(strategy, (256, 1024), given)
    done = {(t.params["batch"], t.params["x"]) for t in study.trials if t.state == TrialState.COMPLETE}
    assert {(256, 0.95), (1024, 0.98)} < done and (256, 0.99) not in done
    assert len(done) == 4 and strategy.is_over(study), "they count towards the third"


def test_a_retry_of_a_configuration_that_was_given_is_measured_in_its_place():
    strategy, study = make_strategy("random", "look", facts_of(trials=2, frontier="batch")), new_study()
    study.enqueue_trial({"x": 0.99, "batch": 256}, user_attrs={GIVEN_ATTR: {}})
    study.tell(study.ask(), state=TrialState.FAIL)
    study.enqueue_trial({"x": 0.99, "batch": 256}, user_attrs={RETRIES_ATTR: 0})
    assert run_next(study, strategy) == 1 and a_trial(study, strategy, 0.3) == 2
    slots = [one_slot(study, strategy, 12) for _ in range(3)]
    assert slots == ["2", "1", "over"], "the best first; then the given one, however bad it looks"
    assert strategy.is_over(study)


def test_it_is_not_over_while_a_trial_runs_that_may_yet_pause():
    strategy, study = make_strategy("random", "look", facts_of(trials=1)), new_study()
    trial = begin(study, {}, epochs=EPOCHS)
    assert not strategy.is_over(study) and strategy.to_continue(study) is None
    go(study, strategy, trial, [0.5] * 19)
    trial.set_user_attr(PAUSED_ATTR, 2)
    study.tell(trial, state=TrialState.PRUNED)
    assert not strategy.is_over(study)
    paused = strategy.to_continue(study)
    assert paused is not None and paused.number == 0
    study.enqueue_trial({}, user_attrs={CONTINUES_ATTR: 0})
    on = begin(study, {}, epochs=EPOCHS)
    assert strategy.to_continue(study) is None and not strategy.is_over(study), "one is on its way"
    study.tell(on, state=TrialState.FAIL)
    assert strategy.is_over(study), "nothing is left that could be continued"


def look_of(study: optuna.Study, values: Mapping[int, float], epochs: int = EPOCHS) -> None:
    """A trial that was paused after these values."""
    study.enqueue_trial({"x": 0.5, "batch": 256})
    trial = study.ask()
    trial._suggest("x", X), trial._suggest("batch", BATCH)
    trial.set_user_attr("config", {"epochs": epochs})
    for epoch, value in values.items():
        trial.report(value, epoch)
    trial.set_user_attr(PAUSED_ATTR, max(values))
    study.tell(trial, state=TrialState.PRUNED)


def test_until_a_run_has_ended_the_looks_of_unequal_epochs_are_ranked_at_the_same_part_of_the_run() -> None:
    """All later values are higher. The trial that was looked at first is the best of all in that epoch."""
    study, strategy = new_study(), make_strategy("random", "look", facts_of())
    look_of(study, {1: 0.3, 2: 0.45})
    for place in range(7):
        look_of(study, {1: 0.2, 2: 0.40 - 0.02 * place, 3: 0.5, 4: 0.6 + 0.01 * place})
    paused = strategy.to_continue(study)
    assert paused is not None and paused.number == 0


def paused_store(store: StudyStore, sizes: Mapping[float, int]) -> Strategy:
    strategy = make_strategy("random", "look", facts_of())
    for x, size in sizes.items():
        number = a_trial(store.study, strategy, x)
        folder = store.checkpoint_folder(number)
        folder.mkdir(parents=True)
        (folder / "last.pt").write_bytes(bytes(size))
    return strategy


def test_the_store_removes_them_and_the_study_knows_before(tmp_path, monkeypatch):
    store = StudyStore.create(tmp_path / "study", "s", {}, None)
    strategy = paused_store(store, {0.3: 50_000, 0.9: 50_000, 0.4: 50_000, 0.7: 50_000})
    monkeypatch.setattr(kept_checkpoints, "space_left", lambda folder: SpaceLeft(10_000, None, "test", "test"))
    store.drop_checkpoints()
    left = [n for n in range(4) if store.checkpoint_folder(n).exists()]
    assert left == [0, 2] and {f"{DROPPED_ATTR}1", f"{DROPPED_ATTR}3"} == set(store.study.user_attrs)
    for _ in range(12):
        a_trial(store.study, strategy, 0.99, end=0.11)
    continued = [strategy.to_continue(store.study)]
    assert continued[0] is not None and continued[0].number in (0, 2)
    store.close()


def test_where_no_new_run_fits_each_slot_continues_what_fits_first_where_nothing_ran_to_its_end():
    strategy, study = make_strategy("random", "look", facts_of(frontier="batch")), new_study()
    for x, batch in ((0.3, 256), (0.9, 256), (0.35, 1024), (0.8, 1024)):  # the best possible is 0.3
        a_trial(study, strategy, x, batch)
    assert strategy.to_continue(study) is None, "not the fourth slot, and seven more may begin"
    asked: list[int] = []

    def fits(trial: optuna.trial.FrozenTrial) -> bool:
        asked.append(trial.number)
        return trial.number in (1, 2)

    order = []
    for _ in range(2):
        paused = strategy.to_continue(study, fits)
        order.append(paused.number)
        study.enqueue_trial(paused.params, user_attrs={CONTINUES_ATTR: paused.number})
        run_next(study, strategy)
    assert order == [2, 1], "the better one; then the batch at which none has gone on"
    assert strategy.to_continue(study, fits) is None and set(asked) == {0, 1, 2, 3}, "the others do not fit"
    assert strategy.to_continue(study, lambda trial: True) is not None


RUNG_EPOCHS = 12
FACTS = SearchFacts((), trials=40, max_epochs=RUNG_EPOCHS, seed=5)


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
@pytest.mark.parametrize("name", ["asha", "median", "none"])
def test_without_warmup_each_verdict_is_that_of_optunas_pruner(name, direction):
    """Optuna's own study, with the pruner called as Optuna calls it, stops the same trials in the same epochs."""
    ours, theirs = new_study(direction), new_study(direction)
    theirs.pruner = make_pruner(name, RUNG_EPOCHS)
    stopping = make_strategy("random", name, FACTS)
    rng = np.random.default_rng(0)
    ends = []
    for _ in range(40):
        values = rng.random() + 0.05 * rng.standard_normal(RUNG_EPOCHS)
        trial, other = begin(ours, {}, epochs=RUNG_EPOCHS), theirs.ask()
        decision = go(ours, stopping, trial, values)
        stopped_in = RUNG_EPOCHS
        for epoch, value in enumerate(values, 1):
            other.report(value, epoch)
            if other.should_prune():
                stopped_in = epoch
                break
        assert frozen(ours, trial).last_step == stopped_in
        state = TrialState.PRUNED if decision == TrialDecision.STOP else TrialState.COMPLETE
        for study, ended in ((ours, trial), (theirs, other)):
            study.tell(ended, values[-1] if state == TrialState.COMPLETE else None, state=state)
        ends.append(stopped_in)
    assert len(set(ends)) > 1 or name == "none"


def test_only_trials_of_the_same_frontier_value_compare():
    study = new_study()
    facts = SearchFacts((), trials=40, max_epochs=RUNG_EPOCHS, frontier="batch")
    stopping = make_strategy("tpe", "asha", facts)
    for _ in range(3):
        go(study, stopping, begin(study, {"batch": 256}, epochs=RUNG_EPOCHS), [0.9] * RUNG_EPOCHS)
    large = begin(study, {"batch": 4096}, epochs=RUNG_EPOCHS)
    assert go(study, stopping, large, [0.5] * RUNG_EPOCHS) == TrialDecision.GO_ON, "the best of its batch so far"
    poor = begin(study, {"batch": 4096}, epochs=RUNG_EPOCHS)
    assert go(study, stopping, poor, [0.4] * RUNG_EPOCHS) == TrialDecision.STOP
    poor = begin(study, {"batch": 256}, epochs=RUNG_EPOCHS)
    assert go(study, stopping, poor, [0.8] * RUNG_EPOCHS) == TrialDecision.STOP


@pytest.mark.parametrize("name", ["asha", "median"])
def test_no_trial_is_stopped_before_its_warmup_has_ended_and_then_at_equal_epochs(name):
    """Slow starters that are as good as their peers from the fifth epoch on are not stopped; bad ones are, then."""
    study, stopping = new_study(), make_strategy("tpe", name, FACTS)
    good = list(np.linspace(0.4, 0.9, RUNG_EPOCHS))
    for _ in range(5):
        trial = begin(study, {}, epochs=RUNG_EPOCHS)
        assert go(study, stopping, trial, good) == TrialDecision.GO_ON
        study.tell(trial, good[-1])
    slow = begin(study, {}, epochs=RUNG_EPOCHS, warmup=4.5)
    assert go(study, stopping, slow, [0.1, 0.1, 0.1, 0.1, *good[4:]]) == TrialDecision.GO_ON
    assert frozen(study, slow).user_attrs[SPARED_ATTR] == 3, "a quarter of the run: the pruner wanted to stop it"
    study.tell(slow, good[-1])
    ends = set()
    for _ in range(8):
        bad = begin(study, {}, epochs=RUNG_EPOCHS, warmup=4.5)
        assert go(study, stopping, bad, [0.1, 0.1, 0.1, 0.1, *np.linspace(0.41, 0.42, 8)]) == TrialDecision.STOP
        ends.add(frozen(study, bad).last_step)
        study.tell(bad, state=TrialState.PRUNED)
    assert ends == {5}


def test_a_run_of_few_steps_is_judged_after_ten(monkeypatch):
    study, stopping = new_study(), make_strategy("tpe", "asha", FACTS)
    go(study, stopping, begin(study, {}, epochs=RUNG_EPOCHS), [0.5] * RUNG_EPOCHS)
    few = begin(study, {}, epochs=RUNG_EPOCHS)
    assert go(study, stopping, few, [0.1] * RUNG_EPOCHS, steps_an_epoch=2) == TrialDecision.STOP
    assert frozen(study, few).last_step == 5 and frozen(study, few).user_attrs[SPARED_ATTR] == 3
    hardly = begin(study, {}, epochs=RUNG_EPOCHS)
    assert go(study, stopping, hardly, [0.1] * 9, steps_an_epoch=1) == TrialDecision.GO_ON
