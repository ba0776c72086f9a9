"""Notebooks: ``examples/notebook.ipynb`` runs from first to last cell, and is stored without what it printed."""

import json
import re
from pathlib import Path

import pytest

from bigbatch import studies
from helpers.paths import ROOT

NOTEBOOK = ROOT / "examples" / "notebook.ipynb"
PLOTLY = "application/vnd.plotly.v1+json"


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
def test_the_example_runs_and_shows_trials_and_figures(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(tmp_path)}}).execute()
    kinds = ("execute_result", "display_data")
    shown = {
        "".join(cell.source).splitlines()[-1]: [one.data for one in cell.outputs if one.output_type in kinds]
        for cell in notebook.cells
        if cell.cell_type == "code"
    }
    for name in ("learning-curves", "frontier"):
        (figure,) = next(found for line, found in shown.items() if f'.figures["{name}"]' in line)
        assert any(trace.get("x") for trace in figure[PLOTLY]["data"]), name
    # The cell has searched before its last line, whose value comes last.
    counts = shown['study.trials["state"].value_counts()'][-1]
    states = re.findall(r"^([A-Z]+) +(\d+)$", counts["text/plain"], flags=re.MULTILINE)
    assert sum(int(count) for _, count in states) == 4, "it searched on, from three trials to four"
    optimizer = shown["study.best.config.optimizer"][-1]
    assert optimizer["text/plain"].startswith("OptimizerConfig(")
    warned = [one for cell in notebook.cells for one in cell.get("outputs", ()) if one.get("name") == "stderr"]
    assert warned == []
