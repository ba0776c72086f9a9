"""The reports of a training run: one record for each epoch, sent to a reporter. No torch here."""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TextIO

from bigbatch.train_loop.progress import WRITE_EVERY_S, ProgressLines, ProgressPace

_log = logging.getLogger(__name__)

NAMED_NODES = 3
"""A message names at most this many nodes that met the same problem."""


@dataclass(frozen=True)
class Column:
    """How tables, trackers and the documentation treat a field of ``EpochRecord``."""

    arrow: str
    """Its type in ``epochs.parquet``: ``int32``, ``int64``, ``float64``, or ``map`` from text to float64."""
    meaning: str
    """In the documentation's words: Markdown, one line."""
    tracked: bool = False
    """Experiment trackers such as W&B get it."""
    epoch_part: bool = False
    """Seconds that belong to the epoch's duration."""
    better: Literal["", "higher", "lower"] = ""
    """Which values a search prefers; empty where that depends on what one wants, or the field is no metric."""


def _column(arrow: str, meaning: str, *, default: object = dataclasses.MISSING, **more: Any) -> Any:
    """A field of a record, with its ``Column``. ``more``: further fields of the ``Column``."""
    return field(default=default, metadata={"column": Column(arrow, meaning, **more)})


@dataclass(frozen=True)
class EpochRecord:
    """One finished epoch, over all ranks. Times are wall time in seconds, of the slowest rank.

    It is the only list of an epoch's fields: tables, trackers and the documentation are made from it.
    """

    epoch: int = _column("int32", "the finished epoch, 1-based")
    epochs: int = _column("int32", "epochs of the whole run")
    train_loss: float = _column(
        "float64",
        "mean loss over the epoch while the weights moved, with label smoothing",
        tracked=True,
        better="lower",
    )
    train_top1: float | None = _column(
        "float64",
        "0 to 1, on the augmented training images, while the weights moved; null where targets are no classes",
        tracked=True,
        better="higher",
    )
    val_loss: float | None = _column(
        "float64",
        "mean cross entropy without label smoothing, or mean loss of a function of the user's; null without a "
        "validation (`validate_every`)",
        tracked=True,
        better="lower",
    )
    """It is comparable between runs with different label smoothing."""
    val_top1: float | None = _column(
        "float64",
        "0 to 1, each validation image counted once; null where targets are no classes, or without a validation",
        tracked=True,
        better="higher",
    )
    learning_rate: float = _column("float64", "learning rate of the epoch's last step", tracked=True)
    optimizer_steps: int = _column("int64", "steps taken since the run began", better="lower")
    skipped_steps: int = _column(
        "int64", "steps left out by the gradient scaler since the run began (fp16)", tracked=True, better="lower"
    )
    images_per_s: float = _column(
        "float64", "training images over `train_s`, all workers together", tracked=True, better="higher"
    )
    train_s: float = _column("float64", "`data_s + step_s`", better="lower", epoch_part=True)
    holdout_loss: float | None = _column(
        "float64",
        "`val_loss` of the validation images that make no choice ([data.md](data.md#holdout)); null without them",
        default=None,
        tracked=True,
    )
    holdout_top1: float | None = _column(
        "float64", "`val_top1` of those images; null without them", default=None, tracked=True
    )
    workers: int = _column("int32", "processes that trained; a run may go on with another number", default=1)
    loader_processes: int = _column(
        "int64", "processes that decoded images for a rank, the most of all ranks", default=0
    )
    data_s: float = _column("float64", "waiting for images", default=0.0, better="lower")
    step_s: float = _column("float64", "forward, backward, optimizer", default=0.0, better="lower")
    bn_s: float = _column("float64", "precise BatchNorm statistics", default=0.0, better="lower", epoch_part=True)
    val_s: float = _column("float64", "validation", default=0.0, better="lower", epoch_part=True)
    checkpoint_s: float = _column(
        "float64",
        "training waited for checkpoints since the record before",
        default=0.0,
        epoch_part=True,
        better="lower",
    )
    checkpoint_write_s: float | None = _column(
        "float64",
        "a thread took to write the last checkpoint; null before this process's first",
        default=None,
        better="lower",
    )
    memory_bytes: int | None = _column(
        "int64",
        "peak memory since the run or its resumed part began, of the rank that needed most: on GPUs what torch's "
        "allocator held in tensors and a replayed step keeps, on CPUs the resident set of its process without loaders",
        default=None,
        tracked=True,
        better="lower",
    )
    gpu_energy_j: float | None = _column(
        "float64",
        "energy of the workers' GPUs since the record before, or since training began "
        "([profiling.md](profiling.md#energy))",
        default=None,
        tracked=True,
    )
    gpu_utilization: float | None = _column(
        "float64",
        "0 to 1: the part of that time in which the GPU computed anything, of the worker whose GPU computed least",
        default=None,
        tracked=True,
    )
    noise_scale: float | None = _column(
        "float64",
        "images; the gradient noise scale of the epoch's steps ([training.md](training.md#gradient-noise-scale)); "
        "null too where the steps did not show it",
        default=None,
    )
    """None if a step is one micro-batch, or the epoch has too few steps to estimate the gradient's mean."""
    resumed_from_epoch: int | None = _column(
        "int32",
        "epochs that were finished when the process took the run up from a checkpoint; null if it did not",
        default=None,
    )

    metrics: dict[str, float | None] = field(
        default_factory=dict,
        metadata={
            "column": Column(
                "map",
                "the metrics of `--metric`, by name (`val_miou`, and `holdout_miou` with a holdout); null for what was "
                "no finite number",
            )
        },
    )
    baseline: dict[str, float] | None = _column(
        "map",
        "what a constant prediction reaches on the same images, by metric (`val_top1`, `val_loss`, `val_miou`, and "
        "so on; [objectives.md](objectives.md#what-a-constant-prediction-is-worth)), in the first epoch that is "
        "validated; null in the others, and where no constant is known",
        default=None,
    )

    def to_dict(self) -> dict[str, Any]:
        """Its fields as plain values, as studies and checkpoints store them."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EpochRecord:
        """Inverse of ``to_dict``. Missing fields get their defaults."""
        return cls(**values)

    @classmethod
    def columns(cls) -> dict[str, Column]:
        """Field name → its ``Column``."""
        return {item.name: item.metadata["column"] for item in dataclasses.fields(cls)}


class Reporter(Protocol):
    """Receives the reports of a run. The loop calls it from the training thread, on every rank.

    These methods are optional:

    - ``noted(texts: Sequence[str])``, at most once, before the first step: warnings of nodes that change no result, but
      that the user should know. Without this method, rank 0 logs them.
    - ``resumed(history: Sequence[EpochRecord])``, once, before the first step of a resumed run,
      with the records of all finished epochs: some may not have arrived before the run was killed.
    - ``halved(halvings: Sequence[Halving])``, once for each start, before the first step: how often the micro-batch was
      halved because it did not fit into a device's memory (``loop/oom_retry.py``).
    - ``stop_requested() -> bool``, polled like ``checkpoint_requested``; True on any rank makes the
      run write a checkpoint and raise ``TrainingStopped`` on all of them.
    - ``dropped() -> bool``, polled as often: the same without a checkpoint, because nobody will continue this run.
    - ``steps_done(epoch, step, steps, images_per_step)``, as often as those are polled: ``step`` of the ``steps`` of
      ``epoch`` (1-based) are finished.
    """

    def report(self, record: EpochRecord) -> None:
        """An epoch has ended. The record is the same on every rank.

        The last epoch's checkpoint is on disk by then; with ``checkpoint_every_s=0`` each epoch's is. Otherwise a
        thread may still be writing it.
        """

    def checkpoint_requested(self) -> bool:
        """Whether to write a checkpoint now; one rank suffices. Polled between optimizer steps: after each step
        with one CPU worker, otherwise about once a second, because ranks and device must agree."""


def report_notes(met: Sequence[tuple[str, str]], reporter: Reporter, rank: int) -> None:
    """Report the nodes' warnings, each text once with the names of its nodes.

    Args:
        met: (node, text) pairs, the same on all ranks. All ranks call this.
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


