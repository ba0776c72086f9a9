"""``python train_loop/run.py --config best.json``: one full run of a configuration.

Under Ray Train; or without Ray, with ``torchrun --nproc-per-node 2 train_loop/run.py --config best.json``
or, in a Slurm job, ``srun python train_loop/run.py --config best.json``. Repeating the command resumes the run.
``--help`` lists the options.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bigbatch.base.atomic_files import write_json, write_text
from bigbatch.base.command_line import INTERRUPTED, WRONG_INPUT, OneLineParser
from bigbatch.base.streams import reader_may_leave
from bigbatch.base.waits import SAME_SIGNAL_S
from bigbatch.train_loop.config import ConfigError, DataConfig, TrainConfig
from bigbatch.train_loop.config.last_step import last_step_in_words
from bigbatch.train_loop.config.rules import shown_name
from bigbatch.train_loop.config.words import epochs_text
from bigbatch.train_loop.data.catalogue import Looked, check_stage, look
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.train_loop.errors import (
    CheckpointError,
    DeviceMemoryError,
    ImageError,
    LoaderError,
    LostPeerError,
    NodeMemoryError,
    NonFiniteLossError,
    OwnCodeError,
    RayStartError,
    TrainingStopped,
    UnusedParameterError,
)
from bigbatch.train_loop.host import disk_space
from bigbatch.train_loop.host.command_line import add_part_options, check_writable
from bigbatch.train_loop.host.disk_space import DiskFull, describe_full_disk, full_errno
from bigbatch.train_loop.host.folder_hold import FolderHold, hold_folder
from bigbatch.train_loop.host.ranks import Launch, find_launch
from bigbatch.train_loop.host.signals import SAVING, STOP_SIGNALS, StopSignals, say_from_handler
from bigbatch.train_loop.launch.checks import (
    check_output,
    check_output_room,
    check_run_model,
    check_users_code,
    write_own_code,
)
from bigbatch.train_loop.launch.local_workers import check_workers_fit_machine, unused_gpus, worker_count
from bigbatch.train_loop.launch.options import (
    ProfileOptions,
    add_component_options,
    add_profile_options,
    add_source_options,
    read_profile_options,
    read_source_config,
)
from bigbatch.train_loop.launch.wandb_run import (
    DISABLED,
    WANDB_MODES,
    check_wandb_mode,
    reachable_mode,
    wandb_of_full_run,
)
from bigbatch.train_loop.loop.oom_retry import config_after_oom, read_halvings
from bigbatch.train_loop.plugins.metric_names import checked_metrics
from bigbatch.train_loop.reporter import EpochRecord, PrintReporter, Tracker, best_record

if TYPE_CHECKING:
    from bigbatch.train_loop.data.sets.scan import FolderScan
    from bigbatch.train_loop.distributed import Meeting


RESULT_VERSION = 1


@dataclass(frozen=True)
class RunPlan:
    """The checked command line, and this process's place among the run's processes."""

    config: TrainConfig
    workers: int
    output: Path
    checkpoint_every_s: float
    launch: Launch | None
    """None under Ray."""
    stage_folder: str | None = None
    scan: FolderScan | None = field(default=None, repr=False)
    """The images of an image folder. With ``launch``, rank 0 alone has them."""
    meeting: Meeting | None = None
    """With ``launch``: where the ranks have met."""
    profile: ProfileOptions | None = None
    """None: train."""
    wandb: str = DISABLED
    notes: tuple[str, ...] = ()
    """What the data leave out, and a warning about the images that fill no global batch."""

    @property
    def checkpoint_dir(self) -> Path:
        """The folder of the latest checkpoint and the one before it."""
        return self.output / "checkpoints"


def train_parser(prog: str) -> OneLineParser:
    """The options of ``bigbatch train``."""
    p = OneLineParser(prog=prog, description="Train one configuration in full. Repeat the command to resume.")
    add = p.add_argument
    add_source_options(p)
    add("--set", action="append", nargs="+", default=[], metavar="KEY=VALUE", help="change a key, e.g. epochs=90")
    add("--data", metavar="NAME|PATH", help="use this data set, not the configuration's: digits, or an image folder")
    add_component_options(p)
    add_part_options(add)
    add(
        "--metric",
        action="append",
        metavar="FILE.py:FN|torchmetrics/CLASS",
        help="report this metric of validation too, as val_FN",
    )
    add(
        "--workers", type=int, metavar="N", help="data-parallel workers (default 1; under torchrun, srun: their number)"
    )
    add("--output", metavar="DIR", help="results' folder (default: runs/train/<file>-<hash of the configuration>)")
    add(
        "--stage",
        metavar="DIR",
        help="copy a packed data set to this folder of each node and read the copy, e.g. '$TMPDIR'; none: no copy",
    )
    add("--accept-changed-code", action="store_true", help="resume although code of your own has changed")
    add_profile_options(p)
    add("--wandb", metavar="MODE", default=DISABLED, help=WANDB_MODES)
    add("--checkpoint-every-s", type=float, default=60.0, metavar="S", help="seconds between checkpoints (default 60)")
    return p


def make_run_plan(argv: Sequence[str] | None, prog: str, launch: Launch | None) -> RunPlan:
    """Check everything that needs no torch. Raises ConfigError; SystemExit(2) for a bad option."""
    parser = train_parser(prog)
    args = parser.parse_args(argv)
    check_wandb_mode(args.wandb)
    more = {"--metric": ("metrics", args.metric)}
    source, config = read_source_config(parser, args, more)
    workers = worker_count(args.workers, launch)
    info, scan, meeting = look_together(config.data, launch)
    if info.path is not None:  # workers may run in another folder
        config = config.replace_keys({"data.name": info.path})
    config = config.replace_keys({"metrics": checked_metrics(config.metrics)})
    check_stage(args.stage, info)
    split = config.batch.split(workers)
    info.steps_per_epoch(config.batch.global_size)
    check_run_model(config, info)
    profile = read_profile_options(args, workers, launch)
    if launch is None:
        check_workers_fit_machine(workers)
    if not math.isfinite(args.checkpoint_every_s):  # the parser refuses what is below 0
        raise ConfigError(f"--checkpoint-every-s must be finite; got {args.checkpoint_every_s}. Write 60.")
    # The digest leaves out keys that change no result: with more loader processes a run resumes in the same folder.
    digest = hashlib.sha256(config.outcome_json().encode()).hexdigest()[:8]
    output = Path(args.output) if args.output else Path("runs", "train", f"{source}-{digest}")
    output = output.absolute() if profile else check_output(output.absolute(), config, args.accept_changed_code)
    if not args.no_check and (launch is None or launch.rank == 0):
        check_users_code(config, scan)
    if profile is not None:
        check_writable("--output", output)
    wandb = DISABLED
    if profile is None and (launch is None or launch.rank == 0):  # call the quota command only once
        check_output_room(output, config, info)
        wandb = reachable_mode(args.wandb)
    kept = (output, args.checkpoint_every_s, launch, args.stage)
    last_step = last_step_in_words(config, info.train_size, split)
    said = (*info.notes, last_step, None if launch else unused_gpus())
    notes = tuple(text for text in said if text)
    return RunPlan(config, workers, *kept, scan, meeting, profile, wandb, notes)


def look_together(data: DataConfig, launch: Launch | None) -> tuple[DataInfo, FolderScan | None, Meeting | None]:
    """The facts of the data set. Rank 0 finds them for all ranks, so that a large folder is listed once.

    Rank 0 also gets the list of an image folder's images. Raises the same ConfigError on all ranks.
    """
    if launch is None or launch.world_size == 1:
        looked = look(data, open_some=True)
        return looked.info, looked.scan, None
    from bigbatch.train_loop.distributed import Meeting

    seen: list[Looked] = []

    def first() -> DataInfo:
        seen.append(look(data, open_some=True))
        return seen[0].info

    launch.announce()
    meeting = Meeting()
    info = meeting.of_first(first)
    return info, seen[0].scan if seen else None, meeting


def train_without_ray(task: RunPlan, launch: Launch, tracker: Tracker | None) -> Sequence[EpochRecord]:
    """Train this rank's part of the run. Raises the errors of ``train``."""
    from bigbatch.train_loop.launch.joined_ranks import joined_ranks
    from bigbatch.train_loop.loop.train import train

    def asked(signum: int) -> None:
        if launch.rank == 0:
            say_from_handler(SAVING)

    with joined_ranks(launch, task.config.data, task.stage_folder, task.meeting) as device:
        # If a rank fails, torchrun ends the others with SIGTERM. So SIGTERM is no request to save and stop.
        stops = STOP_SIGNALS if launch.by == "srun" else (signal.SIGINT,)
        signals = StopSignals(asked, stops, also_ignored=True, same_signal_s=SAME_SIGNAL_S)
        signals.take()
        reporter = PrintReporter(launch.rank, None, tracker, lambda: signals.first is not None)
        try:
            result = train(
                task.config,
                reporter=reporter,
                checkpoint_dir=task.checkpoint_dir,
                checkpoint_every_s=task.checkpoint_every_s,
                device=device,
                stage_folder=task.stage_folder,
                scan=task.scan,
            )
        except TrainingStopped as stop:
            stop.signum = signals.first
            raise
    return result.history


