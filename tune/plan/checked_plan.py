"""Make the plan of a search and check it before Ray starts."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import secrets
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bigbatch.base import json_values
from bigbatch.base.command_line import check_study_name, nearest_word
from bigbatch.search_spaces.check import read_fixed
from bigbatch.search_spaces.registry import Space, load_space
from bigbatch.train_loop.config import ConfigError, DataConfig, TrainConfig, data_config
from bigbatch.train_loop.config.own_names import absolute
from bigbatch.train_loop.config.rules import is_own
from bigbatch.train_loop.data.catalogue import check_stage, look
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.train_loop.host.command_line import check_writable, with_parts
from bigbatch.train_loop.host.folder_hold import unwritable
from bigbatch.train_loop.launch import wandb_run
from bigbatch.train_loop.plugins.metric_names import checked_metrics
from bigbatch.tune.models.names import STOPPINGS, STRATEGIES, resolved
from bigbatch.tune.plan.enqueued import first_trials
from bigbatch.tune.plan.fitting import (
    SearchRequest,
    fit_search,
    fit_search_to_unknown_cluster,
    parse_batches,
    pinned_batch,
)
from bigbatch.tune.plan.holdout import divide_validation, stored_holdout
from bigbatch.tune.plan.machine import (
    AT_MOST,
    MOST,
    GpuSharing,
    Share,
    first_share,
    local_machine,
    machine_to_be,
    read_trials_per_gpu,
)
from bigbatch.tune.plan.objective_options import (
    constraints_in_words,
    one_of_objective_options,
    read_baseline,
    read_objective_options,
    stated_baseline,
    suited,
    with_studys_objective,
)
from bigbatch.tune.plan.option_checks import (
    check_join,
    check_same_study,
    check_same_values,
    check_study_fits,
    checked_confirm,
    parse_duration,
)
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.own_code import (
    check_components,
    check_own_search,
    load_trainable,
    own_code,
    own_values,
    read_own_objectives,
    refuse_options_of_the_loop,
    with_components,
)
from bigbatch.tune.plan.search_plan import SearchPlan, stored_trials
from bigbatch.tune.plan.warm_start import knowledge_of
from bigbatch.tune.runs.objective import read_tolerance
from bigbatch.tune.storage.description import Description, resumed_description

if TYPE_CHECKING:
    from bigbatch.train_loop.data.sets.scan import FolderScan

DEFAULT_TRIALS = {"digits": 12}
"""Default number of trials, by data set."""
DEFAULT_TRIALS_OTHER = 16
DEFAULT_EPOCHS = {"digits": 8}
"""Default number of epochs, by data set. With 8 on digits, two fresh seeds can confirm the answer cheaply."""
DEFAULT_EPOCHS_OTHER = 18
KEYS_WITH_OPTIONS = {
    "epochs": "--max-epochs", "seed": "--seed", "model.name": "--model", "data.name": "--data",
    "data.holdout": "--holdout", "trainable.name": "--trainable",
    "metrics": "--metric",
}  # fmt: skip
DEFAULT_SPACE = "large_batch"
DEFAULT_OUTPUT = "runs"


def _named_or_own(option: str, value: str, allowed: tuple[str, ...]) -> str:
    """One of ``allowed``, or a function of the user's with an absolute path. Raises ConfigError."""
    if is_own(value):
        return absolute(option, value)
    if value not in allowed:
        near = nearest_word(value, allowed)
        fix = f"Did you mean {near!r}?" if near else f"Write {option} {allowed[0]}."
        raise ConfigError(f"{option} must be one of {', '.join(allowed)}; got {value!r}. {fix}")
    return value


def study_name(given: str | None, space: Space, data: DataInfo) -> str:
    """The given name, checked; or a name made of space, data and time, which no other run has."""
    if given is None:
        moment = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"  # job arrays start within a second
        parts = (Path(space.name).stem[:35], Path(data.name).name[:35], moment)
        # As --resume --study takes it, also of _space.py.
        return re.sub(r"[^A-Za-z0-9._-]+", "_", "-".join(parts)).lstrip("._-")
    check_study_name(given, ConfigError)
    return given


def resumed_folder(options: SearchOptions) -> Path:
    """The folder of the study that ``--resume`` continues. A user may have given it any name.

    Raises ConfigError without a name, and for a path, with the options that name the same folder.
    """
    output, given = Path(options.output or DEFAULT_OUTPUT), options.study
    if given is None:
        raise ConfigError("--resume needs the study's name; got none. Write --study NAME (a folder of --output).")
    if Path(given).name != given or given == "..":
        # A study's path, as `bigbatch show` takes it: in --output, else in the current folder.
        path = Path(os.path.abspath(output / given if os.path.exists(output / given) else given))
        words = shlex.join(["--study", path.name, "--output", str(path.parent)])
        raise ConfigError(f"--study is the name of a folder in --output; got the path {given!r}. Write {words}.")
    return output.absolute() / given


