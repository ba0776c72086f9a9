"""What a person sees: a live table on a terminal, plain lines in a pipe, and findings."""

import io
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bigbatch.cluster.host.optuna_journal import State
from bigbatch.search_spaces.trial import StandInTrial
from bigbatch.train_loop.config import BatchConfig, OptimizerConfig, TrainConfig
from bigbatch.train_loop.progress import StepProgress
from bigbatch.tune.budget.ledger import DeviceSeconds
from bigbatch.tune.console.display import (
    LiveTable,
    PlainLines,
    SearchProgress,
    best_by_value,
    make_display,
    trial_table,
)
from bigbatch.tune.console.findings import print_findings, print_plan, why_nothing
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.search_plan import FrontierPlan
from bigbatch.tune.runs.objective import UNREACHED_H
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.runs.run import Run
from helpers.recorded_studies import recorded_run


def view(number: int, values: list[float], state: str = "RUNNING", seconds: float = 10.0) -> Run:
    config = TrainConfig(epochs=4, optimizer=OptimizerConfig(name="lars", peak_lr=3.25))
    records = [{"epoch": e, "val_top1": v, "train_loss": 1.0, "learning_rate": 0.5} for e, v in enumerate(values, 1)]
    ends = values[-1:] if state == "COMPLETE" else []
    return recorded_run(number, config, records, state, seconds=seconds, values=ends)


def rendered(display: LiveTable) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(display._draw())
    return console.export_text()


def plan_lines(folder: Path, **options: Any) -> list[str]:
    console = Console(width=200, record=True, file=io.StringIO())
    print_plan(make_plan(SearchOptions(output=str(folder / "runs"), **options)), console)
    return console.export_text().splitlines()


def test_the_live_table_shows_state_settings_epoch_value_and_time_left():
    progress = SearchProgress(planned=4, concurrency=2, finished={})
    display = LiveTable(progress, Console(file=io.StringIO(), force_terminal=True))
    display.trial_started(view(0, []))
    assert "time left: unknown until" in rendered(display)
    display.epoch_ended(view(0, [0.5]), {})
    display.trial_ended(view(0, [0.5, 0.6, 0.7, 0.8], "COMPLETE", seconds=20))
    display.trial_ended(view(1, [0.3], "PRUNED", seconds=10))
    display.trial_started(view(2, [], seconds=0))
    # two ended in 20 and 10 s, so one takes 15 on average; one has just begun, one waits, two at a time
    assert math.isclose(progress.eta_s(), (15 + 15) / 2, abs_tol=0.5)
    text = rendered(display)
    for word in ("done", "stopped", "running", "lars", "3.25", "4/4", "1/4", "0/4", "80.0 %", "2 of 4", "trial 0"):
        assert word in text, word


def test_a_trial_that_starts_again_shows_no_step_of_the_attempt_before():
    progress = SearchProgress(planned=4, concurrency=1, finished={})
    display = LiveTable(progress, Console(file=io.StringIO(), force_terminal=True))
    display.trial_planned(view(0, [0.5]))
    display.trial_started(view(0, [0.5]))
    display.steps_done(view(0, [0.5]), StepProgress(epoch=2, step=4, steps=10))
    assert "1.4/4" in rendered(display)
    display.trial_ended(view(0, [0.5], "WAITING"))
    display.trial_planned(view(0, [0.5]))
    assert "starting" in rendered(display) and " 1/4 " in rendered(display)


def test_a_pipe_gets_plain_lines_without_control_codes():
    out = io.StringIO()
    progress = SearchProgress(planned=2, concurrency=1, finished={})
    display = make_display(progress, out)
    assert isinstance(display, PlainLines)
    display.trial_started(view(0, []))
    display.epoch_ended(view(0, [0.5]), view(0, [0.5]).records[-1])
    display.trial_ended(view(0, [0.5], "PRUNED"))
    lines = out.getvalue().splitlines()
    assert len(lines) == 3 and "\x1b" not in out.getvalue()
    assert "lars" in lines[0] and "epoch 1/4: top-1 50.0 %" in lines[1] and "stopped at 50.0 %: because" in lines[2]


def test_a_continuation_prints_only_what_it_trains():
    """A resumed run sends its past epochs again; one that had to begin again has trained them anew."""
    out = io.StringIO()
    display = PlainLines(SearchProgress(planned=2, concurrency=1, finished={0: view(0, [0.5, 0.6], "PRUNED")}), out)
    trial = view(1, [0.5, 0.61, 0.7])
    trial.user_attrs["continues"] = 0
    for record in trial.records:
        display.epoch_ended(trial, record)
    assert [line.partition("trial 1 ")[2][:9] for line in out.getvalue().splitlines()] == ["epoch 2/4", "epoch 3/4"]


