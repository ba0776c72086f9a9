"""A whole training function of the user's under Ray Train: what runs in place of the training loop."""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from bigbatch.train_loop.errors import OwnCodeError, TrainingStopped
from bigbatch.train_loop.host.disk_space import full_disk_named
from bigbatch.train_loop.launch.own_report import KeptFolders, Report
from bigbatch.train_loop.launch.trial_task import TrialTask
from bigbatch.train_loop.plugins.registry import load_function, users_code

if TYPE_CHECKING:
    from bigbatch.train_loop.distributed import World
    from bigbatch.train_loop.host.device_use import UseMeter

OPTION = "--trainable"


class RecordSender(Protocol):
    """Takes the function's records."""

    def send(self, records: Sequence[Mapping[str, object]]) -> None:
        """Send records. Every rank calls it."""

    def stop_requested(self) -> bool:
        """Whether the run is to stop."""


def train_own(task: TrialTask, reporter: RecordSender, world: World, log: logging.Logger) -> None:
    """Call the function ``task.config.trainable`` names on this rank, and measure what it uses.

    Raises:
        TrainingStopped: the reporter asked for it.
        OwnCodeError: the function raised an exception, or returned without a report.
        Exception: another process or node has ended, as ``is_lost_peer`` says.
        ConfigError: there is no such function.
    """
    from bigbatch.train_loop.loop.worker_use import open_use_meter

    config = task.config
    word = config.trainable.name
    folders = KeptFolders(task.checkpoint_dir)
    with _printing_to(Path(os.devnull) if world.rank else task.log_file), open_use_meter(world) as meter:
        function = load_function(OPTION, word)
        kept = world.of_first(folders.begin() if world.rank == 0 else None)
        report = Report(
            epochs=config.epochs,
            names=task.reported,
            folders=folders,
            kept=kept,
            world=world,
            send=lambda record: reporter.send([record]),
            stop_requested=reporter.stop_requested,
            say=log.warning,
            measured=lambda: _used(meter, world),
        )
        if kept is not None:
            log.info("resumed after epoch %d", report.epoch)
            reporter.send(kept.history)  # a report may have been lost with the process
            if report.epoch >= config.epochs:
                return
        with full_disk_named(task.checkpoint_dir):
            try:
                with users_code(OPTION, word):
                    options = {**config.trainable.options, "epochs": config.epochs, "seed": config.seed}
                    function(options, report, kept.path if kept else None)
            except Exception as error:
                if not report.stopped and report.lost is None:
                    raise
                told = not isinstance(error.__cause__, TrainingStopped)  # a function that passes it on is in order
                log.info("the function ended after its report was stopped, or lost another process", exc_info=told)
    if report.lost is not None:  # even if the function continued or returned: the run ends here, and resumes later
        raise report.lost
    if report.stopped:
        raise TrainingStopped(f"stopped after epoch {report.epoch}")
    if not report.epoch:
        raise OwnCodeError(
            f"{word} returned without a report on rank {world.rank} of {world.workers}. "
            "Call report(epoch=…, value=…) after each epoch, on each rank"
        )


def _used(meter: UseMeter, world: World) -> dict[str, object]:
    """Memory, energy and utilization of all ranks since the record before, as our own loop's records have them."""
    import torch

    from bigbatch.train_loop.loop.worker_use import peak_bytes

    use = meter.take()
    joules = torch.tensor([use.gpu_energy_j], dtype=torch.float64, device=world.device)
    memory_bytes, idlest = world.max([float(peak_bytes(world.device)), use.idle_part])
    (gpu_j,) = world.sum(joules).tolist()
    return {
        "memory_bytes": int(memory_bytes) or None,
        "gpu_energy_j": None if math.isnan(gpu_j) else gpu_j,
        "gpu_utilization": None if idlest > 1 else 1.0 - idlest,
    }


@contextlib.contextmanager
def _printing_to(file: Path) -> Iterator[None]:
    """What the function prints and logs goes to ``file``: nobody sees the output of a worker's process.

    A handler of ``logging`` that the function makes for its stderr writes there too.
    """
    with (
        file.open("a", buffering=1, encoding="utf-8", errors="backslashreplace") as out,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
    ):
        yield
