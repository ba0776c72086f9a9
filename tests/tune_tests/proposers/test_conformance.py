"""What every strategy with every stopping keeps on every storage, driven by the real manager."""

import itertools
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from bigbatch.tune.models.names import STOPPINGS, STRATEGIES
from bigbatch.tune.models.protocol import Strategy, TrialDecision
from bigbatch.tune.runs.run import CONTINUES_ATTR
from bigbatch.tune.storage.journal_file import JournalFile, repair_journal
from bigbatch.tune.storage.store import StudyStore
from helpers.conducted import (
    Killed,
    check_whole,
    curve_search,
    in_journal,
    in_memory,
    kill_at_write,
    same_after_kills,
    summary,
)
from helpers.waiting import wait_until

pytestmark = pytest.mark.without_ray

NAMED, PROPOSERS = STOPPINGS[1:], STRATEGIES[1:]
SOME = [(strategy, "look") for strategy in PROPOSERS] + [("curves", stopping) for stopping in NAMED[1:]]
"""Every name at least once."""
ALL = [
    pair if pair in SOME else pytest.param(*pair, marks=pytest.mark.exhaustive)
    for pair in itertools.product(PROPOSERS, NAMED)
]


@pytest.mark.parametrize(("strategy", "stopping"), ALL)
def test_a_search_in_memory_makes_the_same_decisions_after_kills_between_any_two_steps(strategy, stopping, tmp_path):
    trials = same_after_kills(strategy, stopping, in_memory, tmp_path)
    tried = [t for t in trials if CONTINUES_ATTR not in t.user_attrs]
    assert len({str(t.params) for t in tried}) == len(tried), "trials that run at the same time differ"
    for trial in trials:
        lamb = trial.params["optimizer"] == "lamb"
        assert ("one_minus_beta1" in trial.params, "one_minus_momentum" in trial.params) == (lamb, not lamb)
    assert {t.params["global_batch_size"] for t in trials} == {128, 256, 512, 1024}
    if stopping == "look":
        done = {t.params["global_batch_size"] for t in trials if t.state == TrialState.COMPLETE}
        paused = {t.params["global_batch_size"] for t in trials if t.state == TrialState.PRUNED}
        assert done == paused | done and any(CONTINUES_ATTR in t.user_attrs for t in trials)


@pytest.mark.parametrize(
    ("strategy", "stopping"), [SOME[0], *(pytest.param(*pair, marks=pytest.mark.exhaustive) for pair in SOME[1:])]
)
def test_a_search_in_a_journal_makes_the_same_decisions_after_kills(strategy, stopping, tmp_path):
    same_after_kills(strategy, stopping, in_journal, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "stopping"), [("curves", "look"), pytest.param("tpe", "asha", marks=pytest.mark.exhaustive)]
)
def test_a_search_in_postgresql_makes_the_same_decisions_after_kills(strategy, stopping, postgres, tmp_path):
    psycopg = pytest.importorskip("psycopg", reason="needs the database's driver: pip install 'psycopg[binary]'")

    def answers() -> bool:
        try:
            psycopg.connect(postgres.replace("+psycopg", "")).close()
        except psycopg.OperationalError:  # its port is open before it has started up
            return False
        return True

    wait_until(answers, "PostgreSQL does not start up")

    def in_database(folder: Path) -> Callable[[], StudyStore]:
        return lambda: (
            StudyStore.open(folder, postgres)
            if folder.exists()
            else StudyStore.create(folder, folder.name, {}, postgres)
        )

    same_after_kills(strategy, stopping, in_database, tmp_path)


PAIRS = [("curves", "look"), ("tpe", "asha"), ("random", "asha")]


@pytest.mark.parametrize(("strategy", "stopping"), PAIRS)
def test_a_search_cut_off_within_any_proposal_goes_on_alike(strategy, stopping, tmp_path, monkeypatch):
    """The journal is cut after a parameter: as ``kill -9`` leaves it, with half a line behind or without."""
    sizes: list[int] = []
    append = JournalFile.append_logs

    def noted(self: JournalFile, logs: list[dict[str, object]]) -> None:
        append(self, logs)
        if any(log["op_code"] == 5 or "relative_params" in str(log) for log in logs):
            sizes.append(os.path.getsize(self._path))

    monkeypatch.setattr(JournalFile, "append_logs", noted)
    whole = curve_search(strategy, stopping, in_journal(tmp_path / "whole")).run()
    monkeypatch.setattr(JournalFile, "append_logs", append)
    whole.store.close()
    journal = (tmp_path / "whole" / "optuna.journal").read_bytes()
    for size in [sizes[0], *sizes[7::22]]:
        folder = tmp_path / f"cut-{size}"
        shutil.copytree(tmp_path / "whole", folder, ignore=shutil.ignore_patterns(".lease", "ledger"))
        (folder / "optuna.journal").write_bytes(journal[:size] + b'{"half' * (size % 2))
        search = curve_search(strategy, stopping, in_journal(folder))
        cut = search.trials[-1]
        assert cut.state == TrialState.WAITING and not cut.params, "what was half drawn is gone"
        assert cut.system_attrs.keys() <= {"fixed_params"}
        # The other slot's trial begins again first, as it had begun first.
        alone = search.manager.next_trial("A")
        again = alone if alone is not None and alone.number == cut.number else search.manager.next_trial("B")
        assert again is not None and again.number == cut.number
        assert search.trials[cut.number].params == whole.trials[cut.number].params
        search.store.close()


