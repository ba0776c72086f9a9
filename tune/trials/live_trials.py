"""The trials that a trial manager has begun: their phases, their costs, and the news of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from optuna.trial import TrialState

from bigbatch.base import json_values
from bigbatch.base.waits import AFTER_TRIALS_S, LEAST_WAIT_S, MOST_WAIT_S
from bigbatch.cluster.host.optuna_journal import State
from bigbatch.train_loop.errors import FailureKind, in_one_line
from bigbatch.train_loop.progress import StepProgress
from bigbatch.tune.runs.feasible import constraints_of
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.runs.observer import Observer, tell
from bigbatch.tune.runs.retry import run_hours
from bigbatch.tune.runs.run import (
    DIVERGED_ATTR,
    devices_of,
    epoch_records,
    planned_epochs,
    search_trials,
)
from bigbatch.tune.runs.tables import EPOCH_PARTS
from bigbatch.tune.runs.verdict import Verdict, verdict_on
from bigbatch.tune.trials.admission import Admission
from bigbatch.tune.trials.live_trial import TAKEN_OVER, LiveTrial, SharedStudy, StudyKeeper

MAX_EQUAL_FAILURES = 4
"""The search ends if the first trials, this many, all fail for the same reason."""
MOST_DIVERGED = 20
"""The search ends if the first trials, this many, all diverge."""


class EqualFailures:
    """Notices that all trials fail for the same reason, e.g. an unreadable image: more trials would not help.

    A diverged trial does not count: it shows which values are bad, and diverged trials are the first to end. But if all
    of the first MOST_DIVERGED trials diverge, more trials would not help either.
    """

    def __init__(self, works: bool = False) -> None:
        self._works = works
        """Whether any trial has trained as it should. Then no number of failures means that none can."""
        self._reason, self._count, self._diverged = "", 0, 0

    def after(self, verdict: Verdict, attrs: Mapping[str, object], ended: int, others: bool = False) -> str | None:
        """Why the search should end after a trial that ended in this way; None if it should go on.

        Args:
            attrs: the trial's user attributes.
            ended: how many trials have ended, with this one.
            others: whether others may do better: a running one has ended an epoch, or on some nodes none has failed.
        """
        because, failed = verdict.because, verdict.state == TrialState.FAIL
        self._works |= verdict.state in (TrialState.COMPLETE, TrialState.PRUNED)
        if self._works:
            return None
        if failed and DIVERGED_ATTR in attrs:
            self._diverged += 1
            if self._diverged == ended == MOST_DIVERGED:
                return f"the first {ended} trials have all diverged, the last one: {in_one_line(because)}"
            return None
        self._count = self._count + 1 if failed and because == self._reason else int(failed)
        self._reason = because if failed else ""
        if not others and self._count == ended - self._diverged >= MAX_EQUAL_FAILURES:
            return f"the first {self._count} trials all failed for the same reason: {in_one_line(because)}"
        return None


MOST_ON_A_NODE = 3
"""A node is suspect if this many trials in a row fail there."""
OF_NODES = {
    FailureKind.PROCESS, FailureKind.OWN_CODE, FailureKind.IMAGES, FailureKind.DISK, FailureKind.CONFIGURATION
}  # fmt: skip
"""Kinds of failures that a broken node can cause. Divergence and too little memory come with the configuration: a batch
that is too large for one node is too large for its equals."""


@dataclass
class Row:
    """The trials that failed in the same way on a node since an epoch last ended there."""

    host: str = ""
    kind: FailureKind | None = None
    because: str = ""
    """Why the last one failed."""
    trials: set[int] = field(default_factory=set)


class FailingNodes:
    """Distinguishes a broken node, on which every trial fails, from configurations that fail on every node.

    A trial that fails at once frees its node, and the node takes the next trial. So configurations that cannot be
    trained anywhere also fail in a row on one node, while the others are busy. Therefore a row only makes its node
    suspect: no trial begins there for now, and the last one of the row is repeated on another node. If it ends an epoch
    there, the suspect node is at fault. If it fails again, it leaves the row, and the node is no longer suspect.
    """

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}
        """Ray's id of a node → its row. At least one trial of a suspect's row is being repeated: see ``settled``."""
        self.given_up: set[str] = set()

    @property
    def avoided(self) -> set[str]:
        """The nodes on which no trial should begin."""
        return self.given_up | {node for node, row in self._rows.items() if len(row.trials) >= MOST_ON_A_NODE}

    def spare(self, nodes: int) -> bool:
        """Whether trials have failed on so few of the search's ``nodes`` that the others may train them."""
        return 0 < sum(bool(row.trials) for row in self._rows.values()) < min(nodes, MAX_EQUAL_FAILURES)

    def failed(self, number: int, node: str, host: str, kind: FailureKind, because: str) -> None:
        """Take in that a trial has failed on a node before its first epoch there."""
        if kind not in OF_NODES:
            return
        row = self._rows.setdefault(node, Row())
        row.trials = {number, *(row.trials if row.kind == kind else ())}
        row.host, row.kind, row.because = host, kind, because

    def settled(self, number: int, node: str) -> None:
        """Take in that a trial that failed on ``node`` is not repeated: it cannot show any more what was at fault."""
        for key, row in self._rows.items():
            if key != node or len(row.trials) >= MOST_ON_A_NODE:
                row.trials.discard(number)

    def epoch_ended(self, number: int, nodes: Collection[str]) -> list[tuple[str, Row]]:
        """Take in that a trial has ended an epoch on ``nodes``. Returns the nodes that are at fault, and their rows."""
        for node in nodes:
            self._rows.pop(node, None)
        suspect = self.avoided - self.given_up if nodes else set()
        found = [(node, self._rows.pop(node)) for node in suspect if number in self._rows[node].trials]
        self.given_up |= {node for node, _ in found}
        return found


