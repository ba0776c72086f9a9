"""LARC, LAMB's variants, compiled steps, sharded parameters: against float64 formulas written out here."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from bigbatch.train_loop.optim import LAMB, LARS, layerwise

pytestmark = pytest.mark.usefixtures("each_way")

SHAPES = [(4, 3, 3, 3), (7, 5), (6,), ()]
RATES = [0.5, 1.0, 1.5, 2.0, 1.0, 0.25]


def arrays(seed: int, scale: float = 1.0, shapes: list[tuple[int, ...]] = SHAPES) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [scale * rng.standard_normal(shape) for shape in shapes]


def step_through(optimizer_of, weights, rates, grads_of):
    """The weights after a step at each of ``rates``, float64; ``grads_of(t)`` are the arrays of step t."""
    params = [nn.Parameter(torch.tensor(w)) for w in weights]
    optimizer = optimizer_of(params)
    for t, lr in enumerate(rates):
        for group in optimizer.param_groups:
            group["lr"] = lr
        for p, g in zip(params, grads_of(t), strict=True):
            p.grad = torch.tensor(g)
        optimizer.step()
    return [p.detach().numpy() for p in params]


def norm(x: np.ndarray) -> float:
    return math.sqrt(float((x * x).sum()))


# --- LARC: apex/parallel/LARC.py around SGD ---


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("mode", ["clip", "trust"])
@pytest.mark.parametrize(("no_weight", "no_gradient"), [(False, False), (True, False), (False, True)])
def test_larc_is_apexs_around_sgd(mode: str, nesterov: bool, no_weight: bool, no_gradient: bool) -> None:
    eta, wd, m, eps = 0.4, 0.02, 0.9, 1e-8

    def apex(w, grads):
        w, b = np.array(w), np.zeros_like(w)
        clipped = []
        for g, lr in zip(grads, RATES, strict=True):
            if norm(w) != 0 and norm(g) != 0:
                adaptive = eta * norm(w) / (norm(g) + norm(w) * wd + eps)
                clipped.append(adaptive > lr)
                if mode == "clip":
                    adaptive = min(adaptive / lr, 1)
                g = (g + wd * w) * adaptive
            b = m * b + g
            w = w - lr * ((g + m * b) if nesterov else b)
        return w, clipped

    def optimizer_of(params):
        return LARS(params, 1.0, m, wd, eta, nesterov, momentum_convention="out", eps=eps, larc=mode)

    def grads_of(t):
        return [0 * g if no_gradient and t % 2 else g for g in arrays(10 + t, 0.3)]

    weights = arrays(1, 0.0 if no_weight else 1.0)
    found = step_through(optimizer_of, weights, RATES, grads_of)
    sides: list[bool] = []
    for i, w in enumerate(weights):
        expected, clipped = apex(w, [grads_of(t)[i] for t in range(len(RATES))])
        np.testing.assert_allclose(found[i], expected, rtol=1e-12, atol=1e-13)
        sides += clipped
    assert any(sides) and (no_weight or not all(sides)), "the test must meet both sides of the clip"


def test_larcs_clip_at_a_rate_of_zero_moves_nothing() -> None:
    for convention in ("in", "out"):
        w = arrays(1)
        found = step_through(
            lambda p, c=convention: LARS(p, 1.0, momentum_convention=c, larc="clip"), w, [0.0], lambda t: arrays(2)
        )
        for before, after in zip(w, found, strict=True):
            np.testing.assert_array_equal(before, after)


# --- LAMB's variants ---

LAMB_RATES = [0.02 * r for r in RATES]


def lamb(w, grads, *, wd, bounds=(0.0, math.inf), decay_in_ratio=True, nvlamb=True, betas=(0.9, 0.999), eps=1e-6):
    """You et al. 2020, Alg. 2, one tensor, float64, with what apex, DeepSpeed and timm change."""
    w, m, v = np.array(w), np.zeros_like(w), np.zeros_like(w)
    for t, (g, lr) in enumerate(zip(grads, LAMB_RATES, strict=True), start=1):
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        u = (m / (1 - betas[0] ** t)) / (np.sqrt(v / (1 - betas[1] ** t)) + eps)
        if decay_in_ratio:
            u = u + wd * w
        else:
            w = w - lr * wd * w
        r = 1.0
        if norm(w) > 0 and norm(u) > 0 and (nvlamb or wd > 0):
            r = min(max(norm(w) / norm(u), bounds[0]), bounds[1])
        w = w - lr * r * u
    return w


@pytest.mark.parametrize(
    ("options", "reference"),
    [
        ({"trust_bounds": (0.9, 1.1)}, {"bounds": (0.9, 1.1)}),
        ({"trust_bounds": (0.0, 1.0)}, {"bounds": (0.0, 1.0)}),
        ({"decay_in_ratio": False}, {"decay_in_ratio": False}),
        ({"nvlamb": False}, {"nvlamb": False}),
        ({"capturable": True}, {}),
        ({"capturable": True, "decay_in_ratio": False}, {"decay_in_ratio": False}),
    ],
)
@pytest.mark.parametrize("wd", [0.0, 0.3])
def test_lambs_variants(options, reference, wd: float) -> None:
    weights = arrays(1)
    grads = [arrays(10 + t, 0.3) for t in range(len(RATES))]
    found = step_through(lambda p: LAMB(p, weight_decay=wd, **options), weights, LAMB_RATES, lambda t: grads[t])
    for i, w in enumerate(weights):
        expected = lamb(w, [g[i] for g in grads], wd=wd, **reference)
        np.testing.assert_allclose(found[i], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bound", [0.5, 1e6])
def test_lamb_clips_the_norm_of_all_groups_gradients_and_leaves_them_unchanged(bound: float) -> None:
    weights, grads = arrays(1), [arrays(10 + t, 0.3) for t in range(len(RATES))]
    seen: list[torch.Tensor] = []

    def optimizer_of(params):
        seen[:] = params
        groups = [{"params": params[:2]}, {"params": params[2:], "trust_ratio": True, "weight_decay": 0.1}]
        return LAMB(groups, weight_decay=0.1, max_grad_norm=bound)

    found = step_through(optimizer_of, weights, LAMB_RATES, lambda t: grads[t])
    totals = [math.sqrt(sum(norm(g) ** 2 for g in step)) for step in grads]
    assert all(total > 0.5 for total in totals)
    for i, w in enumerate(weights):
        scaled = [step[i] * min(1.0, bound / total) for step, total in zip(grads, totals, strict=True)]
        np.testing.assert_allclose(found[i], lamb(w, scaled, wd=0.1), rtol=1e-11, atol=1e-12)
    for p, g in zip(seen, grads[-1], strict=True):
        np.testing.assert_array_equal(p.grad.numpy(), g)


def test_lamb_clips_narrow_and_zero_gradients() -> None:
    params = [nn.Parameter(torch.ones(3, dtype=torch.float16)), nn.Parameter(torch.ones(2))]
    for p in params:
        p.grad = torch.zeros_like(p)
    LAMB(params, weight_decay=0.0, max_grad_norm=1.0).step()
    assert all(torch.equal(p, torch.ones_like(p)) for p in params)
    params[0].grad = torch.full((3,), 4e4, dtype=torch.float16)  # its square overflows fp16
    LAMB(params, lr=0.1, weight_decay=0.0, max_grad_norm=1.0).step()
    assert torch.isfinite(params[0]).all() and (params[0] < 1).all()


# --- properties ---

BOTH = pytest.mark.parametrize(
    "optimizer_of",
    [
        lambda params, **options: LARS(params, **{"lr": 0.5, "weight_decay": 0.01, **options}),
        lambda params, **options: LAMB(params, **{"lr": 0.05, "max_grad_norm": 1.0, **options}),
    ],
    ids=["lars", "lamb"],
)


@BOTH
@pytest.mark.parametrize("elements", [1, 40, 10**9])
def test_a_thousand_parameters_move_alike_in_buckets_of_any_size(optimizer_of, elements: int, monkeypatch) -> None:
    shapes: list[tuple[int, ...]] = [(1 + i % 7, 1 + i % 3) for i in range(1000)]

    def weights():
        return step_through(
            lambda p: optimizer_of(p), arrays(1, 1.0, shapes), RATES[:2], lambda t: arrays(t, 1.0, shapes)
        )

    whole = weights()
    monkeypatch.setattr(layerwise, "CPU_BUCKET_ELEMENTS", elements)
    for a, b in zip(whole, weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14)


@BOTH
def test_an_optimizer_without_gradients_or_with_empty_groups_does_nothing(optimizer_of) -> None:
    p = nn.Parameter(torch.ones(3))
    optimizer = optimizer_of([p])
    optimizer.step()
    assert torch.equal(p, torch.ones(3)) and not optimizer.state


# --- torch.compile ---


@BOTH
@pytest.mark.parametrize("trust_ratio", [True, False])
def test_a_compiled_step_is_compiled_once_whatever_lr_and_step_number(optimizer_of, trust_ratio: bool) -> None:
    torch._dynamo.reset()
    eager, compiled = ([nn.Parameter(torch.tensor(w).float()) for w in arrays(1)] for _ in range(2))
    first = optimizer_of(eager, trust_ratio=trust_ratio)
    second = optimizer_of(compiled, lr=torch.tensor(0.1), trust_ratio=trust_ratio)
    compilations = []

    def backend(graph, inputs):
        compilations.append(graph)
        return graph.forward

    def step():
        second.step()

    run = torch.compile(step, backend=backend)
    counts = []
    for t, lr in enumerate(RATES):
        first.param_groups[0]["lr"] = 0.1 * lr
        second.param_groups[0]["lr"].fill_(0.1 * lr)
        for ps in (eager, compiled):
            for p, g in zip(ps, arrays(10 + t, 0.3), strict=True):
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

    So LAMB does not clip here: the global norm is a sum over devices.
    """
    weights, grads = arrays(1), [arrays(10 + t, 0.3) for t in range(len(RATES))]
    alone = step_through(optimizer_of, weights, RATES, lambda t: grads[t])
    here = [nn.Parameter(torch.tensor(w)) for w in weights]
    there = [nn.Parameter(torch.empty_like(p, device="meta")) for p in here]
    optimizer = optimizer_of([p for pair in zip(here, there, strict=True) for p in pair])
    for t, lr in enumerate(RATES):
        optimizer.param_groups[0]["lr"] = lr
        for p, q, g in zip(here, there, grads[t], strict=True):
            p.grad, q.grad = torch.tensor(g), torch.empty_like(q)
        optimizer.step()
    for p, q, expected in zip(here, there, alone, strict=True):
        np.testing.assert_array_equal(p.detach().numpy(), expected)
        assert q.device.type == "meta" and {v.device.type for v in optimizer.state[q].values()} <= {"meta", "cpu"}


