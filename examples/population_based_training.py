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
    """Each trial's results as they come: Ray's own files lose rows of one that takes over a checkpoint."""

    of_trial: dict[str, list[dict]] = {}

    def on_trial_result(self, iteration, trials, trial, result, **info) -> None:
        self.of_trial.setdefault(trial.trial_id, []).append(result)


scheduler = PopulationBasedTraining(
    time_attr="epoch", metric="val_top1", mode="max", perturbation_interval=2, quantile_fraction=0.5, synch=True,
    # From a list it takes a neighbour. A momentum from a range would become 1.2 times itself, and so 1 or more.
    hyperparam_mutations={"lr": tune.loguniform(0.02, 0.1), "momentum": [0.5, 0.8, 0.9]},
)  # fmt: skip
failures = tune.FailureConfig(fail_fast=True)  # else the others wait for a trial that failed
# "local" never joins another Ray that happens to run on this machine.
ray.init(address=os.environ.get("RAY_ADDRESS", "local"), log_to_driver=False)
tuner = tune.Tuner(
    tune.with_resources(train, {"CPU": 1}),
    param_space={"lr": tune.grid_search([0.0001, 0.05]), "momentum": 0.9},
    tune_config=tune.TuneConfig(scheduler=scheduler),
    run_config=tune.RunConfig(
        storage_path=tempfile.mkdtemp(), verbose=0, callbacks=[Epochs()], failure_config=failures
    ),
)
tuner.fit()
for rows in Epochs.of_trial.values():
    rates, momenta = (" ".join(f"{row['config'][key]:.2g}" for row in rows) for key in ("lr", "momentum"))
    print(f"top-1 {rows[-1]['val_top1']:.1%} after {rows[-1]['epoch']} epochs; rates {rates}; momenta {momenta}")
ray.shutdown()