OWN_SPACE = """
def space(trial, workload):
    lr = trial.suggest_float("lr_factor", 0.25, 8.0, log=True)
    changes = {"optimizer": "sgd", "global_size": 128, "peak_lr": 0.1 * lr, "momentum": 0.9}
    changes["data.mix.mixup_alpha"] = trial.suggest_float("data.mix.mixup_alpha", 0.0, 0.4)
    changes["weight_decay"] = trial.suggest_float("weight_decay", 1e-5, 1e-3, log=True)
    trial.suggest_categorical("colour", ["red", "ultramarine"])
    trial.suggest_categorical("always", ["same"])
    return workload.config(changes)
"""


def test_own_parameters_are_shown_in_table_and_findings(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN_SPACE)
    plan = make_plan(SearchOptions(space=str(path), output=str(tmp_path)))
    params: dict[str, object] = {"lr_factor": 2.0, "data.mix.mixup_alpha": 0.123, "weight_decay": 2e-4}
    params |= {"colour": "ultramarine", "always": "same"}
    trials = []
    for number, value in enumerate((0.9, 0.89)):
        config = plan.space(StandInTrial(None, fixed=params), plan.workload)
        records = [{"epoch": 12, "val_top1": value, "train_loss": 1.0, "learning_rate": 0.5}]
        trials.append(recorded_run(number, config, records, "COMPLETE", params=params, values=[value]))
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(trial_table(SearchProgress(2, 1, {0: trials[0]}, True), 200))
    table = console.export_text().splitlines()
    assert table[0].split() == [
        *("trial", "state", "optimizer", "batch", "lr", "warmup", "momentum", "wd"),
        *("lr_factor", "mixup_alpha", "colour", "always", "epoch", "top-1", "time"),
    ]
    print_findings(plan, trials, 1.0, DeviceSeconds(), console)
    text = console.export_text()
    assert all(word in text for word in ("lr_factor  2", "mixup_alpha 0.123", "colour     ultramarine"))


@pytest.mark.parametrize("name", ["model.name", "network"])
def test_the_plan_of_a_space_that_searches_networks_names_no_other(tmp_path, name):
    space = tmp_path / "networks.py"
    space.write_text(
        "PARAMETER_KEYS = {'network': ('model.name', str)}\n\n\n"
        "def space(trial, workload):\n"
        "    names = ['resnet18', 'shufflenet_v2_x0_5']\n"
        f"    return workload.config({{'model.name': trial.suggest_categorical({name!r}, names)}})\n"
    )
    lines = plan_lines(tmp_path, space=str(space))
    assert "space      networks" in lines, "it has no docstring"
    assert not [line for line in lines if line.startswith(("model ", "stem "))]
    assert [line for line in lines if name in line and "resnet18, shufflenet_v2_x0_5" in line]


def test_the_findings_of_a_search_that_was_stopped_count_every_trial_once(tmp_path):
    plan = make_plan(SearchOptions(space="smoke", output=str(tmp_path)))
    states = ("COMPLETE", "PRUNED", "FAIL", "WAITING", "WAITING")
    trials = [recorded_run(n, TrainConfig(), (), state, values=[0.5]) for n, state in enumerate(states)]
    console = Console(width=200, record=True, file=io.StringIO())
    print_findings(plan, trials, 1.0, DeviceSeconds(), console)
    assert "1 of 5 trials ran to their end, 1 stopped early, 1 failed, 2 interrupted; 0:01" in console.export_text()
    print_findings(plan, trials[:3], 1.0, DeviceSeconds(), console)
    assert "interrupted" not in console.export_text()


BATCHES = FrontierPlan("global_batch_size", (128, 256, 1024))


def ended(number: int, batch: int, value: float, state: str = "COMPLETE") -> Run:
    params, records = {"global_batch_size": batch}, [{"epoch": 1, "val_top1": value}]
    return recorded_run(number, TrainConfig(epochs=1), records, state, params=params, values=[value])


def test_each_batch_has_its_best_finished_trial() -> None:
    confirmation = ended(4, 256, 0.99)
    confirmation.user_attrs["confirms"] = 1
    trials = [ended(0, 128, 0.9), ended(1, 256, 0.8), ended(2, 128, 0.95), ended(3, 1024, 0.97, "PRUNED"), confirmation]
    ranked = SearchProgress(9, 1, {trial.number: trial for trial in trials}).ranked
    assert best_by_value(ranked, BATCHES, Objectives().first) == "best by batch: 128 95.0 % · 256 80.0 % · 1,024 –"


