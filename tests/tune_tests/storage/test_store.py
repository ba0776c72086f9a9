"""The study's folder: what survives, what is refused, the tables, and which checkpoints stay."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState, create_trial

from bigbatch.command import main
from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.runs import tables
from bigbatch.tune.runs.frontier import frontier_facts, frontier_of
from bigbatch.tune.storage.store import StudyStore, redact
from helpers.paths import ROOT


def new_study(tmp_path: Path) -> StudyStore:
    return StudyStore.create(tmp_path / "s", "s", {"options": {}}, None)


def add_trial(store: StudyStore, values: list[float], state: TrialState, config: TrainConfig | None = None) -> None:
    trial = store.study.ask()
    trial.suggest_float("peak_lr", 0.1, 1.0)
    trial.set_user_attr("config", (config or TrainConfig(epochs=len(values) or 1)).to_dict())
    for epoch, value in enumerate(values, 1):
        trial.set_user_attr(f"epoch/{epoch:05d}", {"epoch": epoch, "val_top1": value, "train_loss": 1.0, "step_s": 0.5})
        trial.report(value, epoch)
    trial.set_user_attr("gpu_hours", 0.25)
    trial.set_user_attr("ended_because", "said so")
    store.study.tell(trial, values=values[-1] if state == TrialState.COMPLETE else None, state=state)


def test_the_tables_hold_every_trial_and_epoch_typed_and_versioned(tmp_path):
    store = new_study(tmp_path)
    add_trial(store, [0.5, 0.7], TrialState.COMPLETE, TrainConfig(epochs=2, label_smoothing=0.1))
    add_trial(store, [0.4], TrialState.PRUNED)
    add_trial(store, [], TrialState.FAIL)
    store.refresh(force=True)
    trials = pq.read_table(store.folder / "trials.parquet")
    assert trials.schema.equals(tables.TRIALS, check_metadata=True)
    assert trials.schema.metadata[b"bigbatch.schema_version"] == b"3"
    rows = trials.to_pylist()
    assert [r["state"] for r in rows] == ["COMPLETE", "PRUNED", "FAIL"]
    assert [r["value"] for r in rows] == [0.7, None, None]
    assert [r["epochs"] for r in rows] == [2, 1, 0]
    assert rows[0]["config.label_smoothing"] == 0.1 and rows[0]["config.batch.global_size"] == 256
    assert rows[0]["config.schedule.step_epochs"] == [] and rows[0]["started_at"].tzinfo is not None
    assert json.loads(rows[0]["parameters"]).keys() == {"peak_lr"}
    epochs = pq.read_table(store.folder / "epochs.parquet").to_pylist()
    assert [(r["trial"], r["epoch"], r["val_top1"]) for r in epochs] == [(0, 1, 0.5), (0, 2, 0.7), (1, 1, 0.4)]
    assert epochs[0]["step_s"] == 0.5 and epochs[0]["val_loss"] is None


def test_a_journal_cut_off_in_the_middle_of_a_line_opens_again_and_can_be_continued(tmp_path):
    store = new_study(tmp_path)
    add_trial(store, [0.5], TrialState.COMPLETE)
    store.close()
    journal = store.folder / "optuna.journal"
    whole = journal.read_bytes()
    with journal.open("ab") as file:
        file.write(b'{"op_code": 4, "worker_id": "abc')
    os.symlink("optuna.journal", store.folder / "optuna.journal.lock")  # its writer was killed holding the lock
    again = StudyStore.open(store.folder, None)
    assert [t.value for t in again.study.trials] == [0.5]
    add_trial(again, [0.6], TrialState.COMPLETE)
    again.close()
    assert [t.value for t in StudyStore.open(store.folder, None).study.trials] == [0.5, 0.6]
    assert journal.read_bytes().startswith(whole)


def test_a_study_is_driven_by_one_process_at_a_time(tmp_path):
    store = new_study(tmp_path)
    code = (
        "import sys; from pathlib import Path\nfrom bigbatch.tune.storage.store import StudyStore\n"
        "from bigbatch.train_loop.config import ConfigError\n"
        "try: StudyStore.open(Path(sys.argv[1]), None)\nexcept ConfigError as e: print(e)\nelse: print('opened')"
    )
    command = [sys.executable, "-c", code, str(store.folder)]
    other = subprocess.run(command, cwd=ROOT / "src", capture_output=True, text=True)
    assert f"process {os.getpid()}" in other.stdout
    store.close()
    assert subprocess.run(command, cwd=ROOT / "src", capture_output=True, text=True).stdout.strip() == "opened"


def test_killed_before_the_first_entry_the_study_still_opens(tmp_path):
    store = new_study(tmp_path)
    store.close()
    (store.folder / "optuna.journal").unlink()
    again = StudyStore.open(store.folder, None)
    assert again.study.trials == [] and again.study.study_name == "s"


def test_a_second_study_in_the_same_folder_is_refused(tmp_path):
    new_study(tmp_path).close()
    with pytest.raises(ConfigError, match="--resume"):
        new_study(tmp_path)


def test_passwords_are_redacted():
    assert redact("x postgresql://me:pa55@host/db y") == "x postgresql://me:***@host/db y"
    assert redact("sqlite:///a.db") == "sqlite:///a.db"
    assert redact("a://h/d?user=me&password=secret&x=1") == "a://h/d?user=me&password=***&x=1"
    assert "secret" not in redact("a://h/d?sslpassword=secret 'b://h/?PASSWD=secret'")


def test_a_resume_that_does_not_find_its_trials_is_refused_not_begun_anew(tmp_path):
    store = new_study(tmp_path)
    store.add_session({"host": "here"})
    add_trial(store, [0.5], TrialState.COMPLETE)
    store.close()
    (store.folder / "optuna.journal").unlink()
    with pytest.raises(ConfigError, match="does not hold"):
        StudyStore.open(store.folder, None)
    with pytest.raises(ConfigError, match="--storage"):
        StudyStore.open(store.folder, f"sqlite:///{tmp_path}/other.db")
    assert not (tmp_path / "other.db").exists()


def test_a_damaged_journal_is_refused_in_one_line_and_stays_as_it_is(tmp_path):
    store = new_study(tmp_path)
    store.add_session({"host": "here"})
    add_trial(store, [0.5], TrialState.COMPLETE)
    store.close()
    journal = store.folder / "optuna.journal"
    lines = journal.read_bytes().splitlines(keepends=True)
    for damage in (b'{"op_code":8,GARBAGE\n', b"\xff\xfe\x00\n", b"[]\n", b'{"op_code":8}\n'):
        damaged = b"".join([*lines[:-3], damage, *lines[-3:]])
        journal.write_bytes(damaged)
        with pytest.raises(ConfigError, match=r"optuna.journal must be readable; got .* Restore it") as met:
            StudyStore.open(store.folder, None)
        assert "\n" not in str(met.value) and journal.read_bytes() == damaged
    journal.write_bytes(b"".join(lines))
    reopened = StudyStore.open(store.folder, None)
    assert [t.state for t in reopened.study.trials] == [TrialState.COMPLETE]
    reopened.close()


def test_a_folder_that_cannot_be_held_is_refused_in_words(tmp_path):
    store = new_study(tmp_path)
    store.close()
    (store.folder / ".lease").mkdir()  # as unwritable as a read-only folder, for root too
    with pytest.raises(ConfigError, match="must be writable"):
        StudyStore.open(store.folder, None)


def test_a_study_made_in_vain_is_removed_and_one_with_trials_never(tmp_path):
    url = f"sqlite:///{tmp_path}/s.db"
    for storage in (None, url):
        store = StudyStore.create(tmp_path / "s", "s", {}, storage)
        store.discard()
        assert not store.folder.exists()
    store = StudyStore.create(tmp_path / "s", "s", {}, url)
    add_trial(store, [0.5], TrialState.COMPLETE)
    store.discard()
    assert store.folder.exists() and len(store.study.trials) == 1
    store.close()


def test_a_resume_with_nothing_left_to_do_leaves_nothing_running(tmp_path, capsys):
    folder = tmp_path / "runs" / "s"
    plan = make_plan(SearchOptions(space="smoke", study="s", output=str(folder.parent)))
    store = StudyStore.create(folder, "s", plan.to_dict(), None)
    store.add_session({"host": "here"})
    add_trial(store, [0.5], TrialState.COMPLETE)
    running = store.study.ask()
    running.suggest_float("peak_lr", 0.1, 1.0)
    running.set_user_attr("config", TrainConfig().to_dict())
    store.close()
    assert main(["tune", "--resume", "--study", "s", "--trials", "1", "--output", str(folder.parent)]) == 0
    assert "All 1 trials have ended" in capsys.readouterr().out
    assert [t.state for t in StudyStore.open(folder, None).study.trials] == [TrialState.COMPLETE, TrialState.WAITING]


CONFIG = {"epochs": 2}


def add(store: StudyStore, value: float, batch: int, state: TrialState, **attrs: object) -> None:
    """Add a trial that has ended, with a checkpoint; a paused one has handed it over to its continuation."""
    store.study.add_trial(
        create_trial(
            state=state,
            value=value if state == TrialState.COMPLETE else None,
            params={"global_batch_size": batch},
            distributions={"global_batch_size": CategoricalDistribution((128, 256, 512, 1024))},
            user_attrs={"config": CONFIG, "epoch/00001": {"epoch": 1, "val_top1": value, "train_s": 1.0}, **attrs},
        )
    )
    if state == TrialState.COMPLETE:
        folder = store.checkpoint_folder(len(store.study.trials) - 1)
        folder.mkdir(parents=True)
        (folder / "latest.pt").write_text("weights")


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "after each trial"])
def test_the_best_of_each_batch_is_the_one_whose_checkpoint_stays(tmp_path: Path, at_once: bool) -> None:
    """At 1,024 a published recipe that was paused and continued is as good as an earlier trial, so it is the best."""
    plan = make_plan(SearchOptions(output=str(tmp_path / "runs"), model="resnet18", study="s"))
    store = StudyStore.create(plan.folder, plan.study, plan.to_dict(), None)
    trials: list[tuple[float, int, TrialState, dict[str, object]]] = [
        (0.9, 1024, TrialState.PRUNED, {"paused_in_epoch": 1, "given_config": CONFIG}),
        (1.0, 1024, TrialState.COMPLETE, {}),
        (1.0, 1024, TrialState.COMPLETE, {"continues": 0}),
        (1.0, 256, TrialState.COMPLETE, {}),
        (1.0, 256, TrialState.COMPLETE, {}),
        (0.9, 512, TrialState.COMPLETE, {}),
    ]
    for value, batch, state, attrs in trials:
        add(store, value, batch, state, **attrs)
        if not at_once:
            store.drop_checkpoints()
    store.drop_checkpoints()
    facts = frontier_facts(plan.to_dict(), plan.objectives.first)
    frontier = frontier_of(store.study.trials, facts)
    assert frontier is not None and frontier.leading.trial == 2
    best = {row.best.trial for row in frontier.rows if row.best}
    there = {int(path.name.removeprefix("trial-")) for path in (store.folder / "checkpoints").iterdir()}
    assert best == {2, 3, 5} and there == best
    store.close()


def test_what_a_stopped_trial_writes_after_its_end_goes_too(tmp_path: Path) -> None:
    """The study stops it first, and its processes may just be writing a checkpoint then."""
    plan = make_plan(SearchOptions(output=str(tmp_path / "runs"), model="resnet18", study="s"))
    store = StudyStore.create(plan.folder, plan.study, plan.to_dict(), None)
    add(store, 0.9, 256, TrialState.COMPLETE)
    add(store, 0.1, 256, TrialState.PRUNED)
    late, unknown = store.checkpoint_folder(1), store.checkpoint_folder(2)
    unknown.mkdir()
    for _ in range(2):
        late.mkdir()
        (late / "latest.pt.partial").write_text("half")
        store.drop_checkpoints()
        assert not late.exists() and store.checkpoint_folder(0).exists() and unknown.exists()
    store.close()
