"""What strategies keep of a study says the same as the study itself, after each event, and as in a new process."""

import math
import random
from collections.abc import Sequence
from pathlib import Path

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, Trial, TrialState

from bigbatch.tune.models.curve_history import CurveHistory
from bigbatch.tune.models.protocol import Dimension, SearchFacts
from bigbatch.tune.proposers.frontier_sampler import TrialAllocator
from bigbatch.tune.proposers.passing_sampler import OwnTrials
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.run import (
    CONFIRMS_ATTR,
    CONTINUES_ATTR,
    DIVERGED_ATTR,
    DROPPED_ATTR,
    PAUSED_ATTR,
    RETRIES_ATTR,
    search_trials,
)
from bigbatch.tune.stoppers.paused_trials import PausedTrials
from bigbatch.tune.storage.store import StudyStore
from helpers.lone_studies import waiting_to_continue

EPOCHS = 6
SPACE = {"x": FloatDistribution(0.0, 1.0), "batch": CategoricalDistribution((256, 1024, 4096))}
FACTS = SearchFacts(
    tuple(Dimension(name, found) for name, found in SPACE.items()), 40, EPOCHS,
    objective=Objective("v", worst=0.1), frontier="batch",
)  # fmt: skip


class Events:
    """Random events of a study: all that a manager does to one, in an order that a search may have."""

    def __init__(self, study: optuna.Study, seed: int) -> None:
        self.study, self.chance = study, random.Random(seed)
        study.sampler = optuna.samplers.RandomSampler(seed=seed)
        self.live: list[Trial] = []

    def next(self) -> None:
        """One event."""
        if len(self.live) < 3 and self.chance.random() < 0.5:
            self._begin()
        elif self.live:
            self._go_on(self.chance.choice(self.live))
        elif self.chance.random() < 0.5 and (waiting := waiting_to_continue(self._trials())):
            self.study.set_user_attr(f"{DROPPED_ATTR}{waiting[0].number}", True)

    def _trials(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False)

    def _begin(self) -> None:
        ended = [t for t in self._trials() if t.state.is_finished()]
        again = {n for t in ended for n in (t.user_attrs.get(RETRIES_ATTR), t.user_attrs.get(CONTINUES_ATTR))}
        for name, them in (
            (CONTINUES_ATTR, waiting_to_continue(self._trials())),
            (RETRIES_ATTR, [t for t in ended if t.state == TrialState.FAIL and t.number not in again]),
            (CONFIRMS_ATTR, [t for t in ended if t.state == TrialState.COMPLETE]),
        ):
            if them and self.chance.random() < 0.2:
                earlier = self.chance.choice(them)
                if not any(t.user_attrs.get(name) == earlier.number for t in self._trials()):
                    self.study.enqueue_trial(earlier.params, user_attrs={name: earlier.number})
        trial = self.study.ask(SPACE)
        trial.set_user_attr("config", {"epochs": EPOCHS})
        self.live.append(trial)

    def _go_on(self, trial: Trial) -> None:
        done = len(self._trials()[trial.number].intermediate_values)
        chance = self.chance.random()
        if chance < 0.6 and done < EPOCHS:
            value = self.chance.random()
            trial.report(math.inf if value > 0.97 else value, done + 1)
            if done + 1 < EPOCHS:
                return
        self.live.remove(trial)
        if done + 1 >= EPOCHS:
            self.study.tell(trial, self.chance.random())
        elif chance < 0.8 and done:
            trial.set_user_attr(PAUSED_ATTR, done)
            self.study.tell(trial, state=TrialState.PRUNED)
        elif chance < 0.9:
            self.study._storage.set_trial_state_values(trial._trial_id, TrialState.WAITING)
        else:
            if chance < 0.95:
                trial.set_user_attr(DIVERGED_ATTR, True)
            self.study.tell(trial, state=TrialState.FAIL)


def curves_as_they_are(trials: Sequence[FrozenTrial]) -> list[tuple[int, dict[int, float], bool]]:
    """From first principles: number, values and divergence of each configuration that says something."""
    found: dict[int, tuple[dict[int, float], bool]] = {}
    for trial in trials:
        first = trial
        while (earlier := first.user_attrs.get(CONTINUES_ATTR, first.user_attrs.get(RETRIES_ATTR))) is not None:
            first = next(t for t in trials if t.number == earlier)
        diverged = trial.state == TrialState.FAIL and DIVERGED_ATTR in trial.user_attrs
        values = {e: v for e, v in trial.intermediate_values.items() if math.isfinite(v)}
        if diverged or (trial.state != TrialState.FAIL and trial.intermediate_values):
            before, had = found.get(first.number, ({}, False))
            found[first.number] = ({**before, **values}, had or diverged)
    return [(number, values, diverged) for number, (values, diverged) in found.items() if values or diverged]