def test_the_live_display_has_the_line_from_the_beginning_and_keeps_its_height() -> None:
    progress = SearchProgress(planned=4, concurrency=1, finished={}, frontier=BATCHES)
    display = LiveTable(progress, Console(file=io.StringIO(), width=80))
    display.trial_started(ended(0, 256, 0.8, "RUNNING"))
    before = rendered(display).splitlines()
    assert sum(line.startswith("best by batch: 128 – · 256 – ·") for line in before) == 1
    display.trial_ended(ended(0, 256, 0.8))
    after = rendered(display).splitlines()
    assert "best by batch: 128 – · 256 80.0 % · 1,024 –" in [line.rstrip() for line in after]
    assert len(after) == len(before), "it does not jump"
    without = SearchProgress(4, 1, {}, frontier=FrontierPlan("global_batch_size", (256,)))
    display = LiveTable(without, Console(file=io.StringIO(), width=80))
    assert not any("best by" in line for line in rendered(display).splitlines())


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
        records = [{"epoch": 2, "val_top1": 0.75, "val_loss": values[0]}]
        params = {"lr_multiplier": 1.0}
        trials.append(recorded_run(number, TrainConfig(epochs=2), records, "COMPLETE", params=params, values=values))
    because = "infeasible after epoch 1: peak memory is 3.00 GiB, …"
    trials.append(recorded_run(3, TrainConfig(epochs=2), (), "PRUNED", because))
    out = io.StringIO()
    console = Console(file=out, width=160)
    print_plan(plan, console)
    print_findings(plan, trials, 1.0, DeviceSeconds(), console)
    progress = SearchProgress(4, 1, {t.number: t for t in trials}, objectives=plan.objectives)
    console.print(trial_table(progress, 160))
    lines = io.StringIO()
    PlainLines(progress, lines).trial_ended(trials[0])
    return out.getvalue() + lines.getvalue()


@pytest.mark.parametrize(
    ("objective", "said", "not_said"),
    [
        (
            "val_loss",
            ["val_loss:min: validation loss, lower is better", "Best: trial 1, validation loss 0.25 after 2 epochs",
             "best 0.25 (trial 1)", "done at 0.5: because",
             "1 infeasible"],
            ["95 %", "clearly worse", "Pareto"],
        ),
        (
            "val_top1:max,gpu_hours:min",
            ["device hours, lower is better", "Best: trial 0, validation top-1 80.0 %", "2 of 3 finished trials",
             "no trial is stopped early"],
            ["95 %"],
        ),
        (
            "val_top1=0.7",
            ["Best: trial 1, a validation top-1 of 70.0 %: 0.5 h after 2 epochs",
             "best 0.5 h (trial 1)"],
            ["95 %"],
        ),
        (
            "val_top1=0.9",
            ["Best: trial 1, a validation top-1 of 90.0 %: missed by 12.5 % of the target after 2 epochs"],
            ["95 %"],
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
    trials = [recorded_run(n, TrainConfig(epochs=2), (), "PRUNED", because) for n in range(3)]
    what = "the Pareto front is empty" if options else "there is no best trial"
    assert why_nothing(plan, trials) == (
        f"{what}: none of the 3 trials meets the constraints of the space ({because}). Loosen them, or widen the space."
    )
    trials[2].user_attrs["continues"], trials[1].state = 0, State.FAIL
    assert why_nothing(plan, trials) == f"{what}: no trial ran to its end (1 failed, 1 infeasible)."
    for trial in trials:
        trial.state = State.FAIL
    words = f"{what}: no trial ran to its end (2 failed)."
    assert why_nothing(plan, trials) == (words if options else ""), "with one objective, the logs say why"
    assert why_nothing(plan, []) == (f"{what}: no trial ran to its end." if options else "")


def test_a_narrow_terminal_shows_fewer_settings_and_whole_numbers():
    optimizer = OptimizerConfig(name="adamw", peak_lr=0.000123, weight_decay=1.5e-5)
    config = TrainConfig(epochs=100, label_smoothing=0.12, batch=BatchConfig(32768), optimizer=optimizer)
    for width in (60, 80, 100, 130):
        trial = recorded_run(1234, config, [{"epoch": 100, "val_top1": 1.0}], "WAITING", seconds=36000)
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(trial_table(SearchProgress(1, 1, {1234: trial}), width))
        text = console.export_text()
        assert "…" not in text and max(map(len, text.splitlines())) <= width
        for word in ("1234", "interrupted", "adamw", "100/100", "100.0 %", "10:00:00"):
            assert word in text, (width, word)
    assert "0.999" in text and "1.5e-05" in text, "130 columns show all"
