"""LARS, LAMB and their groups against float64 formulas written out here."""

import copy
import io
import math

import numpy as np
import pytest
import torch
import torchvision
from torch import nn

from bigbatch.train_loop.config import OptimizerConfig
from bigbatch.train_loop.optim import (
    LAMB,
    LARS,
    build_optimizer,
    parameter_groups,
    set_learning_rate,
)

SHAPES = [(4, 3, 3, 3), (7, 5), (6,), ()]
WARMUP = [0.5, 1.0, 1.5, 2.0, 1.0, 0.25]


def make_arrays(shapes, seed, scale=1.0):
    rng = np.random.default_rng(seed)
    return [scale * rng.standard_normal(shape) for shape in shapes]


def run(optimizer_of, weights, grads_of, rates, dtype=torch.float64):
    """Step through ``rates``; ``grads_of(t)`` gives the arrays of step t. Returns arrays."""
    params = [nn.Parameter(torch.tensor(w, dtype=dtype)) for w in weights]
    optimizer = optimizer_of(params)
    for t, lr in enumerate(rates):
        for group in optimizer.param_groups:
            group["lr"] = lr
        for p, g in zip(params, grads_of(t), strict=True):
            p.grad = torch.tensor(g, dtype=dtype)
        optimizer.step()
    return [p.detach().double().numpy() for p in params]


def lars_reference(
    w, grads, rates, *, m, wd, eta, eps=0.0, nesterov=False, convention="in", trust_ratio=True, maximize=False
):
    """You et al. 2017, Alg. 1, one tensor, float64."""
    w, b = np.array(w, dtype=np.float64), np.zeros_like(w, dtype=np.float64)
    for g, lr in zip(grads, rates, strict=True):
        g = -g if maximize else g
        w_norm, g_norm = math.sqrt((w * w).sum()), math.sqrt((g * g).sum())
        r = 1.0
        if trust_ratio and w_norm > 0 and g_norm > 0:
            r = eta * w_norm / (g_norm + wd * w_norm + eps)
        d = r * (g + wd * w)
        if convention == "in":
            b = m * b + lr * d
            w = w - ((lr * d + m * b) if nesterov else b)
        else:
            b = m * b + d
            w = w - lr * ((d + m * b) if nesterov else b)
    return w


def lamb_reference(w, grads, rates, *, betas, eps, wd, bias_correction=True, trust_ratio=True, maximize=False):
    """You et al. 2020, Alg. 2, one tensor, float64."""
    w = np.array(w, dtype=np.float64)
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, (g, lr) in enumerate(zip(grads, rates, strict=True), start=1):
        g = -g if maximize else g
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        c1, c2 = (1 - betas[0] ** t, 1 - betas[1] ** t) if bias_correction else (1.0, 1.0)
        u = (m / c1) / (np.sqrt(v / c2) + eps) + wd * w
        w_norm, u_norm = math.sqrt((w * w).sum()), math.sqrt((u * u).sum())
        r = w_norm / u_norm if trust_ratio and w_norm > 0 and u_norm > 0 else 1.0
        w = w - lr * r * u
    return w


def check_against(reference, optimizer_of, rates, **options):
    weights = make_arrays(SHAPES, seed=1)
    steps = [make_arrays(SHAPES, seed=10 + t, scale=0.3) for t in range(len(rates))]
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 2e-5)):
        found = run(optimizer_of, weights, lambda t: steps[t], rates, dtype)
        for i, w in enumerate(weights):
            expected = reference(w, [s[i] for s in steps], rates, **options)
            np.testing.assert_allclose(found[i], expected, rtol=tolerance, atol=tolerance)


# --- the formulas ---


@pytest.mark.parametrize("convention", ["in", "out"])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("trust_ratio", [False, True])
@pytest.mark.parametrize(("m", "wd", "eps"), [(0.9, 0.02, 0.0), (0.5, 0.0, 0.1), (0.0, 0.1, 1e-3)])
def test_lars_takes_the_papers_steps_under_warmup_and_decay(convention, nesterov, trust_ratio, m, wd, eps):
    def optimizer_of(params):
        groups = [{"params": params, "trust_ratio": trust_ratio}]
        return LARS(groups, 1.0, m, wd, 0.05, nesterov, momentum_convention=convention, eps=eps)

    options = {
        "m": m,
        "wd": wd,
        "eta": 0.05,
        "eps": eps,
        "nesterov": nesterov,
        "convention": convention,
        "trust_ratio": trust_ratio,
    }
    rates = [r if trust_ratio else 0.1 * r for r in WARMUP]
    check_against(lars_reference, optimizer_of, rates, **options)


