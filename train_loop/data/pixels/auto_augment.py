"""TrivialAugment and RandAugment: torchvision's own, with draws that follow from the image's draws."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from PIL import Image

from bigbatch.train_loop.config import AugmentConfig

MOST_MAGNITUDE = 30


def augment(pixels: torch.Tensor, draws: random.Random, config: AugmentConfig) -> None:
    """Change uint8 ``[H, W, 3]`` in place, after crop and flip, as ``config.policy`` says, which is not ``none``.

    ``trivial``: TrivialAugment Wide (Müller & Hutter 2021), one of 14 operations at one of 31 strengths, both uniform.
    ``rand``: RandAugment (Cubuk et al. 2020), ``rand_ops`` operations of 14, one after another. The draws of ``random``
    decide; torch's generator is left as it was.

    The operations are Pillow's, as in torchvision's and timm's recipes: on tensors they cost several times as much.
    """
    if config.policy == "trivial":
        magnitudes = [0]
    else:
        chance = config.rand_probability
        count = sum(draws.random() < chance for _ in range(config.rand_ops)) if chance < 1 else config.rand_ops
        magnitudes = [_magnitude(draws, config) for _ in range(count)]
    seed = draws.getrandbits(63)
    if not magnitudes:
        return
    image = Image.fromarray(pixels.numpy())
    with torch.random.fork_rng(devices=[]):  # torchvision draws from torch's generator, dropout does too
        torch.default_generator.manual_seed(seed)
        for magnitude in magnitudes:
            image = _torchvisions(config.policy, magnitude)(image)
    pixels.copy_(torch.from_numpy(np.array(image)))


def _magnitude(draws: random.Random, config: AugmentConfig) -> int:
    if not config.rand_magnitude_std:
        return config.rand_magnitude
    return min(max(round(draws.gauss(config.rand_magnitude, config.rand_magnitude_std)), 0), MOST_MAGNITUDE)


@cache
def _torchvisions(name: str, magnitude: int) -> Callable[[Image.Image], Image.Image]:
    """One operation. RandAugment's operations are drawn one by one: two calls are one of ``num_ops=2``."""
    from torchvision.transforms import v2  # imported late: it takes half a second

    return v2.TrivialAugmentWide() if name == "trivial" else v2.RandAugment(num_ops=1, magnitude=magnitude)
