"""A search whose choices are tuples: every path that hands a stored value back gives the space its own object."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import optuna
import pytest
from optuna.trial import TrialState

from bigbatch.search_spaces.constraints import SpaceTrial
from bigbatch.tune.commands.export import main
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.runs.retry import retry_failed
from bigbatch.tune.runs.run import CONFIRMS_ATTR, CONTINUES_ATTR, RETRIES_ATTR
from helpers.simulated_search import planned_search

SPACE = '''
"""A kernel, and a frontier, whose values are tuples."""

FRONTIER = "pair"

def space(trial, workload):
    kernel = trial.suggest_categorical("kernel", [(3, 3), (1, 7), (7, 1)])
    pair = trial.suggest_categorical("pair", [(0, 1), (1, 0)])
    assert type(kernel) is tuple and type(pair) is tuple
    lr = trial.suggest_float("lr", 0.01, 1.0, log=True) * kernel[0]
    return workload.config({"peak_lr": lr, "batch.global_size": 64, "optimizer": "sgd", "seed": 5})

def initial_points(workload):
    return [{"kernel": (7, 1), "pair": (1, 0)}]
'''


def plan_of(folder: Path, **options: Any) -> SearchPlan:
    (folder / "own.py").write_text(SPACE)
    given = {"output": str(folder / "runs"), "study": "s", "space": str(folder / "own.py"), "trials": 8,
             "max_epochs": 10, "strategy": "curves", "stopping": "look", "confirm": "1x1"}  # fmt: skip
    return make_plan(SearchOptions(**{**given, **options}))


def value(config: Any, epoch: int) -> float:
    return 0.9 - 0.1 * config.optimizer.peak_lr - 0.3 / epoch


@pytest.mark.parametrize(("strategy", "stopping"), [("curves", "look"), ("tpe", "asha")])
def test_looks_retries_confirmations_resumes_and_warm_starts(tmp_path, strategy, stopping):
    plan = plan_of(tmp_path, strategy=strategy, stopping=stopping)
    search = planned_search(plan, value, fails=(1,)).run(kills=(7, 20))
    retry_failed(search.store)
    search.kill()
    search.run()
    trials = search.trials
    assert [t.number for t in trials if t.state == TrialState.FAIL] == [1], "nothing fails but what the test lets fail"
    assert {t.params["kernel"] for t in trials} <= {"[3, 3]", "[1, 7]", "[7, 1]"}
    assert {t.params["pair"] for t in trials} == {"[0, 1]", "[1, 0]"}
    assert (trials[0].params["kernel"], trials[0].params["pair"]) == ("[7, 1]", "[1, 0]")
    assert any(CONTINUES_ATTR in t.user_attrs for t in trials) == (stopping == "look")
    again = [t for t in trials if CONFIRMS_ATTR in t.user_attrs or RETRIES_ATTR in t.user_attrs]
    assert len(again) > 1
    for trial in again:
        earlier = trials[trial.user_attrs.get(CONFIRMS_ATTR, trial.user_attrs.get(RETRIES_ATTR))]
        assert trial.params == earlier.params
    search.store.refresh(force=True)
    frontier = json.loads((plan.folder / "frontier.json").read_text())
    assert [row["value"] for row in frontier["rows"]] == ["[0, 1]", "[1, 0]"]
    search.store.close()
    warm = plan_of(tmp_path, study="w", warm_start=(str(plan.folder),), strategy="curves")
    second = planned_search(warm, value).run()
    assert all(t.state != TrialState.FAIL for t in second.trials) and len(warm.warm_start[0].trials) > 4
    second.store.close()


def test_each_driver_of_a_database_finds_the_same_choices(tmp_path):
    plan, url = plan_of(tmp_path), f"sqlite:///{tmp_path / 'd.db'}"
    optuna.create_study(study_name="s", storage=url, direction="maximize")
    for _ in range(4):  # each opens the database anew, as another process does
        study = optuna.load_study(study_name="s", storage=url)
        trial = study.ask()
        plan.space(SpaceTrial(trial), plan.workload, plan.overrides)
        study.enqueue_trial(trial.params)
        study.tell(trial, 0.5)
    assert all(isinstance(t.params["kernel"], str) for t in study.trials if t.state == TrialState.COMPLETE)


def answers(file: Path) -> Callable[[str], tuple[str, Any]]:
    """From a path to the status and the JSON that optuna-dashboard answers for the database."""
    dashboard = pytest.importorskip("optuna_dashboard")
    app = dashboard.wsgi(f"sqlite:///{file}")

    def get(path: str) -> tuple[str, Any]:
        said: list[str] = []
        environ: dict[str, Any] = {}
        setup_testing_defaults(environ)
        environ["PATH_INFO"], _, environ["QUERY_STRING"] = path.partition("?")
        body = b"".join(app(environ, lambda status, headers, failure=None: said.append(status)))
        return said[0], json.loads(body)

    return get


def test_optuna_dashboard_serves_the_exported_study(tmp_path):
    plan = plan_of(tmp_path)
    search = planned_search(plan, value, fails=(1,)).run()
    search.store.close()
    file = tmp_path / "copy.db"
    assert main([str(plan.folder), "--sqlite", str(file)]) == 0
    get = answers(file)
    status, found = get("/api/studies")
    assert status.startswith("200")
    number = found["study_summaries"][0]["study_id"]
    status, found = get(f"/api/studies/{number}?after=0")
    assert status.startswith("200") and len(found["trials"]) == len(search.trials)
    shown = {p["param_external_value"] for t in found["trials"] for p in t["params"] if p["name"] == "kernel"}
    assert shown == {t.params["kernel"] for t in search.trials}
    status, found = get(f"/api/studies/{number}/param_importances?evaluator=ped_anova")
    assert status.startswith("200"), found