@pytest.mark.parametrize("trust_ratio", [False, True])
@pytest.mark.parametrize("bias_correction", [False, True])
@pytest.mark.parametrize(("betas", "eps", "wd"), [((0.9, 0.999), 1e-6, 0.01), ((0.8, 0.95), 0.1, 0.0)])
def test_lamb_takes_the_papers_steps_under_warmup_and_decay(trust_ratio, bias_correction, betas, eps, wd):
    def optimizer_of(params):
        return LAMB([{"params": params, "trust_ratio": trust_ratio}], 1.0, betas, eps, wd, bias_correction)

    options = {"betas": betas, "eps": eps, "wd": wd, "bias_correction": bias_correction, "trust_ratio": trust_ratio}
    check_against(lamb_reference, optimizer_of, [0.02 * r for r in WARMUP], **options)


def test_maximize_ascends():
    check_against(
        lars_reference,
        lambda params: LARS(params, 1.0, 0.9, 0.02, 0.05, maximize=True),
        WARMUP,
        m=0.9,
        wd=0.02,
        eta=0.05,
        maximize=True,
    )
    check_against(
        lamb_reference,
        lambda params: LAMB(params, maximize=True),
        [0.02 * r for r in WARMUP],
        betas=(0.9, 0.999),
        eps=1e-6,
        wd=0.01,
        maximize=True,
    )


@pytest.mark.parametrize("nesterov", [False, True])
def test_lars_conventions_agree_at_a_constant_rate_and_differ_under_warmup(nesterov):
    weights = make_arrays(SHAPES, seed=1)

    def weights_after(convention, rates):
        return run(
            lambda params: LARS(params, 1.0, 0.9, 0.01, 0.05, nesterov, momentum_convention=convention),
            weights,
            lambda t: make_arrays(SHAPES, seed=t + 20),
            rates,
        )

    for inside, outside in zip(weights_after("in", [0.7] * 6), weights_after("out", [0.7] * 6), strict=True):
        np.testing.assert_allclose(inside, outside, rtol=1e-12)
    gaps = [
        np.abs(inside - outside).max()
        for inside, outside in zip(weights_after("in", WARMUP), weights_after("out", WARMUP), strict=True)
    ]
    assert min(gaps) > 1e-3


@pytest.mark.parametrize("nesterov", [False, True])
def test_without_trust_ratio_lars_out_is_torch_sgd_and_lamb_is_torch_adamw(nesterov):
    weights, rates = make_arrays(SHAPES, seed=1), [0.1 * r for r in WARMUP]

    def run_with(optimizer_of):
        return run(optimizer_of, weights, lambda t: make_arrays(SHAPES, seed=t + 20), rates)

    options = {"lr": 1.0, "momentum": 0.9, "weight_decay": 0.03, "nesterov": nesterov}
    pairs = [
        (
            run_with(lambda params: LARS(params, **options, momentum_convention="out", trust_ratio=False)),
            run_with(lambda params: torch.optim.SGD(params, **options)),
        ),
        (
            run_with(lambda params: LAMB(params, weight_decay=0.03, eps=1e-8, trust_ratio=False)),
            run_with(lambda params: torch.optim.AdamW(params, weight_decay=0.03, eps=1e-8)),
        ),
    ]
    for ours, theirs in pairs:
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)


# --- norms of zero, scale ---


@pytest.mark.parametrize("convention", ["in", "out"])
def test_lars_uses_ratio_one_where_a_norm_is_zero(convention):
    zeros, ones = np.zeros(4), np.ones(4)
    new = run(
        lambda params: LARS(params, 1.0, 0.0, 0.5, 0.001, momentum_convention=convention),
        [zeros, ones, zeros],
        lambda t: [ones, zeros, zeros],
        [0.1],
    )
    np.testing.assert_allclose(new[0], -0.1 * ones)  # ‖w‖ = 0: w − lr·g
    np.testing.assert_allclose(new[1], (1 - 0.1 * 0.5) * ones)  # ‖g‖ = 0: decay alone, unscaled
    np.testing.assert_array_equal(new[2], zeros)