@pytest.mark.parametrize("every", [3, pytest.param(11, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(("strategy", "stopping"), PAIRS[:2])
def test_drivers_that_die_at_parameters_change_no_decision(strategy, stopping, every, tmp_path):
    whole = curve_search(strategy, stopping, in_journal(tmp_path / "whole")).run()
    search = curve_search(strategy, stopping, in_journal(tmp_path / "killed"))
    others = ("create_new_trial", "set_trial_state_values", "set_trial_intermediate_value", "set_trial_user_attr",
              "set_trial_system_attr")  # fmt: skip
    kills = 0
    while True:
        kill_at_write(search.store.study._storage, every + kills, but=others)
        try:
            search.run()
            break
        except Killed:
            kills += 1
            search.kill()
    assert kills > 2 and summary(search.trials) == summary(whole.trials)
    for one in (whole, search):
        one.store.close()


LOOKING = [("curves", "look"), ("random", "asha"), ("random", "median")]


@dataclass
class KilledAtLooks:
    """A strategy whose driver dies at some of its looks: before it looks, or before it hears the answer."""

    inner: Strategy
    every: int
    after: bool
    killed: set[tuple[int, int]]
    """Trial and epoch of each look at which it has died. It dies once at each."""
    count: int = 0

    def __post_init__(self) -> None:
        self.sampler, self.to_continue = self.inner.sampler, self.inner.to_continue
        self.is_over = self.inner.is_over

    def look(self, study: Study, trial: FrozenTrial, epoch: int) -> TrialDecision:
        place = trial.number, epoch
        dies = (13 * trial.number + epoch) % self.every == 0 and place not in self.killed
        if dies and not self.after:
            self.killed.add(place)
            raise Killed
        decision = self.inner.look(study, trial, epoch)
        if dies or (self.after and decision != TrialDecision.GO_ON and place not in self.killed):
            self.killed.add(place)
            raise Killed
        return decision


@pytest.mark.parametrize(
    ("strategy", "stopping", "after"), [("curves", "look", False), *((*pair, True) for pair in LOOKING)]
)
def test_a_look_is_asked_for_again_after_a_kill(strategy, stopping, after, tmp_path):
    whole = curve_search(strategy, stopping, in_memory(tmp_path / "whole")).run()
    check_whole(whole.trials)
    killed: set[tuple[int, int]] = set()
    search = curve_search(strategy, stopping, in_memory(tmp_path / "killed"))
    for _ in range(200):
        search.manager._strategy = KilledAtLooks(search.manager._strategy, 5, after, killed)
        try:
            search.run()
            break
        except Killed:
            search.kill()
    assert summary(search.trials) == summary(whole.trials)
    assert len(killed) > 8, "it was killed at looks"


@pytest.mark.parametrize("every", [2, pytest.param(17, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(("strategy", "stopping"), LOOKING)
def test_a_kill_at_a_write_changes_no_decision(strategy, stopping, every, tmp_path):
    """The driver dies at the second write, the third one after that, the fourth one after that, and so on."""
    whole = curve_search(strategy, stopping, in_memory(tmp_path / "whole")).run()
    search = curve_search(strategy, stopping, in_memory(tmp_path / "killed"))
    for more in itertools.count():
        # A study in memory keeps the parameters of a half-drawn trial: the test above has a journal.
        kill_at_write(search.store.study._storage, every + more, but=("set_trial_param",))
        try:
            search.run()
            break
        except Killed:
            search.kill()
    assert more > 3 and summary(search.trials) == summary(whole.trials)


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_only_parameters_of_a_trial_without_a_configuration_are_dropped(tmp_path):
    store = in_journal(tmp_path / "s")()
    path = tmp_path / "s" / "optuna.journal"
    whole = store.study.ask()
    whole.suggest_float("x", 0, 1)
    whole.set_user_attr("config", {"epochs": 1})
    whole.set_user_attr("epoch/00001", {"epoch": 1})
    kept = path.read_bytes()
    repair_journal(path)
    assert path.read_bytes() == kept, "its last lines are a record and a configuration"
    half = store.study.ask()
    before = len(lines_of(path))
    store.study._storage.set_trial_system_attr(half._trial_id, "noted by the sampler", 1)
    half.suggest_float("x", 0, 1)
    half.set_user_attr("noted by the space", 1)
    half.suggest_float("y", 0, 1)
    repair_journal(path)
    assert len(lines_of(path)) == before and lines_of(path)[-1]["op_code"] == 4
    store.close()
