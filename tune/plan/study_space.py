"""Whether a study fits into what is left for its folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bigbatch.train_loop.config import ModelConfig, TrainConfig
from bigbatch.train_loop.host import disk_space
from bigbatch.train_loop.loop import space_needed

if TYPE_CHECKING:
    from bigbatch.tune.plan.search_plan import SearchPlan


def check_room(plan: SearchPlan) -> None:
    """Raise ConfigError where the study would not fit into what is left for its folder.

    Which optimizers the space takes is not known here: the largest state is assumed, unless ``--set`` says it.
    """
    changes = {key: value for key, value in plan.overrides.items() if key.startswith("model.")}
    model = TrainConfig(model=ModelConfig(name=plan.model)).replace_keys(changes).model
    averaged = plan.overrides.get("ema_decay", 0) > 0
    checkpoint = space_needed.checkpoint_bytes(model, plan.data, plan.overrides.get("optimizer.name"), averaged)
    need = space_needed.study_need(
        checkpoint,
        plan.trials,
        plan.max_epochs,
        plan.share.concurrency,
        joined=plan.address != "local",
        wandb=plan.wandb != "disabled",
    )
    disk_space.check_room("--output", plan.folder, need)
