"""From a configuration back to the parameters that gave it."""

import random
from pathlib import Path

import pytest

from bigbatch.search_spaces import BUILT_IN, Workload, load_space
from bigbatch.search_spaces.check import nearest_parameters
from bigbatch.search_spaces.trial import StandInTrial
from bigbatch.train_loop.config import TrainConfig

DIGITS = Workload("digits", train_size=1437, num_classes=10, image_size=32, model="resnet18", epochs=12)
IMAGENET = Workload("imagenet", 1_281_167, 1000, 224, "resnet50", epochs=90)
SPACE = BUILT_IN["large_batch"]


@pytest.mark.parametrize("workload", [DIGITS, IMAGENET], ids=lambda w: w.data)
@pytest.mark.parametrize(
    "pinned", [{}, {"optimizer.name": "lars", "optimizer.trust_coefficient": 0.01}, {"momentum": 0.95}]
)
def test_the_parameters_of_a_sampled_configuration_are_found_again(workload, pinned):
    for seed in range(100):
        trial = StandInTrial(random.Random(seed))
        config = SPACE(trial, workload, pinned)
        found = nearest_parameters(SPACE, config, workload, pinned)
        assert found is not None and list(found) == list(trial.params)
        for name, value in trial.params.items():
            assert found[name] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value), name


@pytest.mark.parametrize(
    ("changes", "pinned"),
    [
        ({"optimizer.name": "adamw"}, {}),
        ({"optimizer.name": "sgd"}, {"optimizer.name": "lars"}),
        ({"optimizer.name": "sgd", "global_size": 100}, {}),
    ],
)
def test_another_optimizer_or_batch_has_no_parameters(changes: dict[str, object], pinned: dict[str, object]) -> None:
    config = TrainConfig(epochs=12).replace_keys({"global_size": 256, **changes})
    assert nearest_parameters(SPACE, config, DIGITS, pinned) is None


def test_a_space_without_an_inverse_has_none(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    text = "def space(trial, workload):\n    return workload.config({'lr': trial.suggest_float('lr', 0.1, 1)})\n"
    inverse = "\n\ndef parameters_of(config, workload):\n    return {'lr': config.optimizer.peak_lr}\n"
    for more, found in (("", None), (inverse, {"lr": 0.25})):
        path.write_text(text + more)
        assert nearest_parameters(load_space(str(path)), DIGITS.config({"lr": 0.25}), DIGITS) == found
