"""Networks: shapes, stems, initial state, and what is refused before training."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torchvision.models.resnet import BasicBlock, Bottleneck

from bigbatch.train_loop.config import ConfigError, DataConfig, ModelConfig
from bigbatch.train_loop.data.catalogue import describe_data_set
from bigbatch.train_loop.model.networks import build_model, check_model, check_model_name

DIGITS = describe_data_set(DataConfig())
LARGE = replace(DIGITS, image_size=224, num_classes=1000, stem="imagenet")


@pytest.mark.parametrize(
    ("name", "size"),
    [("resnet18", 32), ("resnet50", 8), ("mobilenet_v3_small", 32), ("vit_b_16", 32), ("googlenet", 32)],
)
def test_logits_of_training_and_evaluation(name: str, size: int) -> None:
    """Plain tensors: no network hands out auxiliary logits."""
    info = replace(DIGITS, image_size=size, num_classes=7)
    model = build_model(ModelConfig(name=name), info)
    images = torch.randn(2, 3, size, size)
    for mode in (True, False):
        logits = model.train(mode)(images)
        assert isinstance(logits, torch.Tensor) and logits.shape == (2, 7)


@pytest.mark.parametrize(
    ("stem", "kernel", "stride", "pool", "first_map"),
    [
        ("imagenet", (7, 7), (2, 2), nn.MaxPool2d, 16),
        ("small", (3, 3), (1, 1), nn.Identity, 64),
        ("small_pool", (3, 3), (2, 2), nn.MaxPool2d, 16),
    ],
)
@pytest.mark.parametrize("automatic", [True, False])
def test_stems(stem, kernel, stride, pool, first_map, automatic):
    info = replace(DIGITS, image_size=64, stem=stem if automatic else "imagenet")
    model: Any = build_model(ModelConfig(name="resnet18", stem="auto" if automatic else stem), info)
    assert (model.conv1.kernel_size, model.conv1.stride, type(model.maxpool)) == (kernel, stride, pool)
    assert model.conv1.bias is None and model.conv1.out_channels == 64
    maps: list[torch.Size] = []
    model.layer1.register_forward_hook(lambda _module, _inputs, output: maps.append(output.shape))
    model.eval()(torch.randn(1, 3, 64, 64))
    assert maps == [(1, 64, first_map, first_map)]


@pytest.mark.parametrize(("name", "block"), [("resnet18", BasicBlock), ("resnet50", Bottleneck)])
def test_residual_blocks_start_as_identity(name: str, block: type) -> None:
    model = build_model(ModelConfig(name=name), DIGITS).eval()
    blocks: list[Any] = [module for module in model.modules() if isinstance(module, block)]
    assert len(blocks) == {"resnet18": 8, "resnet50": 16}[name]
    for module in blocks:
        images = torch.randn(1, module.conv1.in_channels, 8, 8)
        shortcut = images if module.downsample is None else module.downsample(images)
        torch.testing.assert_close(module(images), shortcut.relu())
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert sum(not norm.weight.any() for norm in norms) == len(blocks)

    plain = build_model(ModelConfig(name=name, zero_init_last_gamma=False), DIGITS)
    assert all(norm.weight.eq(1).all() for norm in plain.modules() if isinstance(norm, nn.BatchNorm2d))


def test_weights_follow_the_global_generator_alone() -> None:
    def weights(name: str) -> list[nn.Parameter]:
        torch.manual_seed(3)
        return list(build_model(ModelConfig(name=name), DIGITS).parameters())

    for name in ("resnet18", "regnet_x_400mf"):
        first = weights(name)
        assert all(torch.equal(a, b) and a.device.type == "cpu" for a, b in zip(first, weights(name), strict=True))
        before = torch.get_rng_state()
        check_model(ModelConfig(name=name), DIGITS)
        assert torch.equal(before, torch.get_rng_state())


def test_sync_bn_replaces_every_batch_norm() -> None:
    model = build_model(ModelConfig(name="resnet18", sync_bn=True), DIGITS)
    assert {type(m) for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)} == {nn.SyncBatchNorm}


@pytest.mark.parametrize("name", ["resnet18", "alexnet", "inception_v3", "vit_b_16", "maxvit_t", "swin_t"])
def test_the_check_knows_which_networks_take_32_pixels(name: str) -> None:
    """At 32 px AlexNet, Inception and MaxViT have no room; the check knows without weights."""
    if name in ("alexnet", "inception_v3", "maxvit_t"):
        for refuse in (check_model, build_model):
            with pytest.raises(ConfigError) as error:
                refuse(ModelConfig(name=name), DIGITS)
            said = str(error.value)
            assert "32 px" in said and name in said and "data.image_size=224" in said and "\n" not in said
    else:
        check_model(ModelConfig(name=name), DIGITS)
    check_model(ModelConfig(name=name), replace(LARGE, image_size=224))


def test_small_stem_needs_a_resnet() -> None:
    config = ModelConfig(name="mobilenet_v2", stem="small_pool")
    for refuse in (check_model, build_model):
        with pytest.raises(ConfigError, match="model.stem=small_pool needs a ResNet; got model.name=mobilenet_v2"):
            refuse(config, DIGITS)
    check_model(replace(config, stem="auto"), replace(DIGITS, image_size=64))


@pytest.mark.parametrize(
    ("name", "hint"), [("resnet5o", "'resnet50'"), ("ResNet50", "'resnet50'"), ("mobilnet_v2", "'mobilenet_v2'")]
)
def test_unknown_name_is_refused_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"classification model; got '{name}'. Did you mean {hint}"):
        check_model_name(name)


def test_a_network_of_one_size_is_refused_where_validation_has_another() -> None:
    config = DataConfig(image_size=224, val_image_size=256)
    for name in ("resnet18", "mobilenet_v3_small"):
        check_model(ModelConfig(name=name), describe_data_set(config))
    with pytest.raises(ConfigError, match="got 256 px for vit_b_32"):
        check_model(ModelConfig(name="vit_b_32"), describe_data_set(config))
