"""``bigbatch.train``: one full run from a script or a notebook, as ``bigbatch train`` does it under torchrun."""

from __future__ import annotations

import json
import signal
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from bigbatch.base.command_line import WrongCommandLine
from bigbatch.child_process import check_exit, our_script, run_child
from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.train_loop.host.ranks import find_launch
from bigbatch.train_loop.launch.command import make_run_plan
from bigbatch.train_loop.reporter import EpochRecord

if TYPE_CHECKING:
    from bigbatch.train_loop.loop.train import TrainResult

ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
"""The variables that torchrun would set for one worker. torchrun itself would hide the exit code and the last line."""


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

    Each worker is a process of this machine.

    An interrupt (Ctrl-C, the stop button) ends the run after its step, with a checkpoint; the same call resumes from
    it. Without a folder nothing is kept.

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
        RuntimeError: the run ended without a result; with its last line.
    """
    if launch := find_launch():
        raise ConfigError(
            f"bigbatch.train starts its workers itself; got a process of {launch.by}. Run `bigbatch train` under "
            f"{launch.by}, or this script without it."
        )
    if not isinstance(config, TrainConfig):
        raise ConfigError(
            f"bigbatch.train takes a TrainConfig; got {config!r}. Write open_study(…).best.config, or "
            "TrainConfig.from_json(text)."
        )
    kept = nullcontext(str(folder)) if folder is not None else tempfile.TemporaryDirectory(prefix="bigbatch-train-")
    with kept as output, tempfile.TemporaryDirectory(prefix="bigbatch-train-") as other:
        file = Path(other, "config.json")
        file.write_text(config.to_json(), encoding="utf-8")
        words = ["--config", str(file), "--output", output, "--workers", str(workers)]
        words += ["--checkpoint-every-s", str(checkpoint_every_s), *(["--stage", str(stage)] if stage else [])]
        words += ["--accept-changed-code"] * accept_changed_code
        try:
            make_run_plan(words, "bigbatch.train", None)  # torchrun would lose the line of a refusal
        except WrongCommandLine as error:  # it would end the caller's process or its cell
            raise ConfigError(error.message) from None
        python, script = our_script("train_loop", "run.py")
        # --standalone: a free port, so that runs beside each other on a machine do not meet.
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(workers)]
        line = [python, *(torchrun if workers > 1 else []), script, *words, "--no-check"]
        try:
            # apart: torchrun passes an interrupt on, and a second one kills.
            code, last = run_child(line, stop=signal.SIGINT, apart=True, env={} if workers > 1 else ALONE)
        except KeyboardInterrupt:
            if folder is not None:
                print(f"Stopped and saved. The same call goes on from {output}.", flush=True)
            raise
        check_exit(code, last, "the run")
        return _result_of(Path(output))


def _result_of(output: Path) -> TrainResult:
    """What ``result.json`` says."""
    from bigbatch.train_loop.loop.train import TrainResult

    stored = json.loads((output / "result.json").read_text(encoding="utf-8"))
    history = tuple(EpochRecord.from_dict(record) for record in stored["history"])
    return TrainResult(history[-1], stored["best"]["val_top1"], stored["best"]["epoch"], history)
