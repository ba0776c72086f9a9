"""Networks: any torchvision classification model, with a stem that fits the image size."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from bigbatch.train_loop.config import ConfigError, ModelConfig
from bigbatch.train_loop.data.info import DataInfo

if TYPE_CHECKING:
    from torch import nn

RESNETS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
"""Names that are accepted without loading torchvision, which takes seconds."""


def model_names() -> list[str]:
    """Every classification model of torchvision, sorted; loads torchvision."""
    import torchvision

    return torchvision.models.list_models(module=torchvision.models)


def check_model_name(name: str) -> None:
    """Raise ConfigError, with the nearest name, if torchvision has no such classification model."""
    if name in RESNETS:
        return
    names = model_names()
    if name not in names:
        near = difflib.get_close_matches(name.lower(), names, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Write e.g. {', '.join(RESNETS[:3])}."
        raise ConfigError(f"model.name must be a torchvision classification model; got {name!r}. {hint}")


def check_model(config: ModelConfig, info: DataInfo) -> None:
    """Raise ConfigError if ``build_model`` would. Makes no weights; needs no torch for the ResNets."""
    check_model_name(config.name)
    if config.name in RESNETS:
        return  # ResNets accept any size from 8 pixels and any stem
    import torch

    size = info.image_size
    try:
        network = build_on_meta_device(config, info).eval()
        for size in (info.image_size, *info.other_sizes):  # noqa: B007  the error names it
            network(torch.empty(2, info.channels, size, size, device="meta"))
    except ConfigError:
        raise
    except (RuntimeError, ValueError, AssertionError) as error:
        raise _size_error(config.name, size, error) from None


def build_model(config: ModelConfig, info: DataInfo) -> nn.Module:
    """A network with fresh weights for the data set: ``[N, 3, H, W]`` to logits ``[N, num_classes]``.

    The weights come from torch's global generator and torchvision's initialisation (He et al. 2015,
    fan-out, for convolutions); nothing is downloaded. Raises ConfigError for an unknown name, a
    network that cannot take the image size, and a small stem on a network that is no ResNet.
    """
    from torch import nn

    check_model(config, info)
    model = _network(config, info)
    if config.zero_init_last_gamma:
        _zero_last_gammas(model)
    if config.activation_checkpointing:
        from bigbatch.train_loop.model.activation_checkpointing import checkpoint_blocks

        checkpoint_blocks(model, config.name)
    return nn.SyncBatchNorm.convert_sync_batchnorm(model) if config.sync_bn else model


def _network(config: ModelConfig, info: DataInfo) -> nn.Module:
    """The torchvision network with its stem."""
    from torchvision.models import ResNet, get_model

    model = get_model(config.name, weights=None, num_classes=info.num_classes, **_arguments(config.name, info))
    stem = info.stem if config.stem == "auto" else config.stem
    if isinstance(model, ResNet):
        _set_stem(model, stem)
    elif config.stem in ("small", "small_pool"):
        raise ConfigError(
            f"model.stem={config.stem} needs a ResNet; got model.name={config.name}. "
            "Write model.stem=auto or model.name=resnet50."
        )
    return model


def build_on_meta_device(config: ModelConfig, info: DataInfo) -> nn.Module:
    """The network on the meta device: shapes without memory, and torch's generator stays as it is."""
    import torch

    try:
        with torch.device("meta"):
            return _network(config, info)
    except NotImplementedError:
        # PyTorch raises it if a network reads a tensor's value while it is built, as torchvision's RegNets do: the
        # meta device has no values. Such a network is built on the CPU and moved.
        with torch.random.fork_rng(devices=[]):
            return _network(config, info).to("meta")


def _arguments(name: str, info: DataInfo) -> dict[str, object]:
    """Arguments that some networks need: the image size, or the option to return plain logits in training too."""
    if name.startswith("vit_"):
        return {"image_size": info.image_size}
    if name.startswith("maxvit"):
        return {"input_size": (info.image_size, info.image_size)}
    if name in ("googlenet", "inception_v3"):
        return {"aux_logits": False, "init_weights": True}
    return {}


def _size_error(name: str, image_size: int, error: Exception) -> ConfigError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(". ")
    return ConfigError(
        f"the model must take the image size; got {image_size} px for {name} ({reason}). "
        "Set data.image_size=224 or model.name=resnet50."
    )


def _set_stem(model: Any, stem: str) -> None:
    """``small``: 3×3 convolution, no pooling (He et al. 2016, §4.2); ``small_pool``: 3×3/2 and the max-pool."""
    from torch import nn

    if stem == "imagenet":
        return
    old = model.conv1
    stride = 1 if stem == "small" else 2
    model.conv1 = nn.Conv2d(old.in_channels, old.out_channels, kernel_size=3, stride=stride, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    if stem == "small":
        model.maxpool = nn.Identity()


def _zero_last_gammas(model: nn.Module) -> None:
    """Residual blocks start as identity (Goyal et al. 2017, §5.1)."""
    from torch import nn
    from torchvision.models.resnet import BasicBlock, Bottleneck

    for module in model.modules():
        last = module.bn2 if isinstance(module, BasicBlock) else module.bn3 if isinstance(module, Bottleneck) else None
        if isinstance(last, nn.BatchNorm2d):
            nn.init.zeros_(last.weight)
