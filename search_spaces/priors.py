"""Published large batches, peak learning rates and warmups, as functions; last, soft priors (``LogNormal``).

A space searches a *multiplier* of a centre: ``peak_lr = centre(optimizer, batch) × lr_multiplier``. The centre follows
the optimizer's scaling rule, so a doubled batch gets a suitable rate. The multiplier keeps one range for the whole
study, which a sampler that models all parameters together needs.

Sources, by the names used below:
  MLPerf     MLPerf Training, ResNet-50 reference convergence points (mlcommons/logging,
             rcps_resnet.json): LARS to 75.9 % top-1 at batches 1,632 to 65,536, and the fit
             lr = 0.44·B^0.39 through 89 submitted settings that reached the target.
  Goyal      Goyal et al. 2017, arXiv 1706.02677: SGD, lr = 0.1·B/256, holds up to B = 8,192.
  Nado       Nado et al. 2021, arXiv 2102.06356: Nesterov SGD at 32,768, lr 7.05.
  RSB        Wightman et al. 2021, arXiv 2110.00476 (recipe A2): LAMB at 2,048, lr 5e-3.
  DeiT       Touvron et al. 2020, arXiv 2012.12877: AdamW at 1,024, lr 1e-3.
  Malladi    Malladi et al. 2022, arXiv 2205.10287: sqrt rule for Adam's family.
  own        An optimizer of the user's own has no rule: 3e-3 at batch 1,024 with the sqrt rule lies between SGD's and
             Adam's rates, and the spread is that much wider (``OWN_SPREAD``).
  Smith      Smith et al. 2018, arXiv 1711.00489: noise scale ∝ lr / (B·(1 − momentum)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.config import ConfigError, divisible
from bigbatch.train_loop.config.rules import is_own

LARGEST_BATCH = 32768
"""Beyond it MLPerf's LARS needs twice the epochs (65,536: 84.5 against 56.0)."""
OWN_SPREAD = 256.0
"""``Workload.lr_spread`` for an optimizer of the user's own: 1e-5 to 0.8 at batch 1,024."""
FITTED_STEPS = {"lars": 250, "lamb": 1000}
"""From this many optimizer steps on, the published rates are used unchanged (MLPerf's shortest run has 1,652). For
shorter runs ``short_run_factor`` applies. The values were chosen on digits (ResNet-18, 12 epochs, batches 128 to
1,024): the centre is within a factor of about 3 of the best rate at each batch."""


def global_batch_sizes(workload: Workload) -> tuple[int, ...]:
    """The large batches of a training set, in images, smallest first: powers of two.

    They go from 8·N^0.4 to 32·N^0.5, both rounded down to a power of two, where N is the number of training images:
    digits (1,437) 128 … 1,024; CIFAR-10 (50,000) 512 … 4,096; ImageNet (1,281,167) 2,048 … 32,768, the range of
    MLPerf's submissions. The range widens with N because an epoch then has more steps.

    A power of two that does not divide over the workers is lowered to the next number that does, in equal
    micro-batches. If ``--batch`` names batches, it is those instead. Raises ConfigError if no batch gives each worker
    two images.
    """
    if workload.batches:
        return workload.batches
    size = workload.train_size
    highest = min(_power_of_two(32 * size**0.5), _power_of_two(size), LARGEST_BATCH)
    lowest = min(_power_of_two(8 * size**0.4), highest)
    powers = [2**k for k in range(lowest.bit_length() - 1, highest.bit_length())]
    fitting = [divisible(b, workload.workers, workload.max_micro_size) for b in powers if b >= 2 * workload.workers]
    if not fitting:
        raise ConfigError(
            f"a global batch gives each worker at least 2 images; got {workload.workers} workers for at most "
            f"{highest} of the {size} training images. Use --workers {max(1, highest // 2)} or fewer."
        )
    return tuple(fitting)


