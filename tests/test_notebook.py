"""The live table of ``search`` in a notebook: one display, updated in place, made of the study's journal.
``examples/notebook.ipynb`` runs from its first cell to its last, and is stored without what it printed.
"""

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bigbatch import notebook_table, open_study, studies
from bigbatch.cluster.host.optuna_journal import JOURNAL_NAME
from bigbatch.tune.storage.store import StudyStore
from helpers.invented_studies import invented_study
from helpers.paths import ROOT
from helpers.recorded_studies import recorded_study

NOTEBOOK = ROOT / "examples" / "notebook.ipynb"
PLOTLY = "application/vnd.plotly.v1+json"
CELL = """
import shutil, threading
from pathlib import Path
from bigbatch import search  # without tqdm's warning
from bigbatch.child_process import run_child
from bigbatch.notebook_table import LiveTableInNotebook, in_notebook

whole, folder, child = {whole!r}, Path({folder!r}), {child!r}
assert in_notebook()
folder.mkdir()
shutil.copy(whole + "/study.json", folder)
table = LiveTableInNotebook(folder)
lines = Path(whole, {journal!r}).read_bytes().splitlines(keepends=True)
(folder / {journal!r}).write_bytes(b"".join(lines[: len(lines) // 3]))
while table._handle is None:
    threading.Event().wait(0.05)
(folder / {journal!r}).write_bytes(b"".join(lines))
code = run_child(child, table)
table.close()
"""


def executed(notebook: Any, folder: Path) -> Any:
    """The notebook with what its cells print."""
    from nbclient import NotebookClient

    NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def test_the_table_is_the_terminals_with_a_row_for_each_trial(tmp_path: Path) -> None:
    folder = invented_study(tmp_path / "kept", 12)
    drawn = notebook_table._drawn(folder, time.monotonic())
    assert drawn is not None and drawn["text/html"].startswith("<pre")
    head, *rows = drawn["text/plain"].splitlines()
    assert head.split()[:3] == ["trial", "state", "optimizer"] and "top-1" in head
    trials = open_study(folder).trials
    assert [int(row.split()[0]) for row in rows[:12]] == trials["trial"].tolist()
    best = trials.loc[trials["value"].idxmax()]
    assert f"best {100 * best['value']:.1f} % (trial {best['trial']})" in rows[12]


def test_a_running_trial_shows_its_epoch_and_time(tmp_path: Path) -> None:
    store = recorded_study(tmp_path / "s", 4)
    drawn = notebook_table._drawn(store.folder, time.monotonic())
    store.close()
    assert drawn is not None
    running = next(row for row in drawn["text/plain"].splitlines() if " running " in row)
    epochs = open_study(store.folder).epochs.groupby("trial").size().get(3, 0)
    assert re.search(rf" {epochs}/\d+ .* \d+:\d\d$", running.rstrip())


def test_before_the_first_trial_there_is_none(tmp_path: Path) -> None:
    StudyStore.create(tmp_path / "empty", "empty", {}, None).close()
    assert notebook_table._drawn(tmp_path / "empty", 0.0) is None


def test_without_a_kernel_the_lines_are_printed() -> None:
    assert not notebook_table.in_notebook()


def test_a_kernel_shows_one_table_and_the_other_lines(tmp_path: Path) -> None:
    pytest.importorskip("ipykernel", reason="ipykernel is not installed (extra: test)")
    whole = invented_study(tmp_path / "whole", 12)
    said = "print('The plan'); print('[0:01] trial 3 epoch 1/4: top-1 50.0 %'); print('[0:02] waiting for Ray')"
    child = [sys.executable, "-c", said]
    cell = CELL.format(whole=str(whole), folder=str(tmp_path / "new"), child=child, journal=JOURNAL_NAME)
    v4 = pytest.importorskip("nbformat").v4
    outputs = executed(v4.new_notebook(cells=[v4.new_code_cell(cell)]), tmp_path).cells[0].outputs
    (table,) = [one.data["text/plain"] for one in outputs if one.output_type == "display_data"]
    assert [int(row.split()[0]) for row in table.splitlines()[1:13]] == list(range(12))
    printed = "".join(one.text for one in outputs if one.output_type == "stream")
    assert printed == "The plan\n[0:02] waiting for Ray\n"


def test_an_interrupted_search_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    def interrupted(*_: object) -> None:
        (tmp_path / "s").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(studies, "run_child", interrupted)
    with pytest.raises(KeyboardInterrupt):
        studies.search("s", output=tmp_path)
    folder = str(tmp_path / "s")
    assert capsys.readouterr().out == f"The study is saved. To search on: open_study({folder!r}).resume()\n"


def test_the_example_is_stored_without_outputs() -> None:
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert len(cells) > 5
    assert [(cell["outputs"], cell["execution_count"]) for cell in cells] == [([], None)] * len(cells)


@pytest.mark.exhaustive
@pytest.mark.xdist_group("beside")
def test_the_example_runs_and_shows_trials_figures_and_a_comparison(tmp_path: Path) -> None:
    import nbformat

    notebook = executed(nbformat.read(NOTEBOOK, as_version=4), tmp_path)
    kinds = ("execute_result", "display_data")
    shown = {
        "".join(cell.source).splitlines()[-1]: [one.data for one in cell.outputs if one.output_type in kinds]
        for cell in notebook.cells
        if cell.cell_type == "code"
    }
    for name in ("learning-curves", "frontier", "compared-histories"):
        (figure,) = next(found for line, found in shown.items() if f'.figures["{name}"]' in line)
        assert any(trace.get("x") for trace in figure[PLOTLY]["data"]), name
    # A cell may have searched before its last line, whose value comes last.
    table, counts = shown["both.table"][-1], shown['study.trials["state"].value_counts()'][-1]
    assert "first" in table["text/html"] and "random" in table["text/html"]
    states = re.findall(r"^([A-Z]+) +(\d+)$", counts["text/plain"], flags=re.MULTILINE)
    assert sum(int(count) for _, count in states) == 4, "it searched on, from three trials to four"
    optimizer = shown["study.best.config.optimizer"][-1]
    assert optimizer["text/plain"].startswith("OptimizerConfig(")
    for cell in (one for one in notebook.cells if "search(" in one.source or "resume(" in one.source):
        tables = [one.data["text/plain"] for one in cell.outputs if "trials ended" in str(one.get("data"))]
        assert len(tables) == 1 and "done" in tables[0], "one table, updated in place"
        assert not any(re.search(r"trial \d+ epoch", one.get("text", "")) for one in cell.outputs)
    warned = [one for cell in notebook.cells for one in cell.get("outputs", ()) if one.get("name") == "stderr"]
    assert warned == []
