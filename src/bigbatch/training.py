"""``bigbatch.train``: one full run from a script or a notebook, without Ray.

It checks what ``bigbatch train`` checks and leaves the same folder, so that each continues what the other began.
"""

from __future__ import annotations

import json
import signal
import tempfile
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from bigbatch.base.command_line import WrongCommandLine
from bigbatch.child_process import check_exit, our_script, run_child
from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.train_loop.errors import TrainingStopped
from bigbatch.train_loop.host.ranks import find_launch
from bigbatch.train_loop.host.signals import SAVING, StopSignals, say_from_handler
from bigbatch.train_loop.launch.command import RunPlan, make_output, make_run_plan, write_result
from bigbatch.train_loop.reporter import EpochRecord, PrintReporter

if TYPE_CHECKING:
    from bigbatch.train_loop.loop.train import TrainResult

RESULT = "result.json"


def train(
    config: TrainConfig,
    *,
    workers: int = 1,
    folder: str | Path | None = None,
    checkpoint_every_s: float = 60.0,
    stage: str | None = None,
    accept_changed_code: bool = False,
) -> TrainResult:
    """Train a configuration to its last epoch, and print a line for each epoch. Ray is not used.

    One worker trains in this process, on the current CUDA device or else the CPU, and seeds torch's global
    generators. Several are processes that torchrun starts on this machine.

    An interrupt (Ctrl-C, the stop button) ends the run after its step, with a checkpoint; the same call goes on from
    there. Without a folder nothing is kept.

    Args:
        config: what is trained, e.g. ``open_study(…).best.config``.
        workers: data-parallel workers; each has a GPU of its own, where there are GPUs.
        folder: gets what ``bigbatch train --output`` writes; a run of the same configuration in it is resumed.
        checkpoint_every_s: seconds between checkpoints; 0: at the end of each epoch alone.
        stage: a folder of this node that gets a copy of a packed data set.
        accept_changed_code: resume a run of ``folder`` although a model, loss or other file of your own has changed.

    Raises:
        ConfigError: what ``bigbatch train`` refuses, in one line; a folder that holds another run.
        KeyboardInterrupt: after an interrupt, when the checkpoint is written.
        RuntimeError: with several workers, if they end without a result; with their last line.
        NonFiniteLossError, CheckpointError, …: with one worker, as ``bigbatch.train_loop.loop.train.train``.
    """
    _refuse_launchers()
    if not isinstance(config, TrainConfig):
        raise ConfigError(
            f"bigbatch.train takes a TrainConfig; got {config!r}. Write open_study(…).best.config, or "
            "TrainConfig.from_json(text)."
        )
    kept = nullcontext(str(folder)) if folder is not None else tempfile.TemporaryDirectory(prefix="bigbatch-train-")
    with kept as output, tempfile.TemporaryDirectory(prefix="bigbatch-train-") as other:
        file = Path(other, "config.json")
        file.write_text(config.to_json(), encoding="utf-8")
        words = _words(file, output, workers, checkpoint_every_s)
        words += [*(["--stage", str(stage)] if stage else []), *(["--accept-changed-code"] * accept_changed_code)]
        try:
            task = make_run_plan(words, "bigbatch.train", None)
        except WrongCommandLine as error:  # it would end the caller's process or its cell
            raise ConfigError(error.message) from None
        try:
            return _train_here(task, folder is not None) if workers == 1 else _train_by_torchrun(task, words)
        except KeyboardInterrupt:
            if folder is not None:
                print(f"Stopped and saved. The same call goes on from {output}.", flush=True)
            raise


def _refuse_launchers() -> None:
    if launch := find_launch():
        raise ConfigError(
            f"bigbatch.train starts its workers itself; got a process of {launch.by}. Run `bigbatch train` under "
            f"{launch.by}, or this script without it."
        )


def _words(config: Path, output: str, workers: int, checkpoint_every_s: float) -> list[str]:
    """The options of ``bigbatch train``."""
    words = ["--config", str(config), "--output", output, "--workers", str(workers)]
    return [*words, "--checkpoint-every-s", str(checkpoint_every_s)]


def _train_here(task: RunPlan, keeps: bool) -> TrainResult:
    from bigbatch.train_loop.loop import train as loop

    main = threading.current_thread() is threading.main_thread()  # only there can Python handle signals
    signals = StopSignals(lambda signum: say_from_handler(SAVING), (signal.SIGINT,))
    hold = make_output(task)
    try:
        with signals if main else nullcontext():
            result = loop.train(
                task.config,
                reporter=PrintReporter(stop_requested=lambda: signals.first is not None),
                checkpoint_dir=task.checkpoint_dir,
                checkpoint_every_s=task.checkpoint_every_s,
                stage_folder=task.stage_folder,
                scan=task.scan,
                accept_changed_code=True,  # compared in make_run_plan
            )
        if keeps:
            write_result(task, result.history)
        return result
    except TrainingStopped:
        raise KeyboardInterrupt from None
    finally:
        hold.close()


def _train_by_torchrun(task: RunPlan, words: Sequence[str]) -> TrainResult:
    script = our_script("train_loop", "run.py")
    # --standalone: a free port, so that runs beside each other on a machine do not meet.
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(task.workers)]
    line = [script[0], *launcher, script[1], *words]
    code, last = run_child(line, stop=signal.SIGINT, apart=True)  # torchrun passes it on, and a second one kills
    check_exit(code, last, "the run")
    return _result_of(task.output)


def _result_of(output: Path) -> TrainResult:
    """What ``result.json`` says."""
    from bigbatch.train_loop.loop.train import TrainResult

    stored = json.loads((output / RESULT).read_text(encoding="utf-8"))
    history = tuple(EpochRecord.from_dict(record) for record in stored["history"])
    return TrainResult(history[-1], stored["best"]["val_top1"], stored["best"]["epoch"], history)
