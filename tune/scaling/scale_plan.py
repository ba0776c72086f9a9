"""The options of ``bigbatch scale``, and the checked plan that they make: which sizes run, and what each trains."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bigbatch.base.command_line import OneLineParser
from bigbatch.cluster.host.allocation import slurm_job, usable_cpus
from bigbatch.train_loop.config import ConfigError, TrainConfig, differing_keys, parse_assignments
from bigbatch.train_loop.config.given import config_source, read_config, recipe_path
from bigbatch.train_loop.data.catalogue import check_stage, look
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.train_loop.host.command_line import add_part_options, check_writable, with_options, with_parts
from bigbatch.train_loop.host.ranks import find_launch
from bigbatch.train_loop.launch.checks import check_run_model
from bigbatch.train_loop.launch.local_workers import local_gpu_count
from bigbatch.tune.plan.enqueued import rate_factor, stretched

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

    def nodes_for(self, workers: int) -> int:
        """The nodes that so many workers fill."""
        return -(-workers // self.per_node)

    def fits(self, workers: int) -> bool:
        """Whether so many workers are on one node, or fill whole ones."""
        return workers <= self.per_node or workers % self.per_node == 0


@dataclass(frozen=True)
class SizePlan:
    """One size of a scaling study."""

    workers: int
    nodes: int
    config: TrainConfig
    """What it trains, with this size's batch, rate and epochs."""


@dataclass(frozen=True)
class ScalePlan:
    """The checked command line of a scaling study."""

    source: Path
    """The file of the configuration."""
    config: TrainConfig
    """As the file has it, with the keys of ``--set`` and ``--epochs``."""
    info: DataInfo
    machine: ScaleMachine
    mode: str
    sizes: tuple[SizePlan, ...]
    """Smallest first."""
    output: Path
    stage_folder: str | None = None

    def folder(self, workers: int) -> Path:
        """Where a size is trained."""
        return self.output / str(workers)

    def config_file(self, workers: int) -> Path:
        """The configuration that a size trains."""
        return self.output / f"{workers}.json"


def scale_parser(prog: str) -> OneLineParser:
    """The options of ``bigbatch scale``."""
    p = OneLineParser(
        prog=prog,
        description="Measure how a configuration scales with more workers. Repeat the command to resume.",
    )
    add = p.add_argument
    which = p.add_mutually_exclusive_group(required=True)
    which.add_argument("--config", metavar="FILE", help="a search's best.json, its study's folder, or a TrainConfig")
    which.add_argument("--recipe", metavar="NAME", help="a published configuration: train_loop/recipes/NAME.json")
    add("--set", action="append", nargs="+", default=[], metavar="KEY=VALUE", help="change a key, e.g. model=resnet50")
    add("--data", metavar="NAME|PATH", help="use this data set, not the configuration's")
    add_part_options(add)
    add("--workers", metavar="N,N,…", help="the sizes, e.g. 1,2,4,8 (default: powers of two up to the devices here)")
    add("--mode", choices=MODES, default=WEAK, help="weak (default): batch grows with workers; strong: it stays")
    add(
        "--base-workers", type=int, metavar="N", help="weak: the size with the file's own batch (default: the smallest)"
    )
    add("--epochs", type=int, metavar="N", help="epochs trained at each size (default: the file's)")
    add("--stage", metavar="DIR", help="copy a packed data set to this folder of each node; as for bigbatch train")
    add("--output", metavar="DIR", help="results' folder (default: runs/scale/<file>-<mode>-<hash>)")
    add("--dry-run", action="store_true", help="print the plan and stop")
    return p


def find_machine() -> ScaleMachine:
    """What is here: the devices of this machine, and the nodes of the job around it."""
    gpus, job = local_gpu_count(), slurm_job()
    nodes = job.nodes if job is not None and job.nodes else 1
    return ScaleMachine(gpus or usable_cpus(), nodes, "GPUs" if gpus else "CPU cores")


