"""``report`` and ``resume`` of a whole training function: checks what the user's function reports, and passes it on.

Its checkpoints are folders that the user fills. The newest one survives any kill. A kept checkpoint is
``epoch-00003/`` in the trial's folder: the user's files in ``files/``, and the epochs that were reported until then in
``epochs.json``. It is written as ``unfinished/``, then renamed. So a folder with an epoch's name is always complete. A
folder of the user's own is copied first. Rank 0 alone calls ``begin`` and ``keep``. No torch here.
"""

from __future__ import annotations

import contextlib
import math
import operator
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, SupportsFloat, SupportsIndex

from bigbatch.base import json_values
from bigbatch.base.atomic_files import finish_folder, read_json, write_json
from bigbatch.train_loop.errors import ReportError, TrainingStopped, is_lost_peer
from bigbatch.train_loop.host.disk_space import full_errno
from bigbatch.train_loop.reporter import EpochRecord

if TYPE_CHECKING:
    from bigbatch.train_loop.distributed import World


PREFIX, UNFINISHED, COPIED = "epoch-", "unfinished", "copied"
FILES, EPOCHS = "files", "epochs.json"


@dataclass(frozen=True)
class KeptFolder:
    """The newest checkpoint."""

    path: Path
    """Where the user's files are."""
    history: tuple[dict[str, object], ...]
    """The records of the epochs that were reported until then, oldest first."""


class KeptFolders:
    """The checkpoints in a trial's folder, which need not exist yet."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def offered(self) -> Path:
        """The folder that the user may fill for the next checkpoint."""
        return self._folder / UNFINISHED / FILES

    def begin(self) -> KeptFolder | None:
        """The newest checkpoint; None if there is none. Removes what a killed process left unfinished."""
        for name in (UNFINISHED, COPIED):
            shutil.rmtree(self._folder / name, ignore_errors=True)
        for path in reversed(self._kept()):
            content = read_json(path / EPOCHS)
            if history := json_values.objects(content, "epochs"):
                return KeptFolder(path / FILES, tuple(history))
        return None

    def keep(self, source: Path, history: Sequence[Mapping[str, object]]) -> None:
        """Keep the files in ``source`` as the newest checkpoint, and remove the one before.

        Afterwards ``offered`` exists again, empty: functions ask for it once and write to it after each epoch.

        Args:
            source: ``offered``, or any other folder, which is copied. It may lie in ``offered``.
            history: the records until now, at least one.

        Raises OSError; then the previous checkpoint still exists.
        """
        unfinished = self._folder / UNFINISHED
        if source != self.offered:
            copied = self._folder / COPIED
            shutil.rmtree(copied, ignore_errors=True)
            shutil.copytree(source, copied / FILES)
            shutil.rmtree(unfinished, ignore_errors=True)  # only now: the source may be in there
            copied.rename(unfinished)
        write_json(unfinished / EPOCHS, {"epochs": list(history)})
        earlier = self._kept()
        new = self._folder / f"{PREFIX}{len(history):05d}"
        shutil.rmtree(new, ignore_errors=True)  # one whose records could not be read
        finish_folder(unfinished, new)
        # After the new one is in place: until then these are the newest.
        for path in earlier:
            if path != new:
                shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):  # the checkpoint is kept
            self.offered.mkdir(parents=True, exist_ok=True)

    def _kept(self) -> list[Path]:
        """Folders with an epoch's name, in the order of the epochs."""
        return sorted(path for path in self._folder.glob(f"{PREFIX}*") if path.is_dir())


COLUMNS = ("train_loss", "train_top1", "val_loss", "val_top1", "learning_rate", "images_per_s")
"""Names of metrics that have a column of their own in the tables of a study. The user may report them."""
OURS = frozenset(EpochRecord.columns()) - {*COLUMNS}
"""Names that BigBatch measures or counts itself."""


