"""What a study's trials say, computed anew from all of them: slow references for what the product keeps up to date."""

from __future__ import annotations

from collections.abc import Sequence

from optuna.trial import FrozenTrial, TrialState

from bigbatch.tune.models.curve_history import Curve, CurveHistory
from bigbatch.tune.models.protocol import SearchFacts


def waiting_to_continue(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Paused trials that no other trial continues, in the order of their numbers."""
    continued = {trial.user_attrs.get("continues") for trial in trials}
    paused = [t for t in trials if t.state == TrialState.PRUNED and "paused_in_epoch" in t.user_attrs]
    return [trial for trial in paused if trial.number not in continued]


def curves_of(trials: Sequence[FrozenTrial], facts: SearchFacts) -> list[Curve]:
    """The curves of these trials alone."""
    history = CurveHistory(facts)
    history.take_in(trials)
    return history.curves()
