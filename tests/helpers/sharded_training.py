"""Two gloo ranks that shard a small network: what ``test_sharding`` compares with one process.

Run as a script it is one of them, as ``tiny_training`` is.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.amp.grad_scaler import GradScaler

from bigbatch.train_loop.config import OptimizerConfig, TrainConfig
from bigbatch.train_loop.distributed import World
from bigbatch.train_loop.loop.assembly import set_up
from bigbatch.train_loop.loop.checkpoint import CheckpointFolder
from bigbatch.train_loop.loop.sharded_state import write_shards
from bigbatch.train_loop.loop.step import TrainStep
from bigbatch.train_loop.loop.step_profile import measure_steps
from bigbatch.train_loop.model.activation_checkpointing import checkpoint_blocks
from bigbatch.train_loop.model.sharding import blocks, shard
from bigbatch.train_loop.optim import build_optimizer
from bigbatch.train_loop.reporter import EpochRecord, ListReporter
from helpers.small_disk import fill
from helpers.tiny_training import (
    CONFIG,
    FOUND,
    LeavesOut,
    StopsAt,
    be_a_rank,
    bn_model,
    changed,
    install,
    outcome,
    whole_tensor,
)

CPU = torch.device("cpu")
STEPS, MICRO, INPUTS, CLASSES = 4, 4, 5, 3
SHARDED = changed(CONFIG, parallel="fsdp2", noise_scale=False)
EMA = changed(SHARDED, ema_decay=0.9, optimizer="lamb", peak_lr=0.02)
LARS = changed(SHARDED, optimizer="lars", peak_lr=2.0)
LISTED = changed(SHARDED, optimizer="adamw", peak_lr=0.01)
OPTIMIZERS = {
    "sgd": OptimizerConfig("sgd", 0.3, weight_decay=0.01),
    "clipped": OptimizerConfig("sgd", 0.3, weight_decay=0.01, clip_grad_norm=0.05),
    "lars": OptimizerConfig("lars", 5.0, weight_decay=0.01),
    "lamb": OptimizerConfig("lamb", 0.05, weight_decay=0.01),
    "nvlamb": OptimizerConfig("lamb", 0.05, weight_decay=0.01, nvlamb=True, pre_normalise=True),
    "adamw": OptimizerConfig("adamw", 0.05, weight_decay=0.01),
}


class Block(nn.Module):
    """A residual block. Over two ranks its 5 rows are uneven, and one of them has nothing of its scale ``[1]``."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(INPUTS), nn.Linear(INPUTS, INPUTS)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
        """Of any batch ``[N, INPUTS]``."""
        outputs: torch.Tensor = x + factor * self.scale * torch.tanh(self.linear(self.norm(x)))
        return outputs


