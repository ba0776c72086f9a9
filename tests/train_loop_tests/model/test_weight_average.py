"""The average of the weights and compiled training: what they must not change."""

from typing import Any

import pytest
import torch
from torch import nn

from bigbatch.train_loop.loop import assembly
from bigbatch.train_loop.model.weight_average import WeightAverage
from helpers.loop_references import run
from helpers.tiny_training import CONFIG, TinySource, bn_model, changed, install


def test_the_average_is_the_formula_and_the_model_is_put_back() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).double()
    average = WeightAverage(model, 0.7)
    live = [t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()]
    expected = [t.detach().clone() for t in live]
    for step in range(1, 40):
        for t in live:
            t.data.add_(torch.randn_like(t))
        average.update(step)
        d = min(0.7, (1 + step) / (10 + step))
        expected = [d * mean + (1 - d) * t for mean, t in zip(expected, live, strict=True)]
    assert d == 0.7
    for found, wanted in zip(average.tensors, expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    before = [t.detach().clone() for t in live]

    def compare_and_fail() -> None:
        for t, wanted in zip(live, expected, strict=True):
            torch.testing.assert_close(t, wanted, rtol=1e-12, atol=1e-12)
        raise KeyError

    with pytest.raises(KeyError), average.in_place():
        compare_and_fail()
    assert all(torch.equal(t, kept) for t, kept in zip(live, before, strict=True))


def test_averaging_changes_validation_and_not_training(built):
    plain = run(CONFIG)
    averaged = run(changed(CONFIG, ema_decay=0.9))
    assert [r.train_loss for r in averaged] == [r.train_loss for r in plain]
    assert all(a.val_loss != b.val_loss for a, b in zip(averaged, plain, strict=True))


def test_only_training_is_compiled_and_records_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch.setattr, bn_model)
    config = changed(CONFIG, ema_decay=0.9)
    plain = run(config)
    graphs: list[object] = []
    real = torch.compile

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(assembly.torch, "compile", lambda model, **options: real(model, backend=backend, **options))
    records = run(changed(config, model__compile="on"))
    assert graphs
    for a, b in zip(records, plain, strict=True):
        assert (a.train_loss, a.val_loss) == pytest.approx((b.train_loss, b.val_loss), rel=1e-5)


def test_a_smaller_last_step_has_a_graph_of_its_own_and_none_is_for_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    config = changed(CONFIG, epochs=2, drop_last=False, precise_bn="off", model__compile="on", peak_lr=0.01)
    install(monkeypatch.setattr, bn_model)
    shapes: list[tuple[int, ...]] = []
    real = torch.compile

    def backend(graph: Any, inputs: Any) -> Any:
        (images,) = (i for i in inputs if isinstance(i, torch.Tensor) and i.ndim == 4 and not i.requires_grad)
        shapes.append(tuple(images.shape))
        return graph.forward

    monkeypatch.setattr(assembly.torch, "compile", lambda model, **options: real(model, backend=backend, **options))
    run(config)
    assert sorted(shapes) == sorted((images, *TinySource().train[0].shape[1:]) for images in (8, 3))
    assert all(type(size) is int for shape in shapes for size in shape)  # not torch.SymInt