def check_folder(output: Path, name: str, resume: bool) -> Path:
    """The study's folder. Raises ConfigError if a new study cannot use it, or this user may not write it."""
    folder = (output / name).absolute()
    if resume:
        if folder.exists() and not os.access(folder, os.W_OK | os.X_OK):
            raise unwritable(folder, "a study's folder", "this user cannot", "write --study OTHER")
        return folder
    check_writable("--output", folder)
    # A search that is killed before its first entry leaves empty folders and hidden files.
    if folder.exists() and any(not p.is_dir() and p.name[0] != "." for p in (folder, *folder.rglob("*"))):
        raise ConfigError(
            f"a new study needs an empty folder; {str(folder)!r} holds another study or other files. "
            "Write --resume to continue a study, or --study OTHER."
        )
    return folder


def make_plan(options: SearchOptions) -> SearchPlan:
    """Check all options and make the plan. Raises ConfigError with the rule, the value met and a fix.

    With ``--resume``, the study supplies the options that the command line leaves out.
    """
    stored: Description = {}
    if options.resume:
        stored = resumed_description(resumed_folder(options), options.storage)
        # The study keeps the network that auto chose: another machine must not change it.
        known = {
            "model": stored.get("model"),
            "holdout": stored_holdout(stored),
            "max_epochs": stored.get("max_epochs"),
            "confirm": stored.get("confirm", "none"),
        }
        if stored.get("trainable"):  # the function's own
            del known["model"], known["holdout"]
        if not one_of_objective_options(options):  # another objective is refused later, in its own words
            known["strategy"] = stored.get("strategy")
            known["stopping"] = stored.get("stopping")
        given = {name: value for name, value in json_values.mapping(stored, "options").items() if value is not None}
        options = options.over({**known, **given})
        options = with_studys_objective(options, stored)
    plan = _plan(options, stored)
    strategy, stopping = resolved(plan.strategy, plan.stopping, plan.most_trials, plan.max_epochs)
    plan = dataclasses.replace(plan, strategy=strategy, stopping=stopping)
    check_own_search(plan)
    check_study_fits(plan)
    # A resumed study has the configurations with which it began: their files may have changed since.
    plan = dataclasses.replace(plan, enqueued=stored_trials(stored) if stored else first_trials(plan))
    plan = dataclasses.replace(plan, warm_start=knowledge_of(plan, stored), own_code=own_code(plan))
    check_components(plan, stored)
    if stored:
        # Who accepts changed code accepts a changed space, which is often in the same file.
        check_same_study(plan.identity(), stored, but="space_fingerprint" if options.accept_changed_code else "")
        if plan.machine.nodes:
            check_same_values(plan.frontier, plan.workers, stored)
    return plan


def _check_option_values(o: SearchOptions) -> None:
    """Check the options that need no look at space, data, files or machine, and set no field of the plan."""
    if o.retry_failed and not o.resume:
        raise ConfigError(
            "--retry-failed continues a study; got no --resume. Write --resume --study NAME, or leave it out."
        )
    check_join(o)
    one_of_objective_options(o)
    read_baseline(o.baseline)
    for option, number in (("--trials", o.trials), ("--max-epochs", o.max_epochs), ("--workers", o.workers)):
        if number is not None and number < 1:
            raise ConfigError(f"{option} must be at least 1; got {number}. Write {option} 1 or more.")
    hours = o.budget_gpu_hours
    if hours is not None and not 0 < hours < math.inf:
        raise ConfigError(f"--budget-gpu-hours must be above 0; got {hours:g}. Write e.g. --budget-gpu-hours 20.")


def _overrides(o: SearchOptions) -> dict[str, object]:
    """What ``--set`` and options with keys fix. Raises ConfigError."""
    if o.trainable is not None:
        refuse_options_of_the_loop(o)
        return own_values(o.set)
    fixed = read_fixed(o.set)
    for key, option in KEYS_WITH_OPTIONS.items():  # each setting has one way to give it
        if key in fixed:
            raise ConfigError(f"{key} has its own option; got --set {key}={fixed[key]}. Write {option} {fixed[key]}.")
    overrides = with_parts(fixed, o.subset, o.val_part)
    overrides |= {"metrics": list(checked_metrics(o.metric))} if o.metric else {}
    return with_components(overrides | ({"data.holdout": o.holdout} if o.holdout else {}), o)


