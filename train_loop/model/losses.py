"""The training loss, for labels that are classes."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def training_loss(logits: torch.Tensor, labels: torch.Tensor, kind: str, label_smoothing: float) -> torch.Tensor:
    """Mean loss ``[]`` of logits ``[N, K]``, float32, and labels ``[N]``, or ``[N, K]`` if images are mixed.

    ``cross_entropy``: −Σ_k q_k log softmax(z)_k with targets q = (1 − ε)·y + ε/K (Szegedy et al. 2016, §7), y one-hot
    or the shares of a mixed image's classes.

    ``bce``: each class by itself, −(1/K) Σ_k [q_k log σ(z_k) + (1 − q_k) log(1 − σ(z_k))], as Wightman et al. 2021,
    "ResNet strikes back", §3.1 (the mean over classes is timm's). Classes need not add up to 1, so y is 1 for *every*
    class of a mixed image, whatever its share: timm's ``BinaryCrossEntropy`` with ``target_threshold=0``.

    Raises ValueError for another ``kind``.
    """
    match kind:
        case "cross_entropy":
            return F.cross_entropy(logits, labels, label_smoothing=label_smoothing)
        case "bce":
            classes = logits.shape[1]
            there = labels > 0 if labels.ndim == 2 else F.one_hot(labels, classes)
            targets = there.to(logits.dtype) * (1.0 - label_smoothing) + label_smoothing / classes
            return F.binary_cross_entropy_with_logits(logits, targets)
    raise ValueError(f"loss must be cross_entropy or bce; got {kind!r}")
