"""``--stopping look``: each trial is paused once, at an early look. The most promising ones are continued (i-Epoch,
Egele et al. 2024, arXiv 2404.04111).

A trial pauses after a tenth of its run, but not before a twentieth of the run has passed since its warmup. In the first
round two trials for each slot, and at least eight, are paused. Then each slot continues the best paused trial. From
then on every fourth free slot continues a paused trial; the others start new configurations. When all configurations
were tried, slots continue paused trials until a third of the configurations has run to the end. No trial is stopped for
good. When a budget has no room for a new run, every slot continues a paused trial. When it has room for one run, but
not for two, the first round lasts longer. If a budget is the only limit, some trials after the first round are not
paused. Their share is the probability that early values say little about final ones (look_value.py), at first a third.

With a frontier, the next paused trial to continue is one of the value with the smallest share of promoted trials. At
the end, at least one trial of each value has run to its end, and so has one of the configurations that were given for
it: a published configuration is measured there, and not only predicted from a tenth of its run.

The best paused trial is the one with the best final value by the prediction of the curve model (curve_model.py), with
any strategy: values of different epochs do not compare, and the model knows from finished runs how curves go on. Before
a run has finished, and without knowledge from other studies, it is the trial with the highest rank at its look, among
the values of all runs at the same part of the run. In a study of more than 300 curves the model predicts only the most
promising trials.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from optuna.study import Study
from optuna.trial import FrozenTrial

from bigbatch.tune.models.curve_data import CurveEncoder
from bigbatch.tune.models.curve_history import MOST_CURVES, ranks_so_far
from bigbatch.tune.models.look_value import first_looks, is_let_go, look_epoch
from bigbatch.tune.models.protocol import Fits, Lasts, SearchFacts, TrialDecision
from bigbatch.tune.runs.run import CONTINUES_ATTR, earlier_of, planned_epochs
from bigbatch.tune.stoppers.paused_trials import PausedTrials

EVERY = 4
"""After the first round, one of this many slots continues a paused trial."""
SLACK = 1.25
"""Slots look at more trials, instead of continuing the first ones, only while the budget lasts for this many runs. It
is more than 1, because later epochs may take longer."""
FINISHED_SHARE = 1 / 3
"""The part of all configurations that runs to its end."""
MOST_LOOKED_AT = 50
"""In a study with more curves than the model takes, the model predicts about this many paused trials of a frontier
value: of those that paused in the same epoch, the ones with the best values."""


class EarlyLook:
    """Pauses each trial once; see above."""

    def __init__(self, facts: SearchFacts, encoder: CurveEncoder) -> None:
        self.facts, self.encoder = facts, encoder
        self.index = PausedTrials(facts)
        """The facts about the study that each decision needs."""

    def look(self, study: Study, trial: FrozenTrial, epoch: int) -> TrialDecision:
        """PAUSE at the look. A trial goes on if it continues a paused one, or was not paused at its look."""
        epochs, at = planned_epochs(trial) or self.facts.max_epochs, look_epoch(trial, self.facts.max_epochs)
        if not at <= epoch < epochs or _goes_on(trial, at, epoch, study):
            return TrialDecision.GO_ON
        return TrialDecision.GO_ON if self._needs_no_look(study, trial) else TrialDecision.PAUSE

    def _needs_no_look(self, study: Study, trial: FrozenTrial) -> bool:
        """Whether the trial is one of those that are not paused, because early values may say little of the ends.

        With a number of trials all are paused: else that number of trials would cost several times as much.
        """
        if not self.facts.open_ended or trial.number < first_looks(self.facts):
            return False
        self.index.update(study)
        if not self.index.all_promoted():  # the first round lasts longer than usual, as the budget is small
            return False
        value, place = self.index.place_of(trial)
        return is_let_go(self.index.chance_of_little(), place, self.facts.seed, value)

    def to_continue(self, study: Study, fits: Fits | None = None, lasts: Lasts | None = None) -> FrozenTrial | None:
        """The best paused trial, if this slot should continue one: after the first round every fourth slot does; every
        slot does when all configurations were tried and too few were promoted, or if no new run fits."""
        trials = self.index.update(study)
        if fits is not None:
            return self._that_fits(study, trials, fits)
        if self.index.configurations < self.facts.most_trials:
            return self._before_all_were_tried(study, trials, lasts)
        if bare := self._bare_values():
            return self._best(study, trials, bare)
        if given := self._unmeasured():
            return self._best_at(study, trials, given)
        return self._next(study, trials) if self._too_few() else None

    def _before_all_were_tried(
        self, study: Study, trials: Sequence[FrozenTrial], lasts: Lasts | None
    ) -> FrozenTrial | None:
        """The paused trial that goes on although there are new configurations to try: one for each slot after the first
        round, and one at every fourth slot from then on."""
        first_wave = self.index.continued < self.facts.slots
        if self.index.configurations < first_looks(self.facts):
            if lasts is None or not first_wave or not self.index.waiting_values():
                return None  # the first round is not over
        # By the number of the next trial: a counter would be state beside the study (docs/decisions/024).
        elif not first_wave and (len(trials) + 1) % EVERY != 0:
            return None
        # A budget may end the search at any time, so given configurations are not left for its last minutes.
        given = self._unmeasured() if self.facts.open_ended else []
        found = self._best_at(study, trials, given) if given else self._next(study, trials)
        if first_wave and found is not None and lasts is not None and self._may_look_on(found, lasts):
            return None
        return found

    def _may_look_on(self, paused: FrozenTrial, lasts: Lasts) -> bool:
        """Whether slots look at more trials before this one goes on: the first round is not over, or the budget has no
        room for another run after it. In both cases the budget must be sure to last for the run."""
        if not lasts(paused, SLACK):
            return False
        # 2: for its run, and for another one after it.
        return self.index.configurations < first_looks(self.facts) or not lasts(paused, 2.0)

    def is_over(self, study: Study) -> bool:
        """Whether enough trials have run to their end, or none is left that could."""
        self.index.update(study)
        left = self._bare_values(only_done=True) or self._too_few(only_done=True)
        if not left and not self._unmeasured(only_done=True):
            return True
        return not self.index.waiting_values() and not self.index.runs

    def _too_few(self, *, only_done: bool = False) -> bool:
        """Whether fewer trials were promoted than should run to their end."""
        return self.index.all_promoted(only_done=only_done) < max(1, math.ceil(self.facts.trials * FINISHED_SHARE))

    def _bare_values(self, *, only_done: bool = False) -> list[object]:
        """The frontier values that have paused trials, but no promoted one."""
        if self.facts.frontier is None:
            return []
        return [v for v in self.index.waiting_values() if not self.index.promoted(v, only_done=only_done)]

    def _unmeasured(self, *, only_done: bool = False) -> list[int]:
        """Places of paused trials with a given configuration, at frontier values where no such trial was promoted."""
        values = self.index.waiting_values()
        bare = (value for value in values if not self.index.given_promoted(value, only_done=only_done))
        return sorted(place for value in bare for place in self.index.waiting_given(value))

    def _next(self, study: Study, trials: Sequence[FrozenTrial]) -> FrozenTrial | None:
        """The best paused trial of the frontier value with the smallest share of promoted trials."""
        values = self._by_share()
        return self._best(study, trials, values[:1]) if values else None

    def _by_share(self) -> list[object]:
        """The frontier values with paused trials, the one with the smallest share of promoted trials first."""
        return sorted(self.index.waiting_values(), key=lambda v: (self.index.share(v), str(v)))

    def _that_fits(self, study: Study, trials: Sequence[FrozenTrial], fits: Fits) -> FrozenTrial | None:
        """As when all configurations were tried, but only trials that fit, and without a limit on their number."""
        if found := self._best(study, trials, self._bare_values(), fits=fits):
            return found
        given = [place for place in self._unmeasured() if fits(trials[place])]
        if found := self._best_at(study, trials, given):
            return found
        each = (self._best(study, trials, [value], fits=fits) for value in self._by_share())
        return next((found for found in each if found), None)

    def _best(
        self, study: Study, trials: Sequence[FrozenTrial], values: Sequence[object], *, fits: Fits | None = None
    ) -> FrozenTrial | None:
        """The best of the paused trials of these values. ``fits``: among those for which a budget has room."""
        self.encoder.history.update(study)
        most = MOST_LOOKED_AT if len(self.encoder.history) > MOST_CURVES else None
        places = [place for value in values for place in self.index.waiting(value, most)]
        return self._best_at(study, trials, [place for place in places if not fits or fits(trials[place])])

    def _best_at(self, study: Study, trials: Sequence[FrozenTrial], places: Sequence[int]) -> FrozenTrial | None:
        """The trial at these places whose end is predicted to be the best; of equal ones, the earliest."""
        waiting = [trials[place] for place in places]
        if len(waiting) < 2:
            return waiting[0] if waiting else None
        history = self.encoder.history
        history.update(study)
        also = [history.first_number(t.number) for t in waiting]
        # Until a run has ended, the model cannot learn how curves go on: then the ranks at the look decide.
        knows = history.any_ended or (self.facts.knowledge and self.encoder.trusted(study))
        learned = self.encoder.learn(study, also=also) if knows else None
        if learned is None:
            ends = ranks_so_far(history.curves())
        else:
            ends = {c.number: float(end) for c, end in zip(learned.curves, learned.ends(), strict=True)}
        return max(waiting, key=lambda t: (ends.get(history.first_number(t.number), -math.inf), -t.number))


def _goes_on(trial: FrozenTrial, at: int, epoch: int, study: Study) -> bool:
    """Whether the trial goes on without a pause: it was not paused at its look in epoch ``at``, or it continues a
    paused trial, or it repeats a failed trial for which one of the two is true."""
    # A trial that has trained beyond its look was not paused there.
    if any(at <= earlier < epoch for earlier in trial.intermediate_values):
        return True
    while CONTINUES_ATTR not in trial.user_attrs:
        if (failed := earlier_of(trial)) is None:
            return False
        trial = next(other for other in study.get_trials(deepcopy=False) if other.number == failed)
        if any(earlier > at for earlier in trial.intermediate_values):
            return True
    return True
