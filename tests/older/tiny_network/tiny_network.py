"""A network of 506 parameters, known to torchvision as ``mnasnet_tiny``: its checkpoints are a few kilobytes."""

from __future__ import annotations

from typing import Any

NAME = "mnasnet_tiny"


def register() -> None:
    """Add the network to torchvision's list, so that ``model.name`` accepts it."""
    from torch import nn
    from torchvision.models import _api

    def build(*, weights: None = None, num_classes: int = 10, **_: Any) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, num_classes),
        )  # fmt: skip

    build.__name__, build.__module__ = NAME, "torchvision.models.mnasnet"
    _api.BUILTIN_MODELS.setdefault(NAME, build)
