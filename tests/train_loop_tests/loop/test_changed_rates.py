"""A run goes on from a checkpoint with another rate and momentum, as Population Based Training asks for."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.train_loop.loop.train import train
from bigbatch.train_loop.reporter import EpochRecord, ListReporter
from helpers.tiny_training import CONFIG, changed

NUMBERS: dict[str, dict[str, Any]] = {
    "sgd": {"peak_lr": 0.05, "momentum": 0.5, "weight_decay": 1e-2, "schedule__name": "cosine", "label_smoothing": 0.0},
    "lars": {"peak_lr": 0.05, "momentum": 0.5, "trust_coefficient": 0.02},
    "lamb": {"peak_lr": 0.05, "beta1": 0.8, "weight_decay": 0.1},
}


class Leaves(ListReporter):
    """The process ends when the first epoch is reported: its checkpoint is written."""

    def report(self, record: EpochRecord) -> None:
        raise KeyboardInterrupt


def run(config: TrainConfig, folder: Path, reporter: ListReporter | None = None) -> list[EpochRecord]:
    options: dict[str, Any] = {"checkpoint_dir": folder, "checkpoint_every_s": 0, "accept_changed_rates": True}
    return list(train(config, reporter=reporter or ListReporter(), device=torch.device("cpu"), **options).history)


@pytest.mark.parametrize("name", NUMBERS)
def test_the_state_of_the_optimizer_stays_and_the_new_numbers_hold(name, built, tmp_path):
    before = changed(CONFIG, optimizer__name=name)
    after = changed(before, **NUMBERS[name])
    with pytest.raises(KeyboardInterrupt):
        run(before, tmp_path, Leaves())
    kept = torch.load(tmp_path / "latest.pt", weights_only=True)["optimizer"]["state"]
    seen: list[dict[str, Any]] = []

    def watch(optimizer: torch.optim.Optimizer) -> None:
        fresh = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]

        def before(*_: object) -> None:
            if not seen:
                seen.append({"fresh": fresh, **copy.deepcopy(optimizer.state_dict())})

        optimizer.register_step_pre_hook(before)

    built.watch = watch
    history = run(after, tmp_path)
    assert [record.epoch for record in history] == [1, 2, 3]
    for group, fresh in zip(seen[0]["param_groups"], seen[0]["fresh"], strict=True):
        new = [{k: v for k, v in one.items() if k not in ("params", "lr")} for one in (group, fresh)]
        assert new[0] == new[1], "as of a new optimizer with the new configuration"
    torch.testing.assert_close(seen[0]["state"], kept, rtol=0, atol=0)
    assert kept[0], "there is a state to keep"
    rates = [record.learning_rate for record in history]
    assert rates[1] <= 0.05 < rates[0]


def test_what_would_be_another_run_is_refused(built, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(CONFIG, tmp_path, Leaves())
    for change, named in (
        ({"optimizer__name": "lars", "peak_lr": 0.1}, "optimizer.name 'sgd' → 'lars'"),
        ({"batch__global_size": 8}, "batch.global_size 16 → 8"),
        ({"epochs": 4}, "epochs 3 → 4"),
    ):
        with pytest.raises(ConfigError, match=named) as met:
            run(changed(CONFIG, **change), tmp_path)
        assert "peak_lr" not in str(met.value)
