"""A study's files, read without Optuna: the same trials as Optuna's, whatever was written and whoever runs."""

import getpass
import os
import random
import subprocess
import sys

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution, json_to_distribution
from optuna.trial import TrialState

from bigbatch.cluster.host import slurm_commands
from bigbatch.cluster.host.optuna_journal import FACTS, read_journal
from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.budget.ledger import Ledger
from bigbatch.tune.commands.show import show_main
from bigbatch.tune.commands.studies import studies_main
from bigbatch.tune.runs.run import Run, Runs
from bigbatch.tune.storage.store import StudyStore
from bigbatch.tune.storage.summary import list_studies, summarize
from helpers.recorded_studies import add_recorded_trial, recorded_study
from helpers.refusals import refused_command


def test_the_journal_says_the_same_as_optuna(tmp_path):
    store = recorded_study(tmp_path / "s", 12)
    store.study.enqueue_trial({"rate": 0.5}, user_attrs={"retries": 2})
    store.study._storage.set_trial_state_values(store.study.trials[3]._trial_id, TrialState.WAITING)
    distributions = {
        "rate": FloatDistribution(1e-3, 1.0, log=True),
        "width": IntDistribution(16, 256, step=16),
        "optimizer": CategoricalDistribution(["sgd", "lars", None]),
    }
    params = {"rate": 0.25, "width": 32, "optimizer": "lars"}
    store.study.add_trial(optuna.create_trial(value=0.123, params=params, distributions=distributions))
    found = read_journal(store.folder, "s", Run)
    theirs = store.study.trials
    assert found is not None and len(found.trials) == len(theirs) == 14
    for one, other in zip(found.trials, theirs, strict=True):
        assert (one.number, one.state, one.params) == (other.number, other.state, other.params)
        assert (one.values or None, one.user_attrs) == (other.values, other.user_attrs)
        assert one.system_attrs == other.system_attrs
        assert one.intermediate_values == other.intermediate_values
        assert (one.datetime_start, one.datetime_complete) == (other.datetime_start, other.datetime_complete)
        assert {name: json_to_distribution(text) for name, text in one.distributions.items()} == other.distributions
        assert one.epochs == (last := max(other.intermediate_values, default=0))
        assert one.last_of("val_top1") == other.intermediate_values.get(last)
    assert (best := summarize(store.folder).best_trial) and best.number == store.study.best_trial.number
    brief = read_journal(store.folder, "s", Run, FACTS)
    assert brief is not None and [t.state for t in brief.trials] == [t.state for t in found.trials]
    assert Runs(brief.trials).ended == Runs(found.trials).ended == 10 - 1, "the failed trial 2 is tried again"
    store.close()


def test_states_are_told_apart(tmp_path):
    running = recorded_study(tmp_path / "running", sessions=[{"started_at": "2026-11-01T00:00:00"}])
    for name, session, planned in (
        ("killed", {}, 12),
        ("interrupted", {"outcome": "interrupted"}, 12),
        ("complete", {"outcome": "ended"}, 3),
        ("budget", {"outcome": "ended"}, None),
        ("crashed", {"outcome": "crashed"}, 12),
    ):
        store = recorded_study(tmp_path / name, sessions=[session])
        store.describe({"trials": planned})
        store.close()
    nothing = StudyStore.create(tmp_path / "nothing", "nothing", {"trials": 4}, None)
    nothing.close()
    states = {one.name: (one.state, one.why) for one in list_studies(tmp_path)}
    who = f"process {os.getpid()} of {getpass.getuser()} on {os.uname().nodename}"
    assert states.pop("running") == ("running", who)
    assert states == {
        "killed": ("interrupted", "killed"),
        "interrupted": ("interrupted", ""),
        "complete": ("done", ""),
        "budget": ("done", ""),
        "crashed": ("failed", "its driver failed"),
        "nothing": ("interrupted", "it never began"),
    }
    running.close()
    assert summarize(tmp_path / "running").state == "interrupted"


