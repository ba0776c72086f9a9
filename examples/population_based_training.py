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
scheduler = PopulationBasedTraining(
    time_attr="epoch",
    metric="val_top1",
    mode="max",
    perturbation_interval=2,
    quantile_fraction=0.5,
    hyperparam_mutations={"lr": tune.loguniform(0.01, 0.2), "momentum": tune.uniform(0.5, 0.97)},
    synch=True,
)
# "local" never joins another Ray that happens to run on this machine.
ray.init(address=os.environ.get("RAY_ADDRESS", "local"), log_to_driver=False)
tuner = tune.Tuner(
    tune.with_resources(train, {"CPU": 1}),
    param_space={"lr": tune.grid_search([0.0001, 0.05]), "momentum": 0.9},
    tune_config=tune.TuneConfig(scheduler=scheduler),
    run_config=tune.RunConfig(name="pbt", storage_path=tempfile.mkdtemp(prefix="pbt-"), verbose=0),
)
for result in tuner.fit():
    rates = " ".join(f"{rate:.2g}" for rate in result.metrics_dataframe["learning_rate"])
    print(
        f"top-1 {result.metrics['val_top1']:.1%} after {result.metrics['epoch']} epochs; {result.config}; rates {rates}"
    )
ray.shutdown()
