"""TrivialAugment and RandAugment: torchvision's own, with draws that are a function of the image's."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from PIL import Image

from bigbatch.train_loop.config import AugmentConfig

MOST_MAGNITUDE = 30


@dataclass(frozen=True)
class AugmentPolicy:
    """The augmentation of one image after crop and flip. Loader processes get it by fork or pickle."""

    name: str
    """``trivial``: TrivialAugment Wide (Müller & Hutter 2021), one operation of 14 at a strength of 31, both even.
    ``rand``: RandAugment (Cubuk et al. 2020), ``ops`` operations of 14, one after another, at ``magnitude``."""
    ops: int = 1
    magnitude: int = 0
    """0 to 30."""
    probability: float = 1.0
    """Probability that an operation is applied; 1 in the paper and torchvision, 0.5 in timm."""
    magnitude_std: float = 0.0
    """Standard deviation of the normal distribution that each operation's magnitude is drawn from, as timm's mstd; to
    the nearest of 0 to 30. 0: the magnitude itself."""

    def apply(self, pixels: torch.Tensor, draws: random.Random) -> None:
        """Change uint8 ``[H, W, 3]`` in place. The draws of ``random`` decide; torch's generator is left as it was.

        The operations are Pillow's, as in torchvision's and timm's recipes: on tensors they cost several times as much.
        """
        count = sum(draws.random() < self.probability for _ in range(self.ops)) if self.probability < 1 else self.ops
        magnitudes = [self._magnitude(draws) for _ in range(count)]
        seed = draws.getrandbits(63)
        if not count:
            return
        image = Image.fromarray(pixels.numpy())
        with torch.random.fork_rng(devices=[]):  # torchvision draws from torch's generator, dropout does too
            torch.default_generator.manual_seed(seed)
            for magnitude in magnitudes:
                image = _torchvisions(self.name, magnitude)(image)
        pixels.copy_(torch.from_numpy(np.array(image)))

    def _magnitude(self, draws: random.Random) -> int:
        if not self.magnitude_std:
            return self.magnitude
        return min(max(round(draws.gauss(self.magnitude, self.magnitude_std)), 0), MOST_MAGNITUDE)


def augment_policy(config: AugmentConfig) -> AugmentPolicy | None:
    """None where there is none."""
    if not config.enabled or config.policy == "none":
        return None
    if config.policy == "trivial":
        return AugmentPolicy("trivial")
    return AugmentPolicy(
        "rand", config.rand_ops, config.rand_magnitude, config.rand_probability, config.rand_magnitude_std
    )


@cache
def _torchvisions(name: str, magnitude: int) -> Callable[[Image.Image], Image.Image]:
    """One operation. RandAugment's operations are drawn one by one: two calls are one of ``num_ops=2``."""
    from torchvision.transforms import v2  # imported late: it takes half a second

    return v2.TrivialAugmentWide() if name == "trivial" else v2.RandAugment(num_ops=1, magnitude=magnitude)
