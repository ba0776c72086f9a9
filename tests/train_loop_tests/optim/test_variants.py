"""LARS, LAMB and their variants against float64 formulas, also as the configuration has them; compiled steps; what is
refused."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bigbatch.train_loop.config import ConfigError, OptimizerConfig, TrainConfig, parse_assignments
from bigbatch.train_loop.optim import LAMB, LARS, build_optimizer, layerwise, set_learning_rate
from helpers.reference_steps import (
    LAMB_RATES,
    SHAPES,
    WARMUP as RATES,
    check_against,
    lamb_reference,
    larc_reference,
    lars_reference,
    make_arrays,
    norm,
    run,
)  # fmt: skip

pytestmark = pytest.mark.usefixtures("each_way")

WEIGHTS = make_arrays(SHAPES, 1)
GRADS = [make_arrays(SHAPES, 10 + t, 0.3) for t in range(len(RATES))]

# --- the papers' steps ---


@pytest.mark.parametrize("convention", ["in", "out"])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("trust_ratio", [False, True])
@pytest.mark.parametrize(("m", "wd", "eps"), [(0.9, 0.02, 0.0), (0.5, 0.0, 0.1), (0.0, 0.1, 1e-3)])
def test_lars_takes_the_papers_steps_under_warmup_and_decay(convention, nesterov, trust_ratio, m, wd, eps):
    def optimizer_of(params):
        groups = [{"params": params, "trust_ratio": trust_ratio}]
        return LARS(groups, 1.0, m, wd, 0.05, nesterov, momentum_convention=convention, eps=eps)

    options = {"m": m, "wd": wd, "eta": 0.05, "eps": eps, "nesterov": nesterov, "convention": convention}
    rates = [r if trust_ratio else 0.1 * r for r in RATES]
    check_against(lars_reference, optimizer_of, rates, **options, trust_ratio=trust_ratio)


@pytest.mark.parametrize("trust_ratio", [False, True])
@pytest.mark.parametrize("bias_correction", [False, True])
@pytest.mark.parametrize(("betas", "eps", "wd"), [((0.9, 0.999), 1e-6, 0.01), ((0.8, 0.95), 0.1, 0.0)])
def test_lamb_takes_the_papers_steps_under_warmup_and_decay(trust_ratio, bias_correction, betas, eps, wd):
    def optimizer_of(params):
        return LAMB([{"params": params, "trust_ratio": trust_ratio}], 1.0, betas, eps, wd, bias_correction)

    options = {"betas": betas, "eps": eps, "wd": wd, "bias_correction": bias_correction}
    check_against(lamb_reference, optimizer_of, LAMB_RATES, **options, trust_ratio=trust_ratio)


@pytest.mark.parametrize("nesterov", [False, True])
def test_lars_keeps_the_digits_of_factors_far_below_one(nesterov):
    """1 − (1 − 1e-15), as the fused kernel gets its factor, is a tenth too large."""
    weights, grads = make_arrays(SHAPES, seed=1), make_arrays(SHAPES, seed=2, scale=1e12)
    found = run(
        lambda params: LARS(params, 1.0, 0.9, 0.02, 0.001, nesterov), weights, lambda t: grads, RATES, torch.float32
    )
    for w, g, got in zip(weights, grads, found, strict=True):
        want = lars_reference(w, [g] * len(RATES), RATES, m=0.9, wd=0.02, eta=0.001, nesterov=nesterov)
        np.testing.assert_allclose(got - w, want - w, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("convention", ["in", "out"])
def test_the_ratio_is_one_where_a_norm_is_zero(convention):
    zeros, ones = np.zeros(4), np.ones(4)
    weights, grads = [zeros, ones, zeros], [ones, zeros, zeros]
    lars = run(
        lambda params: LARS(params, 1.0, 0.0, 0.5, 0.001, momentum_convention=convention),
        weights, lambda t: grads, [0.1],
    )  # fmt: skip
    np.testing.assert_allclose(lars[0], -0.1 * ones)  # ‖w‖ = 0: w − lr·g
    np.testing.assert_allclose(lars[1], (1 - 0.1 * 0.5) * ones)  # ‖g‖ = 0: decay alone, unscaled
    lamb = run(lambda params: LAMB(params, weight_decay=0.0), weights, lambda t: grads, [0.1])
    np.testing.assert_allclose(lamb[0], -0.1 * ones, rtol=1e-5)  # first Adam step has size lr
    np.testing.assert_array_equal(lamb[1], ones)  # u = 0
    for new in (lars, lamb):
        np.testing.assert_array_equal(new[2], zeros)


# --- as the configuration has them ---

DECAYED = ("matrix.weight",)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.matrix, self.norm = nn.Linear(4, 3).double(), nn.LayerNorm(3).double()


def _gradients() -> list[dict[str, np.ndarray]]:
    """Of each step; their norm is above and below 1."""
    rng, shapes = np.random.default_rng(10), {name: p.shape for name, p in Net().named_parameters()}
    sizes = (0.05 if step % 2 else 4.0 for step in range(len(RATES)))
    return [{name: size * rng.standard_normal(shape) for name, shape in shapes.items()} for size in sizes]


def _trained(keys: dict[str, Any], rates: list[float]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Weights before and after a step at each rate."""
    torch.manual_seed(3)
    model = Net()
    with torch.no_grad():
        model.matrix.weight[:] = torch.randn(3, 4).double()
        model.norm.bias[:] = 0.5
    before = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    optimizer = build_optimizer(model, OptimizerConfig(**keys))
    for gradients, rate in zip(_gradients(), rates, strict=True):
        set_learning_rate(optimizer, rate)
        for name, p in model.named_parameters():
            p.grad = torch.tensor(gradients[name])
        optimizer.step()
    return before, {name: p.detach().numpy() for name, p in model.named_parameters()}


