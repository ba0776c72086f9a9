"""``bigbatch.trainable``: what Tune's configuration becomes, and what is refused. A search by it: test_examples.py."""

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bigbatch
from bigbatch.train_loop.config import ConfigError, TrainConfig

OWN = """
FRONTIER = "width"


def space(trial, workload):
    width = trial.suggest_categorical("width", [8, 16])
    steps = trial.suggest_int("steps", 1, 9)
    rate = trial.suggest_float("rate", 0.01, 1.0, log=True)
    return workload.config({"lr": rate * width, "batch": 32 * steps, "label_smoothing": 0.0})
"""


def made(*arguments: Any, **options: Any) -> Any:
    """What the processes of trials are handed."""
    (cell,) = bigbatch.trainable(*arguments, **options).__closure__
    return cell.cell_contents


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Any:
    file = tmp_path_factory.mktemp("space") / "mine.py"
    file.write_text(OWN)
    return made(file, data="digits", model="shufflenet_v2_x0_5", max_epochs=4, set={"image_size": 16}, seed=5)


def test_parameters_and_keys_become_a_configuration_and_the_rest_is_the_default(own: Any) -> None:
    config = own.train_config({"width": 16, "rate": np.float64(0.5), "momentum": np.float32(0.75)})
    assert config.optimizer.peak_lr == 8.0 and config.optimizer.momentum == 0.75
    assert type(config.optimizer.momentum) is float, "checkpoints hold plain values"
    assert (config.batch.global_size, config.epochs, config.seed, config.data.image_size) == (160, 4, 5, 16)
    plain = own.train_config({})
    assert plain.optimizer.peak_lr == pytest.approx(8 * 0.1), "the first choice, and the middle of the logarithms"


def test_a_key_has_the_last_word_over_the_space(own: Any) -> None:
    assert own.train_config({"width": 16, "lr": 0.3}).optimizer.peak_lr == 0.3


def test_population_based_training_may_leave_the_ranges(own: Any) -> None:
    assert own.train_config({"rate": 1.2, "steps": 10.8}).optimizer.peak_lr == pytest.approx(9.6)
    assert own.train_config({"steps": 10.8}).batch.global_size == 32 * 11


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"widht": 8}, "got 'widht'. Did you mean 'width'?"),
        ({"zzz": 8}, "Write one of width, steps, rate."),
        ({"width": 9}, "width must be one of 8, 16; got 9"),
        ({"rate": "fast"}, "rate must be a number; got 'fast'"),
        ({"momentum": 1.5}, "momentum"),
    ],
)
def test_another_name_or_value_is_refused_in_one_line(own: Any, given: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as met:
        own.train_config(given)
    assert said in str(met.value) and "\n" not in str(met.value)


def test_what_trials_are_handed_says_where_the_space_is(own: Any) -> None:
    """The module of a space is the driver's alone: a function of it could not be loaded in another process."""
    again = pickle.loads(pickle.dumps(own))
    assert Path(again.space).is_absolute()
    assert again.train_config({"width": 16}) == own.train_config({"width": 16})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"space": "large"}, "--space is one of"),
        ({"data": "/nonexist"}, "nonexist"),
        ({"set": {"learning": 1}}, "learning"),
        ({"max_epochs": 0}, "--max-epochs must be at least 1"),
        ({"trials": 4}, "arguments about training; got 'trials'"),
        ({"max_epoch": 4}, "Did you mean 'max_epochs'"),
        ({"metric": 3}, "metric must be a list of words; got 3"),
        ({"metric": [3]}, "metric must be a word; got 3"),
        ({"max_epochs": 1.5}, "max_epochs must be a whole number; got 1.5"),
    ],
)
def test_wrong_arguments_are_refused_at_once(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as met:
        bigbatch.trainable(**options)
    assert "\n" not in str(met.value)


def test_the_built_in_space_gets_its_own_defaults() -> None:
    config = made(model="shufflenet_v2_x0_5", max_epochs=3).train_config({"optimizer": "lamb", "lr": 0.01})
    assert isinstance(config, TrainConfig)
    assert (config.optimizer.name, config.optimizer.peak_lr) == ("lamb", 0.01)


def test_each_epoch_leaves_a_checkpoint_from_which_another_rate_goes_on(own, monkeypatch, tmp_path):
    """Without Ray's processes: what Tune would be told, and what it would hand back."""
    import ray.tune

    from bigbatch.train_loop.launch import ray_worker

    told: list[tuple[dict[str, Any], list[str]]] = []
    given: list[Any] = [None]

    def report(metrics: dict[str, Any], checkpoint: Any) -> None:
        told.append((metrics, sorted(path.name for path in Path(checkpoint.path).glob("*.pt"))))
        if metrics["epoch"] == 2:
            shutil.copytree(checkpoint.path, tmp_path, dirs_exist_ok=True)
            raise SystemExit(0)  # as Ray ends a trial that the scheduler has stopped

    monkeypatch.setattr(ray.tune, "report", report)
    monkeypatch.setattr(ray.tune, "get_checkpoint", lambda: given[-1])
    monkeypatch.setattr(ray_worker, "use_assigned_cores", lambda: None)
    wanted = {"batch": 256, "optimizer.name": "sgd", "warmup_epochs": 0, "schedule": "constant", "precise_bn": "off"}
    with pytest.raises(SystemExit):
        own({**wanted, "lr": 0.01, "momentum": 0.9})
    given.append(ray.tune.Checkpoint.from_directory(tmp_path))
    own({**wanted, "lr": 0.02, "momentum": 0.5})
    assert [metrics["epoch"] for metrics, _ in told] == [1, 2, 3, 4]
    assert [files for _, files in told] == [["latest.pt"]] * 4
    assert [metrics["learning_rate"] for metrics, _ in told] == pytest.approx([0.01, 0.01, 0.02, 0.02])
    assert all(isinstance(metrics["val_top1"], float) and None not in metrics.values() for metrics, _ in told)
    assert told[2][0]["resumed_from_epoch"] == 2
