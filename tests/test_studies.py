"""``from bigbatch import open_study``: what a notebook sees is what the study's files and Optuna itself say."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pandas as pd
import pytest

from bigbatch import open_study, search, studies
from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.tune.plan.arguments import parse_options, tune_parser
from bigbatch.tune.plan.options import SearchKeywords, SearchOptions
from bigbatch.tune.report.figures import NO_FRONTIER
from bigbatch.tune.storage.store import StudyStore
from helpers.answered_studies import STUDIES, write_study
from helpers.invented_studies import invented_study
from helpers.recorded_studies import recorded_study
from helpers.searches import load

TRIALS = 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study with the files that a driver makes of its journal."""
    made = invented_study(tmp_path_factory.mktemp("runs") / "kept", TRIALS)
    store = StudyStore.open(made, None)
    store.refresh(force=True)
    store.close()
    return made


def one_line(error: pytest.ExceptionInfo[BaseException]) -> str:
    text, shown = str(error.value), error.value
    assert "\n" not in text
    assert shown.__context__ is None or shown.__suppress_context__, "no other library's error stands above it"
    return text


def test_the_frames_are_the_tables_of_the_study(folder: Path) -> None:
    study, theirs = open_study(folder), load(folder).trials
    pd.testing.assert_frame_equal(study.trials, pd.read_parquet(folder / "trials.parquet"))
    stored = pd.read_parquet(folder / "epochs.parquet")
    stored["metrics"] = [dict(pairs) for pairs in stored["metrics"]]
    pd.testing.assert_frame_equal(study.epochs, stored)
    assert study.trials["state"].tolist() == [trial.state.name for trial in theirs]
    curves = {(row.trial, row.epoch): row.val_top1 for row in study.epochs.itertuples()}
    assert curves == {(t.number, epoch): value for t in theirs for epoch, value in t.intermediate_values.items()}
    assert study.name == "kept" and study.plan["data"] == "digits" and f"{TRIALS} trials" in repr(study)


def test_best_and_frontier_are_those_of_the_files(folder: Path) -> None:
    study, stored = open_study(folder), json.loads((folder / "frontier.json").read_text())
    best = study.best
    assert best.config == TrainConfig.from_json((folder / "best.json").read_text())
    assert (best.trial, best.value) == (stored["answer"]["trial"], load(folder).trials[best.trial].value)
    rows = study.frontier
    assert rows["value"].tolist() == [row["value"] for row in stored["rows"]]
    assert rows.loc[rows["is_answer"], "value"].tolist() == [stored["answer"]["value"]]
    assert study.config(best.trial) == best.config
    with pytest.raises(ConfigError, match="it has no trial 99"):
        study.config(99)


def test_the_answer_counts_worker_hours_where_there_was_no_gpu(tmp_path: Path) -> None:
    words = " ".join(open_study(write_study(tmp_path / "ties", STUDIES["ties"])).answer)
    assert "worker hours for the run" in words and "GPU" not in words


