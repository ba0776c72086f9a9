"""Histograms of parameters and gradients: NumPy's, of what the optimizer gets, and without a trace in the training."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from bigbatch.train_loop.launch.worker_lines import append_histograms, read_histograms
from bigbatch.train_loop.loop import watched_model
from bigbatch.train_loop.loop.train import train
from bigbatch.train_loop.loop.watched_model import BINS, SAMPLE, TensorHistogram, histogram, histograms_of
from bigbatch.train_loop.reporter import ListReporter
from helpers.tiny_training import CONFIG, install

CLIP = 1e-3


class WatchingReporter(ListReporter):
    """Compares the histograms with the network, which waits for its optimizer's step, and keeps them."""

    def __init__(self, *watched: str) -> None:
        super().__init__()
        self.watched = watched
        self.model: nn.Module | None = None
        self.seen: dict[int, Mapping[str, TensorHistogram]] = {}

    def histograms(self, epoch: int, found: Mapping[str, TensorHistogram]) -> None:
        assert epoch not in self.seen, "one step of each epoch"
        self.seen[epoch] = found
        named = dict(self.model.named_parameters())
        assert set(found) == {f"{kind}/{name}" for kind in self.watched for name in named}
        for name, parameter in named.items():
            for kind, values in (("gradients", parameter.grad), ("parameters", parameter)):
                one = found[f"{kind}/{name}"]
                assert sum(one.counts) == values.numel()
                if values.min() < values.max():
                    assert (one.low, one.high) == (values.min().item(), values.max().item())
        norm = torch.stack([p.grad.norm() for p in named.values()]).norm()
        assert norm == pytest.approx(CLIP, rel=1e-3), "the gradients that the optimizer gets: summed, then clipped"


def test_a_histogram_is_that_of_numpy_without_what_is_not_finite() -> None:
    values = torch.randn(5, 7, 11, generator=torch.Generator().manual_seed(0))
    counts, edges = np.histogram(values.numpy(), bins=BINS)
    found = histogram(values)
    assert found is not None and (found.low, found.high) == pytest.approx((edges[0], edges[-1]))
    assert sum(found.counts) == values.numel()
    assert sum(abs(a - b) for a, b in zip(found.counts, counts, strict=True)) <= 2, "a value at an edge may be rounded"
    values[0, 0, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    found = histogram(values.bfloat16())
    assert found is not None and sum(found.counts) == values.numel() - 3
    assert histogram(torch.full((3,), torch.nan)) is None
    constant = histogram(torch.full((9,), 2.0))
    assert constant is not None and (constant.low, constant.high, sum(constant.counts)) == (1.5, 2.5, 9)


def test_a_sample_of_a_large_tensor_has_its_distribution() -> None:
    values = torch.randn(256, 128, 3, 3, generator=torch.Generator().manual_seed(0))
    values = values.to(memory_format=torch.channels_last)
    exact, _ = np.histogram(values.numpy(), bins=BINS)
    found = histogram(values)
    assert found is not None and (found.low, found.high) == (values.min().item(), values.max().item())
    counts = np.array(found.counts)
    assert SAMPLE / 2 < counts.sum() <= SAMPLE
    distance = np.abs(np.cumsum(counts) / counts.sum() - np.cumsum(exact) / exact.sum()).max()
    assert distance < 1.95 / counts.sum() ** 0.5, "Kolmogorov's test, of one in a thousand"


@pytest.mark.parametrize("shape", [(256, 256, 3, 3), (2048, 512, 1, 1), (64, 4096, 1, 1), (13, 7, 11, 97)])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_sample_has_each_place_of_a_kernel_and_each_channel_as_often(shape, memory_format):
    for dim, size in enumerate(shape):
        if size > BINS:
            continue
        places = torch.arange(float(size)).view([-1 if other == dim else 1 for other in range(len(shape))])
        values = places.expand(shape).contiguous(memory_format=memory_format)
        found = histogram(values)
        assert found is not None
        counts = [count for count in found.counts if count]
        assert len(counts) == size and max(counts) - min(counts) <= 0.01 * max(counts) + 2, (dim, counts)


def test_a_parameter_without_gradient_has_no_histogram_of_one() -> None:
    layer = nn.Linear(3, 2)
    layer.bias.grad = torch.tensor([1.0, 3.0])
    both = {"parameters/weight", "parameters/bias", "gradients/bias"}
    assert set(histograms_of(layer, ("gradients", "parameters"))) == both
    assert set(histograms_of(layer, ("gradients",))) == {"gradients/bias"}


def test_each_long_epoch_has_histograms_and_the_training_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_model, "LEAST_S", 0.0)
    config = replace(CONFIG, optimizer=replace(CONFIG.optimizer, clip_grad_norm=CLIP))
    watching, silent = WatchingReporter("gradients", "parameters"), ListReporter()
    built = install(monkeypatch.setattr)
    train(config, reporter=silent)
    built_again = install(monkeypatch.setattr)
    monkeypatch.setattr(watching, "steps_done", lambda *_: setattr(watching, "model", built_again.model), raising=False)
    train(config, reporter=watching)
    assert list(watching.seen) == [1, 2, 3]
    assert [r.train_loss for r in watching.records] == [r.train_loss for r in silent.records]
    weights = zip(built.model.parameters(), built_again.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in weights)


@pytest.mark.parametrize(
    ("seconds", "expected"), [(7.0, [1, 4, 6]), (8.0, [1, 3, 5, 6]), (15.0, [1, 2, 3, 4, 5, 6]), (1.0, [1, 6])]
)
def test_of_short_epochs_the_first_the_last_and_one_each_15_s_have_histograms(
    monkeypatch: pytest.MonkeyPatch, seconds: float, expected: list[int]
) -> None:
    reporter = WatchingReporter("parameters")
    monkeypatch.setattr(reporter, "histograms", lambda epoch, _: reporter.seen.setdefault(epoch, {}))
    clock = SimpleNamespace(monotonic=lambda: 100.0 + seconds * len(reporter.records))
    monkeypatch.setattr(watched_model, "time", clock)
    install(monkeypatch.setattr)
    train(replace(CONFIG, epochs=6), reporter=reporter)
    assert list(reporter.seen) == expected


def test_lines_survive_kills_and_repeated_epochs(tmp_path: Path) -> None:
    file = tmp_path / "trial-0003.histograms"
    assert read_histograms(file, 1) == {}
    for epoch, low in ((1, -1.0), (12, -3.0), (2, -2.0)):
        append_histograms(file, epoch, {"gradients/a": TensorHistogram(low, 4.0, (1, 0, 2))})
    with file.open("a") as lines:
        lines.write('\n{"epoch":3,"histograms":{"gradients/a":[0.1,')  # killed there, and resumed after epoch 1
    assert read_histograms(file, 3) == {}
    append_histograms(file, 2, {"gradients/a": TensorHistogram(-5.0, 4.0, (3, 0, 0))})
    assert read_histograms(file, 1) == {"gradients/a": (-1.0, 4.0, [1, 0, 2])}
    assert read_histograms(file, 2) == {"gradients/a": (-5.0, 4.0, [3, 0, 0])}
    assert read_histograms(file, 3) == {}
