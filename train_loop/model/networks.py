"""Networks: any torchvision classification model, with a stem that fits the image size; timm's, and users' own.

timm's have the name ``timm/NAME`` and need the extra ``timm``. Weights to begin with (``model.pretrained``) come from a
file. Nothing is downloaded.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

from bigbatch.base.command_line import did_you_mean
from bigbatch.train_loop.config import ConfigError, ModelConfig
from bigbatch.train_loop.config.rules import is_own
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.train_loop.errors import OwnCodeError
from bigbatch.train_loop.plugins.registry import loaded, made

if TYPE_CHECKING:
    import torch
    from torch import nn


RESNETS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
"""Names that are accepted without loading torchvision, which takes seconds."""


def model_names() -> list[str]:
    """Every classification model of torchvision, sorted; loads torchvision."""
    import torchvision

    return torchvision.models.list_models(module=torchvision.models)


def check_model_name(name: str) -> None:
    """Raise ConfigError, with the nearest name, if there is no such network. Loads no file of the user's."""
    if name in RESNETS or is_own(name):
        return
    if name.startswith(TIMM):
        check_timm_name(name)
        return
    names = model_names()
    if name not in names:
        hint = did_you_mean(name, names, f"Write e.g. {', '.join(RESNETS[:3])}.")
        raise ConfigError(
            f"model.name must be FILE.py:FUNCTION, timm/NAME or a torchvision classification model; got {name!r}. "
            f"{hint}"
        )


def check_model(config: ModelConfig, info: DataInfo) -> None:
    """Raise ConfigError if ``build_model`` would. Makes no weights; needs no torch for the ResNets.

    A user's own function is only loaded here; OwnCodeError is what its file raises.
    """
    check_model_name(config.name)
    if config.stem in ("small", "small_pool") and (is_own(config.name) or config.name.startswith(TIMM)):
        _refuse_stem(config)
    if config.pretrained:
        check_pretrained(config.pretrained)
    if is_own(config.name):
        loaded("model.name", config.name, ("workload",), config.options)
        return
    takes_any_channels = config.name.startswith(TIMM)
    (dataclasses.replace(info, channels=3) if takes_any_channels else info).check_images(f"model.name={config.name}")
    if config.name in RESNETS:
        return  # ResNets accept any size from 8 pixels and any stem
    import torch

    size = info.image_size
    try:
        network = build_on_meta_device(config, info).eval()
        for size in (info.image_size, info.val_image_size or info.image_size):  # noqa: B007  the error names it
            network(torch.empty(2, info.channels, size, size, device="meta"))
    except ConfigError:
        raise
    except (RuntimeError, ValueError, AssertionError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(". ")
        raise ConfigError(
            f"the model must take the image size; got {size} px for {config.name} ({reason}). "
            "Set data.image_size=224 or model.name=resnet50."
        ) from None


def build_model(config: ModelConfig, info: DataInfo) -> nn.Module:
    """A network for the data set. A classifier maps ``[N, 3, H, W]`` to logits ``[N, num_classes]``.

    The weights come from torch's global generator and torchvision's initialisation (He et al. 2015,
    fan-out, for convolutions), or from ``model.pretrained``; nothing is downloaded. Raises ConfigError for an unknown
    name, a network that cannot take the image size, a small stem on a network that is no ResNet, and weights that do
    not fit; OwnCodeError for what a user's function raises.
    """
    from torch import nn

    check_model(config, info)
    model = _network(config, info)
    if config.zero_init_last_gamma:
        _zero_last_gammas(model)
    if config.pretrained:
        load_pretrained(model, config.pretrained, info.num_classes)
    if config.activation_checkpointing:
        from bigbatch.train_loop.model.activation_checkpointing import checkpoint_blocks

        checkpoint_blocks(model, config.name, whole_blocks=config.parallel == "fsdp2")
    if config.parallel == "fsdp2":
        from bigbatch.train_loop.model.sharding import check_shardable

        check_shardable(model, config.name)
    # Last: SyncBatchNorm is no BatchNorm2d, and the code above looks for that class.
    return nn.SyncBatchNorm.convert_sync_batchnorm(model) if config.sync_bn else model


def _network(config: ModelConfig, info: DataInfo) -> nn.Module:
    """The user's network, timm's, or torchvision's with its stem."""
    if is_own(config.name):
        return _own_network(config, info)
    if config.name.startswith(TIMM):
        return timm_network(config.name, config.options, info)
    from torchvision.models import ResNet, get_model

    from bigbatch.train_loop.model.cpu_convolutions import multiply_small_maps

    model = get_model(config.name, weights=None, num_classes=info.num_classes, **_arguments(config.name, info))
    stem = info.stem if config.stem == "auto" else config.stem
    if isinstance(model, ResNet):
        _set_stem(model, stem)
        multiply_small_maps(model)
    elif config.stem in ("small", "small_pool"):
        _refuse_stem(config)
    return model


def _refuse_stem(config: ModelConfig) -> NoReturn:
    raise ConfigError(
        f"model.stem={config.stem} needs a ResNet; got model.name={config.name}. "
        "Write model.stem=auto or model.name=resnet50."
    )


def _own_network(config: ModelConfig, info: DataInfo) -> nn.Module:
    from torch import nn

    model = made("model.name", config.name, {"workload": info}, config.options)
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model.name must name a function that returns a torch.nn.Module; got a {type(model).__name__} from "
            f"{config.name}. Return the network."
        )
    return model


