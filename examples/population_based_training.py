"""Population Based Training by Ray Tune over BigBatch's training: the rate and the momentum change while a run trains.

    python examples/population_based_training.py            # a private Ray on this machine

Each trial is a run of `bigbatch.trainable`. After every second epoch the worse half of the population takes over the
checkpoint of a better run, with its rate and momentum a little changed.
"""

import os
import sys
import tempfile

import ray
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

import bigbatch

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 8

train = bigbatch.trainable(
    "large_batch",
    data="digits",
    model="shufflenet_v2_x0_5",
    max_epochs=EPOCHS,
    set={"batch": 32, "optimizer": "sgd", "data.image_size": 16, "warmup_epochs": 0.5, "schedule.name": "constant"},
)


class Epochs(tune.Callback):
    """The results of each trial, as they come: one that takes over a checkpoint shows the other's from then on, and may
    lose rows of the files that Ray keeps of it."""

    def __init__(self) -> None:
        self.of_trial: dict[str, list[dict]] = {}

    def on_trial_result(self, iteration, trials, trial, result, **info) -> None:
        self.of_trial.setdefault(trial.trial_id, []).append(result)


epochs = Epochs()
scheduler = PopulationBasedTraining(
    time_attr="epoch",
    metric="val_top1",
    mode="max",
    perturbation_interval=2,
    quantile_fraction=0.5,
    # From a list it takes a neighbour. A momentum from a range would become 1.2 times itself, and so 1 or more.
    hyperparam_mutations={"lr": tune.loguniform(0.01, 0.2), "momentum": [0.5, 0.8, 0.9, 0.95]},
    synch=True,  # all wait for the last one: with a trial that failed for ever, hence `fail_fast` below
)
# "local" never joins another Ray that happens to run on this machine.
ray.init(address=os.environ.get("RAY_ADDRESS", "local"), log_to_driver=False)
tuner = tune.Tuner(
    tune.with_resources(train, {"CPU": 1}),
    param_space={"lr": tune.grid_search([0.0001, 0.05]), "momentum": 0.9},
    tune_config=tune.TuneConfig(scheduler=scheduler),
    run_config=tune.RunConfig(
        name="pbt",
        storage_path=tempfile.mkdtemp(prefix="pbt-"),
        verbose=0,
        callbacks=[epochs],
        failure_config=tune.FailureConfig(fail_fast=True),
    ),
)
tuner.fit()
for results in epochs.of_trial.values():
    rates, momenta = ([f"{result['config'][key]:.2g}" for result in results] for key in ("lr", "momentum"))
    print(
        f"top-1 {results[-1]['val_top1']:.1%} after {results[-1]['epoch']} epochs; "
        f"rates {' '.join(rates)}; momenta {' '.join(momenta)}"
    )
ray.shutdown()
