"""A study's progress, read with the standard library, against what Optuna itself says of the same journal."""

import json
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from bigbatch.cluster.host import optuna_journal
from bigbatch.cluster.record import study_progress
from bigbatch.train_loop.errors import FailureKind
from bigbatch.tune.storage.store import StudyStore
from helpers.bridges import make_bridge, run_out

optuna.logging.set_verbosity(optuna.logging.WARNING)
pytestmark = pytest.mark.filterwarnings("ignore:The value nan")


def a_study(folder: Path, name: str = "s", planned: int | None = 10) -> optuna.Study:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.json").write_text(json.dumps({"schema_version": 1, "name": name, "trials": planned}))
    storage = JournalStorage(JournalFileBackend(str(folder / "optuna.journal")))
    return optuna.create_study(study_name=name, storage=storage, direction="maximize")


def run_trials(study: optuna.Study) -> None:
    """One trial of every kind and way of ending, with epochs and attributes as BigBatch writes them."""
    study.enqueue_trial({"x": 0.5})
    study.enqueue_trial({"x": 0.25})
    for value in (0.1, 0.9, 0.4):
        trial = study.ask()
        trial.suggest_float("x", 0, 1)
        trial.set_user_attr("config", {"long": "op_code" * 50})
        for step in range(3):
            trial.report(value * step, step)
        study.tell(trial, value)
    study.tell(study.ask(), state=TrialState.PRUNED)
    study.tell(study.ask(), state=TrialState.FAIL)
    study.ask()
    study.add_trial(optuna.trial.create_trial(value=0.95))
    study.add_trial(optuna.trial.create_trial(state=TrialState.FAIL))
    study.enqueue_trial({"x": 0.75})
    study.tell(study.ask(), float("nan"), skip_if_finished=True)
    for name, earlier, value in (("retries", 4, 0.5), ("continues", 3, 0.75), ("confirms", 1, 1.0)):
        study.enqueue_trial({"x": 0.5}, user_attrs={name: earlier})
        study.tell(study.ask(), value)
    refused = study.ask()
    refused.set_user_attr("refused", True)
    study.tell(refused, state=TrialState.FAIL)


def same_as_optuna(folder: Path, name: str = "s") -> study_progress.StudyProgress:
    storage = JournalStorage(JournalFileBackend(str(folder / "optuna.journal")))
    study = optuna.load_study(study_name=name, storage=storage)
    found = study_progress.read_study_progress(folder)
    assert found is not None
    replaced = {trial.user_attrs.get(name) for trial in study.trials for name in ("retries", "continues")}
    left = [t for t in study.trials if t.number not in replaced and not t.user_attrs.keys() & {"confirms", "refused"}]
    assert found.finished == sum(trial.state.is_finished() for trial in left)
    assert found.best == max((t.value for t in left if t.state == TrialState.COMPLETE and t.value), default=None)
    return found


def test_every_prefix_of_a_journal_counts_as_optuna_does(tmp_path):
    """The journal as it was after each of its records: a job that is killed leaves any of them."""
    run_trials(whole := a_study(tmp_path / "whole"))
    lines = (tmp_path / "whole" / "optuna.journal").read_bytes().splitlines(keepends=True)
    for count in range(1, len(lines) + 1):
        folder = tmp_path / f"{count:03}"
        a_study(folder)
        (folder / "optuna.journal").write_bytes(b"".join(lines[:count]))
        found = same_as_optuna(folder)
    assert found.best == 0.95 and found.planned == 10 and found.finished == len(whole.trials) - 5 == 8


