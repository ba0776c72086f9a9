"""Ask the study for the next trial, take in its epochs, and tell the study how it ended. No Ray here.

The study is the only memory. It gets a trial's end as soon as that is known: COMPLETE after the last epoch, PRUNED with
all its values if the strategy stops or pauses the trial, FAIL with the reason. An interrupted trial goes back to
WAITING with its parameters, and the next driver continues it from its last checkpoint.

Ray Tune drives it through ``bigbatch.tune.trials.bridge``; ``benchmarks/replay/`` drives it in simulated time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import optuna
from optuna.trial import FrozenTrial, TrialState

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.config.words import amount
from bigbatch.train_loop.errors import FailureKind, in_one_line
from bigbatch.train_loop.host.disk_space import NO_ROOM
from bigbatch.tune.models.protocol import Fits, Strategy, TrialDecision
from bigbatch.tune.proposers.samplers import PerTrialSampler
from bigbatch.tune.runs import retry, run as trial_facts
from bigbatch.tune.runs.feasible import constraints_of, excesses, note_constraints, why_infeasible
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.runs.observer import Observer
from bigbatch.tune.runs.run import (
    CONTINUES_ATTR,
    DIED_ATTR,
    PAUSED_ATTR,
    REFUSED_ATTR,
    STOPPED_ATTR,
    TRIALS_PER_GPU_ATTR,
    WORKERS_ATTR,
    Kind,
    devices_of,
    trials_per_gpu_of,
)
from bigbatch.tune.runs.tables import epoch_of, report, report_missing, with_record
from bigbatch.tune.runs.verdict import Verdict, paused, said_of, stopped
from bigbatch.tune.trials.admission import Admission
from bigbatch.tune.trials.configurations import (
    Configurations,
    ConfirmationQueue,
    MissingConfirmations,
    configuration_of,
)
from bigbatch.tune.trials.live_trial import ClusterNodes, LiveTrial, Over, SharedGpus, StudyKeeper
from bigbatch.tune.trials.live_trials import MOST_ON_A_NODE, EqualFailures, FailingNodes, LiveTrials, Row

MOST_REFUSED = 100
"""The search ends after this many refused configurations in a row: they are no trials, so ``--trials`` does not end it.
A space that allows a twentieth of its configurations gives so many once in 170 times."""
NOWHERE: Mapping[str, str] = {}


class TrialManager(LiveTrials):
    """Hands out trials of ``store.study`` and tells the study how they ended.

    Args:
        store: the study. Only this object writes to it.
        strategy: proposes parameters, looks at each epoch, chooses what to continue.
        configurations: makes a trial's configuration from its parameters.
        objectives: what the study optimises.
        trials: how many configurations to try (COMPLETE, PRUNED or FAIL).
        workers: of each trial.
        observers: receive each event.
        confirm: which confirmations are missing once the search is over. None: there are none.
        may_start: called before each trial; False ends the search (a budget is spent).
        ending: whether the search was asked to end. A trial that fails from then on may have failed because of that.
        admission: asked before each trial whether the budget has room for it.
        sharing: how many trials share a GPU. None: each has its devices alone.
        cluster: the nodes. None: there is one.
    """

    def __init__(
        self,
        store: StudyKeeper,
        strategy: Strategy,
        configurations: Configurations,
        *,
        objectives: Objectives,
        trials: int,
        workers: int,
        observers: list[Observer],
        confirm: MissingConfirmations | None = None,
        may_start: Callable[[], bool] = lambda: True,
        ending: Callable[[], bool] = lambda: False,
        admission: Admission | None = None,
        sharing: SharedGpus | None = None,
        cluster: ClusterNodes | None = None,
    ) -> None:
        super().__init__(store, observers, workers=workers, admission=admission or Admission())
        self._strategy, self._configurations = strategy, configurations
        self._objectives, self._trials = objectives, trials
        self._confirmations = ConfirmationQueue(self._study, confirm)
        self._may_start, self._ending = may_start, ending
        self._sharing, self._cluster = sharing, cluster
        self._failures, self._failing_nodes = EqualFailures(), FailingNodes()
        self.stopping = False
        """Set before the search ends early. Trials that end from then on count as interrupted."""
        self.fatal: str | None = None
        """Why the search cannot continue at all; None if it can."""
        self.closed_by: str | None = None
        """Why the search has ended before its last trial: what is left of a budget is for confirmations."""

    # Before the search

    def recover(self) -> None:
        """Repair the trials that earlier drivers left; see ``StudyStore.recover``."""
        with self._shared.turn() as may:
            if may:  # else another driver holds the turn, and the first turn of this driver repairs them
                self._store.recover()
                retry.adopt_checkpoints(self._store)
        trials = self._study.get_trials(deepcopy=False)
        self._finished = trial_facts.count_ended(trials)
        done = (TrialState.COMPLETE, TrialState.PRUNED)
        self._failures = EqualFailures(any(t.state in done and t.intermediate_values for t in trials))

    # The next trial

    def next_trial(self, trial_id: str, has_room: Callable[[], bool] = lambda: True) -> LiveTrial | None:
        """Begin the next trial under the name ``trial_id``. None if there is none now, but may be one later.

        Raises Over if no trial is needed any more, or none may start.

        Args:
            has_room: whether another trial fits beside those that are live.
        """
        if self.stopping or self.fatal or not self._may_start():
            raise Over
        if not self._may_need_another():
            if self._live:
                return None  # the processes of one may die; it is then repeated
            raise Over
        if not self._admission.admits_any():
            return self._await_room()
        if not has_room():
            return None
        with self._shared.turn() as may:
            return self._begin_next(trial_id) if may else None

    def _begin_next(self, trial_id: str) -> LiveTrial | None:
        """Begin the next trial, while no other driver decides."""
        while True:
            closed, set_aside = self.closed_by, list[optuna.trial.Trial]()
            try:
                found = self._next_that_fits(trial_id, set_aside)
            finally:
                for trial in set_aside:
                    self._study._storage.set_trial_state_values(trial._trial_id, TrialState.WAITING)
            if closed == self.closed_by:
                return found

    def _next_that_fits(self, trial_id: str, set_aside: list[optuna.trial.Trial]) -> LiveTrial | None:
        """Begin the next trial for which the budget has room. Adds to ``set_aside`` those for which it has none."""
        refused = 0
        while refused < MOST_REFUSED:
            # A continuation is shorter than a new trial and may still fit. Confirmations are all whole runs.
            if set_aside and (self._only_confirms or not self._one_waits(self._admission.fits(self._study))):
                return None if self._close_search() else self._await_room()
            if not self._one_is_due():
                return None
            trial, config, error = self._ask()
            if config is None:
                refused += 1
                continue
            kept = self._admission.kept(self._study, trial, config)
            trials = self._study.get_trials(deepcopy=False)
            if self._admission.admits(config, trial_facts.epochs_done(trials, trial.number), kept):
                return self._start(trial_id, trial, config, trials)
            set_aside.append(trial)
        self.fatal = (
            f"the space {self._configurations.name!r} gave {MOST_REFUSED} configurations in a row that may not be "
            f"trained; the last: {error}"
        )
        raise Over

    def _await_room(self) -> LiveTrial | None:
        """The budget has no room. There may be some when a running trial has ended. Raises Over if none runs."""
        self._admission.close_until_a_trial_ends()
        if not self._live:
            raise Over
        return None

    def _close_search(self) -> bool:
        """End the search if the budget has no room for its next trial, and what is left is for confirmations."""
        if self._searching or self.closed_by is not None or not (left := len(self._confirmations.left())):
            return False
        self.closed_by = self._admission.refused
        runs = amount(left, "confirmation")
        self.say(f"The rest of the budget is for {runs}: the search itself has ended.")
        return True

    def _one_waits(self, fits: Fits | None = None) -> bool:
        """Whether a trial waits in the study. Enqueues the continuation if the strategy wants one (that ``fits``)."""
        return bool(self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,))) or self._continue_paused(fits)

    def _may_need_another(self) -> bool:
        """Whether the search may need another trial, now or when the live ones have ended."""
        if not self._all_searched or self._shared.must_stay(len(self._live)):
            return True
        return self._confirmations.wanted and (self._searching > 0 or bool(self._confirmations.left()))

    @property
    def _all_searched(self) -> bool:
        """Whether the last trial of the search has begun. What then waits in the study is for a longer search."""
        if self.closed_by is not None:
            return True
        begun = self.finished + self._searching
        return trial_facts.has_enough(self._study, begun, self._trials) and self._strategy.is_over(self._study)

    @property
    def _only_confirms(self) -> bool:
        """Whether the search itself is over."""
        return not self._searching and self._all_searched

    def _one_is_due(self) -> bool:
        """Whether a trial should start now. Raises Over if the search needs no other trial."""
        if self._all_searched:
            if self._shared.must_stay(len(self._live)):
                return False
            if not self._live and self._searching:  # the other drivers end the search, and confirm
                raise Over
            if not self._confirmations.wanted or not (self._searching or self._confirmations.left()):
                raise Over
            return not self._searching  # which trials are the best is known when all have ended
        if self._one_waits() or not trial_facts.has_enough(self._study, self.finished + self._searching, self._trials):
            return True
        if not (self._live or self._searching) or self._all_searched:
            raise Over
        return False

    def _continue_paused(self, fits: Fits | None) -> bool:
        """Enqueue the continuation of the paused trial that the strategy chooses. Returns whether it chose one."""
        if (paused := self._strategy.to_continue(self._study, fits, self._admission.lasts(self._study))) is None:
            return False
        self._study.enqueue_trial(paused.params, user_attrs={CONTINUES_ATTR: paused.number})
        retry.hand_over(self._store, paused.number, self._study.get_trials(deepcopy=False)[-1].number)
        self._finished -= 1  # the continuation counts in the place of the paused trial
        return True

    def _ask(self) -> tuple[optuna.trial.Trial, TrainConfig | None, str]:
        """The next trial, its configuration and "". If the configuration is invalid: the failed trial, None, why."""
        self._study.sampler = PerTrialSampler(self._strategy.sampler)  # its state depends on the study alone
        trial = self._confirmations.begin_next() if self._only_confirms else self._study.ask()
        self._shared.begins(trial)
        try:
            config = configuration_of(trial, self._configurations)
        except (Exception, SystemExit) as error:  # a user's space may raise anything
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            self._refuse(trial, f"the space gave no valid configuration: {reason}")
            return trial, None, reason
        constraints = constraints_of(trial.user_attrs)
        if because := why_infeasible(constraints, [], math.nan):
            trial.set_user_attr("config", config.to_dict())
            note_constraints(trial, excesses(constraints, [], math.nan))
            self._refuse(trial, because, config)
            return trial, None, because
        return trial, config, ""

    def _refuse(self, trial: optuna.trial.Trial, because: str, config: TrainConfig | None = None) -> None:
        """End a trial that cannot begin: as infeasible if it has a configuration, else as failed. It does not count as
        one of the search's trials, and observers get only a line."""
        trial.set_user_attr("ended_because", because)
        trial.set_user_attr(REFUSED_ATTR, True)
        self._study.tell(trial, state=TrialState.FAIL if config is None else TrialState.PRUNED)
        self.say(f"trial {trial.number} is refused before it begins, and another one takes its place: {because}")

    def _start(
        self, trial_id: str, trial: optuna.trial.Trial, config: TrainConfig, trials: Sequence[FrozenTrial]
    ) -> LiveTrial:
        frozen = self._study._storage.get_trial(trial._trial_id)
        report_missing(trial, frozen, self._objectives)
        live = self._live[trial_id] = LiveTrial(**vars(trial_facts.Run.of(frozen)), trial=trial)
        live.chain = trial_facts.trials_of_run(trials, trial.number)
        per_gpu = self._sharing() if self._sharing else 1
        live.note(
            {
                "config": config.to_dict(),
                "attempts": frozen.user_attrs.get("attempts", 0) + 1,
                "ray_trial_id": trial_id,
                WORKERS_ATTR: self.workers,
                **({TRIALS_PER_GPU_ATTR: per_gpu} if per_gpu > 1 or TRIALS_PER_GPU_ATTR in frozen.user_attrs else {}),
            }
        )
        self._store.ledger.begin(trial.number, devices_of(live))
        self._admission.begins(trial.number, config, trial_facts.epochs_done(trials, trial.number))
        return live

    # Results

    def take_in(self, trial_id: str, record: dict[str, object], nodes: Mapping[str, str] = NOWHERE) -> TrialDecision:
        """Take in an epoch of a trial on ``nodes``, Ray's id → host. Returns what happens to the trial.

        An epoch that the study already has is ignored, so a resumed trial may report its past again. At STOP the study
        has the trial's end. After PAUSE it gets it in ``ended``, once the processes have written their checkpoint.
        """
        if (live := self._held(trial_id)) is None:
            return TrialDecision.STOP
        epoch = epoch_of(record)
        if epoch <= live.epochs:
            return TrialDecision.GO_ON
        self.runs(live.number)
        live.waiting_for_first = False
        if epoch > max(live.intermediate_values, default=0):  # else an earlier driver was killed before the record
            report(live.trial, record, self._objectives)
        live.take_in(record)
        self._admission.epoch_ended(live.number, record)
        self._notify("epoch_ended", live, record)
        for node, row in self._failing_nodes.epoch_ended(live.number, nodes):
            self._give_up(node, row, live.number)
        if verdict := self._verdict(live):
            self._tell(trial_id, verdict)
            return TrialDecision.STOP
        decision = self._ask_strategy(trial_id, live, record)
        if decision == TrialDecision.GO_ON:
            live.record_epochs()
        return decision

    def _ask_strategy(self, trial_id: str, live: LiveTrial, record: dict[str, object]) -> TrialDecision:
        """Ask the strategy, which may write to the study, and carry out its answer.

        The study gets the epoch's record only then: after a kill the epoch is reported again, and looked at again.
        """
        if live.pausing:
            return TrialDecision.PAUSE
        if live.kind == Kind.CONFIRMATION:
            return TrialDecision.GO_ON
        epoch = epoch_of(record)
        trial = with_record(self._study._storage.get_trial(live.trial._trial_id), record)
        decision = self._strategy.look(self._study, trial, epoch)
        if decision == TrialDecision.STOP:
            live.note({STOPPED_ATTR: epoch})
            self._tell(trial_id, stopped(epoch))
        elif decision == TrialDecision.PAUSE:
            live.pausing = self._admission.may_pause(self._study, live.trial, live.train_config)
            return TrialDecision.PAUSE if live.pausing else TrialDecision.GO_ON
        return decision

    def _give_up(self, node: str, row: Row, number: int) -> None:
        """Begin no more trials on a node, and repeat those that failed there: the node was the reason."""
        retry.retry_failed(self._store, row.trials)
        self._finished = trial_facts.count_ended(self._study.get_trials(deepcopy=False))
        self.say(
            f"node {row.host} is given up: {len(row.trials)} trials in a row failed there: {in_one_line(row.because)}. "
            f"Trial {number}, one of them, has ended an epoch on another node; so all of them are repeated elsewhere"
        )
        if self._cluster is not None:
            self._cluster.give_up(node)

    @property
    def _nodes(self) -> int:
        return self._cluster.count if self._cluster is not None else 1

    def _avoided(self) -> set[str]:
        """The nodes that a trial which begins now should avoid, if it fits on the others."""
        nodes = self._failing_nodes
        sets = (nodes.avoided, nodes.given_up)
        return next((some for some in sets if some and self._cluster and self._cluster.can_avoid(some)), set())

    def ended(self, trial_id: str) -> None:
        """The trial's processes have ended by themselves. A trial whose end the study has is no longer live."""
        if (live := self._held(trial_id)) is None:
            return
        if live.pausing:
            live.note({PAUSED_ATTR: live.epochs})
            self._tell(trial_id, paused(live.epochs))
        elif self.stopping or self._ending():
            self.put_back(trial_id)
        elif (
            (own := bool(live.train_config.trainable.name))
            and live.epochs
            and (verdict := self._verdict(live, returned=True))
        ):
            self._tell(trial_id, verdict)
        else:
            self.fail(trial_id, "ended without its last epoch", FailureKind.OWN_CODE if own else FailureKind.PROCESS)

    def fail(
        self,
        trial_id: str,
        because: str,
        kind: FailureKind = FailureKind.PROCESS,
        nodes: Mapping[str, str] = NOWHERE,
    ) -> None:
        """Tell the study that a trial failed on one of ``nodes`` (Ray's id → host), or put the trial back to run again.
        It is put back if the disk is full; if the search is ending, because its processes and connections end too; if
        it ran out of memory on a shared GPU, which fewer trials share from then on; if its node is suspect; and if its
        processes died, but not twice after the same epoch: as long as it gets on, the cause is not the trial itself."""
        if (live := self._held(trial_id)) is None:
            return
        ((node, host),) = nodes.items() if len(nodes) == 1 else [("", "")]
        shown = host if self._nodes > 1 else ""
        said = said_of(shown, because)
        if NO_ROOM in because or self._store.disk.full:
            self.put_back(trial_id, f"stopped because the disk is full; --resume continues it ({because})")
            self._store.disk.full = self._store.disk.full or because.rpartition(f"{NO_ROOM}: ")[2]
        elif self.stopping or self._ending():
            self.put_back(trial_id, f"failed while the search was stopping; --resume continues it ({because})")
        elif self._sharing and kind == FailureKind.DEVICE_MEMORY and (per_gpu := trials_per_gpu_of(live)) > 1:
            self._sharing.lacked_memory(per_gpu)
            self.put_back(trial_id, f"is repeated with more of a GPU's memory ({in_one_line(because)})")
        elif node and live.waiting_for_first and self._is_suspect(live, node, host, kind, because):
            live.note({DIED_ATTR: live.epochs})
            why = f"so did the {MOST_ON_A_NODE - 1} trials before it, so it is repeated on another node"
            self.put_back(trial_id, f"failed {in_one_line(said)}; {why}")
        elif kind == FailureKind.PROCESS and live.user_attrs.get(DIED_ATTR) != live.epochs:
            live.note({DIED_ATTR: live.epochs})
            goes_on = "continues from its last checkpoint" if live.epochs else "begins again"
            self.put_back(trial_id, f"its processes failed; it {goes_on} ({in_one_line(said)})")
        else:
            self._failing_nodes.settled(live.number, node)
            self._tell(trial_id, Verdict(TrialState.FAIL, because, failure=kind, host=shown))

    def _is_suspect(self, live: LiveTrial, node: str, host: str, kind: FailureKind, because: str) -> bool:
        """Whether a node on which the trial has failed is one to avoid."""
        self._failing_nodes.failed(live.number, node, host, kind, because)
        return node in self._avoided()

    def _tell(self, trial_id: str, verdict: Verdict) -> None:
        live = self._live.pop(trial_id)
        live.record_epochs()  # first: Optuna changes no trial that has ended
        hours = self._note_cost(live)
        live.note(verdict.attrs)
        note_constraints(live.trial, excesses(constraints_of(live.user_attrs), live.records, hours))
        self._study.tell(live.trial, values=verdict.values, state=verdict.state)
        live.values = list(verdict.values or ())
        self._finished += live.kind != Kind.CONFIRMATION
        self._end(live, verdict.state, verdict.said)
        others = self._failing_nodes.spare(self._nodes) or any(other.epochs for other in self._live.values())
        self.fatal = self.fatal or self._failures.after(verdict, live.user_attrs, self._finished, others)
        self._refresh()
