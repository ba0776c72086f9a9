"""The training loss: for labels that are classes, or a function of the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F

from bigbatch.train_loop.config import ConfigError, Options, TrainConfig
from bigbatch.train_loop.config.train_config import LOSSES as BUILT_IN
from bigbatch.train_loop.data.pixels.mixing import is_mixing_on
from bigbatch.train_loop.plugins.nested import Nested, map_tensors
from bigbatch.train_loop.plugins.registry import OwnFunction, load_function, loaded, made

LossFunction = Callable[[Nested, Nested], torch.Tensor]
"""From a model's outputs and a batch's targets, in any structure, to the mean loss ``[]``, float32."""


def loss_function(config: TrainConfig, device: torch.device) -> LossFunction:
    """The loss of a configuration, for training and for validation.

    A user's loss may get and compute anything: outputs and targets are passed unchanged, except that floating-point
    outputs become float32. If it is a class, its object is made with the options, and its buffers, e.g. class weights,
    go to ``device``. Raises ConfigError and OwnCodeError as ``registry.loaded``, and ConfigError for a loss that has
    parameters to train. The returned function raises ConfigError unless the user's loss returns one number.
    """
    kind, smoothing = config.loss, config.label_smoothing
    if not has_own_loss(config):
        mixed = is_mixing_on(config.data)
        return lambda outputs, targets: training_loss(outputs.float(), targets, kind, smoothing, mixed=mixed)
    function, options = load_function("loss", kind), config.loss_options
    if inspect.isclass(function):
        function, options = cast(OwnFunction, made("loss", kind, {}, options)), Options()
    else:
        function = loaded("loss", kind, ("outputs", "targets"), options)
    if isinstance(function, torch.nn.Module):
        if any(p.requires_grad for p in function.parameters()):
            raise ConfigError(
                f"loss must have no parameters of its own, for nothing would train them; got {kind} with some. "
                "Make them part of the model, which may return them."
            )
        function.to(device)

    def own_loss(outputs: Nested, targets: Nested) -> torch.Tensor:
        loss = function(in_float32(outputs), targets, **options)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.is_floating_point():
            raise ConfigError(
                f"loss must return the mean loss, one number; got {_described(loss)} of {kind}. Correct it."
            )
        return loss.reshape(()).float()

    return own_loss


def plain_loss(kind: str) -> LossFunction:
    """The built-in loss of validation: plain cross entropy, to compare runs with different losses and smoothing.

    With ``bce`` and targets ``[N, K]``, whose classes do not exclude each other, it is ``bce`` without smoothing.
    """

    def loss(outputs: Nested, targets: Nested) -> torch.Tensor:
        if kind == "bce" and targets.ndim == 2:
            return training_loss(outputs, targets, kind, 0.0, mixed=False)
        return _cross_entropy(outputs, targets)

    return loss


def _cross_entropy(logits: torch.Tensor, labels: torch.Tensor, label_smoothing: float = 0.0) -> torch.Tensor:
    targets = labels if labels.is_floating_point() else labels.long()  # torch takes no int32, e.g. NumPy's
    return F.cross_entropy(logits, targets, label_smoothing=label_smoothing)


def has_own_loss(config: TrainConfig) -> bool:
    """Whether the loss is a function of the user's."""
    return config.loss not in BUILT_IN


def in_float32(outputs: Nested) -> Nested:
    """Outputs of a model in any structure, with floating-point tensors in float32."""
    return map_tensors(lambda tensor: tensor.float() if tensor.is_floating_point() else tensor, outputs)


def _described(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor {list(value.shape)} of {str(value.dtype).removeprefix('torch.')}"
    return f"a {type(value).__name__}"


def training_loss(
    logits: torch.Tensor, labels: torch.Tensor, kind: str, label_smoothing: float, *, mixed: bool = True
) -> torch.Tensor:
    """Mean loss ``[]`` of logits ``[N, K]``, float32, and labels ``[N]`` or ``[N, K]``.

    ``cross_entropy``: −Σ_k q_k log softmax(z)_k with targets q = (1 − ε)·y + ε/K (Szegedy et al. 2016, §7), y one-hot
    or the shares of a mixed image's classes.

    ``bce``: each class by itself, −(1/K) Σ_k [q_k log σ(z_k) + (1 − q_k) log(1 − σ(z_k))], as Wightman et al. 2021,
    "ResNet strikes back", §3.1 (the mean over classes is timm's). Classes need not add up to 1, so y is 1 for *every*
    class of a mixed image, whatever its share: timm's ``BinaryCrossEntropy`` with ``target_threshold=0``. Other labels
    ``[N, K]``, of 0 to 1, are used as y unchanged.

    ``mixed``: whether labels ``[N, K]`` are the shares of mixed images' classes.
    """
    if kind == "cross_entropy":
        return _cross_entropy(logits, labels, label_smoothing)
    classes = logits.shape[1]
    there = F.one_hot(labels.long(), classes) if labels.ndim == 1 else labels > 0 if mixed else labels
    targets = there.to(logits.dtype) * (1.0 - label_smoothing) + label_smoothing / classes
    return F.binary_cross_entropy_with_logits(logits, targets)