def build_on_meta_device(config: ModelConfig, info: DataInfo) -> nn.Module:
    """The network on the meta device: shapes without memory, and torch's generator stays as it is."""
    import torch

    try:
        with torch.device("meta"):
            return _network(config, info)
    except (NotImplementedError, OwnCodeError):
        # PyTorch raises NotImplementedError if a network reads a tensor's value while it is built, as torchvision's
        # RegNets do: the meta device has no values. A user's code need not know that device. Both are built on the CPU.
        with torch.random.fork_rng(devices=[]):
            return _network(config, info).to("meta")


def _arguments(name: str, info: DataInfo) -> dict[str, object]:
    """Arguments that some networks need: the image size, or the option to return plain logits in training too."""
    if name.startswith("vit_"):
        return {"image_size": info.image_size}
    if name.startswith("maxvit"):
        return {"input_size": (info.image_size, info.image_size)}
    if name in ("googlenet", "inception_v3"):
        # init_weights: torchvision warns where that is left open.
        return {"aux_logits": False, "init_weights": True}
    return {}


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


TIMM = "timm/"


def check_timm_name(name: str) -> None:
    """Raise ConfigError, with the nearest name, if timm is not installed or has no such network."""
    if find_spec("timm") is None:
        raise ConfigError(
            f"model.name={name} needs the package timm, which is not installed. Write pip install 'bigbatch[timm]'."
        )
    import timm

    wanted = name.removeprefix(TIMM)
    if not timm.is_model(wanted):
        fix = did_you_mean(name, [TIMM + one for one in timm.list_models()], f"Write e.g. {TIMM}resnet26.")
        raise ConfigError(f"model.name must name a network of timm {timm.__version__}; got {name!r}. {fix}")


def timm_network(name: str, options: Mapping[str, object], info: DataInfo) -> nn.Module:
    """timm's network with fresh weights, for the classes, channels and image size of the data.

    ``options``: further arguments of ``timm.create_model``, such as ``drop_path_rate``. Raises ConfigError for an
    argument that the network does not take.
    """
    check_timm_name(name)
    facts: dict[str, Any] = {"num_classes": info.num_classes, "in_chans": info.channels}
    wanted = name.removeprefix(TIMM)
    import timm

    try:
        try:
            return timm.create_model(wanted, pretrained=False, **{**facts, "img_size": info.image_size, **options})
        except TypeError as error:
            # Only this error of timm tells that a network takes no size, and so accepts any.
            if "'img_size'" not in str(error) or "img_size" in options:
                raise
            return timm.create_model(wanted, pretrained=False, **{**facts, **options})
    except (TypeError, ValueError, AssertionError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(
            f"timm's {wanted} must take {info.image_size} px and model.options; got {dict(options)} ({reason}). "
            "Change model.options or data.image_size."
        ) from None


ENDINGS = (".pth", ".pt", ".safetensors", ".bin")


def check_pretrained(name: str) -> Path:
    """The file that ``name`` means. Raises ConfigError if there is none, or its kind is not known."""
    path = Path(os.path.expanduser(name))
    if path.suffix in ENDINGS or os.path.isfile(path):
        if not os.path.isfile(path):
            raise ConfigError(f"model.pretrained must name a file that is there; got {name!r}. Check the path.")
        if path.suffix not in ENDINGS:
            raise ConfigError(f"model.pretrained reads {', '.join(ENDINGS)}; got {name!r}. Write one of these.")
        return path
    raise ConfigError(
        f"model.pretrained must be a file ({', '.join(ENDINGS)}); got {name!r}. Write e.g. "
        "model.pretrained=weights.pth, or the path that hf download prints."
    )


def load_pretrained(model: nn.Module, name: str, num_classes: int) -> None:
    """Copy the weights into the model. A last layer for other classes keeps its fresh weights.

    Raises ConfigError if a tensor is missing, unknown, or of another shape, except for tensors whose first dimension is
    ``num_classes`` here: those of the last layer.
    """
    import torch

    path = check_pretrained(name)
    values = _tensors(path)
    with torch.no_grad():
        state = model.state_dict()
        for key in list(values):
            ours = state.get(key)
            if ours is not None and ours.shape != values[key].shape and _is_last(ours, values[key], num_classes):
                del state[key], values[key]
        unlike = [
            f"{key} {list(values[key].shape)} (here {list(state[key].shape)})"
            for key in values
            if key in state and state[key].shape != values[key].shape
        ]
        wrong = unlike or [f"{key}, which is not there" for key in state if key not in values]
        wrong = wrong or [f"{key}, which the network lacks" for key in values if key not in state]
        if wrong:
            more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            raise ConfigError(
                f"model.pretrained must hold the network's tensors; got {str(path)!r} with {wrong[0]}{more}. "
                "Use the weights of this network at this image size."
            )
        model.load_state_dict({**model.state_dict(), **values})


def _is_last(ours: torch.Tensor, theirs: torch.Tensor, num_classes: int) -> bool:
    return ours.ndim == theirs.ndim > 0 and ours.shape[0] == num_classes and ours.shape[1:] == theirs.shape[1:]


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    """The state dict in the file, also of a checkpoint that holds it as ``state_dict`` or ``model``."""
    import torch

    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        # A pickle from elsewhere could run code.
        found: object = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"model.pretrained must be a readable state dict; got {str(path)!r} ({type(error).__name__}: {reason}). "
            "Save model.state_dict() with torch.save."
        ) from None
    for key in ("state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise ConfigError(f"model.pretrained must hold tensors by name; got {str(path)!r} without. Write a state dict.")
    # State dicts of a network within DDP have this prefix.
    return {key.removeprefix("module."): value for key, value in cast("Mapping[str, torch.Tensor]", found).items()}
