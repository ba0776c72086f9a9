"""The checkpoints of a whole training function: folders that the user fills, of which the newest survives any kill.

A kept checkpoint is ``epoch-00003/`` in the trial's folder: the user's files in ``files/``, and the epochs that were
reported until then in ``epochs.json``. It is written as ``unfinished/``, then renamed. So a folder with an epoch's name
is always whole. A folder of the user's own is copied first. Rank 0 alone calls ``begin`` and ``keep``. No torch here.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bigbatch.base import json_values
from bigbatch.base.atomic_files import finish_folder, read_json, write_json

PREFIX, UNFINISHED, COPIED = "epoch-", "unfinished", "copied"
FILES, EPOCHS = "files", "epochs.json"


@dataclass(frozen=True)
class KeptFolder:
    """The newest checkpoint."""

    path: Path
    """Where the user's files are."""
    history: tuple[dict[str, object], ...]
    """The records of the epochs that were reported until then, the first one first."""


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

        Afterwards ``offered`` is there again, empty: functions ask for it once and write to it after each epoch.

        Args:
            source: ``offered``, or any other folder, which is copied. It may lie in ``offered``.
            history: the records until now, at least one.

        Raises OSError. The checkpoint before then still exists.
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
        """Folders with an epoch's name, the first epoch first."""
        return sorted(path for path in self._folder.glob(f"{PREFIX}*") if path.is_dir())