def make_scale_plan(args: argparse.Namespace, machine: ScaleMachine) -> ScalePlan:
    """Check the command line. Raises ConfigError."""
    launch = find_launch()
    if launch is not None:
        raise ConfigError(
            f"bigbatch scale starts its own workers; got {launch.world_size} processes of {launch.by}. Start it once, "
            "without it."
        )
    if args.base_workers is not None and args.base_workers < 1:
        raise ConfigError(f"--base-workers must be at least 1; got {args.base_workers}. Write --base-workers 1.")
    if args.base_workers is not None and args.mode != WEAK:
        raise ConfigError(
            f"--base-workers belongs to weak scaling; got --mode {args.mode}, where the batch stays. Leave one out."
        )
    source = recipe_path(args.recipe) if args.recipe else config_source(args.config)
    config = _read(args, source)
    epochs = config.epochs if args.epochs is None else args.epochs
    if epochs < 2:
        raise ConfigError(f"--epochs must be at least 2: the first one also warms up; got {epochs}. Write --epochs 2.")
    info = look(config.data, open_some=True).info
    if info.path is not None:
        config = config.replace_keys({"data.name": info.path})
    check_stage(args.stage, info)
    check_run_model(config, info)
    sizes = parse_sizes("--workers", args.workers) if args.workers else default_sizes(machine)
    check_sizes(sizes, machine)
    base = args.base_workers or sizes[0]
    digest = hashlib.sha256(f"{config.outcome_json()}{base}{epochs}".encode()).hexdigest()[:8]
    output = Path(args.output or Path("runs", "scale", f"{source.stem}-{args.mode}-{digest}")).absolute()
    found = make_sizes(config, info, machine, sizes, args.mode, base, epochs)
    plan = ScalePlan(source, config, info, machine, args.mode, found, output, args.stage)
    check_writable("--output", output)
    _check_same_configurations(plan)
    return plan


def _read(args: argparse.Namespace, source: Path) -> TrainConfig:
    changes = with_parts(parse_assignments([text for group in args.set for text in group]), args.subset, args.val_part)
    with_options(changes, {"--epochs": ("epochs", args.epochs)})  # only raises: the schedule is stretched later
    return read_config(source).replace_keys(with_options(changes, {"--data": ("data.name", args.data)}))


def _check_same_configurations(plan: ScalePlan) -> None:
    """Raise ConfigError if the folder holds sizes of another command."""
    for size in plan.sizes:
        stored = plan.config_file(size.workers)
        if stored.exists() and (changes := differing_keys(read_config(stored).to_dict(), size.config.to_dict())):
            raise ConfigError(
                f"a scaling study goes on as it began; {str(stored)!r} has other values: {', '.join(changes)}. "
                "Write --output with another folder."
            )


def parse_sizes(option: str, text: str) -> tuple[int, ...]:
    """``1,2,4`` → (1, 2, 4). Raises ConfigError unless these are rising whole numbers above 0."""
    words = [word.strip() for word in text.split(",")]
    sizes = tuple(int(word) for word in words if word.isascii() and word.isdigit())
    if len(sizes) < len(words) or sizes[0] < 1 or sorted(set(sizes)) != list(sizes):
        raise ConfigError(
            f"{option} takes whole numbers from 1 on with commas between them, the smallest first; got {text!r}. "
            "Write e.g. 1,2,4,8."
        )
    return sizes


def default_sizes(machine: ScaleMachine) -> tuple[int, ...]:
    """1, 2, 4, … up to the devices that there are, as far as they fill their nodes."""
    return tuple(size for power in range(machine.devices.bit_length()) if machine.fits(size := 2**power))


def check_sizes(sizes: Sequence[int], machine: ScaleMachine) -> None:
    """Raise ConfigError for sizes that this machine or job does not have."""
    if sizes[-1] > machine.devices:
        where = f"{machine.nodes} nodes with {machine.per_node} each" if machine.nodes > 1 else "this machine"
        raise ConfigError(
            f"--workers must be at most {machine.devices}, the {machine.unit} of {where}; got {sizes[-1]}. "
            f"Write --workers {','.join(map(str, default_sizes(machine)))}."
        )
    for size in sizes:
        if not machine.fits(size):
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
            sized = config_at(config, info, batch, epochs)
            sized.batch.split(workers)
            info.steps_per_epoch(batch)
        except ConfigError as error:
            raise ConfigError(f"--workers {workers} ({mode} scaling): {error}") from None
        found.append(SizePlan(workers, machine.nodes_for(workers), sized))
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


def threads_of(machine: ScaleMachine, most_workers: int) -> str | None:
    """``OMP_NUM_THREADS`` of all sizes of a study on CPUs, those of the largest one; None on GPUs.

    A serial run that used all cores would be compared with runs that share them.
    """
    if machine.unit == "GPUs":
        return None
    return os.environ.get("OMP_NUM_THREADS") or str(max(1, usable_cpus() // min(most_workers, machine.per_node)))
