"""Check that the disk has room for a study."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bigbatch.train_loop.config import ModelConfig, TrainConfig
from bigbatch.train_loop.host import disk_space
from bigbatch.train_loop.host.disk_space import SpaceNeeded
from bigbatch.train_loop.loop import space_needed

if TYPE_CHECKING:
    from bigbatch.tune.plan.search_plan import SearchPlan


def check_study_fits(plan: SearchPlan) -> None:
    """Raise ConfigError if the study needs more space than its folder's disk and quota have left.

    Without ``--set optimizer=…`` the optimizer is not known here, so the largest optimizer state is assumed.
    """
    disk_space.check_disk_space("--output", plan.folder, _space_needed(plan))


def _checkpoint_bytes(plan: SearchPlan) -> int:
    """Of one trial; 0 for a whole training function, of which nothing is known."""
    if plan.trainable:
        return 0
    changes = {key: value for key, value in plan.overrides.items() if key.startswith("model.")}
    model = TrainConfig(model=ModelConfig(name=plan.model)).replace_keys(changes).model
    averaged = plan.overrides.get("ema_decay", 0) > 0
    return space_needed.checkpoint_bytes(model, plan.data, plan.overrides.get("optimizer.name"), averaged)


def _space_needed(plan: SearchPlan) -> SpaceNeeded:
    return space_needed.study_space_needed(
        _checkpoint_bytes(plan),
        plan.trials,
        plan.max_epochs,
        plan.share.concurrency + (len(plan.frontier.values) - 1 if plan.frontier else 0),  # each value's best is kept
        joined=plan.address != "local",
        wandb=plan.wandb != "disabled",
    )