@pytest.mark.parametrize("mode", ["clip", "trust"])
@pytest.mark.parametrize("lars_momentum", ["in", "out"])
def test_configured_larc(mode: str, lars_momentum: str) -> None:
    """LARC is around SGD, so ``lars_momentum`` is of no effect. BatchNorm and biases have plain SGD here."""
    keys = {"name": "lars", "larc": mode, "trust_coefficient": 0.4, "lars_eps": 1e-8, "weight_decay": 0.02}
    rates, grads = [0.5 * rate for rate in RATES], _gradients()
    before, after = _trained({**keys, "momentum": 0.9, "nesterov": False, "lars_momentum": lars_momentum}, rates)
    for name, start in before.items():
        own = [step[name] for step in grads]
        if name in DECAYED:
            want, clipped = larc_reference(start, own, rates, m=0.9, wd=0.02, eta=0.4, eps=1e-8, mode=mode)
            assert any(clipped) and not all(clipped)
        else:
            want = lars_reference(start, own, rates, m=0.9, wd=0.0, eta=0.4, convention="out", trust_ratio=False)
        np.testing.assert_allclose(after[name], want, rtol=1e-12, atol=1e-13)


def _configured_lamb(before, *, use_nvlamb=False, pre_normalise=False, **options):
    """csrc/multi_tensor_lamb.cu (mode 1, grad_averaging), DeepSpeed's bounds, NVLAMB's pre-normalisation."""
    grads = _gradients()
    totals = [norm(*step.values()) if pre_normalise else 1.0 for step in grads]
    found = {}
    for name, start in before.items():
        own, scaled = 0.3 * (name in DECAYED), [step[name] / total for step, total in zip(grads, totals, strict=True)]
        options |= {"betas": (0.9, 0.99), "trust_ratio": use_nvlamb or own != 0}
        found[name] = lamb_reference(start, scaled, LAMB_RATES, wd=own, **options)
    return found