def test_what_counts_no_trial_is_not_parsed(tmp_path, monkeypatch):
    """Most of a long journal; a job that waits for the first epoch of its start reads it every half minute."""
    study, parsed = a_study(tmp_path), list[bytes | str]()
    for attrs in ({"config": {}, "epoch/00001": {}, "gpu_hours": 1.0}, {"config": {}, "refused": True}):
        trial = study.ask()
        for name, value in attrs.items():
            trial.set_user_attr(name, value)
        study.tell(trial, state=TrialState.FAIL)
    loads = json.loads
    monkeypatch.setattr(optuna_journal.json, "loads", lambda line: parsed.append(line) or loads(line))
    found = study_progress.read_study_progress(tmp_path)
    assert (found.finished, found.ended) == (1, 2)
    codes = [loads(line)["op_code"] for line in parsed if isinstance(line, bytes)]
    assert sorted(codes) == [0, 4, 4, 6, 6, 8]


@pytest.mark.parametrize(
    "rest", [b'{"op_code":6,"trial_id":0,"sta', b"\xff\xfe\x00", b"{}", b'{"op_code":6}\n[1]\nnull\n']
)
def test_a_half_written_last_line_is_left_out(tmp_path, rest):
    run_trials(a_study(tmp_path))
    before = study_progress.read_study_progress(tmp_path)
    with (tmp_path / "optuna.journal").open("ab") as journal:
        journal.write(rest)
    assert study_progress.read_study_progress(tmp_path) == before


def test_other_and_deleted_studies_in_the_same_journal_do_not_count(tmp_path):
    run_trials(a_study(tmp_path, "old"))
    optuna.delete_study(study_name="old", storage=JournalStorage(JournalFileBackend(str(tmp_path / "optuna.journal"))))
    study = a_study(tmp_path, "new")
    study.tell(study.ask(), 0.3)
    found = same_as_optuna(tmp_path, "new")
    assert (found.finished, found.best) == (1, 0.3)


def test_a_finished_trial_stays_as_it_is(tmp_path):
    """Optuna replays a late record of another worker without applying it."""
    study = a_study(tmp_path)
    study.tell(study.ask(), 0.5)
    with (tmp_path / "optuna.journal").open("a") as journal:
        late = {"op_code": 6, "worker_id": "other", "trial_id": 0, "state": 3, "values": None}
        late |= {"datetime_complete": None}
        journal.write(json.dumps(late, separators=(",", ":")) + "\n")
    assert same_as_optuna(tmp_path).best == 0.5


@pytest.mark.parametrize("name", ["retries", "continues", "confirms", "refused"])
def test_an_edited_attribute_stops_no_queue(tmp_path, name):
    study = a_study(tmp_path)
    study.enqueue_trial({}, user_attrs={name: [0]})
    study.tell(study.ask(), 0.5)
    assert study_progress.read_study_progress(tmp_path).ended == 1


def test_what_is_no_study_is_none(tmp_path):
    assert study_progress.read_study_progress(tmp_path / "missing") is None
    (tmp_path / "study.json").write_text("[]")
    assert study_progress.read_study_progress(tmp_path) is None
    (tmp_path / "study.json").write_text('{"name": "s"}')
    found = study_progress.read_study_progress(tmp_path)
    assert found is not None and found.planned is None and found.finished == 0


def test_a_study_in_a_database_is_read_from_what_its_driver_noted(tmp_path):
    """Against what Optuna itself says of the database."""
    store = StudyStore.create(tmp_path / "study", "s", {"trials": 9}, f"sqlite:///{tmp_path}/study.db")
    assert study_progress.read_study_progress(store.folder).finished == 0
    bridge = make_bridge(store, concurrency=4)
    for name, values in {"a": [0.1, 0.2, 0.3, 0.4], "b": [0.5], "c": [0.2, 0.3, 0.4, 0.7], "d": [0.25]}.items():
        bridge.suggest(name)
        run_out(bridge, name, values)
    bridge.fail("b", "ImageError: cannot read a.png", FailureKind.IMAGES)
    store.refresh(force=True)
    found = study_progress.read_study_progress(store.folder)
    assert (found.name, found.planned, found.best) == ("s", 9, store.study.best_value) == ("s", 9, 0.7)
    assert found.finished == sum(trial.state.is_finished() for trial in store.study.trials) == 3
    assert study_progress.finished_epochs(store.folder) == 10
    store.close()