Tracker = Callable[[EpochRecord], None]
"""Gets the record of each epoch of a full run, including the epochs of earlier processes."""


@dataclass
class ListReporter:
    """Keeps the records."""

    records: list[EpochRecord] = field(default_factory=list)

    def report(self, record: EpochRecord) -> None:
        """Keep the record."""
        self.records.append(record)

    def checkpoint_requested(self) -> bool:
        """Never."""
        return False


class PrintReporter:
    """Prints a line for each epoch, on rank 0 only, and hands the record to ``tracker``.

    ``stop_requested``: whether the run must stop, with a checkpoint.
    """

    def __init__(
        self,
        rank: int = 0,
        file: TextIO | None = None,
        tracker: Tracker | None = None,
        stop_requested: Callable[[], bool] = lambda: False,
    ) -> None:
        self._file = (file or sys.stdout) if rank == 0 else None
        self._tracker = tracker if rank == 0 else None
        self.stop_requested = stop_requested
        self._pace, self._lines = ProgressPace(WRITE_EVERY_S), ProgressLines()

    def report(self, record: EpochRecord) -> None:
        """Print a line for the epoch."""
        self._say(epoch_line(record))
        if self._tracker is not None:
            self._tracker(record)

    def steps_done(self, epoch: int, step: int, steps: int, images_per_step: int) -> None:
        """Print a line every minute within longer epochs."""
        if line := self._lines.line(self._pace.after(epoch, step, steps, images_per_step)):
            self._say(line)

    def resumed(self, history: Sequence[EpochRecord]) -> None:
        """Print how many epochs the checkpoint holds, and hand them to ``tracker``."""
        self._say(f"resumed after {len(history)} finished epochs")
        if self._tracker is not None:
            for record in history:
                self._tracker(record)

    def halved(self, halvings: Sequence[object]) -> None:
        """Print the last halving of the micro-batch."""
        self._say(f"{halvings[-1]}")

    def checkpoint_requested(self) -> bool:
        """Never: a full run writes checkpoints by time."""
        return False

    def _say(self, line: str) -> None:
        self._lines.something_was_said()
        if self._file is not None:
            print(line, file=self._file, flush=True)