def test_a_study_whose_job_waits_in_the_queue_says_so(tmp_path, monkeypatch):
    for name, job in (("a", "7"), ("b", "8"), ("c", "9")):
        recorded_study(tmp_path / name, sessions=[{"slurm": {"job_id": job}}]).close()
    asked = []

    def squeue(*command: str, **_: object) -> str:
        asked.append(command)
        return "7 PD\n8 R\n70 PD\n"

    monkeypatch.setattr(slurm_commands, "is_installed", lambda command: True)
    monkeypatch.setattr(slurm_commands, "run", squeue)
    assert {one.name: one.state for one in list_studies(tmp_path)} == {
        "a": "in the queue", "b": "running", "c": "interrupted",
    }  # fmt: skip
    assert len(asked) == 1, "Slurm is asked once for all studies"

    def silent(*command: str, **_: object) -> str:
        raise slurm_commands.SlurmSilent("no answer")

    monkeypatch.setattr(slurm_commands, "run", silent)
    assert {one.state for one in list_studies(tmp_path)} == {"interrupted"}


def test_odd_things_beside_studies_never_break_the_list(tmp_path, capsys):
    recorded_study(tmp_path / "good").close()
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("no study")
    for name, text in {
        "broken": "{", "list": "[]", "later": '{"schema_version": 99}', "binary": "\udcff",
        "odd": '{"schema_version": 1, "name": 3, "trials": "many", "sessions": 5, "machine": [], "overrides": 7}',
    }.items():  # fmt: skip
        (tmp_path / name).mkdir()
        (tmp_path / name / "study.json").write_bytes(text.encode(errors="surrogateescape"))
    (tmp_path / "odd" / "trials.parquet").write_text("no table")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    assert studies_main(["--output", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line.split()[0] for line in lines[1:]) == sorted(["good", "broken", "list", "later", "binary", "odd"])
    assert all("unreadable" in line for line in lines[1:] if line.split()[0] in ("broken", "list", "later", "binary"))
    for name in ("broken", "list", "later", "binary"):
        refused_command(capsys, show_main, [name, "--output", str(tmp_path)])
    assert show_main(["odd", "--output", str(tmp_path)]) in (0, 2)
    capsys.readouterr()
    assert "It has" in refused_command(capsys, show_main, ["empty", "--output", str(tmp_path)])


def test_an_objective_that_was_edited_to_another_number_of_metrics_is_named(tmp_path):
    store = recorded_study(tmp_path / "edited")
    store.describe({"objective": "val_top1:max,gpu_hours:min"})
    store.close()
    found = summarize(store.folder)
    assert (
        found.state == "unreadable" and "gpu_hours:min are not as many metrics as a trial has values (1)" in found.why
    )


def test_without_its_journal_a_study_is_listed_and_shown_from_its_tables(tmp_path, capsys):
    store = recorded_study(tmp_path / "one", 12)
    store.refresh(force=True)
    store.close()
    best = store.study.best_trial
    for damage in (None, b"", b"\xff\x00 no journal\n"):
        (store.folder / "optuna.journal").unlink()
        if damage is not None:
            (store.folder / "optuna.journal").write_bytes(damage)
        assert studies_main(["--output", str(tmp_path)]) == 0
        assert "9/12" in capsys.readouterr().out
        assert show_main([str(store.folder)]) == 0
        out = capsys.readouterr().out
        assert f"The best is trial {best.number}: validation top-1 {100 * best.value:.1f} %" in out
        (store.folder / "optuna.journal").touch()


def test_a_study_is_shown_while_it_runs_with_what_was_used(tmp_path, monkeypatch, capsys):
    store = recorded_study(
        tmp_path / "runs" / "one", 24, trials=24, sessions=[{"started_at": "2026-11-01T10:00:00+00:00"}]
    )
    store.refresh(force=True)
    times = [0.0]
    ledger = Ledger(store.folder / "ledger", lambda: times[0])
    ledger.begin(0, 2)
    times[0] = 1800.0
    ledger.close()
    monkeypatch.chdir(tmp_path)
    assert show_main(["one"]) == 0
    out = capsys.readouterr().out
    assert "running (process" in out and "1.00 worker hours" in out and "3 earlier trials; --all prints all" in out
    best = store.study.best_trial
    assert f"The best is trial {best.number}: validation top-1 {100 * best.value:.1f} %" in out
    assert "bigbatch train --config runs/one/best.json --set epochs=30" in out and "--resume" not in out
    store.close()
    assert show_main(["one", "--all"]) == 0
    out = capsys.readouterr().out
    assert "bigbatch tune --resume --study one" in out and "earlier trials" not in out
    rows = [line for line in out.splitlines() if " 0.25" in line]
    assert len(rows) == 24


def test_a_study_that_was_killed_before_its_confirmations_ended_is_not_done(tmp_path, capsys):
    for name, outcome, state in (("killed", {}, "interrupted"), ("ended", {"outcome": "ended"}, "done")):
        store = recorded_study(tmp_path / name, 3, trials=3, sessions=[outcome])
        store.study.ask().set_user_attr("confirms", 0)
        store.close()
        assert summarize(store.folder).state == state
        assert show_main([str(store.folder)]) == 0
        assert ("Continue it:" in capsys.readouterr().out) == (state == "interrupted")


def test_failed_trials_are_tried_again_by_the_command_that_is_shown(tmp_path, capsys):
    """Where all trials have ended, a plain --resume would only print what came out."""
    store = recorded_study(tmp_path / "s", 4, trials=4, sessions=[{}])
    plain = f"bigbatch tune --resume --study s --output {tmp_path}\n"
    again = plain.replace("\n", " --retry-failed\n")

    def shown() -> str:
        assert show_main([str(store.folder)]) == 0
        return capsys.readouterr().out

    assert again not in shown(), "its driver lives"
    store.close()
    text = shown()
    assert again in text and plain in text and "1 interrupted" in text and "running" not in text
    store.study.enqueue_trial({}, user_attrs={"retries": 2})
    assert again not in shown()
    store = recorded_study(tmp_path / "s2", 0, trials=1, sessions=[{"outcome": "ended"}])
    add_recorded_trial(store.study, random.Random(0), TrialState.FAIL)
    store.close()
    text = shown()
    assert again.replace("study s", "study s2") in text


def test_a_trial_that_another_one_continues_or_repeats_is_counted_once(tmp_path, capsys):
    store = recorded_study(tmp_path / "s", 3, trials=8, sessions=[{}])
    states = [trial.state.name for trial in store.study.trials]
    for attr in ("continues", "retries"):
        number = states.index({"continues": "PRUNED", "retries": "FAIL"}[attr])
        store.study.enqueue_trial({}, user_attrs={attr: number})
        store.study.tell(store.study.ask(), 0.5)
    store.close()
    assert show_main([str(store.folder)]) == 0
    assert "3/8: 3 ran to their end\n" in capsys.readouterr().out


def test_a_study_in_a_database_is_shown_from_its_tables(tmp_path, capsys):
    url = f"sqlite:///{tmp_path / 'd.db'}"
    store = recorded_study(tmp_path / "one", 3, storage=url, trials=8, sessions=[{}])
    best = store.study.best_value
    store.refresh(force=True)
    store.close()
    (tmp_path / "d.db").unlink()
    found = summarize(tmp_path / "one")
    assert found.ended == 3 and found.best == pytest.approx(best)
    assert show_main([str(tmp_path / "one")]) == 0
    out = capsys.readouterr().out
    assert "3/8: 1 ran to their end, 1 stopped or paused, 1 failed" in out and "--storage URL" in out
    assert studies_main(["--output", str(tmp_path)]) == 0


@pytest.mark.parametrize("place", ["journal", "database"])
def test_the_best_is_the_smallest_to_minimise_and_of_equal_ones_the_next_objective_decides(tmp_path, place):
    url = f"sqlite:///{tmp_path / 'd.db'}" if place == "database" else None
    store = StudyStore.create(tmp_path / "s", "s", {"objective": "val_loss:min,images_per_s:max"}, url)
    for values in ((0.4, 1.0), (0.4, 2.0), (0.9, 3.0)):
        trial = store.study.ask()
        trial.set_user_attr("config", TrainConfig().to_dict())
        store.study.tell(trial, list(values))
    store.refresh(force=True)
    store.close()
    found = summarize(tmp_path / "s")
    assert found.best == 0.4 and found.best_trial is not None and found.best_trial.number == 1


def test_neither_ray_nor_torch_nor_optuna_is_loaded(tmp_path):
    recorded_study(tmp_path / "one").close()
    code = (
        "import sys; from bigbatch.command import main; "
        f"assert main(['studies', '--output', {str(tmp_path)!r}]) == 0; "
        f"assert main(['show', 'one', '--output', {str(tmp_path)!r}]) == 0; "
        "assert not {'ray', 'torch', 'optuna'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
