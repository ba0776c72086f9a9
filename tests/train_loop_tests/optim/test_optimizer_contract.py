"""LARS and LAMB as any torch optimizer: state, dtypes, closures, scalers, schedulers, refusals."""

import copy
import io
import math

import numpy as np
import pytest
import torch
from torch import nn

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.optim import LAMB, LARS
from helpers.reference_steps import SHAPES, lamb_reference, make_arrays

pytestmark = pytest.mark.usefixtures("each_way")

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
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_left_unchanged(optimizer_of, dtype):
    params = make_params(dtype)
    optimizer = optimizer_of([{"params": params[:2]}, {"params": params[2:], "trust_ratio": False}])
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
    other = optimizer_of(other_params, lr=0.123)
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
def test_a_copy_goes_on_as_the_original(optimizer_of):
    optimizer = optimizer_of(make_params(torch.float32))
    both = optimizer, copy.deepcopy(optimizer)
    for seed in range(3):
        for one in both:
            set_grads(one.param_groups[0]["params"], seed)
            one.step()
    for p, q in zip(*(one.param_groups[0]["params"] for one in both), strict=True):
        assert torch.equal(p, q)


@BOTH
def test_parameters_of_many_dtypes_move_as_each_would_alone_also_without_gradient(optimizer_of):
    params = [*make_params(torch.float32), *make_params(torch.bfloat16), *make_params(torch.float64)]
    alone = [nn.Parameter(p.detach().clone()) for p in params]
    optimizer, others = optimizer_of(params), [optimizer_of([q]) for q in alone]
    for seed in range(4):
        set_grads(params, seed)
        params[1].grad = None
        for p, q in zip(params, alone, strict=True):
            q.grad = None if p.grad is None else p.grad.clone()
        for one in (optimizer, *others):
            one.step()
    assert all(torch.equal(p, q) for p, q in zip(params, alone, strict=True))
    assert params[1] not in optimizer.state
    state = {name: value for name, value in optimizer.state[params[-1]].items() if name != "step"}  # a count
    assert state and all(value.dtype == torch.float64 for value in state.values())


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
@pytest.mark.gpu
def test_a_step_on_cuda_does_not_synchronise(optimizer_of):
    params = [nn.Parameter(p.detach().cuda()) for p in make_params()]
    optimizer = optimizer_of([{"params": params[:2]}, {"params": params[2:], "trust_ratio": False}])
    for p in params:
        p.grad = torch.ones_like(p)
    before = params[0].clone()
    torch.cuda.set_sync_debug_mode("error")  # a step that synchronises raises
    try:
        optimizer.step()
        optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not torch.equal(params[0], before)


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
    with pytest.raises(ConfigError, match="real parameters; got one of torch.complex64. Use sgd"):  # one line
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
        (LAMB, {"trust_bounds": (2.0, 1.0)}, r"trust_bounds .*got \(2.0, 1.0\)"),
        (LAMB, {"trust_bounds": (-1.0, 1.0)}, "trust_bounds"),
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
