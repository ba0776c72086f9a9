"""A vision transformer of timm on small images: patch size, depth and rate, one batch.

    pip install 'bigbatch[timm]'
    bigbatch tune --model timm/vit_tiny_patch16_224 --space examples/timm_vit.py

Takes less than two minutes on two cores, on the embedded digits. No weights are downloaded; `model.pretrained` names a
file of weights. `docs/bring-your-own.md` says which arguments `model.options` may hold.

`--workers 2 --set model.parallel=fsdp2` shards the network over two workers, block by block, and
`--set activation_checkpointing=true` computes each block again in the backward pass: for a network that is too large
for one GPU, also `timm/coatnet_0_rw_224`. No GPU has run it.
"""

from bigbatch.search_spaces.trial import Trial
from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.config import TrainConfig

DEFAULTS = {"trials": 3, "max_epochs": 8}


def space(trial: Trial, workload: Workload) -> TrainConfig:
    """AdamW; each key of `model.options` is an argument of `timm.create_model`."""
    return workload.config(
        {
            "model.options.patch_size": trial.suggest_categorical("model.options.patch_size", [4, 8]),
            "model.options.depth": trial.suggest_int("model.options.depth", 2, 4),
            "model.options.embed_dim": 96,
            "model.options.num_heads": 3,
            "batch.global_size": 64 * workload.workers,
            "optimizer.name": "adamw",
            "optimizer.peak_lr": trial.suggest_float("peak_lr", 3e-4, 6e-3, log=True),
            "optimizer.weight_decay": 0.05,
            "schedule.warmup_epochs": 0.1 * workload.epochs,
        }
    )
