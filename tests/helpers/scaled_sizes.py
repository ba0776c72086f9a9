"""A configuration to scale, and a stand-in of the processes that train its sizes: files as real ones leave them."""

import json
from collections.abc import Mapping
from pathlib import Path

from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.scaling.scale_plan import ScaleMachine
from bigbatch.tune.scaling.size_process import SizeCommand, SizeDiverged, SizeFailed

NODES = ScaleMachine(per_node=4, nodes=2)
COMPUTE_S, TURN_S = 0.1, 0.01
SCALED = TrainConfig(epochs=6).replace_keys(
    {"model.name": "resnet18", "data.image_size": 8, "batch.global_size": 64, "optimizer.peak_lr": 0.4,
     "schedule.warmup_epochs": 3}
)  # fmt: skip


class Trainings:
    """Stands in for the processes of a size: a step takes 0.1 s, and 0.02 s more for each worker but the first."""

    def __init__(self) -> None:
        self.started: list[SizeCommand] = []
        self.environments: list[Mapping[str, str]] = []
        self.fails_at = self.diverges_at = ""

    def __call__(self, started: SizeCommand, log: Path, env: Mapping[str, str]) -> None:
        self.started.append(started)
        self.environments.append(env)
        words = list(started.words)
        output = Path(words[words.index("--output") + 1])
        if self.fails_at and self.fails_at in str(output):
            raise SizeFailed("exit code 1: no memory")
        if self.diverges_at and self.diverges_at in str(output):
            raise SizeDiverged("exit code 1: training loss is nan")
        config = TrainConfig.from_json(Path(words[words.index("--config") + 1]).read_text())
        workers = int(output.parent.name)
        output.mkdir(parents=True)
        if "--profile-steps" in words:
            (output / "profile.jsonl").write_text(json.dumps(self._profile(config, workers)) + "\n")
        else:
            history = [self._record(config, epoch, workers) for epoch in range(1, config.epochs + 1)]
            (output / "result.json").write_text(json.dumps({"history": history}))

    @staticmethod
    def _profile(config: TrainConfig, workers: int) -> dict[str, object]:
        split, turns = config.batch.split(workers), 2 * (workers - 1)
        step_s = COMPUTE_S + TURN_S * turns
        return {
            "device": "made", "global_size": split.global_size, "accumulation_steps": split.accumulation_steps,
            "micro_size": split.micro_size, "steps_per_epoch": 10,
            "phases": {"data": 0.0, "step": step_s, "communication": TURN_S * turns},
            "images_per_s": split.global_size / step_s, "train_s": 10 * step_s, "val_s": 0.5, "bn_s": 0.0,
        }  # fmt: skip

    @staticmethod
    def _record(config: TrainConfig, epoch: int, workers: int) -> dict[str, object]:
        step_s = COMPUTE_S + 2 * TURN_S * (workers - 1)
        noise = None if workers == 1 else 100.0 * epoch
        return {
            "epoch": epoch, "epochs": config.epochs, "val_top1": 0.9 - 0.01 * workers + 0.001 * epoch,
            "images_per_s": config.batch.global_size / step_s, "train_s": 10 * step_s, "val_s": 0.5,
            "noise_scale": noise,
        }  # fmt: skip