def total_steps(workload: Workload, batch: int) -> int:
    """Optimizer steps of the longest trial. An epoch drops its last, incomplete batch."""
    return workload.epochs * max(1, workload.train_size // batch)


def searched_peak_lr(workload: Workload, optimizer: str, batch: int, momentum: float | None = None) -> float:
    """``peak_lr_centre`` for this workload.

    ``momentum``: None means the value that ``--set`` fixes, else 0.9. A peak learning rate that ``--set`` fixes is
    returned as it is: it replaces the prior, so that its optimizer needs no rule.
    """
    if "optimizer.peak_lr" in workload.fixed:
        return float(workload.fixed["optimizer.peak_lr"])
    if momentum is None:
        momentum = float(workload.fixed.get("optimizer.momentum", 0.9))
    return peak_lr_centre(optimizer, batch, total_steps(workload, batch), momentum)


def peak_lr_centre(optimizer: str, batch: int, steps: int, momentum: float = 0.9) -> float:
    """The peak learning rate around which to search, for the whole batch (not per image).

    ``steps``: optimizer steps of the run, see ``short_run_factor``. ``momentum``: for sgd and lars; the rate then gives
    the same noise scale as with momentum 0.9 (Smith). Raises ConfigError for an optimizer without a rule.
    """
    same_noise = (1 - momentum) / 0.1
    if optimizer == "lars":  # MLPerf; its trust coefficient carries the short-run factor
        return 0.44 * batch**0.39 * same_noise
    if optimizer == "sgd":  # Goyal; sqrt beyond 8,192 meets Nado: 6.4 at 32,768
        return 0.1 * min(batch, 8192) / 256 * math.sqrt(max(1.0, batch / 8192)) * same_noise
    if optimizer == "lamb":  # RSB and Malladi
        return 5e-3 * math.sqrt(batch / 2048) * short_run_factor("lamb", steps)
    if optimizer == "adamw":  # DeiT and Malladi
        return 1e-3 * math.sqrt(batch / 1024)
    if is_own(optimizer):
        return 3e-3 * math.sqrt(batch / 1024)
    raise ConfigError(
        f"no learning rate rule is known for this optimizer; got {optimizer!r}. "
        "Choose sgd, lars, lamb or adamw, or fix the rate, e.g. --set peak_lr=0.001."
    )


def trust_coefficient(steps: int) -> float:
    """LARS's η (You et al. 2017, arXiv 1708.03888: 0.001), larger for short runs.

    A step of LARS moves a layer by about lr·η of its norm. The factor multiplies η and not the rate, because BatchNorm
    and biases have no trust ratio and take plain steps with the rate.
    """
    return 0.001 * short_run_factor("lars", steps)


def short_run_factor(optimizer: str, steps: int) -> float:
    """The factor by which a step is longer in a run of few steps, for optimizers with a trust ratio.

    The length of their steps is lr × the weights' norm, whatever the gradient is. With the published rates, few steps
    hardly move the weights. The square root keeps steps × lr², the time of Malladi's stochastic differential equation,
    at its value for ``FITTED_STEPS``. From there on the factor is 1.
    """
    return math.sqrt(max(1.0, FITTED_STEPS[optimizer] / steps))


def momentum_window(steps: int) -> float:
    """The starting value of 1 − momentum, or of 1 − β1: 0.1; in short runs 3/steps, but at most 0.3.

    Momentum m averages over about 1/(1 − m) steps. With m = 0.9 that is most of a run of 12 steps: its last steps
    would still follow its first gradients.
    """
    return min(0.3, max(0.1, 3 / steps))


def warmup_epochs_range(epochs: int) -> tuple[float, float]:
    """Shortest and longest warmup in epochs: 5 % to 35 % of the run.

    AlgoPerf 5 %; MLPerf 6 % at batch 1,632, 12 % at 8,192, 29 % at 32,768, 37 % at 65,536.
    """
    return 0.05 * epochs, 0.35 * epochs


def _power_of_two(value: float) -> int:
    return 1 << (max(1, int(value)).bit_length() - 1)


_NORMAL = NormalDist()


@dataclass(frozen=True)
class LogNormal:
    """The logarithm of a parameter is believed to be normal around ``log(centre)``, cut off at the range's ends.

    A search draws most of its first trials near the centre, and a few far from it. Raises ConfigError for a centre that
    is not above 0 or a factor that is not above 1.
    """

    centre: float = 1.0
    factor: float = 4.0
    """One standard deviation, as a ratio: two thirds of the belief lie from centre/factor to centre × factor."""

    def __post_init__(self) -> None:
        if not (0 < self.centre < math.inf and 1 < self.factor < math.inf):
            raise ConfigError(
                f"a log-normal prior needs a centre above 0 and a factor above 1; got {self.centre} and {self.factor}. "
                "Write e.g. LogNormal(centre=1.0, factor=4.0)."
            )

    def value(self, part: float, low: float, high: float) -> float:
        """The value within ``low`` to ``high`` below which ``part`` (0 to 1) of the belief in that range lies."""
        first, last = self._part_below(low), self._part_below(high)
        below = min(max(first + part * (last - first), 1e-15), 1 - 1e-15)  # the normal's inverse is infinite at 0 and 1
        value = self.centre * math.exp(_NORMAL.inv_cdf(below) * math.log(self.factor))
        # Rounding may lead just outside.
        return min(max(value, low), high)

    def _part_below(self, value: float) -> float:
        return _NORMAL.cdf(math.log(value / self.centre) / math.log(self.factor))
