"""The options of ``bigbatch scale``, the checked plan that they make, and the files of a scaling study.

``scale.json`` says what is measured, ``scaling.json`` what came out.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from bigbatch.base import json_values
from bigbatch.base.atomic_files import write_json
from bigbatch.base.command_line import OneLineParser
from bigbatch.cluster.host.allocation import slurm_job, usable_cpus
from bigbatch.train_loop.config import ConfigError, TrainConfig, differing_keys, parse_assignments
from bigbatch.train_loop.config.given import config_source, read_config, recipe_path
from bigbatch.train_loop.config.train_config import LOSSES
from bigbatch.train_loop.data.catalogue import check_stage, look
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.train_loop.host.command_line import add_part_options, check_writable, with_parts
from bigbatch.train_loop.host.ranks import find_launch
from bigbatch.train_loop.launch.checks import check_run_model
from bigbatch.train_loop.launch.local_workers import local_gpu_count
from bigbatch.tune.runs.metrics import GPU_HOURS
from bigbatch.tune.runs.objective import Objective, Reported, read_objective
from bigbatch.tune.runs.objectives import DEFAULT_OBJECTIVE, WITHOUT_CLASSES, objectives_of
from bigbatch.tune.scaling.analysis import ScalingAnalysis, as_json
from bigbatch.tune.scaling.measuring import check_retune
from bigbatch.tune.scaling.scale_plan import (
    MODES,
    WEAK,
    ScaleMachine,
    ScalePlan,
    check_sizes,
    default_output,
    default_sizes,
    make_sizes,
    parse_sizes,
    threads_of,
)
from bigbatch.tune.scaling.size_result import SizeResult
from bigbatch.tune.storage.description import STUDY_FILE, provenance, read_description

PLAN_FILE, RESULT_FILE = "scale.json", "scaling.json"
PLAN_VERSION = RESULT_VERSION = 1


def plan_values(plan: ScalePlan) -> dict[str, object]:
    """What decides the numbers of a scaling study: a study goes on only with the same."""
    return {
        "mode": plan.mode,
        "base_workers": plan.base_workers,
        "epochs": plan.epochs,
        "profile_steps": plan.profile_steps,
        "retune_trials": plan.retune_trials,
        "objective": plan.objective.text,
        "OMP_NUM_THREADS": threads_of(plan.machine, max(size.workers for size in plan.sizes)),
        "config": plan.config.to_dict(),
    }


def stored_plan(output: Path) -> Mapping[str, object] | None:
    """``scale.json`` of a folder; None if it holds no scaling study. Raises ConfigError for a damaged file."""
    path = output / PLAN_FILE
    try:
        values = json_values.json_object(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{PLAN_FILE} must be readable JSON; got {str(path)!r} ({error}). Write --output with another folder."
        ) from None
    if values.get("schema_version") != PLAN_VERSION:
        raise ConfigError(
            f"this version reads {PLAN_FILE} of schema {PLAN_VERSION}; got {values.get('schema_version')!r} in "
            f"{str(path)!r}. Write --output with another folder."
        )
    return values


def check_same_scaling(plan: ScalePlan) -> None:
    """Raise ConfigError if the folder holds a scaling study with other values."""
    stored = stored_plan(plan.output)
    if stored is None:
        return
    planned = plan_values(plan)
    changes = differing_keys({key: stored.get(key) for key in planned}, planned)
    if changes:
        raise ConfigError(
            f"a scaling study goes on as it began; {str(plan.output)!r} holds one with other values: "
            f"{', '.join(changes)}. Write --output with another folder."
        )


def write_plan(plan: ScalePlan) -> None:
    """Make the folder and its ``scale.json``; several jobs may write the same. Raises ConfigError if
    it cannot be written."""
    values = {"schema_version": PLAN_VERSION, "source": str(plan.source), **plan_values(plan)}
    try:
        plan.output.mkdir(parents=True, exist_ok=True)
        write_json(plan.output / PLAN_FILE, values, indent=2)
    except OSError as error:
        raise ConfigError(
            f"--output must be a writable folder; got {str(plan.output)!r} ({error.strerror}). Write --output with "
            "another folder."
        ) from None


def write_result_of(plan: ScalePlan, found: ScalingAnalysis) -> Path:
    """``scaling.json``. Returns its path."""
    path = plan.output / RESULT_FILE
    values = {
        "schema_version": RESULT_VERSION,
        "source": str(plan.source),
        "per_node": plan.machine.per_node,
        "unit": plan.machine.unit,
        **plan_values(plan),
        **as_json(found),
        "provenance": provenance(),
    }
    write_json(path, values, indent=2)
    return path


RETUNE_TRIALS = 8


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
    add("--epochs", type=int, metavar="N", help="epochs trained at each size (default: the file's); 0: only profile")
    add("--profile-steps", type=int, default=50, metavar="N", help="steps that are profiled at each size (default 50)")
    add("--retune", type=int, nargs="?", const=RETUNE_TRIALS, default=0, metavar="TRIALS",
        help=f"first search rate, warmup and the like at each size, with so many trials ({RETUNE_TRIALS})")  # fmt: skip
    add("--objective", metavar="METRIC", help="what is compared after the epochs (default: the study's, or val_top1)")
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
    _check_numbers(args)
    source = recipe_path(args.recipe) if args.recipe else config_source(args.config)
    config = _read(args, source)
    info = look(config.data, open_some=True).info
    if info.path is not None:
        config = config.replace_keys({"data.name": info.path})
    check_stage(args.stage, info)
    check_run_model(config, info)
    sizes = parse_sizes("--workers", args.workers) if args.workers else default_sizes(machine)
    check_sizes(sizes, machine)
    base = args.base_workers or sizes[0]
    epochs = config.epochs if args.epochs is None else args.epochs
    output = Path(args.output) if args.output else default_output(source, config, args.mode, base, epochs, args.retune)
    plan = ScalePlan(
        source=source,
        config=config,
        info=info,
        machine=machine,
        mode=args.mode,
        base_workers=base,
        sizes=make_sizes(config, info, machine, sizes, args.mode, base, epochs),
        epochs=epochs,
        profile_steps=args.profile_steps,
        objective=_objective(args.objective, source, info, config),
        output=output.absolute(),
        retune_trials=args.retune,
        stage_folder=args.stage,
    )
    check_retune(plan)
    check_writable("--output", plan.output)
    check_same_scaling(plan)
    return plan


def check_started_alone() -> None:
    """Raise ConfigError in one of several processes that torchrun or srun has started."""
    launch = find_launch()
    if launch is not None:
        raise ConfigError(
            f"bigbatch scale starts its own workers; got {launch.world_size} processes of {launch.by}. Start it once, "
            "without it."
        )


def _check_numbers(args: argparse.Namespace) -> None:
    least = {"--profile-steps": (args.profile_steps, 1)}
    least |= {"--epochs": (args.epochs, 0), "--base-workers": (args.base_workers, 1)}
    for option, (value, fewest) in least.items():
        if value is not None and value < fewest:
            raise ConfigError(f"{option} must be at least {fewest}; got {value}. Write {option} {max(fewest, 1)}.")
    if args.base_workers is not None and args.mode != WEAK:
        raise ConfigError(
            f"--base-workers belongs to weak scaling; got --mode {args.mode}, where the batch stays. Leave one out."
        )


def _read(args: argparse.Namespace, source: Path) -> TrainConfig:
    changes = with_parts(parse_assignments([text for group in args.set for text in group]), args.subset, args.val_part)
    if "epochs" in changes and args.epochs is not None:
        raise ConfigError("a key is set once; got --epochs and --set epochs. Keep --epochs.")
    if args.data is not None:
        if "data.name" in changes:
            raise ConfigError("a key is set once; got --data and --set data.name. Keep --data.")
        changes["data.name"] = args.data
    return read_config(source).replace_keys(changes)


def _objective(given: str | None, source: Path, info: DataInfo, config: TrainConfig) -> Objective:
    """What is compared. The objective of the study whose best.json it is, unless one is named."""
    text = given or (DEFAULT_OBJECTIVE if info.are_classes else WITHOUT_CLASSES)
    if given is None and os.path.exists(source.parent / STUDY_FILE):
        text = objectives_of(read_description(source.parent)).first.shown.text
    classes = info.num_classes if info.are_classes else 0
    objective = read_objective("--objective", text, Reported(classes, config.metrics, config.loss not in LOSSES))
    if objective.name == GPU_HOURS:
        raise ConfigError(f"--objective is what a run learns; got {text!r}. Write e.g. val_top1.")
    return objective


def known_epoch_s(plan: ScalePlan, sizes: Sequence[SizeResult]) -> dict[int, float]:
    """Estimates of an epoch's seconds by size, from the largest finished one; empty before it.

    A size with n times the workers is taken for n times as fast.
    """
    return {one.workers: last.epoch_s * last.workers / one.workers for last in sizes[-1:] for one in plan.sizes}