# --- CUDA graphs ---


@BOTH
@pytest.mark.gpu
def test_a_step_replayed_from_a_cuda_graph_follows_rate_and_gradients(optimizer_of) -> None:
    eager, captured = ([nn.Parameter(torch.tensor(w).float().cuda()) for w in arrays(1)] for _ in range(2))
    first = optimizer_of(eager)
    second = optimizer_of(captured, lr=torch.tensor(0.1, device="cuda"))
    if "capturable" in second.defaults:
        second.param_groups[0]["capturable"] = True
    grads = [torch.empty_like(p) for p in captured]
    for p, g in zip(captured, grads, strict=True):
        p.grad = g
    graph = None
    for t, lr in enumerate(RATES):
        first.param_groups[0]["lr"] = 0.1 * lr
        second.param_groups[0]["lr"].fill_(0.1 * lr)
        for p, g, array in zip(eager, grads, arrays(10 + t, 0.3), strict=True):
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trust_bounds": (2.0, 1.0)}, r"trust_bounds .*got \(2.0, 1.0\)"),
        ({"trust_bounds": (-1.0, 1.0)}, "trust_bounds"),
        ({"max_grad_norm": -1.0}, "max_grad_norm .*got -1.0"),
        ({"max_grad_norm": 1.0, "pre_normalise": True}, "max_grad_norm must be 0 with pre_normalise; got 1.0"),
        ({"max_grad_norm": math.nan}, "max_grad_norm .*got nan"),
    ],
)
def test_lambs_bad_values_are_refused(options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LAMB([nn.Parameter(torch.ones(2))], **options)
