"""What a run says while it trains, and to whom: one record an epoch, to a reporter. No torch here."""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO

from bigbatch.train_loop.progress import WRITE_EVERY_S, Pace, ProgressLines

_log = logging.getLogger(__name__)

NAMED_NODES = 3
"""So many are named where several met the same."""


@dataclass(frozen=True)
class EpochRecord:
    """One finished epoch, over all ranks. Times are wall time in seconds, of the slowest rank."""

    epoch: int
    """1-based."""
    epochs: int
    """Of the whole run."""
    train_loss: float
    """Mean of the loss that is minimised, so with label smoothing, while the weights moved."""
    train_top1: float
    """Fraction, 0 to 1, of the augmented training images, while the weights moved."""
    val_loss: float
    """Mean cross entropy without label smoothing, so that runs with other smoothing compare."""
    val_top1: float
    """Fraction, 0 to 1; each validation image counts once."""
    learning_rate: float
    """Of the epoch's last step."""
    optimizer_steps: int
    """Taken since the run began."""
    skipped_steps: int
    """Left out by the gradient scaler since the run began (fp16)."""
    images_per_s: float
    """Training images over ``train_s``, all workers together."""
    train_s: float
    """``data_s + step_s``."""
    data_s: float = 0.0
    """Waiting for images."""
    step_s: float = 0.0
    """Forward, backward and optimizer."""
    bn_s: float = 0.0
    """Precise BatchNorm statistics."""
    val_s: float = 0.0
    checkpoint_s: float = 0.0
    """Writing checkpoints since the record before."""
    noise_scale: float | None = None
    """Images; the critical batch as the epoch's gradients show it (``noise_scale.noise_scale``).
    None where a step is one micro-batch, or the epoch has too few steps to see the gradient's mean."""
    bad_images: int = 0
    """Images that could not be read, training and validation, over all ranks (``data.on_bad_image=skip``)."""
    loader_processes: int = 0
    """That decoded images for a rank in this epoch, the most of all ranks: with ``data.loader.workers=-1`` it follows
    what the epoch before has shown."""
    resumed_from_epoch: int | None = None
    """Epochs that were finished when this process took the run up from a checkpoint."""

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EpochRecord:
        return cls(**values)


class Reporter(Protocol):
    """Who listens to a run. The loop calls it from the training thread, on every rank.

    More methods are called where a reporter has them:

    - ``noted(texts: Sequence[str])``, at most once, before the first step: what some node met that changes no result
      and that a person should know. Without the method rank 0 logs it.
    - ``resumed(history: Sequence[EpochRecord])``, once, before the first step of a resumed run,
      with the records of all finished epochs: some may not have arrived before the run was killed.
    - ``stop_requested() -> bool``, polled like ``checkpoint_requested``; True on any rank makes the
      run write a checkpoint and raise ``TrainingStopped`` on all of them.
    - ``steps_done(epoch, step, steps, images_per_step)``, as often as those are polled: ``step`` of the ``steps`` of
      ``epoch`` (1-based) are finished.
    """

    def report(self, record: EpochRecord) -> None:
        """An epoch is over; the record is the same on every rank, and a due checkpoint is written."""

    def checkpoint_requested(self) -> bool:
        """True on any rank: write a checkpoint now and go on. Polled between optimizer steps: at
        each on one CPU worker, otherwise about once a second, as ranks and device must agree."""


def tell_notes(met: Sequence[tuple[str, str]], reporter: Reporter, rank: int) -> None:
    """Hand on what nodes have met, each text once with its nodes' names.

    Args:
        met: (node, text), the same on all ranks, which all call this.
    """
    nodes: dict[str, list[str]] = {}
    for node, text in met:
        nodes.setdefault(text, [])
        if node not in nodes[text]:
            nodes[text].append(node)
    texts = [f"on {_some(names)}: {text}" for text, names in nodes.items()]
    if texts and hasattr(reporter, "noted"):
        reporter.noted(texts)
    elif rank == 0:
        for text in texts:
            _log.warning("%s", text)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED_NODES} more nodes" if len(names) > NAMED_NODES else ""
    return ", ".join(names[:NAMED_NODES]) + more


@dataclass
class ListReporter:
    """Keeps the records."""

    records: list[EpochRecord] = field(default_factory=list)

    def report(self, record: EpochRecord) -> None:
        self.records.append(record)

    def checkpoint_requested(self) -> bool:
        return False


class PrintReporter:
    """Writes a plain line an epoch, on rank 0 only."""

    def __init__(self, rank: int = 0, file: TextIO | None = None) -> None:
        self._file = (file or sys.stdout) if rank == 0 else None
        self._pace, self._lines = Pace(WRITE_EVERY_S), ProgressLines()

    def report(self, record: EpochRecord) -> None:
        self._say(epoch_line(record))

    def steps_done(self, epoch: int, step: int, steps: int, images_per_step: int) -> None:
        """A line a minute within epochs that are longer."""
        if line := self._lines.line(self._pace.after(epoch, step, steps, images_per_step)):
            self._say(line)

    def resumed(self, history: Sequence[EpochRecord]) -> None:
        self._say(f"resumed after {len(history)} finished epochs")

    def checkpoint_requested(self) -> bool:
        return False

    def _say(self, line: str) -> None:
        self._lines.something_was_said()
        if self._file is not None:
            print(line, file=self._file, flush=True)


def epoch_line(record: EpochRecord) -> str:
    """A record for people, on one line."""
    width = len(str(record.epochs))
    skipped = f"  {record.skipped_steps} steps skipped" if record.skipped_steps else ""
    bad = f"  {record.bad_images} bad images" if record.bad_images else ""
    processes = f"{record.loader_processes} loader process{'es' if record.loader_processes > 1 else ''}"
    waiting = f"  {record.data_s:.1f} s waiting for {processes}" if record.loader_processes else ""
    noise = f"  noise scale {record.noise_scale:,.0f}" if record.noise_scale is not None else ""
    return (
        f"epoch {record.epoch:{width}}/{record.epochs}"
        f"  train loss {record.train_loss:.4f} top-1 {record.train_top1:6.2%}"
        f"  val loss {record.val_loss:.4f} top-1 {record.val_top1:6.2%}"
        f"  lr {record.learning_rate:.4g}  {record.images_per_s:,.0f} images/s"
        f"  {record.train_s:.1f} + {record.bn_s + record.val_s:.1f} s{waiting}{noise}{skipped}{bad}"
    )
