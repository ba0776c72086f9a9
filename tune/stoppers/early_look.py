"""``--stopping look``: each trial is looked at once, early, and paused. The most promising go on (i-Epoch, Egele et al.
2024, arXiv 2404.04111).

A trial pauses after a tenth of its run, but not before a twentieth of it has passed since the warmup. The first round
is two trials for each slot, eight at least, which are all looked at. Of those, each slot then continues the best one
that waits. From then on every fourth free slot continues a paused trial; the others get new configurations. When all
configurations were tried, continuing goes on until a third of them has run to the end. No trial is stopped for good.
Once a budget has no room for a new run, each slot continues a paused one; if it has room for one run and some of a
second one, the first round is longer by that much. If a budget is the only limit, some trials after the first round are
not paused: as large a part of them as the chance that early values say little of the ends (look_value.py), which is a
third at first.

With a frontier the slots for continuing are divided like the trials: the value goes first of which the smallest part
was promoted. At the end at least one trial of each value has run to its end, and one of the configurations that were
given for it: what is published is measured there, and not only guessed from a tenth of the run.

The best one is the one whose end the curve model (curve_model.py) predicts to be the best, whatever strategy proposes:
values of different epochs do not compare, and it knows how curves go on. It learns that from runs that have ended.
Until one has, and if no other study says anything, the best one has the highest rank at its look, among the values of
all runs at that part of them. In a study of thousands the model predicts the most promising ones alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from optuna.study import Study
from optuna.trial import FrozenTrial

from bigbatch.tune.models.curve_data import CurveEncoder
from bigbatch.tune.models.curve_history import MOST_CURVES, ranks_so_far
from bigbatch.tune.models.look_value import first_looks, is_let_go, look_epoch
from bigbatch.tune.models.protocol import Fits, Lasts, SearchFacts, TrialDecision
from bigbatch.tune.runs.run import CONTINUES_ATTR, earlier_of, planned_epochs
from bigbatch.tune.stoppers.paused_trials import PausedTrials

EVERY = 4
"""Each slot of this number continues a paused trial, after the first round."""
SLACK = 1.25
"""What a budget without room for two runs one after the other keeps for the first wave: as long as so many runs. Epochs
may take longer than those before."""
FINISHED_SHARE = 1 / 3
"""Of all configurations, the part that runs to its end."""
MOST_LOOKED_AT = 50
"""In a study with more curves than the model takes, so many waiting trials are predicted: those whose values are the
best among the trials that were paused in the same epoch."""


@dataclass(frozen=True)
class EarlyLook:
    """Pauses each trial once; see above."""

    facts: SearchFacts
    encoder: CurveEncoder = field(repr=False, compare=False)
    index: PausedTrials = field(init=False, repr=False, compare=False)
    """What is asked of the study at each event."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", PausedTrials(self.facts))

    def look(self, study: Study, trial: FrozenTrial, epoch: int) -> TrialDecision:
        """PAUSE at the look; a trial that continues a paused one goes on, and one that was not paused then, too."""
        epochs, at = planned_epochs(trial) or self.facts.max_epochs, look_epoch(trial, self.facts.max_epochs)
        if not at <= epoch < epochs or _goes_on(trial, at, epoch, study):
            return TrialDecision.GO_ON
        return TrialDecision.GO_ON if self._needs_no_look(study, trial) else TrialDecision.PAUSE

    def _needs_no_look(self, study: Study, trial: FrozenTrial) -> bool:
        """Whether the trial is one of those that are not paused, because early values may say little of the ends.

        With a number of trials all are paused: else the same number would cost several times as much.
        """
        if not self.facts.open_ended or trial.number < first_looks(self.facts):
            return False
        self.index.update(study)
        if not self.index.all_promoted():  # the first round lasts longer than usual, as the budget is small
            return False
        value, place = self.index.place_of(trial)
        return is_let_go(self.index.chance_of_little(), place, self.facts.seed, value)

    def to_continue(self, study: Study, fits: Fits | None = None, lasts: Lasts | None = None) -> FrozenTrial | None:
        """The best of the paused trials after the first round, at every fourth slot, and as long as too few have run to
        their end; at every slot if no new one fits."""
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
        # A budget may end the search at any time. What was given is not left for its last minutes.
        given = self._unmeasured() if self.facts.open_ended else []
        found = self._best_at(study, trials, given) if given else self._next(study, trials)
        if first_wave and found is not None and lasts is not None and self._may_look_on(found, lasts):
            return None
        return found

    def _may_look_on(self, paused: FrozenTrial, lasts: Lasts) -> bool:
        """Whether slots look at more trials before this one goes on: the first round is not over, or after its run they
        could do nothing. In both cases only while the budget is sure to last for the run."""
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
        """Values of the frontier of which trials wait and none was promoted."""
        if self.facts.frontier is None:
            return []
        return [v for v in self.index.waiting_values() if not self.index.promoted(v, only_done=only_done)]

    def _unmeasured(self, *, only_done: bool = False) -> list[int]:
        """Places of the paused trials whose configuration was given, where none of these was promoted."""
        values = self.index.waiting_values()
        bare = (value for value in values if not self.index.given_promoted(value, only_done=only_done))
        return sorted(place for value in bare for place in self.index.waiting_given(value))

    def _next(self, study: Study, trials: Sequence[FrozenTrial]) -> FrozenTrial | None:
        """The best paused trial of the frontier's value of which the smallest part was promoted."""
        values = self._by_share()
        return self._best(study, trials, values[:1]) if values else None

    def _by_share(self) -> list[object]:
        """The frontier's values with paused trials, the one first of which the smallest part was promoted."""
        return sorted(self.index.waiting_values(), key=lambda v: (self.index.share(v), str(v)))

    def _that_fits(self, study: Study, trials: Sequence[FrozenTrial], fits: Fits) -> FrozenTrial | None:
        """As when all configurations were tried, but only among trials that fit, and as many as fit."""
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
        # The ranks at the look, until a run has ended from which the model learns how curves go on.
        knows = history.any_ended or (self.facts.knowledge and self.encoder.trusted(study))
        learned = self.encoder.learn(study, also=also) if knows else None
        if learned is None:
            ends = ranks_so_far(history.curves())
        else:
            ends = {c.number: float(end) for c, end in zip(learned.curves, learned.ends(), strict=True)}
        return max(waiting, key=lambda t: (ends.get(history.first_number(t.number), -math.inf), -t.number))


def _goes_on(trial: FrozenTrial, at: int, epoch: int, study: Study) -> bool:
    """Whether the trial goes on without a pause: it was let go at its look in epoch ``at``, or continues a paused one.

    Or it repeats a failed trial of which one of the two holds.
    """
    # A trial that trained beyond its look had passed it.
    if any(at <= earlier < epoch for earlier in trial.intermediate_values):
        return True
    while CONTINUES_ATTR not in trial.user_attrs:
        if (failed := earlier_of(trial)) is None:
            return False
        trial = next(other for other in study.get_trials(deepcopy=False) if other.number == failed)
        if any(earlier > at for earlier in trial.intermediate_values):
            return True
    return True