def test_lamb_uses_ratio_one_where_a_norm_is_zero():
    zeros, ones = np.zeros(4), np.ones(4)
    new = run(
        lambda params: LAMB(params, weight_decay=0.0), [zeros, 3 * ones, zeros], lambda t: [ones, zeros, zeros], [0.1]
    )
    np.testing.assert_allclose(new[0], -0.1 * ones, rtol=1e-5)  # first Adam step has size lr
    np.testing.assert_array_equal(new[1], 3 * ones)  # u = 0
    np.testing.assert_array_equal(new[2], zeros)


def test_lars_step_does_not_depend_on_the_gradients_scale_without_decay():
    weights, grads = make_arrays(SHAPES, seed=1), make_arrays(SHAPES, seed=2)

    def step_with(scale):
        return run(lambda params: LARS(params, 1.0), weights, lambda t: [scale * g for g in grads], WARMUP)

    for small, large in zip(step_with(1e-6), step_with(1e5), strict=True):
        np.testing.assert_allclose(small, large, rtol=1e-12)


def test_first_step_of_a_layer_moves_it_by_lr_times_the_papers_part_of_its_norm():
    w, g = make_arrays([(5, 4), (5, 4)], seed=3)
    (lars,) = run(lambda params: LARS(params, 1.0, trust_coefficient=0.02), [w], lambda t: [g], [3.0])
    assert np.linalg.norm(lars - w) == pytest.approx(3.0 * 0.02 * np.linalg.norm(w))
    (lamb,) = run(lambda params: LAMB(params), [w], lambda t: [g], [0.05])
    assert np.linalg.norm(lamb - w) == pytest.approx(0.05 * np.linalg.norm(w))


def test_lamb_uses_the_ratio_without_decay_where_the_flag_says_so():
    w, g = make_arrays([(5, 4), (5, 4)], seed=3)
    sizes = []
    for flag in (True, False):
        (new,) = run(lambda p, on=flag: LAMB(p, weight_decay=0.0, trust_ratio=on), [w], lambda t: [g], [0.05])
        sizes.append(np.linalg.norm(new - w))
    assert sizes[0] == pytest.approx(0.05 * np.linalg.norm(w))
    assert sizes[1] == pytest.approx(0.05 * math.sqrt(20), rel=1e-4)  # every element moves by lr


# --- behaviour as a torch optimizer, for both ---

BOTH = pytest.mark.parametrize(
    "optimizer_of",
    [
        lambda params, **options: LARS(params, **{"lr": 0.5, "weight_decay": 0.01, **options}),
        lambda params, **options: LAMB(params, **{"lr": 0.05, **options}),
    ],
    ids=["lars", "lamb"],
)


def make_params(dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]


def set_grads(params, seed):
    generator = torch.Generator().manual_seed(seed)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)


@BOTH
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_left_unchanged(optimizer_of, maximize, dtype):
    params = make_params(dtype)
    optimizer = optimizer_of([{"params": params[:2]}, {"params": params[2:], "trust_ratio": False}], maximize=maximize)
    for seed in range(3):
        set_grads(params, seed)
        before = [(p.grad, p.grad.clone()) for p in params]
        optimizer.step()
        for p, (grad, values) in zip(params, before, strict=True):
            assert p.grad is grad
            assert torch.equal(grad, values)


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_parameters_have_float32_state_and_are_rounded_once_a_step(optimizer_of, dtype):
    narrow = make_params(dtype)
    wide = [nn.Parameter(p.detach().float()) for p in narrow]
    optimizers = [optimizer_of(narrow), optimizer_of(wide)]
    for seed in range(5):
        set_grads(narrow, seed)
        for p, w in zip(narrow, wide, strict=True):
            w.grad = p.grad.float()
        for optimizer in optimizers:
            optimizer.step()
        for p, w in zip(narrow, wide, strict=True):
            assert p.dtype == dtype
            assert torch.equal(p, w.to(dtype))
            w.data.copy_(p.data)  # go on from the rounded weights
    for p in narrow:
        tensors = [value for value in optimizers[0].state[p].values() if torch.is_tensor(value)]
        assert tensors and all(value.dtype == torch.float32 for value in tensors)


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("through_file", [False, True])
def test_state_dict_round_trip_continues_bit_for_bit(optimizer_of, dtype, through_file):
    params = make_params(dtype)
    optimizer = optimizer_of(params)
    for seed in range(3):
        set_grads(params, seed)
        optimizer.step()
    saved = optimizer.state_dict()
    if through_file:
        file = io.BytesIO()
        torch.save(saved, file)
        file.seek(0)
        saved = torch.load(file, weights_only=True)
    other_params = [nn.Parameter(p.detach().clone()) for p in params]
    other = optimizer_of(other_params, lr=0.123, maximize=True)
    other.load_state_dict(saved)
    assert other.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
    for p, q in zip(params, other_params, strict=True):
        for name, value in optimizer.state[p].items():
            loaded = other.state[q][name]
            if torch.is_tensor(value):
                assert loaded.dtype == value.dtype and torch.equal(loaded, value)
                assert loaded.data_ptr() != value.data_ptr()
            else:
                assert loaded == value
    for seed in range(3, 6):
        for ps, opt in ((params, optimizer), (other_params, other)):
            set_grads(ps, seed)
            opt.step()
        assert all(torch.equal(p, q) for p, q in zip(params, other_params, strict=True))