def in_words(history: CurveHistory) -> list[tuple[int, dict[int, float], bool]]:
    return [(curve.number, curve.gains, curve.diverged) for curve in history.curves()]


@pytest.mark.parametrize(("storage", "seed"), [("memory", 0), ("journal", 1)])
def test_after_each_event_an_index_says_what_the_study_says(storage, seed, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda file: None)
    store = StudyStore.create(tmp_path / "s", "s", {}, None) if storage == "journal" else None
    study = store.study if store else optuna.create_study(direction="maximize")
    events, hidden = Events(study, seed), OwnTrials()
    curves, look, shares = CurveHistory(FACTS), PausedTrials(FACTS), TrialAllocator(FACTS)
    for _ in range(250):
        events.next()
        trials = study.get_trials(deepcopy=False)
        assert trials == study.get_trials(deepcopy=True)
        for state in TrialState if store else ():  # Optuna's storage in memory loses what goes back to WAITING
            assert study.get_trials(deepcopy=False, states=(state,)) == [t for t in trials if t.state == state]
        curves.update(study)
        assert in_words(curves) == curves_as_they_are(trials)
        searched = search_trials(trials)
        assert hidden.seen(study).get_trials(deepcopy=False) == searched
        seen = hidden.seen(study)
        now = look.update(seen)
        there = waiting_to_continue(searched)
        dropped = {n for n in range(len(trials)) if f"{DROPPED_ATTR}{n}" in study.user_attrs}
        values = {t.params["batch"] for t in there if t.number not in dropped}
        assert look.waiting_values() == values
        for value in values:
            places = [now[place].number for place in look.waiting(value)]
            wanted = [t.number for t in there if t.params["batch"] == value]
            assert places == [n for n in wanted if n not in dropped]
        done = [t for t in searched if t.state == TrialState.COMPLETE]
        assert look.all_promoted(only_done=True) == len(done)
        assert look.runs == any(t.state == TrialState.RUNNING for t in searched)
        assert look.configurations == sum(
            CONTINUES_ATTR not in t.user_attrs and RETRIES_ATTR not in t.user_attrs for t in searched
        )
        assert shares.next_value(study, len(trials)) == TrialAllocator(FACTS).next_value(study, len(trials))
    assert len(trials) > 40 and any(CONFIRMS_ATTR in t.user_attrs for t in trials)
    assert any(CONTINUES_ATTR in t.user_attrs for t in trials)
    if store:
        store.close()


def test_a_hidden_trial_does_not_make_an_index_begin_anew(monkeypatch):
    study = optuna.create_study(direction="maximize")
    events, hidden, look = Events(study, seed=3), OwnTrials(), PausedTrials(FACTS)
    for _ in range(300):
        events.next()
    assert len(look.update(hidden.seen(study))) < len(study.trials)
    taken: list[int] = []
    monkeypatch.setattr(look, "_take", lambda place, trials: taken.append(place))
    look.update(hidden.seen(study))
    assert not taken


def test_of_many_curves_the_recent_the_best_of_each_batch_and_some_others_are_shown():
    study = optuna.create_study(direction="maximize")
    events = Events(study, seed=7)
    for _ in range(1500):
        events.next()
    history = CurveHistory(FACTS)
    history.update(study)
    curves = history.curves()
    assert history.shown(most=len(curves)) == curves and len(curves) > 120
    worst = min(curves[:50], key=lambda curve: curve.best)
    shown = history.shown([worst.number], most=40)
    assert [c for c in curves if c in shown] == shown and curves[-20:] == shown[-20:] and 35 <= len(shown) <= 41
    for batch in (256, 1024, 4096):
        done = [c for c in curves[:-20] if c.finished and c.params["batch"] == batch]
        assert max(done, key=lambda curve: curve.gains[EPOCHS]) in shown
    assert worst in shown
    again = CurveHistory(FACTS)
    again.take_in(study.get_trials())
    assert in_words(again) == in_words(history)
    assert [c.number for c in again.shown(most=40)] == [c.number for c in history.shown(most=40)]
