"""Plan, table, lines and findings of a search for another objective, as a person reads them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.budget.ledger import DeviceSeconds
from bigbatch.tune.console.display import PlainLines, SearchProgress, trial_table
from bigbatch.tune.console.findings import print_findings, print_plan
from bigbatch.tune.console.outcome import why_nothing
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.runs.objective import UNREACHED_H
from bigbatch.tune.runs.observer import TrialView

ENDS = {
    "val_loss": [[0.5], [0.25], [0.75]],
    "val_top1:max,gpu_hours:min": [[0.8, 2.0], [0.75, 3.0], [0.7, 1.0]],
    "val_top1=0.7": [[2.0], [0.5], [UNREACHED_H + 0.25]],
    "val_top1=0.9": [[UNREACHED_H + 0.25], [UNREACHED_H + 0.125], [UNREACHED_H + 0.5]],
}


def told(tmp_path: Path, objective: str) -> str:
    """The plan and the findings of a search with these trials, and one that broke a bound."""
    key = "target" if "=" in objective else "objectives" if "," in objective else "objective"
    plan = make_plan(SearchOptions(space="smoke", output=str(tmp_path), **{key: objective}))  # type: ignore[arg-type]
    trials = []
    for number, values in enumerate(ENDS[objective]):
        records: list[dict[str, object]] = [{"epoch": 2, "val_top1": 0.75, "val_loss": values[0]}]
        view = TrialView(number, {"lr_multiplier": 1.0}, TrainConfig(epochs=2), "COMPLETE", records, "because")
        view.objectives, view.values = plan.objectives, tuple(values)
        trials.append(view)
    bad = TrialView(3, {}, TrainConfig(epochs=2), "PRUNED", [], "infeasible after epoch 1: peak memory is 3.00 GiB, …")
    bad.objectives = plan.objectives
    trials.append(bad)
    out = io.StringIO()
    console = Console(file=out, width=160)
    print_plan(plan, console)
    print_findings(plan, trials, 1.0, DeviceSeconds(), console)
    progress = SearchProgress(4, 1, {t.number: t for t in trials}, objectives=plan.objectives)
    console.print(trial_table(progress, 120))
    lines = io.StringIO()
    PlainLines(progress, lines).trial_ended(trials[0])
    return out.getvalue() + lines.getvalue()


@pytest.mark.parametrize(
    ("objective", "said", "not_said"),
    [
        (
            "val_loss",
            ["val_loss:min: validation loss, lower is better", "Best: trial 1, validation loss 0.25 after 2 epochs",
             "Runner-ups, by the values that choose", "   0.5  trial 0:", "best 0.25 (trial 1)", "done at 0.5: because",
             "1 infeasible"],
            ["95 %", "clearly worse", "Pareto"],
        ),
        (
            "val_top1:max,gpu_hours:min",
            ["device hours, lower is better", "Best: trial 0, validation top-1 80.0 %", "2 of 3 finished trials",
             "80.0 %               2 h  0:", "70.0 %               1 h  2:", "no trial is stopped early"],
            ["75.0 %               3 h", "95 %"],
        ),
        (
            "val_top1=0.7",
            ["Best: trial 1 reached a validation top-1 of 70.0 % after 2 epochs, in 0.5 h of its devices",
             "missed by 25.0 % of the target  trial 2", "best 0.5 h (trial 1)"],
            ["95 %"],
        ),
        (
            "val_top1=0.9",
            ["No trial reached a validation top-1 of 90.0 %. The nearest: trial 1, missed by 12.5 % of the target"],
            ["Best: trial"],
        ),
    ],
)  # fmt: skip
def test_plan_and_findings_follow_the_objective(tmp_path, objective, said, not_said):
    text = told(tmp_path, objective)
    for words in said:
        assert words in text, text
    for words in not_said:
        assert words not in text, text


@pytest.mark.parametrize("options", [{"objectives": "val_top1:max,epoch_s:min"}, {}])
def test_a_search_without_a_feasible_trial_says_so_in_words_of_its_own(tmp_path, options):
    plan = make_plan(SearchOptions(space="smoke", output=str(tmp_path), **options))
    because = "infeasible after epoch 1: epoch time is 70 s, allowed is at most 60 s"
    trials = [TrialView(n, {}, TrainConfig(epochs=2), "PRUNED", [], because) for n in range(3)]
    what = "the Pareto front is empty" if options else "there is no best trial"
    assert why_nothing(plan, trials) == (
        f"{what}: none of the 3 trials meets the constraints of the space ({because}). Loosen them, or widen the space."
    )
    trials[0].continued_by, trials[1].state = 2, "FAIL"
    assert why_nothing(plan, trials) == f"{what}: no trial ran to its end (1 failed, 1 infeasible)."
    for trial in trials:
        trial.state = "FAIL"
    words = f"{what}: no trial ran to its end (2 failed)."
    assert why_nothing(plan, trials) == (words if options else ""), "with one objective, the logs say why"
    assert why_nothing(plan, []) == (f"{what}: no trial ran to its end." if options else "")