@BOTH
def test_loading_sees_what_the_users_hooks_made_of_the_state(optimizer_of):
    params = make_params()
    optimizer = optimizer_of(params)
    set_grads(params, 0)
    optimizer.step()
    other = optimizer_of(params)
    other.register_load_state_dict_pre_hook(lambda _, values: {**values, "state": {}})
    other.load_state_dict(optimizer.state_dict())
    assert not any(other.state.values())
    assert len(other._optimizer_load_state_dict_pre_hooks) == 1  # ours is gone again


@BOTH
def test_many_parameters_move_as_each_would_alone(optimizer_of):
    together = make_params()
    alone = [nn.Parameter(p.detach().clone()) for p in together]
    optimizers = [optimizer_of(together), *(optimizer_of([p]) for p in alone)]
    for seed in range(4):
        set_grads(together, seed)
        for p, q in zip(together, alone, strict=True):
            q.grad = p.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(together, alone, strict=True))


@BOTH
def test_mixed_dtypes_in_one_group_and_parameters_without_gradient(optimizer_of):
    params = [*make_params(torch.float32), *make_params(torch.bfloat16), *make_params(torch.float64)]
    alone = [nn.Parameter(p.detach().clone()) for p in params]
    set_grads(params, 1)
    params[1].grad = None
    for p, q in zip(params, alone, strict=True):
        q.grad = None if p.grad is None else p.grad.clone()
    optimizer = optimizer_of(params)
    optimizer.step()
    for q in alone:
        optimizer_of([q]).step()
    assert all(torch.equal(p, q) for p, q in zip(params, alone, strict=True))
    assert params[1] not in optimizer.state
    assert optimizer.state[params[-1]] and all(
        value.dtype == torch.float64
        for name, value in optimizer.state[params[-1]].items()
        if name != "step"  # a count
    )


def test_lamb_corrects_bias_by_each_parameters_own_step_count():
    w, g = make_arrays([(3, 3), (3, 3)], seed=5)
    late, early = (nn.Parameter(torch.tensor(w)) for _ in range(2))
    optimizer = LAMB([late, early], lr=0.1)
    for t in range(3):
        late.grad = torch.tensor(g) if t == 2 else None  # unfrozen for the third step
        early.grad = torch.tensor(g)
        optimizer.step()
    options = {"betas": (0.9, 0.999), "eps": 1e-6, "wd": 0.01}
    np.testing.assert_allclose(late.detach().numpy(), lamb_reference(w, [g], [0.1], **options), rtol=1e-12)
    np.testing.assert_allclose(early.detach().numpy(), lamb_reference(w, [g] * 3, [0.1] * 3, **options), rtol=1e-12)


@BOTH
def test_channels_last_and_empty_tensors(optimizer_of):
    first = nn.Parameter(torch.randn(8, 4, 3, 3, generator=torch.Generator().manual_seed(0)))
    second = nn.Parameter(first.detach().clone().to(memory_format=torch.channels_last))
    empty = nn.Parameter(torch.empty(0, 3))
    optimizer = optimizer_of([first, second, empty])
    for seed in range(3):
        set_grads([first, empty], seed)
        second.grad = first.grad.clone().to(memory_format=torch.channels_last)
        optimizer.step()
    torch.testing.assert_close(first, second)
    assert second.is_contiguous(memory_format=torch.channels_last)