class Listed(nn.Module):
    """Blocks in an ``nn.ModuleList``, which it calls with an argument by name."""

    def __init__(self, side: int = 0) -> None:
        super().__init__()
        self.first = nn.Linear(side or INPUTS, INPUTS)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.last = nn.Linear(INPUTS, CLASSES if not side else 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of ``[N, …]``."""
        x = self.first(x.flatten(1))
        for block in self.blocks:
            x = block(x, factor=0.5)
        logits: torch.Tensor = self.last(x)
        return logits


def of_images() -> nn.Module:
    """``Listed`` for the images of ``TinySource``."""
    return Listed(3 * 8 * 8)


def recomputed() -> nn.Module:
    """``of_images``, whose blocks compute their activations again."""
    return _checkpointed(of_images())


def in_segments() -> nn.Module:
    """``bn_model``, which is recomputed in segments: its layers are no blocks of several."""
    return _checkpointed(bn_model())


def _checkpointed(model: nn.Module) -> nn.Module:
    checkpoint_blocks(model, "tiny", whole_blocks=True)
    return model


class ExactStep(TrainStep):
    """A step whose loss stays in float64."""

    @property
    def loss(self) -> Callable[..., torch.Tensor]:
        """Cross entropy."""
        return F.cross_entropy


def exact_weights(name: str, world: World) -> list[list[float]]:
    """The whole weights after ``STEPS`` steps in float64, each of 4 micro-batches over all ranks."""
    torch.manual_seed(3)
    model: nn.Module = Listed().double()
    draws = torch.Generator().manual_seed(5)
    images = torch.randn(STEPS, 4, MICRO, INPUTS, generator=draws, dtype=torch.float64)
    labels = torch.randint(CLASSES, (STEPS, 4, MICRO), generator=draws)
    if world.workers > 1:
        assert len(blocks(model)) == 3
        model = shard(model, world, bf16_gradients=False)
    config = TrainConfig(optimizer=OPTIMIZERS[name])
    optimizer = build_optimizer(model, config.optimizer)
    scaler = GradScaler("cpu", enabled=False)
    step = ExactStep(config, CPU, lambda x: x, model, model, optimizer, scaler, None, "off")
    own = range(world.rank, 4, world.workers)
    for number in range(STEPS):
        for micro in own:
            step.gradients(images[number, micro], labels[number, micro], len(own), last=micro == own[-1])
        step.update(config.optimizer.peak_lr, number + 1)
    return [whole_tensor(p).flatten().tolist() for p in model.parameters()]


def case_sharded(folder: Path, rank: int) -> dict[str, Any]:
    """Everything that needs two ranks: starting them takes seconds."""
    world = World.current(CPU)

    def run(name: str, config: TrainConfig, **keywords: Any) -> dict[str, Any]:
        return outcome(folder / name, config, **keywords)

    found: dict[str, Any] = {f"exact_{name}": exact_weights(name, world) for name in OPTIMIZERS}
    found |= {
        "equal": run("equal", SHARDED),
        "accumulated": run("accumulated", changed(SHARDED, global_size=32)),
        "running": run("running", changed(SHARDED, precise_bn="off")),
        "lars": run("lars", LARS),
        "listed": run("listed", LISTED, build=of_images),
        "recomputed": run("recomputed", LISTED, build=recomputed),
        "segments": run("segments", SHARDED, build=in_segments),
        "bf16": run("bf16", changed(SHARDED, bf16_gradients=True)),
        "fp16": run("fp16", changed(SHARDED, precision="fp16")),
        "average": run("average", EMA, every_s=0),
    }
    found["wider"] = run("wider", EMA)  # one worker has begun it
    stops = StopsAt(2 if rank == 1 else 1000)
    found["stopped"] = run("stopped", EMA, reporter=stops)
    world.wait()
    if rank == 0:
        shutil.copytree(folder / "stopped", folder / "narrower")
    # What a run leaves behind that is killed after its shards are written, and before latest.pt names them.
    write_shards({"model": {"a": _any_shard(world)}}, folder / "stopped", world, whole=False)
    found["unnamed"] = len(list((folder / "stopped").glob("shards-*")))
    world.wait()
    found["resumed"] = run("stopped", EMA)
    found["again"] = run("stopped", EMA)
    world.wait()
    if (folder / "full").exists():
        found["full"] = run("full", EMA, reporter=_FillsDisk(folder / "full", rank), every_s=0)
    found["profiled"] = profiled(changed(SHARDED, precise_bn_images=40))
    unused = changed(FOUND, find_unused_parameters=False, parallel="fsdp2")
    found["unused"] = run("unused", unused, build=_LeavesOutBoth)
    return found


def profiled(config: TrainConfig) -> tuple[int, float]:
    """How many batches for BatchNorm this rank has, and the seconds that all ranks take for them."""
    with pytest.MonkeyPatch.context() as patch:
        install(patch.setattr)
        run = set_up(config, ListReporter(), CheckpointFolder(None, 0.0), CPU)
        own = len(list(run.source.bn_batches(0, 0, run.split.micro_size, 40, run.world.rank, run.world.workers)))
        return own, measure_steps(run, 1).bn_s


class _FillsDisk(ListReporter):
    """Leaves less room than a checkpoint takes, before the last one."""

    def __init__(self, folder: Path, rank: int) -> None:
        super().__init__()
        self._folder, self._rank = folder, rank

    def report(self, record: EpochRecord) -> None:
        """The checkpoint of the record's epoch is written."""
        super().report(record)
        if record.epoch == EMA.epochs - 1 and self._rank == 0:
            fill(self._folder, 2 * 4096)  # of three files or more


class _LeavesOutBoth(LeavesOut):
    """Leaves its second layer out in each training pass, on all ranks."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits of images."""
        outputs: torch.Tensor = self.first(images)
        return outputs


def _any_shard(world: World) -> torch.Tensor:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    return distribute_tensor(torch.ones(4), init_device_mesh("cpu", (world.workers,)), [Shard(0)])


if __name__ == "__main__":
    be_a_rank({"sharded": case_sharded})