def train_in_words(task: RunPlan, leads: bool) -> Sequence[EpochRecord]:
    """Train, and say how it goes. Raises the errors of ``train`` and ``fit_full_run``."""
    if leads:
        announce(task)
    with wandb_of_full_run(task.wandb, task.output, task.config) as tracker:
        if task.launch:
            return train_without_ray(task, task.launch, tracker)
        from bigbatch.train_loop.launch.full_run import fit_full_run

        return fit_full_run(
            task.config,
            workers=task.workers,
            output=task.output,
            checkpoint_every_s=task.checkpoint_every_s,
            stage_folder=task.stage_folder,
            scan=task.scan,
            tracker=tracker,
        )


def write_result(task: RunPlan, history: Sequence[EpochRecord]) -> Path:
    """``result.json``: configuration, last record, best epoch, all records."""
    best = best_record(history)
    halvings = read_halvings(task.checkpoint_dir)
    path = task.output / "result.json"
    result = {
        "schema_version": RESULT_VERSION,
        "config": config_after_oom(task.config, halvings).to_dict(),
        "halvings": [dataclasses.asdict(one) for one in halvings],
        "record": history[-1].to_dict(),
        "best": {"epoch": best.epoch, "val_top1": best.val_top1, "val_loss": best.val_loss},
        "history": [record.to_dict() for record in history],
    }
    write_json(path, result, indent=2)
    value = f"loss {best.val_loss:.4g}" if best.val_top1 is None else f"top-1 {best.val_top1:.2%}"
    print(f"best validation {value} after epoch {best.epoch}; all of it in {path}", flush=True)
    return path