@BOTH
def test_closure_is_run_with_gradients_and_its_loss_returned(optimizer_of):
    p = nn.Parameter(torch.tensor([3.0, -4.0]))
    optimizer = optimizer_of([p])

    def closure():
        optimizer.zero_grad(set_to_none=True)
        loss = (p * p).sum()
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(3)]
    assert losses[0] == 25.0
    assert losses == sorted(losses, reverse=True) and losses[2] < losses[0]
    optimizer.zero_grad(set_to_none=True)
    assert p.grad is None
    before = p.detach().clone()
    assert optimizer.step() is None
    assert torch.equal(p, before)


@BOTH
def test_lr_as_a_tensor_equals_lr_as_a_number(optimizer_of):
    for options in ({}, {"trust_ratio": False}):
        numbers, tensors = make_params(), make_params()
        by_number = optimizer_of(numbers, lr=0.3, **options)
        by_tensor = optimizer_of(tensors, lr=torch.tensor(0.3), **options)
        for t, lr in enumerate(WARMUP):
            by_number.param_groups[0]["lr"] = 0.1 * lr
            by_tensor.param_groups[0]["lr"].fill_(0.1 * lr)
            for ps, optimizer in ((numbers, by_number), (tensors, by_tensor)):
                set_grads(ps, t)
                optimizer.step()
        for a, b in zip(numbers, tensors, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@BOTH
def test_a_step_reads_nothing_back_to_the_host(optimizer_of, monkeypatch):
    params = make_params()
    optimizer = optimizer_of([{"params": params[:2]}, {"params": params[2:], "trust_ratio": False}])

    counts: set[int] = set()  # step numbers that are on the CPU by design
    read = torch.Tensor.item

    def refuse(tensor, *_):
        raise AssertionError("a tensor was read by the host")

    def item(tensor):
        counts.update(id(state["step"]) for state in optimizer.state.values() if "step" in state)
        return read(tensor) if id(tensor) in counts and tensor.device.type == "cpu" else refuse(tensor)

    monkeypatch.setattr(torch.Tensor, "item", item)
    for name in ("tolist", "__float__", "__bool__", "__int__", "cpu", "numpy"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    for seed in range(2):
        set_grads(params, seed)
        optimizer.step()


@BOTH
@pytest.mark.gpu
def test_a_step_on_cuda_does_not_synchronise(optimizer_of):
    params = [nn.Parameter(p.detach().cuda()) for p in make_params()]
    optimizer = optimizer_of([{"params": params[:2]}, {"params": params[2:], "trust_ratio": False}])
    for p in params:
        p.grad = torch.ones_like(p)
    torch.cuda.set_sync_debug_mode("error")
    try:
        optimizer.step()
        optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@BOTH
def test_gradient_scaler_and_clipping(optimizer_of):
    scaled, plain = make_params(), make_params()
    optimizers = [optimizer_of(scaled), optimizer_of(plain)]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for seed in range(3):
        set_grads(plain, seed)
        for p, q in zip(scaled, plain, strict=True):
            p.grad = q.grad * 1024.0
        scaler.scale(torch.ones(()))  # the scaler creates its scale on first use
        scaler.unscale_(optimizers[0])
        for params in (scaled, plain):
            nn.utils.clip_grad_norm_(params, 1.0)
        scaler.step(optimizers[0])
        scaler.update(1024.0)
        optimizers[1].step()
        assert all(torch.equal(p, q) for p, q in zip(scaled, plain, strict=True))
    before = copy.deepcopy(optimizers[0].state_dict()["state"])
    scaled[0].grad.fill_(math.inf)
    scaler.step(optimizers[0])
    assert all(torch.equal(p, q) for p, q in zip(scaled, plain, strict=True))
    assert str(before) == str(optimizers[0].state_dict()["state"])


@BOTH
def test_torch_schedulers_accept_it(optimizer_of):
    params = make_params()
    optimizer = optimizer_of(params, lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
    set_grads(params, 0)
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.5


@BOTH
def test_sparse_gradients_are_refused_before_anything_changes(optimizer_of):
    dense, embedding = nn.Parameter(torch.ones(3)), nn.Embedding(5, 2, sparse=True)
    dense.grad = torch.ones(3)
    embedding(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(RuntimeError, match="dense gradients.*sparse_coo.*sparse=False"):
        optimizer_of([dense, embedding.weight]).step()
    assert torch.equal(dense, torch.ones(3))


@BOTH
def test_complex_parameters_are_refused(optimizer_of):
    optimizer = optimizer_of(make_params())
    with pytest.raises(ValueError, match="real parameters; got one of torch.complex64"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2, dtype=torch.complex64))]})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize(
    ("optimizer", "options", "message"),
    [
        (LARS, {"lr": -0.25}, "lr .*got -0.25"),
        (LARS, {"lr": math.nan}, "lr .*got nan"),
        (LARS, {"lr": torch.ones(2)}, r"lr as a tensor must have one element; got \(2,\)"),
        (LARS, {"momentum": 1.0}, "momentum .*got 1.0"),
        (LARS, {"weight_decay": -1e-4}, "weight_decay .*got -0.0001"),
        (LARS, {"trust_coefficient": 0.0}, "trust_coefficient .*got 0.0"),
        (LARS, {"momentum_convention": "inside"}, "momentum_convention .*got 'inside'"),
        (LARS, {"eps": math.inf}, "eps .*got inf"),
        (LAMB, {"lr": -1.0}, "lr .*got -1.0"),
        (LAMB, {"betas": (0.9, 1.0)}, r"betas .*got \(0.9, 1.0\)"),
        (LAMB, {"betas": (0.9,)}, r"betas .*got \(0.9,\)"),
        (LAMB, {"eps": -1e-9}, "eps .*got -1e-09"),
        (LAMB, {"weight_decay": math.nan}, "weight_decay .*got nan"),
    ],
)
def test_bad_values_are_refused_and_echoed(optimizer, options, message):
    params = [nn.Parameter(torch.ones(2))]
    with pytest.raises(ValueError, match=message):
        optimizer(params, **{"lr": 0.1, **options})
    with pytest.raises(ValueError, match=message):
        optimizer([{"params": params, **options}], lr=0.1)
    good = optimizer(params, lr=0.1)
    with pytest.raises(ValueError, match=message):
        good.add_param_group({"params": [nn.Parameter(torch.ones(2))], **options})
    assert len(good.param_groups) == 1


