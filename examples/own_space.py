"""A search space of your own: LARS against SGD at one large batch, with a warmup that is searched as well.

    bigbatch tune --space examples/own_space.py --dry-run
    bigbatch tune --space examples/own_space.py --trials 8 --max-epochs 6

Takes two minutes on a laptop, on the embedded digits. `docs/search-spaces.md` says what a space may do.
"""

from bigbatch.search_spaces.priors import searched_peak_lr
from bigbatch.search_spaces.trial import Trial
from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.config import TrainConfig

DEFAULTS = {"trials": 8, "max_epochs": 6}
"""What `--trials` and `--max-epochs` are if the command line does not give them."""

BATCH = 256


def space(trial: Trial, workload: Workload) -> TrainConfig:
    """LARS and SGD at batch 256: learning rate around the prior, warmup, label smoothing."""
    name = trial.suggest_categorical("optimizer", ["lars", "sgd"])
    multiplier = trial.suggest_float("lr_multiplier", 0.25, 4.0, log=True)
    warmup = trial.suggest_float("warmup_fraction", 0.05, 0.35)
    return workload.config(
        {
            "batch.global_size": BATCH,
            "optimizer.name": name,
            "optimizer.peak_lr": searched_peak_lr(workload, name, BATCH) * multiplier,
            "schedule.warmup_epochs": round(warmup * workload.epochs, 2),
            "label_smoothing": trial.suggest_float("label_smoothing", 0.0, 0.2),
        }
    )


def initial_points(workload: Workload) -> list[dict[str, object]]:
    """The first trials: each optimizer at the centre of its prior. What is left out here is sampled."""
    return [{"optimizer": name, "lr_multiplier": 1.0} for name in ("lars", "sgd")]
