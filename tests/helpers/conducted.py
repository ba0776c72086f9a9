"""Searches of one space with invented curves, any strategy and storage, whose driver a test kills."""

import math
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from bigbatch.search_spaces.check import check_space
from bigbatch.search_spaces.registry import load_space
from bigbatch.tune.budget.ledger import Ledger
from bigbatch.tune.models.protocol import SearchFacts, dimensions_of
from bigbatch.tune.runs.knowledge import KnownStudy
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.runs.run import CONTINUES_ATTR, DIVERGED_ATTR, PAUSED_ATTR
from bigbatch.tune.storage.journal_file import Disk
from bigbatch.tune.storage.store import StudyStore
from bigbatch.tune.strategies import make_strategy
from bigbatch.tune.trials.configurations import SpaceConfigurations
from helpers.bridges import WORKLOAD
from helpers.simulated_search import TOP1, SimulatedSearch

EPOCHS, TRIALS, SLOTS = 12, 9, 2
SPACE = load_space("large_batch")
LONGER = replace(WORKLOAD, epochs=EPOCHS)
DIMENSIONS = dimensions_of(check_space(SPACE, LONGER))
WRITES = (
    *("create_new_trial", "set_trial_param", "set_trial_state_values", "set_trial_intermediate_value"),
    *("set_trial_user_attr", "set_trial_system_attr"),
)
"""What changes a study."""


class Killed(BaseException):
    """The driver is gone in the middle of a write. What catches the errors of a space does not catch it."""


class MemoryStore(StudyStore):
    """A study in memory, with the store's own repairs, and no files but the ledger's.

    It copies the trials of an earlier study, as the next process finds them: Optuna's storage in memory does not find
    trials that go back to WAITING.
    """

    def __init__(self, folder: Path, earlier: optuna.Study | None) -> None:
        self.folder, self.disk = folder, Disk(folder)
        self.study = optuna.create_study(direction="maximize")
        for trial in earlier.get_trials(deepcopy=True) if earlier else ():
            self.study._storage.create_new_trial(self.study._study_id, template_trial=trial)
        self.ledger = Ledger(folder / "ledger")
        self.objectives = Objectives()

    def refresh(self, *, force: bool = False) -> None:
        """Do nothing: there are no tables."""

    def drop_checkpoints(self) -> None:
        """Do nothing: there are none."""

    def close(self) -> None:
        self.ledger.close()


def curve_search(
    strategy: str, stopping: str, open_store: Callable[[], StudyStore], seed: int = 3,
    knowledge: tuple[KnownStudy, ...] = (),
) -> SimulatedSearch:  # fmt: skip
    """A search of the space ``large_batch`` with invented curves."""
    facts = SearchFacts(
        DIMENSIONS, TRIALS, EPOCHS, SLOTS, seed, TOP1, frontier="global_batch_size", knowledge=knowledge
    )
    return SimulatedSearch(
        open_store=open_store, strategy=lambda: make_strategy(strategy, stopping, facts), count=TRIALS,
        configurations=SpaceConfigurations(SPACE, LONGER, {}, 3, 1),
        record=lambda live, epoch: record_of(live.trial.params, epoch),
    )  # fmt: skip


def record_of(params: dict[str, Any], epoch: int) -> dict[str, object]:
    """An epoch of an invented curve. The largest rates diverge in the third epoch."""
    away = abs(math.log(params["lr_multiplier"])) + 0.1 * (params["optimizer"] == "lamb")
    luck = zlib.crc32(repr(sorted(params.items())).encode()) % 1000 / 20_000
    value = 0.95 - 0.1 * away - luck - 0.6 / epoch
    if params["lr_multiplier"] > 5 and epoch >= 3:
        value = math.nan
    steps = epoch * max(1, LONGER.train_size // params["global_batch_size"])
    return {"epoch": epoch, "epochs": EPOCHS, "val_top1": value, "val_loss": 1.0, "optimizer_steps": steps}


def summary(trials: list[FrozenTrial]) -> list[tuple[object, ...]]:
    """All that a search decided."""
    attrs = (CONTINUES_ATTR, PAUSED_ATTR, DIVERGED_ATTR)
    return [
        (t.number, t.state.name, t.params, t.intermediate_values, [t.user_attrs.get(name) for name in attrs])
        for t in trials
    ]


def check_whole(trials: list[FrozenTrial]) -> None:
    """Nothing is lost and nothing doubled: every configuration has one end, every epoch is there once."""
    continues = [t.user_attrs[CONTINUES_ATTR] for t in trials if CONTINUES_ATTR in t.user_attrs]
    assert len(continues) == len(set(continues)) and len(trials) - len(continues) == TRIALS
    for trial in trials:
        assert trial.state.is_finished(), "nothing waits or runs for ever"
        epochs = list(trial.intermediate_values)
        assert epochs == list(range(1, len(epochs) + 1))
        assert trial.state != TrialState.COMPLETE or len(epochs) == EPOCHS
        for epoch, value in trial.intermediate_values.items():
            assert value == record_of(trial.params, epoch)["val_top1"]
    for number in continues:
        assert PAUSED_ATTR in trials[number].user_attrs
    values = {t.params["global_batch_size"] for t in trials if t.state == TrialState.COMPLETE}
    assert values, "something ran to its end"


def in_memory(folder: Path) -> Callable[[], StudyStore]:
    """Opens the study of ``folder`` as the next process would, at each call."""
    studies: list[optuna.Study] = []
    folder.mkdir(exist_ok=True)

    def opened() -> StudyStore:
        store = MemoryStore(folder, studies[-1] if studies else None)
        studies.append(store.study)
        return store

    return opened


def in_journal(folder: Path) -> Callable[[], StudyStore]:
    """Opens the study of ``folder`` as the next process would, at each call."""
    return lambda: StudyStore.open(folder, None) if folder.exists() else StudyStore.create(folder, "s", {}, None)


def same_after_kills(
    strategy: str, stopping: str, make: Callable[[Path], Callable[[], StudyStore]], folder: Path,
    knowledge: tuple[KnownStudy, ...] = (),
) -> list[FrozenTrial]:  # fmt: skip
    """The trials of a search that is never killed; one that is killed every few steps makes the same decisions.

    Args:
        make: ``in_memory``, ``in_journal`` or alike: how the study in a folder is opened.
    """
    whole, killed = (
        curve_search(strategy, stopping, make(folder / name), knowledge=knowledge) for name in ("whole", "killed")
    )
    check_whole(whole.run().trials)
    assert summary(killed.run(kills=range(7, 10_000, 11)).trials) == summary(whole.trials)
    for search in (whole, killed):
        search.store.close()
    return whole.trials


def kill_at_write(storage: Any, number: int, but: tuple[str, ...] = ()) -> None:
    """Raise Killed instead of the write with that number, counted from 1, and of all later ones.

    Args:
        but: writes that do not count and never fail.
    """
    count = 0

    def guarded(write: Callable[..., Any]) -> Callable[..., Any]:
        def inner(*args: Any, **more: Any) -> Any:
            nonlocal count
            count += 1
            if count >= number:
                raise Killed
            return write(*args, **more)

        return inner

    for name in set(WRITES) - set(but):
        setattr(storage, name, guarded(getattr(storage, name)))
