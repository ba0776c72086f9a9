"""The learning-rate range test: one short run whose rate grows until the loss explodes.

``bigbatch lr-find --config FILE`` prints a table of rates and losses, and what they say.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bigbatch.base.command_line import INTERRUPTED, WRONG_INPUT, OneLineParser
from bigbatch.train_loop.config import ConfigError, OptimizerConfig, TrainConfig
from bigbatch.train_loop.config.own_names import own_words
from bigbatch.train_loop.errors import ImageError, LoaderError, OwnCodeError
from bigbatch.train_loop.host.command_line import ProgressLine, add_part_options
from bigbatch.train_loop.launch.options import add_component_options, add_source_options, read_source_config
from bigbatch.train_loop.plugins.registry import whose_error

if TYPE_CHECKING:
    from bigbatch.train_loop.data.sets.scan import FolderScan

SMOOTHING = 0.9
"""Part of the old mean that the smoothed loss keeps at each step."""
EXPLODED_LOSS_FACTOR = 4.0
"""The test ends when the smoothed loss is this many times its minimum (fastai)."""


@dataclass(frozen=True)
class RangeTestResult:
    """The measurements of a range test, one entry for each step, and its conclusions."""

    rates: list[float]
    losses: list[float]
    """Mean training loss of the step's global batch, before the step."""
    steepest: float
    """Rate at which the smoothed loss falls fastest with log(rate)."""
    minimum: float
    """Rate at which the smoothed loss is lowest."""
    exploded_at: float | None
    """The rate that ended the test. None: the range ended first, and ``minimum`` is only a lower bound."""

    @property
    def suggestion(self) -> float:
        """Peak rate to start a search from: the geometric mean of ``steepest`` and ``minimum``, and at most
        ``minimum``/3. fastai's own rules, ``steepest`` and ``minimum``/10, are for runs without warmup."""
        return min(math.sqrt(self.minimum * self.steepest), self.minimum / 3)


def default_range(optimizer: OptimizerConfig) -> tuple[float, float]:
    """(first, last) rate. A LARS step has size rate·η, and published rates are 2 to 40 at η = 0.001."""
    lars = 1e-3 / optimizer.trust_coefficient
    ranges = {"lars": (1e-2 * lars, 1e3 * lars), "sgd": (1e-5, 100.0), "lamb": (1e-6, 10.0), "adamw": (1e-6, 10.0)}
    return ranges.get(optimizer.name, (1e-6, 1.0))


def check_range(first: float, last: float, steps: int) -> None:
    """Raise ConfigError if the range does not rise from above 0, or there are fewer than 10 steps."""
    if not 0 < first < last < math.inf or steps < 10:
        raise ConfigError(
            f"a range test rises from above 0 in at least 10 steps; got {first:g} to {last:g} in {steps}. "
            "Write e.g. --first 0.001 --last 10 --steps 100."
        )


def range_test(step: Callable[[float], float], first: float, last: float, steps: int) -> RangeTestResult:
    """Raise the rate geometrically from ``first`` to ``last`` (Smith 2017, arXiv 1506.01186, §3.3).

    Args:
        step: takes one step at a rate and returns the loss before it.

    Raises what ``check_range`` raises; ValueError if the loss is not finite in the first 10 steps.
    """
    check_range(first, last, steps)
    rates: list[float] = []
    losses: list[float] = []
    smoothed: list[float] = []  # exponential mean with its bias corrected (Kingma & Ba 2015, §3)
    mean, exploded_at = 0.0, None
    for number in range(steps):
        rate = first * (last / first) ** (number / (steps - 1))
        loss = step(rate)
        mean = SMOOTHING * mean + (1 - SMOOTHING) * loss
        value = mean / (1 - SMOOTHING ** (number + 1))
        # Not within the first steps, whose mean comes from few losses.
        if not math.isfinite(loss) or (number >= 10 and _exploded(value, smoothed)):
            exploded_at = rate
            break
        rates.append(rate)
        losses.append(loss)
        smoothed.append(value)
    if len(rates) < 10:
        raise ValueError(f"the loss must be finite for 10 steps; it was not finite at rate {exploded_at}. Begin lower.")
    lowest = min(range(len(rates)), key=smoothed.__getitem__)
    # Steps are even in log(rate). Ignore the first few: their mean comes from few losses.
    falls = {i: smoothed[i + 2] - smoothed[i - 2] for i in range(4, min(lowest, len(rates) - 3) + 1)}
    steep = min(falls, key=falls.__getitem__) if falls else lowest
    return RangeTestResult(rates, losses, rates[steep], rates[lowest], exploded_at)


def _exploded(value: float, smoothed: Sequence[float]) -> bool:
    lowest = min(smoothed)
    # A loss of the user's own may be negative: then a multiple of the minimum lies below it.
    size = lowest if lowest > 0 else max(-lowest, abs(smoothed[0]))
    return value > lowest + (EXPLODED_LOSS_FACTOR - 1) * size


