"""A sampler and a pruner of Optuna's for a search: a genetic algorithm, and patience with trials that no longer rise.

    bigbatch tune --strategy examples/own_sampler.py:sampler --stopping examples/own_sampler.py:pruner

`sampler` is called again for each trial, with a seed that follows from `--seed` and the trial's number, and `pruner`
for each epoch's decision. What they keep in themselves is lost then; what they write to the study stays. A class works
too: `--strategy examples/own_sampler.py:NSGAIISampler`.
"""

from optuna.pruners import BasePruner, MedianPruner, PatientPruner
from optuna.samplers import BaseSampler, BruteForceSampler, NSGAIISampler


def sampler(seed: int) -> BaseSampler:
    """The genetic algorithm NSGA-II with small generations."""
    return NSGAIISampler(seed=seed, population_size=4)


def every_choice() -> BaseSampler:
    """Each combination once; for spaces of choices and steps. Its seed is fixed: it stands for one whole order."""
    return BruteForceSampler(seed=0)


def pruner() -> BasePruner:
    """Stops a trial below the median if it has not risen for two epochs."""
    return PatientPruner(MedianPruner(n_startup_trials=2), patience=2)