# --- parameter groups ---


def names_of(model, group):
    by_id = {id(p): name for name, p in model.named_parameters()}
    return {by_id[id(p)] for p in group["params"]}


def test_resnet18_groups():
    model = torchvision.models.resnet18()
    decay, no_decay = parameter_groups(model, 0.02)
    assert (decay["weight_decay"], decay["trust_ratio"]) == (0.02, True)
    assert (no_decay["weight_decay"], no_decay["trust_ratio"]) == (0.0, False)
    # 20 convolutions (1 + 4·4 + 3 downsampling) and fc.weight; 20 BatchNorms of 2 and fc.bias.
    assert (len(decay["params"]), len(no_decay["params"])) == (21, 41)
    assert names_of(model, decay) | names_of(model, no_decay) == {name for name, _ in model.named_parameters()}
    assert {"layer2.0.downsample.1.weight", "layer4.0.downsample.1.bias", "fc.bias"} <= names_of(model, no_decay)
    assert {"layer2.0.downsample.0.weight", "conv1.weight", "fc.weight"} <= names_of(model, decay)


class Odd(nn.Module):
    """Names that lie, a norm with matrices, shared and frozen parameters."""

    def __init__(self):
        super().__init__()
        self.bn_looking = nn.Linear(4, 4)
        self.plain = nn.LayerNorm((3, 4))
        self.instance = nn.InstanceNorm2d(4, affine=True)
        self.group = nn.GroupNorm(2, 4)
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.bn_looking.weight
        self.frozen = nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(()))
        self.table = nn.Parameter(torch.ones(2, 2))


def test_groups_go_by_type_and_shape_and_take_each_parameter_once():
    model = Odd()
    decay, no_decay = parameter_groups(model, 0.1)
    assert names_of(model, decay) == {"bn_looking.weight", "table"}
    assert len(decay["params"]) == 2
    assert names_of(model, no_decay) == {
        "bn_looking.bias",
        "scale",
        *(f"{layer}.{kind}" for layer in ("plain", "instance", "group") for kind in ("weight", "bias")),
    }
    assert len(no_decay["params"]) == 8


