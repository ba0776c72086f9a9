"""The plan of a scaling study: which sizes are measured, and what each of them trains."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bigbatch.cluster.host.allocation import usable_cpus
from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.tune.plan.enqueued import rate_factor, stretched
from bigbatch.tune.runs.objective import Objective

WEAK, STRONG = "weak", "strong"
MODES = (WEAK, STRONG)


@dataclass(frozen=True)
class ScaleMachine:
    """What a scaling study may use: this machine, or the nodes of the Slurm job around it, which are alike."""

    per_node: int
    """Devices of a node: GPUs; without them CPU cores."""
    nodes: int = 1
    unit: str = "GPUs"
    """``GPUs`` or ``CPU cores``."""

    @property
    def devices(self) -> int:
        """Of all nodes."""
        return self.per_node * self.nodes

    def kind(self, workers: int) -> str:
        """``serial``, ``multi-GPU`` (on CPUs ``multi-core``) or ``multi-node``."""
        if workers == 1:
            return "serial"
        if workers > self.per_node:
            return "multi-node"
        return "multi-GPU" if self.unit == "GPUs" else "multi-core"

    def nodes_for(self, workers: int) -> int:
        """The nodes that so many workers fill."""
        return -(-workers // self.per_node)


def threads_of(machine: ScaleMachine, most_workers: int, environ: Mapping[str, str] = os.environ) -> str | None:
    """``OMP_NUM_THREADS`` of all sizes of a study on CPUs, those of the largest one; None on GPUs.

    A serial run that used all cores would be compared with runs that share them.
    """
    if machine.unit == "GPUs":
        return None
    return environ.get("OMP_NUM_THREADS") or str(max(1, usable_cpus() // min(most_workers, machine.per_node)))


@dataclass(frozen=True)
class SizePlan:
    """One size of a scaling study."""

    workers: int
    nodes: int
    config: TrainConfig
    """What it trains, with this size's batch, rate and epochs."""
    kind: str
    """``serial``, ``multi-GPU`` (on CPUs ``multi-core``) or ``multi-node``."""


@dataclass(frozen=True)
class ScalePlan:
    """The checked command line of a scaling study."""

    source: Path
    """The file of the configuration."""
    config: TrainConfig
    """As the file has it, with the keys of ``--set``."""
    info: DataInfo
    machine: ScaleMachine
    mode: str
    base_workers: int
    """Weak scaling: the size that trains the configuration's own global batch."""
    sizes: tuple[SizePlan, ...]
    """Smallest first."""
    epochs: int
    """Of the training at each size; 0: only steps are measured."""
    profile_steps: int
    objective: Objective
    output: Path
    retune_trials: int = 0
    """Trials of the short search at each size; 0: no search."""
    stage_folder: str | None = None


def parse_sizes(option: str, text: str) -> tuple[int, ...]:
    """``1,2,4`` → (1, 2, 4). Raises ConfigError unless these are rising whole numbers above 0."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() for word in words):
        raise ConfigError(f"{option} takes whole numbers with commas between them; got {text!r}. Write e.g. 1,2,4,8.")
    sizes = tuple(map(int, words))
    if sizes[0] < 1:
        raise ConfigError(f"{option} needs sizes of at least 1 worker; got {text!r}. Write e.g. 1,2,4,8.")
    if any(after <= before for before, after in zip(sizes, sizes[1:], strict=False)):
        fix = ",".join(map(str, sorted(set(sizes))))
        raise ConfigError(f"{option} names each size once, the smallest first; got {text!r}. Write {fix}.")
    return sizes


def default_sizes(machine: ScaleMachine) -> tuple[int, ...]:
    """1, 2, 4, … up to the devices that there are, as far as they fill their nodes."""
    sizes = [size for size in (2**power for power in range(machine.devices.bit_length())) if fills(size, machine)]
    return tuple(sizes)


def fills(workers: int, machine: ScaleMachine) -> bool:
    """Whether so many workers are on one node, or fill whole ones."""
    return workers <= machine.per_node or workers % machine.per_node == 0


def check_sizes(sizes: Sequence[int], machine: ScaleMachine) -> None:
    """Raise ConfigError for sizes that this machine or job does not have."""
    if sizes[-1] > machine.devices:
        where = f"{machine.nodes} nodes with {machine.per_node} each" if machine.nodes > 1 else "this machine"
        raise ConfigError(
            f"--workers must be at most {machine.devices}, the {machine.unit} of {where}; got {sizes[-1]}. "
            f"Write --workers {','.join(map(str, default_sizes(machine)))}."
        )
    for size in sizes:
        if not fills(size, machine):
            below = size // machine.per_node * machine.per_node
            raise ConfigError(
                f"--workers on several nodes must fill them, {machine.per_node} each, or sizes do not compare; got "
                f"{size}. Write {below} or {below + machine.per_node}."
            )


def make_sizes(
    config: TrainConfig, info: DataInfo, machine: ScaleMachine, sizes: Sequence[int], mode: str, base: int, epochs: int
) -> tuple[SizePlan, ...]:
    """What each size trains. Raises ConfigError for a batch that does not divide, or exceeds the training set."""
    found = []
    for workers in sizes:
        batch = config.batch.global_size
        if mode == WEAK:
            config.batch.split(base)
            batch = batch * workers // base
        try:
            sized = config_at(config, info, batch, epochs or config.epochs)
            sized.batch.split(workers)
            info.steps_per_epoch(batch)
        except ConfigError as error:
            raise ConfigError(f"--workers {workers} ({mode} scaling): {error}") from None
        found.append(SizePlan(workers, machine.nodes_for(workers), sized, machine.kind(workers)))
    return tuple(found)


def config_at(config: TrainConfig, info: DataInfo, batch: int, epochs: int) -> TrainConfig:
    """``config`` at another global batch and another number of epochs.

    The peak rate follows the batch as ``enqueued.rate_factor`` says: linearly for SGD up to 8,192 images
    (Goyal et al. 2017, arXiv 1706.02677), with the square root for the others (You et al. 2020, arXiv 1904.00962;
    Malladi et al. 2022, arXiv 2205.10287). Warmup and steps of the schedule keep their share of the run. The
    micro-batch keeps its rule: what ``batch.micro_size`` says, else the largest that divides.
    """
    before = config.batch.global_size
    if batch == before and epochs == config.epochs:
        return config
    return dataclasses.replace(
        config,
        epochs=epochs,
        batch=dataclasses.replace(config.batch, global_size=batch),
        optimizer=dataclasses.replace(
            config.optimizer, peak_lr=config.optimizer.peak_lr * rate_factor(config.optimizer.name, before, batch)
        ),
        schedule=stretched(config.schedule, config.epochs, epochs, info.steps_per_epoch(before) * config.epochs),
    )


def rate_rule_words(optimizer: str) -> str:
    """How the peak rate follows the batch, for the plan."""
    if optimizer == "sgd":
        return "linear in the batch up to 8,192 images, square root beyond (Goyal et al. 2017, Nado et al. 2021)"
    return "square root of the batch (You et al. 2020, Malladi et al. 2022)"


def default_output(source: Path, config: TrainConfig, mode: str, base: int, epochs: int, retune_trials: int) -> Path:
    """``runs/scale/best-weak-0123abcd``, the same for the same command."""
    facts = f"{config.outcome_json()}{mode}{base}{epochs}{retune_trials}"
    return Path("runs", "scale", f"{source.stem}-{mode}-{hashlib.sha256(facts.encode()).hexdigest()[:8]}")
