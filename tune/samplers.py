"""Optuna samplers and pruners by the names of the command line."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import optuna
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import (
    BaseSampler,
    CmaEsSampler,
    GPSampler,
    QMCSampler,
    RandomSampler,
    TPESampler,
)

MODEL_BASED = ("tpe", "gp", "cmaes")
"""Samplers that learn from trials, and that the initial points of a space serve."""
COMPLETE_ONLY = ("gp",)
"""Samplers that learn from trials that ran to their end only: with early stopping, from few."""
UNCONDITIONAL_ONLY = ("gp", "cmaes")
"""Samplers that draw at random what only some trials have, such as one optimizer's momentum."""
REDUCTION_FACTOR = 3
"""ASHA's η: a third goes on at each rung (Li et al. 2020, arXiv 1810.05934, use 3 or 4)."""


def sampler_factory(name: str, seed: int, trials: int) -> Callable[[int], BaseSampler]:
    """A function of a trial's number that gives its sampler.

    The sampler is made anew for each trial, with a seed of its own, so that a resumed study samples
    what it would have sampled without the interruption: nothing but the study is remembered.
    Quasi-Monte-Carlo counts its own steps in the study and keeps one seed.
    """
    startup = max(4, min(10, trials // 3))

    def make(number: int) -> BaseSampler:
        own = (seed * 1_000_003 + number * 7919) % 2**31
        sampler: BaseSampler
        if name == "tpe":
            # group: the space is conditional, each optimiser's parameters are modelled together.
            sampler = TPESampler(seed=own, n_startup_trials=startup, multivariate=True, group=True, constant_liar=True)
        elif name == "random":
            sampler = RandomSampler(seed=own)
        elif name == "qmc":
            sampler = QMCSampler(seed=seed, scramble=True, warn_independent_sampling=False)
        elif name == "gp":
            sampler = GPSampler(seed=own, n_startup_trials=startup, deterministic_objective=False)  # see COMPLETE_ONLY
        elif name == "cmaes":
            sampler = CmaEsSampler(
                seed=own,
                n_startup_trials=startup,
                warn_independent_sampling=False,
                independent_sampler=RandomSampler(own),
                consider_pruned_trials=True,  # with early stopping few others are left
            )
        else:
            raise ValueError(f"no such sampler: {name!r}")
        return sampler

    return make


def weakness(name: str, scheduler: str, conditional: bool, categorical: bool) -> str | None:
    """What the chosen sampler cannot do here, for the plan; None where it can all.

    Args:
        conditional: some parameters exist only with some values of another.
        categorical: some parameters are choices.
    """
    said = []
    if name in COMPLETE_ONLY and scheduler != "none":
        said.append("learns from trials that ran to their end only, and early stopping leaves few (--scheduler none)")
    if name == "cmaes" and categorical:
        said.append("draws choices at random")
    if name in UNCONDITIONAL_ONLY and conditional:
        said.append("draws conditional parameters at random")
    return f"{name} {'; '.join(said)}. tpe has none of that." if said else None


def make_pruner(name: str, max_epochs: int) -> BasePruner:
    """``asha``: a trial goes on past epoch r, 3r, 9r … if it is among the best third there.

    The first rung r is a quarter of the epochs or less: earlier values say little about the end
    (rank correlation .53 to .76 at 10 % of the budget, .84 to .92 at 25 %).
    """
    first = max(1, max_epochs // 4)
    if name == "asha":
        return SuccessiveHalvingPruner(min_resource=first, reduction_factor=REDUCTION_FACTOR)
    if name == "hyperband":
        return HyperbandPruner(min_resource=first, max_resource=max_epochs, reduction_factor=REDUCTION_FACTOR)
    if name == "median":
        return MedianPruner(n_startup_trials=4, n_warmup_steps=first)
    if name == "none":
        return NopPruner()
    raise ValueError(f"no such scheduler: {name!r}")


def quiet_optuna() -> None:
    """Optuna's info lines would run through the live table; its warnings go to the log."""
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    optuna.logging.disable_default_handler()
    optuna.logging.enable_propagation()