def test_a_scale_of_each_channel_has_no_decay_and_no_trust_ratio():
    """ConvNeXt's ``layer_scale`` is ``[C, 1, 1]``; weights of layers are matrices, also where they have that shape."""
    with torch.device("meta"):
        model = torchvision.models.convnext_tiny()
    decay, no_decay = parameter_groups(model, 0.1)
    scales = {name for name, _ in model.named_parameters() if name.endswith("layer_scale")}
    assert len(scales) == 18 and scales <= names_of(model, no_decay)
    kinds = {name.rsplit(".", 1)[1] for name in names_of(model, no_decay)}
    assert kinds == {"layer_scale", "weight", "bias"}
    weights = {name for name in names_of(model, no_decay) if name.endswith(".weight")}
    assert all(
        model.get_submodule(name[: -len(".weight")]).__class__.__name__.startswith("LayerNorm") for name in weights
    )
    assert {p.ndim for p in decay["params"]} == {2, 4}

    matrices = nn.Sequential(nn.Conv2d(1, 6, 1, bias=False), nn.Linear(1, 5, bias=False), nn.Embedding(3, 1))
    (only,) = parameter_groups(matrices, 0.1)
    assert only["trust_ratio"] and len(only["params"]) == 3
    with torch.device("meta"):
        vit = torchvision.models.vit_b_16()
    assert {"class_token", "encoder.pos_embedding"} <= names_of(vit, parameter_groups(vit, 0.1)[0])


def test_empty_groups_are_left_out():
    (only,) = parameter_groups(nn.Linear(2, 2, bias=False), 0.1)
    assert only["weight_decay"] == 0.1
    assert parameter_groups(nn.ReLU(), 0.1) == []
    with pytest.raises(ValueError, match="trainable parameters; got none in ReLU"):
        build_optimizer(nn.ReLU(), OptimizerConfig())


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("sgd", torch.optim.SGD, {"momentum": 0.8, "nesterov": True, "fused": True}),
        ("adamw", torch.optim.AdamW, {"betas": (0.7, 0.97), "eps": 1e-4, "fused": True}),
        ("lamb", LAMB, {"betas": (0.7, 0.97), "eps": 1e-4, "bias_correction": True}),
        (
            "lars",
            LARS,
            {"momentum": 0.8, "nesterov": True, "trust_coefficient": 0.02, "momentum_convention": "out", "eps": 1e-5},
        ),
    ],
)
def test_build_optimizer_follows_the_configuration(name, kind, expected):
    config = OptimizerConfig(
        name=name,
        peak_lr=0.7,
        momentum=0.8,
        nesterov=True,
        beta1=0.7,
        beta2=0.97,
        eps=1e-4,
        weight_decay=0.03,
        trust_coefficient=0.02,
        lars_momentum="out",
        lars_eps=1e-5,
    )
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    optimizer = build_optimizer(model, config)
    assert type(optimizer) is kind
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.03, 0.0]
    for group in optimizer.param_groups:
        assert group["lr"] == 0.7
        assert {key: group[key] for key in expected} == expected
    flags = [group.get("trust_ratio") for group in optimizer.param_groups]
    assert flags == ([True, False] if name in ("lars", "lamb") else [None, None])
    model(torch.randn(2, 3, 5, 5)).square().sum().backward()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    assert all(not torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True) if p.grad.any())


def test_the_group_without_decay_may_have_a_rate_of_its_own():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    optimizer = build_optimizer(model, OptimizerConfig(peak_lr=0.5, no_decay_lr_factor=0.1))
    set_learning_rate(optimizer, 0.4)
    assert [group["lr"] for group in optimizer.param_groups] == [0.4, pytest.approx(0.04)]
    old = torch.optim.SGD(model.parameters(), lr=1.0)  # as a checkpoint without the factor leaves it
    set_learning_rate(old, 0.4)
    assert old.param_groups[0]["lr"] == 0.4


def test_every_configured_lars_can_be_built():
    model = nn.Linear(2, 2)
    build_optimizer(model, OptimizerConfig(name="lars", momentum=0.0, nesterov=True))