@pytest.mark.parametrize(
    ("keys", "reference"),
    [
        ({}, {}),
        ({"nvlamb": True}, {"use_nvlamb": True}),
        ({"bias_correction": False}, {"bias_correction": False}),
        ({"min_trust_ratio": 1.2}, {"bounds": (1.2, math.inf)}),
        ({"max_trust_ratio": 0.7}, {"bounds": (0.0, 0.7)}),
        ({"min_trust_ratio": 0.9, "max_trust_ratio": 1.1}, {"bounds": (0.9, 1.1)}),
        ({"pre_normalise": True}, {"pre_normalise": True}),
        (
            {"nvlamb": True, "pre_normalise": True, "bias_correction": False, "max_trust_ratio": 1.0},
            {"use_nvlamb": True, "pre_normalise": True, "bias_correction": False, "bounds": (0.0, 1.0)},
        ),
    ],
)
def test_lambs_configured_variants(keys: dict[str, Any], reference: dict[str, Any]) -> None:
    before, after = _trained({"name": "lamb", "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.3, **keys}, LAMB_RATES)
    for name, expected in _configured_lamb(before, **reference).items():
        np.testing.assert_allclose(after[name], expected, rtol=1e-11, atol=1e-12)
    if reference:  # the key does something here
        plain = _configured_lamb(before)
        assert any(np.abs(after[name] - plain[name]).max() > 1e-6 for name in before)


def test_the_keys_are_typed_as_any_other_and_bad_ones_are_refused() -> None:
    words = ["larc=clip", "min_trust_ratio=0.01", "max_trust_ratio=10", "nvlamb=true", "bias_correction=false"]
    config = TrainConfig().replace_keys(parse_assignments([*words, "pre_normalise=True"]))
    found = config.optimizer
    assert (found.larc, found.min_trust_ratio, found.max_trust_ratio) == ("clip", 0.01, 10.0)
    assert (found.nvlamb, found.bias_correction, found.pre_normalise) == (True, False, True)
    for bad, message in (
        ({"larc": "clipp"}, "optimizer.larc must be one of off, clip, trust; got 'clipp'. Did you mean 'clip'?"),
        ({"min_trust_ratio": -1.0}, "optimizer.min_trust_ratio must be >= 0"),
        ({"max_trust_ratio": math.inf}, "optimizer.max_trust_ratio must be >= 0"),
        ({"min_trust_ratio": 2.0, "max_trust_ratio": 1.0}, "min_trust_ratio must not exceed .*got 2 and 1. Write"),
    ):
        with pytest.raises(ConfigError, match=message):
            OptimizerConfig(**bad)


# --- LARC: apex/parallel/LARC.py around SGD ---


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("mode", ["clip", "trust"])
@pytest.mark.parametrize(("no_weight", "no_gradient"), [(False, False), (True, False), (False, True)])
def test_larc_is_apexs_around_sgd(mode: str, nesterov: bool, no_weight: bool, no_gradient: bool) -> None:
    options = {"m": 0.9, "wd": 0.02, "eta": 0.4, "eps": 1e-8, "mode": mode, "nesterov": nesterov}
    grads = [[0 * g if no_gradient and t % 2 else g for g in step] for t, step in enumerate(GRADS)]
    weights = make_arrays(SHAPES, 1, 0.0 if no_weight else 1.0)
    found = run(
        lambda p: LARS(p, 1.0, 0.9, 0.02, 0.4, nesterov, momentum_convention="out", eps=1e-8, larc=mode),
        weights, lambda t: grads[t], RATES,
    )  # fmt: skip
    sides: list[bool] = []
    for i, w in enumerate(weights):
        expected, clipped = larc_reference(w, [step[i] for step in grads], RATES, **options)
        np.testing.assert_allclose(found[i], expected, rtol=1e-12, atol=1e-13)
        sides += clipped
    assert any(sides) and (no_weight or not all(sides)), "the test must meet both sides of the clip"


@pytest.mark.parametrize("convention", ["in", "out"])
def test_larcs_clip_at_a_rate_of_zero_moves_nothing(convention: str) -> None:
    found = run(lambda p: LARS(p, 1.0, momentum_convention=convention, larc="clip"), WEIGHTS, lambda t: GRADS[t], [0.0])
    for before, after in zip(WEIGHTS, found, strict=True):
        np.testing.assert_array_equal(before, after)


# --- properties ---

BOTH = pytest.mark.parametrize(
    "optimizer_of",
    [
        lambda params, **options: LARS(params, **{"lr": 0.5, "weight_decay": 0.01, **options}),
        lambda params, **options: LAMB(params, **{"lr": 0.05, "pre_normalise": True, **options}),
    ],
    ids=["lars", "lamb"],
)


@BOTH
@pytest.mark.parametrize("elements", [1, 40])
def test_a_thousand_parameters_move_alike_in_buckets_of_any_size(optimizer_of, elements: int, monkeypatch) -> None:
    shapes = [(1 + i % 7, 1 + i % 3) for i in range(1000)]
    given = make_arrays(shapes, 1), lambda t: make_arrays(shapes, t), RATES[:2]
    whole = run(optimizer_of, *given)
    monkeypatch.setattr(layerwise, "CPU_BUCKET_ELEMENTS", elements)
    for a, b in zip(whole, run(optimizer_of, *given), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14)


# --- torch.compile ---


def _with_and_without_ratio(params: list[nn.Parameter]) -> list[dict[str, Any]]:
    return [{"params": params[:2]}, {"params": params[2:], "trust_ratio": False}]


@BOTH
def test_a_compiled_step_is_compiled_once_whatever_lr_and_step_number(optimizer_of) -> None:
    torch._dynamo.reset()
    eager, compiled = ([nn.Parameter(torch.tensor(w).float()) for w in WEIGHTS] for _ in range(2))
    first = optimizer_of(_with_and_without_ratio(eager))
    second = optimizer_of(_with_and_without_ratio(compiled), lr=torch.tensor(0.1))
    compilations = []

    def backend(graph, inputs):
        compilations.append(graph)
        return graph.forward

    def step():
        second.step()

    run = torch.compile(step, backend=backend)
    counts = []
    for t, lr in enumerate(RATES):
        for one, other in zip(first.param_groups, second.param_groups, strict=True):
            one["lr"] = 0.1 * lr
            other["lr"].fill_(0.1 * lr)
        for ps in (eager, compiled):
            for p, g in zip(ps, GRADS[t], strict=True):
                if p.grad is None:
                    p.grad = torch.tensor(g).float()
                else:
                    p.grad.copy_(torch.tensor(g))
        first.step()
        run()
        counts.append(len(compilations))
    for a, b in zip(eager, compiled, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert counts[1] >= 1, "nothing was compiled"
    assert counts[1] == counts[-1], f"compiled anew at later steps: {counts}"  # state exists from step 2 on


# --- devices ---


@pytest.mark.parametrize("optimizer_of", [lambda p: LARS(p, 0.5, weight_decay=0.01), lambda p: LAMB(p, 0.05)])
def test_parameters_of_one_group_on_two_devices_step_as_if_alone(optimizer_of) -> None:
    """Every other one is on torch's device without memory, from which nothing can be copied.

    So LAMB does not normalise here: the global norm is a sum over devices.
    """
    alone = run(optimizer_of, WEIGHTS, lambda t: GRADS[t], RATES)
    here = [nn.Parameter(torch.tensor(w)) for w in WEIGHTS]
    there = [nn.Parameter(torch.empty_like(p, device="meta")) for p in here]
    optimizer = optimizer_of([p for pair in zip(here, there, strict=True) for p in pair])
    for t, lr in enumerate(RATES):
        optimizer.param_groups[0]["lr"] = lr
        for p, q, g in zip(here, there, GRADS[t], strict=True):
            p.grad, q.grad = torch.tensor(g), torch.empty_like(q)
        optimizer.step()
    for p, q, expected in zip(here, there, alone, strict=True):
        np.testing.assert_array_equal(p.detach().numpy(), expected)
        assert q.device.type == "meta" and {v.device.type for v in optimizer.state[q].values()} <= {"meta", "cpu"}


# --- CUDA graphs ---


@BOTH
@pytest.mark.gpu
def test_a_step_replayed_from_a_cuda_graph_follows_rate_and_gradients(optimizer_of) -> None:
    eager, captured = ([nn.Parameter(torch.tensor(w).float().cuda()) for w in WEIGHTS] for _ in range(2))
    first = optimizer_of(eager)
    second = optimizer_of(captured, lr=torch.tensor(0.1, device="cuda"))
    grads = [torch.empty_like(p) for p in captured]
    for p, g in zip(captured, grads, strict=True):
        p.grad = g
    graph = None
    for t, lr in enumerate(RATES):
        first.param_groups[0]["lr"] = 0.1 * lr
        second.param_groups[0]["lr"].fill_(0.1 * lr)
        for p, g, array in zip(eager, grads, GRADS[t], strict=True):
            p.grad = torch.tensor(array).float().cuda()
            g.copy_(p.grad)
        first.step()
        if t == 0:  # the first step makes the state, on a stream of its own as torch asks
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                second.step()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                second.step()  # recorded, not run
        else:
            graph.replay()
    for a, b in zip(eager, captured, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


# --- what is refused ---


@BOTH
def test_parameters_that_are_sharded_in_other_ways_are_refused_with_the_way_out(optimizer_of) -> None:
    dist = pytest.importorskip("torch.distributed")
    tensor = pytest.importorskip("torch.distributed.tensor")
    store = dist.HashStore()
    dist.init_process_group("gloo", rank=0, world_size=1, store=store)
    try:
        mesh = dist.device_mesh.init_device_mesh("cpu", (1, 1))
        sharded = nn.Parameter(tensor.distribute_tensor(torch.ones(4, 2), mesh, [tensor.Shard(0), tensor.Shard(1)]))
        optimizer = optimizer_of([nn.Parameter(torch.ones(2))])
        with pytest.raises(ValueError, match=r"that are whole, or.*got a DTensor of shape \(4, 2\).*Distributed"):
            optimizer.add_param_group({"params": [sharded]})
        assert len(optimizer.param_groups) == 1
    finally:
        dist.destroy_process_group()
    flat = nn.Parameter(torch.ones(4))
    flat._is_flat_param = True  # type: ignore[attr-defined]  # what FSDP marks its own with
    with pytest.raises(ValueError, match="sharded"):
        optimizer_of([flat])