def lr_find(
    config: TrainConfig, *, first: float, last: float, steps: int, scan: FolderScan | None = None
) -> RangeTestResult:
    """The range test of ``config`` on this process's device, from its initial weights; nothing is kept.

    Global batch, loss, momentum and weight decay are the configuration's; its schedule is not used. ``scan``: see
    ``train``.
    Raises what ``range_test`` and ``train`` raise.
    """
    from bigbatch.train_loop.distributed import pick_device
    from bigbatch.train_loop.loop.assembly import set_up
    from bigbatch.train_loop.loop.checkpoint import CheckpointFolder
    from bigbatch.train_loop.loop.metrics import Sums
    from bigbatch.train_loop.loop.train import check_gradient_scale, take_step
    from bigbatch.train_loop.reporter import ListReporter

    check_range(first, last, steps)
    run = set_up(config, ListReporter(), CheckpointFolder(None, 0.0), pick_device(), scan=scan)
    epochs = (run.source.train_steps(config.seed, epoch, run.split, run.world.rank) for epoch in itertools.count())
    steps_to_take = itertools.chain.from_iterable(epochs)
    progress = ProgressLine()

    def step(rate: float) -> float:
        run.sums.values.zero_()
        take_step(run, next(steps_to_take), rate)
        run.progress.step += 1  # dropout's seed
        check_gradient_scale(run)
        loss = Sums(*run.sums.values.tolist()).mean_loss
        progress.show(f"step {run.progress.step} of at most {steps}: lr {rate:.3g}, loss {loss:.4g}")
        return loss

    return range_test(step, first, last, steps)


def lr_find_parser(prog: str) -> OneLineParser:
    """The options of ``bigbatch lr-find``."""
    p = OneLineParser(prog=prog, description="Learning-rate range test of a configuration.")
    add_source_options(p)
    add_component_options(p)
    add = p.add_argument
    add("--set", action="append", nargs="+", default=[], metavar="KEY=VALUE", help="change a key, e.g. optimizer=lars")
    add("--data", metavar="NAME|PATH", help="use this data set, not the configuration's: digits, or an image folder")
    add_part_options(add)
    add("--first", type=float, metavar="LR", help="lowest rate (default: depends on the optimizer)")
    add("--last", type=float, metavar="LR", help="highest rate (default: depends on the optimizer)")
    add("--steps", type=int, default=100, metavar="N", help="at most N optimizer steps (default 100)")
    return p


def main(argv: Sequence[str] | None = None, prog: str = "bigbatch lr-find") -> int:
    """Returns the exit code: 0 done, 1 no rate was found or an image was bad, 2 wrong input, 130 Ctrl-C."""
    parser = lr_find_parser(prog)
    args = parser.parse_args(argv)
    try:
        config, scan = _task(parser, args)
        first, last = default_range(config.optimizer)
        first, last = first if args.first is None else args.first, last if args.last is None else args.last
        print(f"range test from lr {first:g} to {last:g} in {args.steps} steps of {config.batch.global_size} images …")
        with whose_error(own_words(config)):
            finding = lr_find(config, first=first, last=last, steps=args.steps, scan=scan)
    except (ConfigError, OwnCodeError) as error:
        print(f"{prog}: error: {error}", file=sys.stderr)
        return WRONG_INPUT
    except (ValueError, ImageError, LoaderError) as error:
        print(f"{prog}: failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{prog}: interrupted; nothing is kept", file=sys.stderr)
        return INTERRUPTED
    print("lr          loss")
    for rate, loss in zip(finding.rates, finding.losses, strict=True):
        print(f"{rate:<10.3g}  {loss:.4g}")
    ended = f", explodes at {finding.exploded_at:.3g}" if finding.exploded_at else "; it never exploded: raise --last"
    print(f"the loss falls fastest at lr {finding.steepest:.3g}, is lowest at {finding.minimum:.3g}{ended}")
    if finding.minimum == finding.rates[0]:
        print("no rate is suggested: the loss never fell below the first step's. Lower --first, or raise --steps")
        return 1
    print(f"suggested peak lr {finding.suggestion:.3g}: --set peak_lr={finding.suggestion:.3g}")
    return 0


def _task(parser: OneLineParser, args: argparse.Namespace) -> tuple[TrainConfig, FolderScan | None]:
    from bigbatch.train_loop.data.catalogue import look
    from bigbatch.train_loop.launch.checks import check_run_model, check_users_code
    from bigbatch.train_loop.launch.local_workers import check_workers_fit_machine, unused_gpus

    _, config = read_source_config(parser, args, {})
    config.batch.split(1)
    looked = look(config.data, open_some=True)
    info = looked.info
    if info.path is not None:  # the file may be read in another folder
        config = config.replace_keys({"data.name": info.path})
    info.steps_per_epoch(config.batch.global_size)
    check_run_model(config, info)
    check_workers_fit_machine(1)
    for text in filter(None, (*info.notes, unused_gpus())):
        print(f"note: {text}")
    if not args.no_check:
        check_users_code(config, looked.scan)
    return config, looked.scan