def best_record(history: Sequence[EpochRecord]) -> EpochRecord:
    """The first epoch with the best validation top-1; if targets are not classes, with the lowest validation loss.

    Only validated epochs count. The last one always is validated.
    """
    values = [(-r.val_loss if r.val_top1 is None else r.val_top1, -r.epoch) for r in history if r.val_loss is not None]
    return next(record for record in history if record.epoch == -max(values)[1])


def epoch_line(record: EpochRecord) -> str:
    """A record as one line of text."""
    skipped = f"  {record.skipped_steps} steps skipped" if record.skipped_steps else ""
    processes = f"{record.loader_processes} loader process{'es' if record.loader_processes > 1 else ''}"
    waiting = f"  {record.data_s:.1f} s waiting for {processes}" if record.loader_processes else ""
    noise = f"  noise scale {record.noise_scale:,.0f}" if record.noise_scale is not None else ""
    held = f"  holdout top-1 {record.holdout_top1:6.2%}" if record.holdout_top1 is not None else ""
    train_top1, val_top1 = (
        "" if value is None else f" top-1 {value:6.2%}" for value in (record.train_top1, record.val_top1)
    )
    val = "" if record.val_loss is None else f"  val loss {record.val_loss:.4f}{val_top1}"
    more = "".join(f"  {name} {'–' if value is None else f'{value:.4g}'}" for name, value in record.metrics.items())
    return (
        f"epoch {record.epoch:{len(str(record.epochs))}}/{record.epochs}"
        f"  train loss {record.train_loss:.4f}{train_top1}"
        f"{val}{held}{more}"
        f"  lr {record.learning_rate:.4g}  {record.images_per_s:,.0f} images/s"
        f"  {record.train_s:.1f} + {record.bn_s + record.val_s:.1f} s{waiting}{noise}{skipped}"
    )