class Report:
    """What a whole training function calls after each epoch, on every rank.

    Args:
        epochs: their number in the whole run.
        names: what each report must have; ``value=`` stands for the first one.
        folders: where its checkpoints are kept.
        kept: the checkpoint from which the run resumes.
        world: the ranks. All meet in each report; what rank 0 reports counts.
        send: gets each record on every rank.
        stop_requested: whether the run is to stop, on any rank.
        say: gets a warning.
        measured: what the epoch used, as fields of its record. Every rank calls it, and all get the same.
    """

    def __init__(
        self,
        *,
        epochs: int,
        names: Sequence[str],
        folders: KeptFolders,
        kept: KeptFolder | None,
        world: World,
        send: Callable[[dict[str, object]], None],
        stop_requested: Callable[[], bool],
        say: Callable[[str], None],
        measured: Callable[[], Mapping[str, object]] = dict,
    ) -> None:
        self._epochs, self._names, self._folders = epochs, tuple(names), folders
        self._world, self._send, self._stop_requested, self._say = world, send, stop_requested, say
        self._history = list(kept.history) if kept else []
        self._resumed_from = len(self._history) or None
        self._measured = measured
        self._since = time.monotonic()
        self.stopped = False
        """Whether the run was told to stop."""
        self.lost: Exception | None = None
        """The error of a report, if another process or node had ended. The function may catch it."""

    @property
    def epoch(self) -> int:
        """The last epoch that was reported, or that the checkpoint holds; 0 before the first."""
        return len(self._history)

    @property
    def checkpoint_folder(self) -> Path:
        """An empty folder to write a checkpoint into. The next report keeps what is in it, if anything is.

        It lies on the file system that all ranks see.
        """
        self._folders.offered.mkdir(parents=True, exist_ok=True)
        return self._folders.offered

    def __call__(
        self,
        epoch: SupportsIndex,
        value: SupportsFloat | None = None,
        *,
        checkpoint: str | Path | None = None,
        **metrics: SupportsFloat,
    ) -> None:
        """Report a finished epoch.

        Args:
            epoch: 1-based: one more than in the previous report, or than the epoch of the checkpoint in ``resume``.
            value: the objective, which may be given by its name instead: ``val_acc=`` with ``--objective val_acc:max``.
            checkpoint: a folder to keep, which is copied. Without it, ``checkpoint_folder`` is kept if it has files.
            metrics: further numbers by name.

        Raises:
            TrainingStopped: the run must stop. What this report keeps is safe; return, or let the exception pass.
            ReportError: an epoch is out of order, an objective is missing, or BigBatch measures a name itself.
        """
        if self.stopped:
            raise TrainingStopped(f"stopped after epoch {self.epoch}")
        if self.lost is not None:
            raise self.lost
        try:
            self._report(epoch, value, checkpoint, metrics)
        except Exception as error:
            if is_lost_peer(error):
                self.lost = error
            raise

    def _report(
        self,
        epoch: SupportsIndex,
        value: SupportsFloat | None,
        checkpoint: str | Path | None,
        metrics: Mapping[str, SupportsFloat],
    ) -> None:
        try:
            number = operator.index(epoch)  # also of numpy and torch
        except TypeError:
            raise ReportError(f"epoch must be a whole number; got {epoch!r}. Write report(epoch=1, value=…).") from None
        if not number == self.epoch + 1 <= self._epochs:
            raise ReportError(
                f"epochs are reported one by one, from 1 to config['epochs'], {self._epochs}; got {number} after "
                f"{self.epoch}. Report the next one, and return after the last."
            )
        record = self._record(number, value, metrics)
        record |= {"train_s": time.monotonic() - self._since, **self._measured()}
        record["checkpoint_s"] = self._keep(checkpoint, record)
        self._history.append(record)
        self._send(record)
        self._since = time.monotonic()
        # All ranks ask: one that stopped alone would leave the others waiting in the next report.
        if self._world.max([float(self._stop_requested())])[0]:
            self.stopped = True
            raise TrainingStopped(f"stopped on request after epoch {epoch}")

    def _record(
        self, epoch: int, value: SupportsFloat | None, metrics: Mapping[str, SupportsFloat]
    ) -> dict[str, object]:
        """The epoch's record, but for its times."""
        given = metrics if value is None else {self._names[0]: value, **metrics}
        numbers = {name: float(one) for name, one in given.items()}  # also of numpy and torch
        ours, lacking = OURS & numbers.keys(), [name for name in self._names if name not in numbers]
        if ours or lacking:
            rule = f"not {min(ours)}, which BigBatch measures" if ours else f"{lacking[0]}, an objective"
            got = ", ".join(f"{name}=" for name in numbers) or "none"
            raise ReportError(f"a report must have {rule}; got {got}. Write {self._names[0]}= or value= for the first.")
        # JSON, in which studies keep their records, has no NaN.
        known = {name: one if math.isfinite(one) else None for name, one in numbers.items()}
        columns = {name: one for name, one in known.items() if name in COLUMNS}
        others = {name: one for name, one in known.items() if name not in COLUMNS}
        resumed = {"resumed_from_epoch": self._resumed_from} if self._resumed_from else {}
        positions = {"epoch": epoch, "epochs": self._epochs, "workers": self._world.workers}
        return {**positions, **columns, "metrics": others, **resumed}

    def _keep(self, given: str | Path | None, record: Mapping[str, object]) -> float:
        """Keep a checkpoint if there is one. Returns the seconds that it took. All ranks meet."""
        begun = time.monotonic()
        source, offered = Path(given) if given is not None else None, self._folders.offered
        if source is None and offered.is_dir() and any(offered.iterdir()):
            source = offered
        # Before rank 0 takes the folder, every rank has written its part.
        if not self._world.max([float(source is not None)])[0] or source is None:
            return 0.0
        if self._world.rank == 0:
            try:
                self._folders.keep(source, [*self._history, record])
            except OSError as error:
                # A full disk costs this checkpoint, not the run.
                if full_errno(error, source) is None:
                    raise
                self._say(f"no room for the checkpoint of epoch {record['epoch']}: {error}")
        return time.monotonic() - begun
