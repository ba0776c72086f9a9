"""What a plan warns of, for example enlarged images; advice on the strategy."""

from __future__ import annotations

import os

from bigbatch.train_loop.config.rules import is_own
from bigbatch.train_loop.data.info import PHOTOGRAPH_SIZE, SMALL_IMAGE_SIZE, DataInfo
from bigbatch.train_loop.launch.local_workers import unused_gpus
from bigbatch.train_loop.model.networks import RESNETS
from bigbatch.tune.models.names import LEARNING
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.storage.storage_url import shared_file_warning


def plan_notes(plan: SearchPlan) -> list[str]:
    """The warnings, each a sentence or two."""
    said = [
        *plan.data.notes,
        unused_gpus() if plan.address == "local" else None,
        unused_nodes() if plan.address == "local" else None,
        size_of_images(plan.data, plan.model) if "data.image_size" not in plan.overrides else None,
        nothing_to_learn_from(plan.strategy, plan.most_trials, plan.share.concurrency, plan.workers),
        shared_file_warning(plan.storage),
    ]
    return [text for text in said if text]


def unused_nodes() -> str | None:
    """A sentence if this is one of several nodes of a Slurm job, which a Ray of this process alone does not use."""
    nodes = os.environ.get("SLURM_JOB_NUM_NODES", "1")
    if nodes == "1":
        return None
    return f"this search uses one of the job's {nodes} nodes. To use all, sbatch cluster/ray_head_workers.slurm."


def size_of_images(data: DataInfo, model: str) -> str | None:
    """A sentence if the images have less than half of the side at which they are trained, or are small for the network.

    ResNets have a stem for small images, and a user's own network is made for the user's images.
    """
    if not data.largest_side:
        return None
    if data.image_size <= SMALL_IMAGE_SIZE:
        if model in RESNETS or is_own(model):
            return None
        times = (PHOTOGRAPH_SIZE / data.image_size) ** 2
        return (
            f"{model} is made for images of about {PHOTOGRAPH_SIZE} px, and these have {data.image_size}. To enlarge "
            f"them, which takes about {times:.0f} times as long, write --set image_size={PHOTOGRAPH_SIZE}."
        )
    if data.largest_side >= data.image_size / 2:
        return None
    times = (data.image_size / data.largest_side) ** 2
    return (
        f"images of at most {data.largest_side} px are enlarged to {data.image_size} px, which takes about {times:.0f} "
        f"times as long. To train them as they are, write --set image_size={data.largest_side}."
    )


TRIALS_A_SLOT = 4
"""A search learns little with fewer trials for each place at which one runs."""


def nothing_to_learn_from(name: str, trials: int, slots: int, workers: int) -> str | None:
    """A sentence for a search whose trials all start at the same time; None if later ones can learn from earlier ones.

    Args:
        slots: trials that run at the same time.
        workers: of each trial.
    """
    if name not in LEARNING or not 1 < trials <= slots:
        return None
    fewer = workers * TRIALS_A_SLOT
    return (
        f"all {trials} trials start at the same time, so none learns from another. Write e.g. --trials "
        f"{TRIALS_A_SLOT * slots}, or --workers {fewer} for larger trials, so that fewer run at a time."
    )
