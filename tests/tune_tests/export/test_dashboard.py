"""A study in optuna-dashboard."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest

from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from helpers.simulated_search import planned_search


def answers(file: Path) -> Callable[[str], tuple[str, Any]]:
    """From a path to the status and the JSON that ``optuna-dashboard FILE`` answers for a journal."""
    pytest.importorskip("optuna_dashboard")
    from optuna_dashboard import _storage_url, wsgi

    app = wsgi(_storage_url.get_storage(str(file)))

    def get(path: str) -> tuple[str, Any]:
        said: list[str] = []
        environ: dict[str, Any] = {}
        setup_testing_defaults(environ)
        environ["PATH_INFO"], _, environ["QUERY_STRING"] = path.partition("?")
        body = b"".join(app(environ, lambda status, headers, failure=None: said.append(status)))
        return said[0], json.loads(body)

    return get


def test_optuna_dashboard_serves_the_journal(tmp_path):
    plan = make_plan(SearchOptions(output=str(tmp_path), study="s", trials=8, max_epochs=10, confirm="1x1"))
    search = planned_search(plan, lambda config, epoch: 0.9 - 0.3 / epoch, fails=(1,)).run()
    search.store.close()
    get = answers(plan.folder / "optuna.journal")
    status, found = get("/api/studies")
    assert status.startswith("200")
    number = found["study_summaries"][0]["study_id"]
    status, found = get(f"/api/studies/{number}?after=0")
    assert status.startswith("200") and len(found["trials"]) == len(search.trials)
    shown = {p["param_external_value"] for t in found["trials"] for p in t["params"] if p["name"] == "optimizer"}
    assert shown == {t.params["optimizer"] for t in search.trials}
    status, found = get(f"/api/studies/{number}/param_importances?evaluator=ped_anova")
    assert status.startswith("200"), found
