"""The live table of ``search`` in a notebook: one display, updated in place, made of the study's journal."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

from bigbatch import notebook_table, open_study, studies
from bigbatch.cluster.host.optuna_journal import JOURNAL_NAME
from bigbatch.tune.storage.store import StudyStore
from helpers.invented_studies import invented_study
from helpers.recorded_studies import recorded_study

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
    import nbformat
    from nbclient import NotebookClient

    whole = invented_study(tmp_path / "whole", 12)
    said = "print('The plan'); print('[0:01] trial 3 epoch 1/4: top-1 50.0 %'); print('[0:02] waiting for Ray')"
    child = [sys.executable, "-c", said]
    cell = CELL.format(whole=str(whole), folder=str(tmp_path / "new"), child=child, journal=JOURNAL_NAME)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = notebook.cells[0].outputs
    (table,) = [one.data["text/plain"] for one in outputs if one.output_type == "display_data"]
    assert [int(row.split()[0]) for row in table.splitlines()[1:13]] == list(range(12))
    printed = "".join(one.text for one in outputs if one.output_type == "stream")
    assert printed == "The plan\n[0:02] waiting for Ray\n"


def test_an_interrupted_search_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        (tmp_path / "s").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(studies, "run_child", interrupted)
    with pytest.raises(KeyboardInterrupt):
        studies.search("s", output=tmp_path)
    folder = str(tmp_path / "s")
    assert capsys.readouterr().out == f"The study is saved. To search on: open_study({folder!r}).resume()\n"