def _plan(o: SearchOptions, stored: Description) -> SearchPlan:
    """``stored``: the description of the resumed study; empty for a new one."""
    wandb = o.wandb or wandb_run.DISABLED
    wandb_run.check_wandb_mode(wandb)
    seed = 0 if o.seed is None else o.seed
    TrainConfig(seed=seed)  # checks its range
    overrides, batches = _overrides(o), parse_batches(o.batch)
    overrides |= pinned_batch(batches, overrides)
    _check_option_values(o)
    workers = o.workers or 1
    strategy = _named_or_own("--strategy", o.strategy or "auto", STRATEGIES)
    stopping = _named_or_own("--stopping", o.stopping or "auto", STOPPINGS)
    per_gpu = read_trials_per_gpu(o.trials_per_gpu, workers)
    time_budget_s = parse_duration(o.time_budget) if o.time_budget else None
    data_keys = {key: value for key, value in overrides.items() if key.startswith("data.")}
    asked_data = data_config({"data.name": o.data or "digits", **data_keys})
    space = load_trainable(o) if o.trainable is not None else load_space(o.space or DEFAULT_SPACE)
    scan, data, overrides = _data_of(o, asked_data, overrides)
    trials, max_epochs = _trials_and_epochs(o, space, data)
    objectives = read_own_objectives(o) if o.trainable else read_objective_options(o, data, overrides)
    chosen = suited(o, objectives, strategy, stopping)
    machine = local_machine() if (o.address or "local") == "local" else machine_to_be()
    sharing = GpuSharing(per_gpu, json_values.whole_number(stored, AT_MOST, MOST))
    known = (machine, workers, trials, o.is_open_ended, sharing.at_first)
    share = first_share(*known) if machine.nodes else Share(1, workers, {"CPU": 1.0})
    model = None if (o.model or "auto") == "auto" else absolute("--model", str(o.model))
    search = SearchRequest(space, data, model, max_epochs, workers, overrides, batches)
    fitted = fit_search(search, machine) if machine.nodes else fit_search_to_unknown_cluster(search)
    name = o.study if o.study and o.resume else study_name(o.study, space, data)
    return SearchPlan(
        study=name,
        folder=check_folder(Path(o.output or DEFAULT_OUTPUT), name, o.resume),
        space=space,
        data=data,
        **vars(fitted),
        model_was_auto=model is None and o.trainable is None,
        trials=trials,
        max_epochs=max_epochs,
        budget_gpu_hours=o.budget_gpu_hours,
        time_budget_s=time_budget_s,
        strategy=chosen[0],
        stopping=chosen[1],
        workers=workers,
        storage=o.storage,
        resume=o.resume,
        seed=seed,
        address=o.address or "local",
        wandb=wandb_run.reachable_mode(wandb),
        machine=machine,
        share=share,
        sharing=sharing,
        options=o,
        tolerance=read_tolerance(o.tolerance, objectives.first),
        open_ended=o.is_open_ended,
        scan=scan,
        objectives=objectives,
        baseline=stated_baseline(objectives, o, stored),
        constraints=constraints_in_words(space, fitted.workload, fitted.overrides),
        confirm=checked_confirm(o.confirm, sys.maxsize if o.is_open_ended else trials, objectives),
    )


def _data_of(
    o: SearchOptions, asked: DataConfig, overrides: dict[str, object]
) -> tuple[FolderScan | None, DataInfo, dict[str, object]]:
    """The images of a folder, the facts of the data with the holdout, and the overrides that name it."""
    if o.trainable is not None:
        # A stand-in for the data set, which is not known.
        return None, DataInfo("own", None, 0, 0, 0, 0, 0, (), "imagenet"), overrides
    looked = look(asked, open_some=True)
    data, overrides = divide_validation(looked.info, overrides, o.holdout)
    check_stage(o.stage, data)
    return looked.scan, data, overrides


def _trials_and_epochs(o: SearchOptions, space: Space, data: DataInfo) -> tuple[int, int]:
    """How many trials, and the most epochs of each: what was asked for, else what suits the space, else the data."""
    trials = o.trials or space.defaults.get("trials") or DEFAULT_TRIALS.get(data.name, DEFAULT_TRIALS_OTHER)
    max_epochs = o.max_epochs or space.defaults.get("max_epochs") or DEFAULT_EPOCHS.get(data.name, DEFAULT_EPOCHS_OTHER)
    return trials, max_epochs
