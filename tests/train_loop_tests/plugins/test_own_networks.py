"""Networks and optimizers of a user's own, and of timm; weights from a file."""

import dataclasses
from typing import Any

import pytest
import torch

from bigbatch.train_loop.config import ConfigError, ModelConfig, OptimizerConfig, Options
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.train_loop.errors import OwnCodeError
from bigbatch.train_loop.launch.checks import parameter_count
from bigbatch.train_loop.model import networks
from bigbatch.train_loop.model.networks import check_model
from bigbatch.train_loop.optim import build_optimizer, set_learning_rate

INFO = DataInfo("tiny", None, 70, 23, 4, 8, 3, tuple("abcd"), "small")
NET = """
import torch
from torch import nn

def net(workload, width=4, norm=True):
    layers = [nn.Conv2d(workload.channels, width, 3), nn.BatchNorm2d(width) if norm else nn.Identity()]
    return nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(width, workload.num_classes))

def no_module(workload):
    return [1]

def reads_a_value(workload):
    return nn.Linear(int(torch.ones(3).sum().item()), workload.num_classes)

def volume(workload):
    return nn.Sequential(nn.Conv3d(1, 2, 3), nn.Flatten(), nn.LazyLinear(4))

def sgd(param_groups, lr, momentum=0.5):
    return torch.optim.SGD(param_groups, lr=lr, momentum=momentum)

def forgets(param_groups, lr):
    return torch.optim.SGD(param_groups[:1], lr=lr)

def no_optimizer(param_groups, lr):
    return param_groups

def with_ratio(param_groups, lr):
    assert param_groups[0]["trust_ratio"] is True
    return torch.optim.SGD(param_groups, lr=lr)

with_ratio.TRUST_RATIO = True
"""


def build_model(config: ModelConfig, info: DataInfo) -> Any:
    """The network, whose layers the tests look at."""
    return networks.build_model(config, info)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my.py"
    path.write_text(NET)
    return path


def test_an_own_model_gets_the_facts_of_the_data_and_its_options(file):
    config = ModelConfig(name=f"{file}:net", options=Options(width=6))
    check_model(config, INFO)
    model = build_model(config, INFO)
    assert model(torch.zeros(2, 3, 8, 8)).shape == (2, 4)
    assert model[0].out_channels == 6
    expected = 6 * 3 * 9 + 6 + 12 + 6 * 4 + 4
    assert parameter_count(config, INFO) == expected == sum(p.numel() for p in model.parameters())


def test_a_model_that_reads_values_while_it_is_built_is_counted_too(file):
    before = torch.random.get_rng_state()
    assert parameter_count(ModelConfig(name=f"{file}:reads_a_value"), INFO) == 3 * 4 + 4
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "no_module"}, "a function that returns a torch.nn.Module; got a list from"),
        ({"name": "net", "options": Options(depth=3)}, r"got .*my.py:net.*unexpected keyword argument 'depth'"),
        ({"name": "net", "stem": "small"}, "model.stem=small needs a ResNet"),
        ({"name": "net", "pretrained": "nowhere.pth"}, "model.pretrained must name a file that is there"),
        ({"name": "nett"}, "Did you mean 'net'"),
    ],
)
def test_what_an_own_model_cannot_do_is_said_in_one_line(file, changes, words):
    config = ModelConfig(**{**changes, "name": f"{file}:{changes['name']}"})
    with pytest.raises(ConfigError, match=words) as refused:
        build_model(config, INFO)
    assert "\n" not in str(refused.value)


def test_an_own_optimizer_steps_its_groups_at_their_rates_and_decays(file):
    model = build_model(ModelConfig(name=f"{file}:net"), INFO)
    config = OptimizerConfig(
        name=f"{file}:sgd", peak_lr=0.5, weight_decay=0.1, no_decay_lr_factor=0.5, options=Options(momentum=0.0)
    )
    optimizer = build_optimizer(model, config)
    assert not any("trust_ratio" in group for group in optimizer.param_groups)
    before = [p.detach().clone() for p in model.parameters()]
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    set_learning_rate(optimizer, 0.2)
    optimizer.step()
    for old, new in zip(before, model.parameters(), strict=True):
        expected = old - 0.2 * (1 + 0.1 * old) if old.ndim > 1 else old - 0.1
        torch.testing.assert_close(new.detach(), expected)
    build_optimizer(model, dataclasses.replace(config, name=f"{file}:with_ratio", options=Options()))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("forgets", r"takes 2 of 6, and 0 others\. Pass param_groups on"),
        ("no_optimizer", "returns a torch.optim.Optimizer; got a list"),
        ("net", "AttributeError: .*num_classes|AttributeError: .*channels"),
    ],
)
def test_an_own_optimizer_that_returns_something_else_is_refused(file, name, words):
    model = build_model(ModelConfig(name=f"{file}:net"), INFO)
    with pytest.raises((ConfigError, OwnCodeError), match=words):
        build_optimizer(model, OptimizerConfig(name=f"{file}:{name}"))


def test_timm_networks_take_classes_channels_and_image_size():
    info = dataclasses.replace(INFO, image_size=32)
    small = ModelConfig(name="timm/vit_tiny_patch16_224", options=Options(depth=2))
    check_model(small, info)
    model = build_model(small, info)
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 4) and len(model.blocks) == 2
    two = dataclasses.replace(info, channels=2)
    check_model(ModelConfig(name="timm/resnet14t"), two)
    assert build_model(ModelConfig(name="timm/resnet14t"), two)(torch.zeros(2, 2, 32, 32)).shape == (2, 4)
    for config, words in (
        (ModelConfig(name="timm/vit_tiny_patch16_225"), "Did you mean 'timm/vit_tiny_patch16_224'"),
        (ModelConfig(name="timm/resnet14t", options=Options(widthh=3)), "widthh"),
        (ModelConfig(name="timm/resnet14t", stem="small"), "needs a ResNet"),
    ):
        with pytest.raises(ConfigError, match=words):
            check_model(config, info)


def test_weights_come_from_a_file_and_a_last_layer_for_other_classes_stays_fresh(file, tmp_path):
    config = ModelConfig(name=f"{file}:net")
    trained = build_model(config, dataclasses.replace(INFO, num_classes=9))
    torch.save({"state_dict": trained.state_dict()}, tmp_path / "weights.pth")
    from safetensors.torch import save_file

    save_file(build_model(config, INFO).state_dict(), tmp_path / "same.safetensors")
    torch.manual_seed(5)
    fresh = build_model(config, INFO)
    torch.manual_seed(5)
    model = build_model(dataclasses.replace(config, pretrained=str(tmp_path / "weights.pth")), INFO)
    assert torch.equal(model[0].weight, trained[0].weight) and torch.equal(model[5].weight, fresh[5].weight)
    build_model(dataclasses.replace(config, pretrained=str(tmp_path / "same.safetensors")), INFO)
    (tmp_path / "broken.pth").write_bytes(b"no archive")
    wide = dataclasses.replace(config, options=Options(width=5))
    bare = dataclasses.replace(config, options=Options(norm=False))
    for other, words in (
        (dataclasses.replace(wide, pretrained=str(tmp_path / "weights.pth")), r"0.weight \[4, 3, 3, 3\] \(here"),
        (dataclasses.replace(bare, pretrained=str(tmp_path / "weights.pth")), "1.weight, which the network lacks"),
        (dataclasses.replace(config, pretrained=str(tmp_path / "broken.pth")), "a readable state dict"),
        (dataclasses.replace(config, pretrained="resnet50"), "must be a file"),
    ):
        with pytest.raises(ConfigError, match=words):
            build_model(other, INFO)
