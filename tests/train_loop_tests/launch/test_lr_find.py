"""The range test: on a quadratic whose stable rates are known, on curves made by hand, and as a command."""

import math
from typing import Any

import pytest
import torch

from bigbatch.train_loop.config import ConfigError, OptimizerConfig, TrainConfig
from bigbatch.train_loop.errors import NonFiniteLossError
from bigbatch.train_loop.host.command_line import ProgressLine
from bigbatch.train_loop.launch.lr_find import RangeTestResult, default_range, lr_find, main, range_test
from helpers.tiny_training import CONFIG, changed, install, plain_model


def test_on_a_quadratic_the_explosion_is_where_theory_says() -> None:
    """L = ½·k·θ² + 1 under gradient descent: diverges above 2/k."""
    k, theta = 4.0, [1e3]

    def step(rate: float) -> float:
        loss = 0.5 * k * theta[0] ** 2 + 1
        theta[0] -= rate * k * theta[0]
        return loss

    finding = range_test(step, 1e-6, 1e3, 200)
    assert finding.exploded_at is not None and 2 / k < finding.exploded_at < 30 * 2 / k
    assert 1e-3 < finding.steepest < 2 / k
    assert finding.steepest <= finding.minimum
    assert 1e-3 < finding.suggestion < 2 / k
    assert len(finding.rates) == len(finding.losses) < 200
    ratios = [b / a for a, b in zip(finding.rates, finding.rates[1:], strict=False)]
    assert ratios == pytest.approx([ratios[0]] * len(ratios))


def test_minimum_and_steepest_of_a_curve_made_by_hand() -> None:
    """A sigmoid in log(rate) that falls fastest at 1e-2 and a wall at 1."""

    def loss(rate: float) -> float:
        return 2 / (1 + math.exp(4 * (math.log10(rate) + 2))) + 0.2 * rate**2 + 0.5

    finding = range_test(loss, 1e-5, 100.0, 300)
    assert finding.steepest == pytest.approx(1e-2, rel=1.5)  # the mean over 10 steps lags by 0.23 decades
    assert 0.1 < finding.minimum < 1.5
    assert finding.suggestion == pytest.approx(min(math.sqrt(finding.minimum * finding.steepest), finding.minimum / 3))
    below_0 = range_test(lambda rate: loss(rate) - 2, 1e-5, 100.0, 300)  # as a log-likelihood may be
    for name in ("steepest", "minimum", "suggestion"):
        assert getattr(below_0, name) == pytest.approx(getattr(finding, name), rel=1e-6)
    assert below_0.exploded_at is not None and below_0.exploded_at > 1


def test_a_range_that_ends_too_early_or_begins_too_late_is_said() -> None:
    assert range_test(lambda rate: 1 - rate, 1e-3, 1e-2, 20).exploded_at is None
    with pytest.raises(ValueError, match="finite for 10 steps"):
        range_test(lambda rate: math.nan, 1e-3, 1.0, 50)
    for bad in ((0.0, 1.0, 50), (1.0, 1.0, 50), (1e-3, 1.0, 5), (1e-3, math.inf, 50)):
        with pytest.raises(ConfigError, match="rises from above 0"):
            range_test(lambda rate: 1.0, *bad)


def test_the_range_is_wide_enough_for_each_optimizer() -> None:
    assert default_range(OptimizerConfig(name="lars")) == pytest.approx((1e-2, 1e3))
    assert default_range(OptimizerConfig(name="lars", trust_coefficient=0.01)) == pytest.approx((1e-3, 100.0))
    for name, low, high in (("sgd", 1e-3, 10.0), ("lamb", 1e-4, 0.1), ("adamw", 1e-5, 0.01)):
        first, last = default_range(OptimizerConfig(name=name))
        assert first < low and high < last


@pytest.mark.parametrize("name", ["sgd", "lars", "lamb"])
def test_the_loops_own_steps_are_taken_at_rising_rates(built, name):
    config = changed(CONFIG, optimizer__name=name)
    finding = lr_find(config, first=1e-3, last=1e3, steps=30)
    assert built.rates[: len(finding.rates)] == pytest.approx(finding.rates)
    assert finding.losses[0] == pytest.approx(math.log(4), rel=0.4)
    assert lr_find(config, first=1e-3, last=1e3, steps=30) == finding


def test_gradients_that_overflow_at_any_scale_are_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> torch.nn.Module:
        model: Any = plain_model()
        model[0].weight.register_hook(lambda gradient: gradient * math.inf)
        return model

    install(monkeypatch.setattr, broken)
    with pytest.raises(NonFiniteLossError, match="at any loss scale"):
        lr_find(changed(CONFIG, precision="fp16"), first=1e-3, last=1e3, steps=60)


def test_the_command(built, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("bigbatch.train_loop.launch.lr_find.ProgressLine", lambda: ProgressLine(0.0))
    source = tmp_path / "config.json"
    source.write_text(CONFIG.to_json())
    assert main(["--config", str(source), "--set", "optimizer=lars", "--steps", "20"]) == 0
    out, err = capsys.readouterr()
    table = out.partition("lr          loss\n")[2].splitlines()
    assert table[-1].startswith("suggested peak lr")
    assert [float(line.split()[0]) for line in table[:-2]] == pytest.approx(built.rates[: len(table) - 2], rel=1e-2)
    lines = [
        f"step {n} of at most 20: lr {row.split()[0]}, loss {row.split()[1]}" for n, row in enumerate(table[:-2], 1)
    ]
    assert err.splitlines()[: len(lines)] == lines
    for wrong in (["--steps", "3"], ["--first", "0"], ["--set", "peek_lr=1"], ["--data", "nowhere"]):
        assert main(["--config", str(source), *wrong]) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_wrong_range_is_refused_before_data_and_network_are_made(monkeypatch):
    monkeypatch.setattr("bigbatch.train_loop.loop.assembly.set_up", lambda *_, **__: pytest.fail("made"))
    with pytest.raises(ConfigError, match="at least 10 steps; got 0.1 to 1 in 5"):
        lr_find(CONFIG, first=0.1, last=1.0, steps=5)


def test_a_loss_that_only_rises_suggests_no_rate(tmp_path, capsys, monkeypatch):
    def rising(config: TrainConfig, *, first: float, last: float, steps: int, scan: object) -> RangeTestResult:
        return range_test(lambda rate: 1 + rate, first, last, steps)

    monkeypatch.setattr("bigbatch.train_loop.launch.lr_find.lr_find", rising)
    (tmp_path / "config.json").write_text(CONFIG.to_json())
    assert main(["--config", str(tmp_path / "config.json")]) == 1
    out = capsys.readouterr().out
    assert "suggested peak lr" not in out and out.splitlines()[-1].endswith("Lower --first, or raise --steps")