def test_figures_are_made_when_they_are_asked_for(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    figures = open_study(folder).figures
    assert {"frontier", "learning-curves", "parameter-importance"} <= set(figures)
    shown = figures["frontier"]
    assert any(len(trace.x) for trace in shown.data) and shown.layout.title.text
    with pytest.raises(KeyError, match="The names are frontier"):
        figures["nothing"]
    few = open_study(invented_study(tmp_path / "few", 1)).figures
    with pytest.raises(KeyError, match=r"no figure 'parameter-importance'\. \w+"):
        few["parameter-importance"]
    assert "parameter-importance" not in few


def test_it_loads_neither_torch_nor_ray(folder: Path) -> None:
    code = (
        "import sys, bigbatch; assert 'optuna' not in sys.modules\n"
        f"study = bigbatch.open_study({str(folder)!r})\n"
        "print(len(study.trials), study.best.config.epochs, len(list(study.figures)))\n"
        "print([name for name in ('torch', 'ray', 'plotly') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[1:] == ["[]"] and done.stderr == "" and done.stdout.startswith(f"{TRIALS} 12 ")


def test_a_running_study_and_half_written_ones(tmp_path: Path) -> None:
    store = recorded_study(tmp_path / "s", 4)  # its driver lives and holds the lease
    journal = store.folder / "optuna.journal"
    with journal.open("ab") as end:
        end.write(b'{"op_code":6,"trial_id":3,"state":1')
    before = {path.name: path.read_bytes() for path in store.folder.iterdir() if path.is_file()}
    with warnings.catch_warnings(action="error"):
        study = open_study(store.folder)
    assert study.state == "running" and study.trials["state"].tolist() == ["COMPLETE", "PRUNED", "FAIL", "RUNNING"]
    with pytest.raises(ConfigError, match="searched one"):
        _ = study.frontier
    assert study.figures.missing["frontier"] == NO_FRONTIER
    assert {path.name: path.read_bytes() for path in store.folder.iterdir() if path.is_file()} == before
    store.close()
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:-10], b'{"op_code":\n', *lines[-10:]]))
    with pytest.warns(UserWarning, match=r"^s: The journal is damaged at line \d+"):
        assert len(open_study(store.folder).trials) > 1
    (store.folder / "study.json").write_text('{"name": ')
    with pytest.raises(ConfigError) as error:
        open_study(store.folder)
    assert "a study must be readable" in one_line(error)


def test_options_of_a_search_are_those_of_the_command() -> None:
    options = {
        "trials": 3, "max_epochs": None, "join": False, "dry_run": True, "batch": [64, 256], "confirm": "none",
        "set": {"image_size": 16, "nesterov": False}, "warm_start": ["runs/a", "runs/b"], "tolerance": "0.25pt",
    }  # fmt: skip
    read = parse_options(tune_parser("t"), studies._words(options))
    given = {name: value for name, value in read.items() if value not in (None, False, ())}
    assert given == {
        "trials": 3, "dry_run": True, "batch": "64,256", "confirm": "none", "tolerance": "0.25pt",
        "set": ("image_size=16", "nesterov=false"), "warm_start": ("runs/a", "runs/b"),
    }  # fmt: skip


def test_keywords_of_a_search_are_the_options_of_the_command() -> None:
    names = {field.name for field in dataclasses.fields(SearchOptions)}
    assert set(SearchKeywords.__annotations__) == names - {
        "study",
        "output",
        "dry_run",
    }  # which makes no study to return


def test_a_wrong_option_of_a_search_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for options, words in (({"trails": 3}, "Did you mean --trials?"), ({"strategy": "luck"}, "'luck'")):
        with pytest.raises(ConfigError, match=words) as error:
            search("s", output=tmp_path, **options)
        assert not any(word in str(error.value) for word in ("\n", "error", "run.py"))
    with pytest.raises(ConfigError, match="got 'luck'"):
        search(5, output=tmp_path, strategy="luck")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
    assert "run.py" not in capfd.readouterr().out


def test_an_interrupt_of_the_notebook_lets_the_search_save(tmp_path: Path) -> None:
    """The front end interrupts the kernel alone. The search hears of it, and is waited for."""
    child = (
        "import signal, sys\n"
        "def save(*_): print('saved', flush=True); sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, save); print('searching', flush=True); signal.pause()"
    )
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from bigbatch import child_process\n"
        "try: child_process.run_child([sys.executable, '-c', sys.argv[1]])\n"
        "except KeyboardInterrupt: print('interrupted', flush=True)"
    )
    line = [sys.executable, "-c", code, child]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, start_new_session=True) as kernel:
        assert kernel.stdout is not None and kernel.stdout.readline() == "searching\n"
        os.kill(kernel.pid, signal.SIGINT)
        assert kernel.stdout.read() == "saved\ninterrupted\n"
