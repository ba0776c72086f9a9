"""Optuna's samplers and pruners, by their names on the command line."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping

import optuna
from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from bigbatch.search_spaces.priors import LogNormal
from bigbatch.train_loop.config.rules import is_own
from bigbatch.tune.models.unit_space import SobolSampler
from bigbatch.tune.proposers.own_strategy import own_pruner
from bigbatch.tune.proposers.passing_sampler import Asked, PassingSampler, ShownSampler
from bigbatch.tune.proposers.shown_trials import REDUCTION_FACTOR, shown_to_tpe


class PerTrialSampler(PassingSampler):
    """Passes each trial to a sampler made for its number, whichever trial ``study.ask()`` returns.

    A waiting trial (an initial point, or an interrupted one) keeps its number, which is below the number of trials.
    """

    def __init__(self, make: Callable[[int], BaseSampler]) -> None:
        self._make = make
        self._made: tuple[int, BaseSampler] | None = None

    def asked(self, study: Study, trial: FrozenTrial) -> Asked:
        """The trial's own sampler."""
        if self._made is None or self._made[0] != trial.number:
            self._made = (trial.number, self._make(trial.number))
        return Asked(self._made[1], study, trial)


def trial_seed(seed: int, number: int) -> int:
    """The seed of the sampler that is made for trial ``number``."""
    return (seed * 1_000_003 + number * 7919) % 2**31


def sampler_factory(
    name: str,
    seed: int,
    trials: int,
    parameters: Iterable[str],
    priors: Mapping[str, LogNormal],
) -> Callable[[int], BaseSampler]:
    """A function from a trial's number to its sampler.

    Each trial gets a new sampler with its own seed. The study is the only memory, so a resumed study samples the same
    points as an uninterrupted one. Quasi-Monte-Carlo has one seed; the trial's number is its place in the sequence.
    TPE begins with such a sequence: it covers the space better than random points.

    Args:
        parameters: names of all parameters of the space, for Quasi-Monte-Carlo.
        priors: soft priors of parameters, for everything that is drawn before, or without, a model of the trials.
    """
    startup, names = max(4, min(10, trials // 3)), tuple(parameters)

    def make(number: int) -> BaseSampler:
        if name == "random":
            return SobolSampler((), seed, priors)  # a name that it does not know is drawn at random
        design = SobolSampler(names, seed, priors)
        if name == "qmc":
            return design
        # group: in a conditional space, each optimizer's parameters are modelled together.
        tpe = TPESampler(seed=trial_seed(seed, number), n_startup_trials=startup, multivariate=True, group=True)
        # Optuna's TPE would draw the first trials uniformly at random. It calls only methods of BaseSampler.
        tpe._random_sampler = design  # type: ignore[assignment]
        return ShownSampler(tpe, shown_to_tpe)

    return make


def make_pruner(name: str, max_epochs: int) -> BasePruner:
    """The pruner for ``--stopping``, also a user's own.

    ``asha``: a trial continues after epoch r, 3r, 9r … if it is in the best third. The first rung r is a quarter of the
    epochs or less. Earlier values predict the end badly (rank correlation .53 to .76 at 10 % of the budget, .84 to .92
    at 25 %).
    """
    if is_own(name):
        return own_pruner(name)
    first = max(1, max_epochs // 4)
    if name == "asha":
        return SuccessiveHalvingPruner(min_resource=first, reduction_factor=REDUCTION_FACTOR)
    if name == "median":
        return MedianPruner(n_startup_trials=4, n_warmup_steps=first)
    return NopPruner()


def quiet_optuna() -> None:
    """Hide Optuna's info lines, which would disturb the live table, and send its warnings to the log."""
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    optuna.logging.disable_default_handler()
    optuna.logging.enable_propagation()
