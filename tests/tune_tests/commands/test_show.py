"""``bigbatch show``: a study's best by fresh seeds, and one whose study.json somebody has edited."""

from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from bigbatch.cluster.record.study_progress import read_study_progress
from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.commands.show import show_main
from bigbatch.tune.storage.store import StudyStore

EPOCHS = 2


def finish(study: optuna.Study, value: float | None, rate: float, **attrs: object) -> int:
    """A trial that ended with ``value``; None: it diverged."""
    study.enqueue_trial({}, user_attrs=attrs)
    trial = study.ask()
    trial.set_user_attr("config", TrainConfig(epochs=EPOCHS).replace_keys({"optimizer.peak_lr": rate}).to_dict())
    for epoch in range(1, EPOCHS + 1):
        trial.set_user_attr(f"epoch/{epoch:05d}", {"epoch": epoch, "val_top1": value, "train_s": 1.0})
        if value is not None:
            trial.report(value, epoch)
    if value is None:
        trial.set_user_attr("diverged", True)
    study.tell(trial, value, state=TrialState.FAIL if value is None else TrialState.COMPLETE)
    return trial.number


@pytest.mark.parametrize("database", [False, True])
def test_the_best_is_the_one_with_the_best_mean_over_fresh_seeds(tmp_path: Path, capsys, database: bool) -> None:
    url = f"sqlite:///{tmp_path}/study.db" if database else None
    store = StudyStore.create(tmp_path / "s", "s", {"trials": 3, "max_epochs": EPOCHS}, url)
    lucky, steady, wild = (finish(store.study, value, rate) for value, rate in ((0.9, 0.5), (0.8, 0.25), (0.7, 0.125)))
    for number, values in ((lucky, (0.6, 0.7)), (steady, (0.75, 0.81)), (wild, (0.99, None))):
        for seed, value in enumerate(values, 1):
            finish(store.study, value, 1.0, confirms=number, confirmation_seed=seed)
    store.study.enqueue_trial({}, user_attrs={"confirms": steady, "confirmation_seed": 3})  # was interrupted
    again = store.study.ask()
    again.set_user_attr("config", TrainConfig(epochs=EPOCHS).to_dict())
    again.set_user_attr("epoch/00001", {"epoch": 1, "val_top1": 0.1, "train_s": 1.0})
    store.refresh(force=True)
    store.close()
    assert show_main([str(tmp_path / "s")]) == 0
    text = capsys.readouterr().out
    assert "3/3: 3 ran to their end; 7 confirmations (1 not ended)" in text
    assert "The best is trial 1: validation top-1 78.0 %, the mean of 2 fresh seeds," in text
    assert "80.0 % when it was chosen" in text and "Confirmed with 2 fresh seeds: 75.0 and 81.0 %" in text
    lines = text.splitlines()
    assert [line.split()[:2] for line in lines if line.startswith("*")] == [["*", "1"]]
    said = ("done, confirms 1", "done, confirms 2", "failed, confirms 2")
    assert [sum(words in line for line in lines) for words in said] == [2, 1, 1]
    in_queue = read_study_progress(tmp_path / "s")
    assert in_queue is not None and in_queue.best == pytest.approx(0.78) and in_queue.finished == 3


@pytest.mark.parametrize(
    ("trainable", "last", "warns"), [("my.py:train", 0.75, True), ("my.py:train", 0.8, False), (None, 0.75, False)]
)
def test_fresh_seeds_that_a_function_ignores_confirm_nothing(
    tmp_path: Path, capsys, trainable: str | None, last: float, warns: bool
) -> None:
    described = {"trials": 2, "max_epochs": EPOCHS, "trainable": trainable}
    store = StudyStore.create(tmp_path / "s", "s", described, None)
    best, _ = finish(store.study, 0.8, 0.5), finish(store.study, 0.3, 0.25)
    for seed, value in enumerate((0.75, last), 1):
        finish(store.study, value, 1.0, confirms=best, confirmation_seed=seed)
    store.refresh(force=True)
    store.close()
    assert show_main([str(tmp_path / "s")]) == 0
    text = capsys.readouterr().out
    assert "Confirmed with 2 fresh seeds" in text and ("if the function does not use config['seed']" in text) == warns


@pytest.mark.parametrize("target", ["val_top1=0.5", "recall:max=0.5"])
def test_what_a_stopped_trial_lacks_to_its_target_is_not_shown_as_hours(tmp_path: Path, capsys, target: str) -> None:
    store = StudyStore.create(tmp_path / "s", "s", {"trials": 1, "objective": target}, None)
    trial = store.study.ask()
    trial.set_user_attr("config", TrainConfig(epochs=EPOCHS).to_dict())
    trial.set_user_attr("epoch/00001", {"epoch": 1, "val_top1": 0.2245, "metrics": {"recall": 0.2245}})
    trial.report(0.551, 1)
    store.study.tell(trial, state=TrialState.PRUNED)
    store.close()
    assert show_main([str(tmp_path / "s")]) == 0
    text = capsys.readouterr().out
    assert "stopped" in text and "0.551" not in text and "0.22" not in text


def test_a_trial_that_violates_a_constraint_is_not_called_stopped(tmp_path: Path, capsys) -> None:
    store = StudyStore.create(tmp_path / "s", "s", {"trials": 1}, None)
    trial = store.study.ask()
    for name, value in {"config": TrainConfig().to_dict(), "infeasible": {"epoch_s": 0.2}}.items():
        trial.set_user_attr(name, value)
    store.study.tell(trial, state=TrialState.PRUNED)
    store.close()
    assert show_main([str(tmp_path / "s")]) == 0
    assert "0  infeasible" in capsys.readouterr().out


def test_limits_of_another_type_in_study_json_count_as_missing(tmp_path: Path, capsys) -> None:
    limits = {"trials": 3, "max_epochs": EPOCHS, "budget_gpu_hours": "2", "time_budget_s": [60]}
    StudyStore.create(tmp_path / "s", "s", limits, None).close()
    assert show_main([str(tmp_path / "s")]) == 0
    assert "limits     3 trials; at most 2 epochs each\n" in capsys.readouterr().out
