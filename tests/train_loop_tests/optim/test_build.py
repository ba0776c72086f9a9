"""Groups of parameters, and optimizers as the configuration has them."""

import pytest
import torch
import torchvision
from torch import nn

from bigbatch.train_loop.config import OptimizerConfig
from bigbatch.train_loop.optim import LAMB, LARS, build_optimizer, parameter_groups, set_learning_rate


def names_of(model, group):
    by_id = {id(p): name for name, p in model.named_parameters()}
    return {by_id[id(p)] for p in group["params"]}


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
    norms = {f"{layer}.{kind}" for layer in ("plain", "instance", "group") for kind in ("weight", "bias")}
    assert names_of(model, no_decay) == {"bn_looking.bias", "scale", *norms}
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
    layers = [name.removesuffix(".weight") for name in names_of(model, no_decay) if name.endswith(".weight")]
    assert all(type(model.get_submodule(name)).__name__.startswith("LayerNorm") for name in layers)
    assert {p.ndim for p in decay["params"]} == {2, 4}

    matrices = nn.Sequential(nn.Conv2d(1, 6, 1, bias=False), nn.Linear(1, 5, bias=False), nn.Embedding(3, 1))
    (only,) = parameter_groups(matrices, 0.1)
    assert only["trust_ratio"] and len(only["params"]) == 3
    with torch.device("meta"):
        vit = torchvision.models.vit_b_16()
    assert {"class_token", "encoder.pos_embedding"} <= names_of(vit, parameter_groups(vit, 0.1)[0])


@pytest.mark.parametrize(
    "name",
    ["vit_tiny_patch16_224", "levit_128s"],
)
def test_what_a_network_of_timm_names_has_no_decay(name: str) -> None:
    """Against the groups that timm's own optimizers get. Ours also hold norms and scales."""
    timm, timm_optim = pytest.importorskip("timm"), pytest.importorskip("timm.optim")
    with torch.device("meta"):
        model = timm.create_model(name)
    patterns = model.no_weight_decay()
    theirs = timm_optim.param_groups_weight_decay(model, 0.1, no_weight_decay_list=patterns)
    (kept,) = (names_of(model, group) for group in theirs if not group["weight_decay"])
    decay, no_decay = parameter_groups(model, 0.1)
    assert kept <= names_of(model, no_decay) and any(p.ndim > 1 for p in no_decay["params"])
    for parameter in no_decay["params"]:
        assert parameter.ndim <= 1 or names_of(model, {"params": [parameter]}) <= kept or parameter[0].numel() == 1
    inside = nn.Sequential(model)
    assert [len(group["params"]) for group in parameter_groups(inside, 0.1)] == [
        len(decay["params"]), len(no_decay["params"])
    ]  # fmt: skip


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
        ("lars", LARS, {"momentum": 0.8, "nesterov": True, "trust_coefficient": 0.02, "momentum_convention": "out"}),
        ("lars", LARS, {"eps": 1e-5, "larc": "clip"}),
    ],
)
def test_build_optimizer_follows_the_configuration(name, kind, expected):
    config = OptimizerConfig(
        name=name, peak_lr=0.7, momentum=0.8, nesterov=True, beta1=0.7, beta2=0.97, eps=1e-4, weight_decay=0.03,
        trust_coefficient=0.02, lars_momentum="out", lars_eps=1e-5, larc="clip",
    )  # fmt: skip
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