def measures_only(task: RunPlan) -> bool:
    """Measure instead of training, if the command asks for it. Returns whether it does."""
    if task.profile is not None:
        from bigbatch.train_loop.launch.profile import print_profile

        print_profile(task.config, task.profile, task.output, task.launch, task.stage_folder, task.scan, task.meeting)
    return task.profile is not None


def make_output(task: RunPlan) -> FolderHold:
    """Make and hold the folder, and write the configuration into it. Raises ConfigError."""
    try:
        task.output.mkdir(parents=True, exist_ok=True)
        hold = hold_folder(task.output, "a run's folder", "write --output with another folder")
        write_text(task.output / "config.json", task.config.to_json())
        write_own_code(task.output, task.config)
    except OSError as error:
        raise ConfigError(
            f"--output must be a writable folder; got {str(task.output)!r} ({error.strerror}). "
            "Write --output with another folder."
        ) from None
    return hold


def announce(task: RunPlan) -> None:
    """Print what is trained, how the batch is divided, and where the results go."""
    c, split = task.config, task.config.batch.split(task.workers)
    model, data, optimizer = (shown_name(word) for word in (c.model.name, c.data.name, c.optimizer.name))
    print(
        f"{model} on {data}, {epochs_text(c.epochs)}, {optimizer} at lr {c.optimizer.peak_lr:g}, global "
        f"batch {split.global_size} = {split.workers} workers × {split.accumulation_steps} × {split.micro_size}\n"
        f"results go to {task.output}",
        *(f"note: {text}" for text in task.notes),
        *disk_space.quota_lines(),
        sep="\n",
        flush=True,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 done, 1 the run failed, 2 wrong input, 130 Ctrl-C, 143 SIGTERM."""
    with reader_may_leave():
        return _main(argv)


def _main(argv: Sequence[str] | None) -> int:
    prog = sys.argv[0] if Path(sys.argv[0]).name == "run.py" else "bigbatch train"
    launch = hold = None
    leads = speaks = True
    try:
        launch = find_launch()
        leads = launch is None or launch.rank == 0
        # With torchrun, the first failing rank of a node should print; the tasks of srun share one terminal.
        speaks = launch is None or (launch.local_rank if launch.by == "torchrun" else launch.rank) == 0
        task = make_run_plan(argv, prog, launch)
        if measures_only(task):
            return 0
        if leads:
            hold = make_output(task)
        history = train_in_words(task, leads)
        if leads:
            write_result(task, history)
        return 0
    except (ConfigError, OwnCodeError) as error:
        # This rank alone knows of such a parameter: the others only wait for its gradient.
        return _say(f"{prog}: error: {error}", WRONG_INPUT, speaks or isinstance(error, UnusedParameterError))
    except (KeyboardInterrupt, TrainingStopped) as stop:
        signum = getattr(stop, "signum", None)
        code = 128 + signum if signum else INTERRUPTED
        words = sys.argv[1:] if argv is None else argv
        again = "measure again" if any(word.startswith("--profile-steps") for word in words) else "resume"
        return _say(f"stopped. To {again}: repeat the command", code, speaks)
    except (NonFiniteLossError, CheckpointError, RayStartError, LostPeerError) as error:
        return _say(f"{prog}: failed: {error}", 1, speaks)
    except OSError as error:
        number = full_errno(error)
        # Before there is a plan, the full folder is not one of ours.
        if number is None or "task" not in locals():
            raise
        line = str(error) if isinstance(error, DiskFull) else describe_full_disk(number, task.output)
        return _say(f"{prog}: failed: {line}. Make room, then repeat the command", 1, True)
    except DeviceMemoryError as error:  # only this rank knows it, so this rank must print
        again = ". To continue with the smaller micro-batch: repeat the command" * error.halved
        return _say(f"{prog}: failed: {error}{again}", 1, True)
    except (ImageError, LoaderError, NodeMemoryError) as error:  # as well
        return _say(f"{prog}: failed: {error}", 1, True)
    finally:
        if hold is not None:
            hold.close()


def _say(line: str, code: int, speaks: bool) -> int:
    if speaks:
        print(line, file=sys.stderr, flush=True)
    else:
        time.sleep(5)  # torchrun ends all ranks after the first failure: let the printing rank fail first
    return code