class LiveTrials:
    """The part of a trial manager that follows its running trials.

    Args:
        store: the study.
        observers: receive each event.
        workers: of each trial.
        admission: hears when trials begin and wait.
    """

    _objectives: Objectives

    def __init__(self, store: StudyKeeper, observers: list[Observer], *, workers: int, admission: Admission) -> None:
        self._store, self._study = store, store.study
        self._shared = SharedStudy(store)
        self._observers, self._admission = observers, admission
        self._live: dict[str, LiveTrial] = {}
        self._finished = 0
        self._warned = False
        self.workers = workers

    def runs(self, number: int, steps: StepProgress | None = None) -> None:
        """Note that a trial's worker runs, and its position ``steps``."""
        for live in self._live.values():
            if live.number == number:
                news, live.works = not live.works, True
                if news:
                    self._notify("trial_started", live)
                if steps is not None:
                    self._notify("steps_done", live, steps)

    def stop_wait_s(self) -> float:
        """How long the running trials may take to stop by themselves."""
        trials = self._study.get_trials(deepcopy=False)
        return stop_wait_s([live.records for live in self._live.values()], map(epoch_records, trials))

    @property
    def live(self) -> int:
        """The number of trials that have begun and not ended."""
        return len(self._live)

    @property
    def at_work(self) -> int:
        """The number of trials that train: those that only start have nothing yet that could be lost."""
        return sum(live.works for live in self._live.values())

    @property
    def finished(self) -> int:
        """The number of trials that have ended, as ``--trials`` counts them."""
        return self._shared.ended(self._finished)

    def _held(self, trial_id: str) -> LiveTrial | None:
        """The live trial of that name. None if there is none, or another driver has taken it over."""
        live = self._live.get(trial_id)
        if live is None or self._shared.holds(live.trial):
            return live
        del self._live[trial_id]
        self._store.ledger.end(live.number)
        self._admission.ends(live.number)
        self._end(live, TrialState.WAITING, TAKEN_OVER)
        return None

    def _verdict(self, live: LiveTrial, returned: bool = False) -> Verdict | None:
        """How the trial ends with the epoch that it has just reported; None if it goes on."""
        return verdict_on(
            live.records,
            epochs=planned_epochs(live) or 0,
            objectives=self._objectives,
            constraints=constraints_of(live.user_attrs),
            gpu_hours=run_hours(self._store.ledger, live.chain),
            devices=devices_of(live),
            returned=returned,
        )

    def _note_cost(self, live: LiveTrial) -> float:
        """Note the trial's device hours in the study. Returns those of its whole run."""
        self._store.ledger.end(live.number)
        self._admission.ends(live.number)
        live.note({"gpu_hours": self._store.ledger.trial_s(live.number) / 3600})
        return run_hours(self._store.ledger, live.chain)

    def _end(self, live: LiveTrial, state: TrialState, because: str) -> None:
        """Tell the observers. A trial that waits in the study has its reason from here alone."""
        live.state, live.datetime_complete = State(state), datetime.now()
        live.user_attrs["ended_because"] = because
        self._notify("trial_ended", live)
        del live.trial, live.chain  # the displays keep the run, and a search may have 10,000

    def put_back(self, trial_id: str, because: str = "interrupted; --resume continues it") -> None:
        """Let a trial wait in the study. This driver or the next one continues it from its last checkpoint."""
        live = self._held(trial_id)
        if live is None:
            return
        del self._live[trial_id]
        self._note_cost(live)
        # Optuna has no public call from RUNNING to WAITING (docs/decisions/003).
        self._study._storage.set_trial_state_values(live.trial._trial_id, TrialState.WAITING)
        self._end(live, TrialState.WAITING, because)

    def release(self) -> None:
        """Put back the trials that are still live: the search ended early."""
        # A copy: put_back takes out of it.
        for trial_id in list(self._live):
            self.put_back(trial_id)

    @property
    def _searching(self) -> int:
        """The number of live trials that are no confirmations, in all drivers."""
        return len(search_trials(self._live.values())) + self._shared.elsewhere()

    def _refresh(self) -> None:
        """Rewrite the tables. A full disk does not end the search, because the tables can be made again."""
        try:
            self._store.drop_checkpoints()  # first: it makes room
            self._store.refresh()
        except OSError as error:
            if not self._warned:
                print(f"warning: the study's tables are not up to date: {error}", file=sys.stderr, flush=True)
            self._warned = True

    def say(self, text: str) -> None:
        """Show a line that belongs to no trial."""
        self._notify("search_said", text)

    def _notify(self, event: str, *arguments: object) -> None:
        tell(self._observers, event, *arguments)


