"""Tables of curves: what a row may be, the inferred space, the readers, and their refusals."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from replay.readers import read_curves

from bigbatch.tune.runs.objective import Objective


def line(params: dict[str, object], values: list[float | None], **facts: object) -> str:
    return json.dumps({"params": params, "curve": [[10.0 * (i + 1), v] for i, v in enumerate(values)], **facts})


def json_lines(folder: Path, *lines: str, name: str = "runs.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def test_json_lines_become_a_table_with_a_diverged_run(tmp_path: Path) -> None:
    path = json_lines(
        tmp_path,
        line({"lr": 0.1, "wd": 1e-4}, [0.2, 0.4]),
        line({"lr": 0.2, "wd": 2e-4}, [0.3, 0.5], warmup_epochs=1),
        line({"lr": 9.0, "wd": 1e-4}, [0.1, None], epochs=2, diverged=True),
    )
    table = read_curves(path)
    assert [c.final for c in table.curves] == [0.4, 0.5, None]
    assert (table.order, table.best, table.worst) == ([1, 0], 0.5, 0.1)
    assert table.curves[2].seconds == (10.0, 20.0) and table.curves[1].warmup_epochs == 1
    assert (table.run_s, table.epoch_s, table.max_epochs) == (20.0, 10.0, 2)
    assert table.regret(0.4) == pytest.approx(0.1) and table.regret(None) == pytest.approx(0.4)
    less = replace(table, objective=Objective("own", "minimize"))
    assert (less.best, less.worst, less.regret(0.5)) == (0.4, 0.3, pytest.approx(0.1))
    slower = table.at_epoch_s(300)
    assert slower.epoch_s == pytest.approx(300) and slower.curves[0].seconds == pytest.approx((300, 600))
    assert [d.name for d in table.without(["wd"]).dimensions] == ["lr"]
