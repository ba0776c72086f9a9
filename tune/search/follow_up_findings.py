"""What the first part of a search predicted for its second part, and what came out, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.strategies.follow_up import second_part
from bigbatch.tune.strategies.known_prediction import rank_shares
from bigbatch.tune.study.objective import Objective
from bigbatch.tune.study.trial_facts import FOLLOWS_ATTR, configuration, has_diverged, retried_trials

FEWEST_PAIRS = 3
"""Fewer finalists have no rank correlation to speak of."""


def follow_up_findings(trials: Sequence[FrozenTrial], objective: Objective) -> list[str]:
    """What ``--transfer-to`` or ``--fidelity`` predicted and what came out; empty in a search of one part."""
    there = [_last_attempt(t, trials) for t in second_part(trials)]
    ended = [t for t in there if t.state.is_finished()]
    return [
        *_transfer_lines([t for t in ended if "target" in _said(t)], objective),
        *_fidelity_lines([t for t in ended if "fidelity" in _said(t)], objective),
    ]


def _transfer_lines(there: Sequence[FrozenTrial], objective: Objective) -> list[str]:
    """A line for each prediction, and one for the best that was found at the target."""
    lines = [_predicted(t, objective) for t in there if _said(t)["kind"] == "prediction"]
    done = [t for t in there if t.state == TrialState.COMPLETE and t.values]
    if done:
        best = max(done, key=lambda t: (objective.gain(t.values[0]), -t.number))
        said = _said(best)
        times = _peak_lr(best) / said["peak_lr"]
        lines.append(
            f"The best of the {len(done)} finished trials at {said['target']:,}: trial {best.number} with "
            f"{objective.metric.title} {objective.worth(best.values[0])}, at {times:.2f} × the predicted rate of "
            f"{said['optimizer']}."
        )
    return lines


def _fidelity_lines(finalists: Sequence[FrozenTrial], objective: Objective) -> list[str]:
    """A line for each finalist, and one about how well cheap runs ranked them."""
    lines = [_finalist(trial, objective) for trial in finalists]
    done = [t for t in finalists if t.state == TrialState.COMPLETE and t.values]
    if len(done) >= FEWEST_PAIRS:
        cheap, full = rank_shares([_said(t)["cheap"] for t in done]), rank_shares([t.values[0] for t in done])
        if cheap.std() > 0 and full.std() > 0:
            correlation = float(np.corrcoef(cheap, full)[0, 1])
            lines.append(f"Rank correlation of cheap and full runs: {correlation:+.2f} over {len(done)} finalists.")
    return lines


def _finalist(trial: FrozenTrial, objective: Objective) -> str:
    said = _said(trial)
    return (
        f"Trial {said['of']} with {said['fidelity']}: {objective.metric.title} {objective.worth(said['cheap'])}, "
        f"{said['rank']} of {said['among']} that compare. In full (trial {trial.number}): {_came_to(trial, objective)}."
    )


def _came_to(trial: FrozenTrial, objective: Objective) -> str:
    if trial.state == TrialState.COMPLETE and trial.values:
        return objective.worth(trial.values[0])
    return "it diverged" if has_diverged(trial) else "it did not run to its end"


def _predicted(trial: FrozenTrial, objective: Objective) -> str:
    said = _said(trial)
    step = "rate × trust coefficient" if said["optimizer"] == "lars" else "rate"
    return (
        f"At {said['target']:,}, {said['runs']} finished trial{'s' * (said['runs'] != 1)} of {said['optimizer']} "
        f"predicted peak_lr {said['peak_lr']:.3g} (÷ or × {said['factor']:.2g}; {step} grows as the batch to the power "
        f"of {said['exponent']:.2f}) and {objective.metric.title} {objective.worth(said['objective'])}. What "
        f"came out (trial {trial.number}): {_came_to(trial, objective)}."
    )


def _last_attempt(trial: FrozenTrial, trials: Sequence[FrozenTrial]) -> FrozenTrial:
    """The trial, or the last one that repeats it after a failure."""
    again = retried_trials(trials)
    while trial.number in again:
        trial = trials[again[trial.number]]
    return trial


def _said(trial: FrozenTrial) -> Mapping[str, Any]:
    """What the first part said when the trial was decided."""
    said = trial.user_attrs[FOLLOWS_ATTR]
    return said if isinstance(said, Mapping) else {}


def _peak_lr(trial: FrozenTrial) -> float:
    return TrainConfig.from_dict(dict(configuration(trial))).optimizer.peak_lr