UNMEASURED_WAIT_S = 120.0
"""Used before any epoch of the study has ended."""
SAVE_VARIABLE = "BIGBATCH_SAVE_S"
"""A job of ``cluster/`` sets this variable: how long the driver may take in all before it is killed."""

Records = Sequence[Mapping[str, object]]


def longest_gap_s(records: Records) -> float | None:
    """The most seconds between two looks for a stop request, with a checkpoint's write; None without an epoch."""
    gaps, steps_before = [], 0
    for record in records:
        steps = sum(json_values.whole_number(record, name) for name in ("optimizer_steps", "skipped_steps"))
        taken = max(1, steps - steps_before)
        steps_before = steps
        pauses = ("checkpoint_write_s", *(part for part in EPOCH_PARTS if part != "train_s"))  # a stop waits for it
        pauses_s = sum(json_values.number(record, part) for part in pauses)
        gaps.append(json_values.number(record, "train_s") / taken + pauses_s)
    return max(gaps, default=None)


def stop_wait_s(live: Iterable[Records], study: Iterable[Records], env: Mapping[str, str] = os.environ) -> float:
    """Seconds that running trials may take to stop by themselves.

    Args:
        live: epoch records of each running trial. A trial without any counts as slow as the slowest in the study.
        study: epoch records of all trials.
    """
    known = [longest_gap_s(records) for records in live]
    if None in known:
        known += [longest_gap_s(records) for records in study]
    gaps = [gap for gap in known if gap is not None]
    # Twice, because a file system or a node may be slow at that moment.
    wait = 2 * max(gaps) if gaps else UNMEASURED_WAIT_S
    return min(max(wait, LEAST_WAIT_S), _most_s(env))


def _most_s(env: Mapping[str, str]) -> float:
    try:
        granted = float(env[SAVE_VARIABLE])
    except (KeyError, ValueError):
        return MOST_WAIT_S
    return min(MOST_WAIT_S, max(LEAST_WAIT_S, granted - AFTER_TRIALS_S))
