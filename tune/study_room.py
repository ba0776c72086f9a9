"""Whether a study fits into what is left for its folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from train_loop import room
from train_loop.config import ModelConfig, TrainConfig

if TYPE_CHECKING:
    from tune.plan import SearchPlan


def check_room(plan: SearchPlan) -> None:
    """Raise ConfigError where the study would not fit into what is left for its folder.

    Which optimizers the space takes is not known here: the largest state is assumed, unless ``--set`` says it.
    """
    changes = {key: value for key, value in plan.overrides.items() if key.startswith("model.")}
    model = TrainConfig(model=ModelConfig(name=plan.model)).replace_keys(changes).model
    averaged = plan.overrides.get("ema_decay", 0) > 0
    checkpoint = room.checkpoint_bytes(model, plan.data, plan.overrides.get("optimizer.name"), averaged)
    need = room.study_need(
        checkpoint,
        plan.trials,
        plan.max_epochs,
        plan.share.concurrency,
        joined=plan.address != "local",
        wandb=plan.wandb != "disabled",
    )
    room.check_room("--output", plan.folder, need)
