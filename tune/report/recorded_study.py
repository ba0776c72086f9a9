"""Read a study for a report, also while it runs or where its files are damaged. Nothing is written or locked.

The journal is read up to its first incomplete line. If there is none, as with a database, or if it cannot be read, the
tables say what they know.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend
from optuna.trial import FrozenTrial, TrialState

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.study.answer import answer_of
from bigbatch.tune.study.frontier import Frontier
from bigbatch.tune.study.journal_reader import JOURNAL_NAME, StoredTrial
from bigbatch.tune.study.objectives import Objectives, objectives_of
from bigbatch.tune.study.retry import count_ended
from bigbatch.tune.study.summary import (
    DONE,
    EPOCHS_TABLE,
    INTERRUPTED,
    TRIALS_TABLE,
    UNREADABLE,
    StudySummary,
    summarize,
    trials_of_table,
)
from bigbatch.tune.study.tables import EPOCH_ATTR

BATCH_PARAMETER = "global_batch_size"
LOG_FROM_RATIO = 50.0
"""A parameter whose values span this factor is taken as logarithmic where its range is not known."""


@dataclass(frozen=True)
class RecordedStudy:
    """What a report needs to know of a study."""

    summary: StudySummary
    trials: tuple[FrozenTrial, ...] = ()
    """All of them, also confirmations, in the order of their numbers."""
    objectives: Objectives = Objectives()
    frontier: Frontier | None = None
    """None before a trial has finished, and for a study without one."""
    problems: tuple[str, ...] = ()
    """What could not be read, in sentences."""
    label: str = ""
    """What it is called beside others of the same name; empty: by its name."""

    @property
    def name(self) -> str:
        """The study's name."""
        return self.summary.name

    @property
    def shown_name(self) -> str:
        """The study's name on a page and in a table."""
        return self.label or self.name

    @property
    def description(self) -> Mapping[str, Any]:
        """The values of study.json; empty if it cannot be read."""
        return self.summary.description

    @property
    def hours(self) -> str:
        """The unit of device hours."""
        return "GPU hours" if self.summary.has_gpus else "worker hours"


def distinct_folders(names: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """Of each name that occurs more than once as much of its folder's end as tells it apart; of others nothing."""
    found = []
    for name, folder in zip(names, folders, strict=True):
        same = [other.resolve().parts for word, other in zip(names, folders, strict=True) if word == name]
        mine, depth = folder.resolve().parts, 1
        while depth < len(mine) and sum(one[-depth:] == mine[-depth:] for one in same) > 1:
            depth += 1
        found.append("/".join(mine[-depth:]) if len(same) > 1 else "")
    return found


def shown_apart(studies: Sequence[RecordedStudy]) -> list[RecordedStudy]:
    """The studies, those of the same name with labels that differ."""
    folders = distinct_folders([study.name for study in studies], [study.summary.folder for study in studies])
    return [replace(s, label=f"{s.name} ({end})") if end else s for s, end in zip(studies, folders, strict=True)]


def open_recorded(folder: Path) -> RecordedStudy:
    """The study in a folder. Never raises: what cannot be read is a sentence of ``problems``."""
    summary = summarize(folder, details=False)
    if summary.state == UNREADABLE and not summary.description:
        return RecordedStudy(summary, problems=(f"The study cannot be read: {summary.why}",))
    trials, problems = _read_trials(summary)
    return _recorded(summary, trials, problems)


def recorded_at_end(folder: Path, trials: Sequence[FrozenTrial]) -> RecordedStudy:
    """The study whose search ends in this process.

    Args:
        trials: all of them.
    """
    summary = summarize(folder, details=False)
    done = summary.planned is None or count_ended(trials) >= summary.planned
    return _recorded(replace(summary, state=DONE if done else INTERRUPTED, why=""), trials, ())


def _recorded(summary: StudySummary, trials: Sequence[FrozenTrial], problems: Sequence[str]) -> RecordedStudy:
    said = list(problems)
    try:
        objectives = objectives_of(summary.description)
    except ConfigError as error:
        objectives = Objectives()
        said.append(f"The objective cannot be read: {error}")
    frontier = None
    try:
        frontier = answer_of(trials, summary.description, objectives)
    except Exception as error:  # values that someone has edited may be anything
        said.append(f"The answer cannot be computed: {_one_line(error)}")
    return RecordedStudy(summary, tuple(trials), objectives, frontier, tuple(said))


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


# The journal


class ReadOnlyJournal(BaseJournalBackend):
    """A journal file that is read up to its first incomplete line, and never written, locked or made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.cut_at: int | None = None
        """The line at which reading ended because it is damaged; None if only the end may be missing."""

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """The entries from that number on."""
        with self._path.open("rb") as lines:
            for number, line in enumerate(lines):
                if not line.endswith(b"\n"):  # the driver writes it just now
                    return
                if number < log_number_from:
                    continue
                try:
                    entry = json.loads(line)
                except ValueError:
                    self.cut_at = number + 1
                    return
                if isinstance(entry, dict):
                    yield entry

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Refuse: a report changes nothing."""
        raise OSError("a report only reads the journal")


def _read_trials(summary: StudySummary) -> tuple[list[FrozenTrial], list[str]]:
    path = summary.folder / JOURNAL_NAME
    problems = [f"{summary.why}."] if summary.state == UNREADABLE and summary.why else []
    if path.exists():
        journal = ReadOnlyJournal(path)
        try:
            trials = _of_journal(journal, summary.name)
        except Exception as error:  # a damaged or foreign journal
            problems.append(f"The journal cannot be read ({_one_line(error)}); the tables are shown instead.")
        else:
            if (
                not trials
                and summary.folder.joinpath(TRIALS_TABLE).exists()
                and (kept := _tables_or_none(summary.folder))
            ):
                return kept, [*problems, f"The journal has no trial of {summary.name!r}; the tables are shown instead."]
            if journal.cut_at is not None:
                problems.append(f"The journal is damaged at line {journal.cut_at}; what comes before is shown.")
            elif (lost := _lost(trials, summary.folder)) > 0:
                problems.append(f"The journal lacks {lost} trials that {TRIALS_TABLE} has: it was cut short.")
            return trials, problems
    try:
        return _from_tables(summary.folder), problems
    except Exception as error:
        return [], [*problems, f"The tables cannot be read ({_one_line(error)})."]


def _of_journal(journal: ReadOnlyJournal, name: str) -> list[FrozenTrial]:
    with quiet_warnings():
        storage = JournalStorage(journal)
        try:
            study = optuna.load_study(study_name=name, storage=storage)
        except KeyError:  # the driver was killed before the study's first entry
            return []
        return list(study.get_trials(deepcopy=False))


@contextlib.contextmanager
def quiet_warnings() -> Iterator[None]:
    """No warning and no log line of Optuna."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(level)


def _lost(trials: Sequence[FrozenTrial], folder: Path) -> int:
    """How many trials the tables have beyond the journal's last. Whole, it is always ahead of them."""
    try:
        import pyarrow.parquet as pq

        numbers = pq.read_table(folder / TRIALS_TABLE, columns=["trial"])["trial"].to_pylist()
    except Exception:  # not there yet, or damaged: the journal says it all
        return 0
    last = max((trial.number for trial in trials), default=-1)
    return sum(number > last for number in numbers)


# The tables


def _tables_or_none(folder: Path) -> list[FrozenTrial] | None:
    try:
        return _from_tables(folder)
    except Exception:  # damaged as well
        return None


def _from_tables(folder: Path) -> list[FrozenTrial]:
    """The trials as the tables have them."""
    if not (folder / TRIALS_TABLE).exists():
        return []
    import pyarrow.parquet as pq

    stored = {trial.number: trial for trial in trials_of_table(folder).trials}
    distributions = _guessed_distributions([trial.params for trial in stored.values()])
    records: dict[int, dict[str, object]] = {}
    if (folder / EPOCHS_TABLE).exists():
        for row in pq.read_table(folder / EPOCHS_TABLE).to_pylist():
            number, epoch = row.pop("trial"), row["epoch"]
            records.setdefault(number, {})[f"{EPOCH_ATTR}{epoch:05d}"] = row
    times = pq.read_table(folder / TRIALS_TABLE, columns=["trial", "started_at", "ended_at"]).to_pylist()
    return [
        _frozen(stored[row["trial"]], distributions, records.get(row["trial"], {}), row["started_at"], row["ended_at"])
        for row in times
    ]


def _frozen(
    trial: StoredTrial,
    distributions: Mapping[str, BaseDistribution],
    records: Mapping[str, object],
    started: datetime | None,
    ended: datetime | None,
) -> FrozenTrial:
    return FrozenTrial(
        number=trial.number,
        trial_id=trial.number,
        state=TrialState[trial.state],
        value=trial.value,
        datetime_start=started.astimezone().replace(tzinfo=None) if started else None,
        datetime_complete=ended.astimezone().replace(tzinfo=None) if ended else None,
        params=trial.params,
        distributions={name: distributions[name] for name in trial.params},
        user_attrs={**trial.attrs, **records},
        system_attrs={},
        intermediate_values={},
    )


def _guessed_distributions(params: Sequence[Mapping[str, object]]) -> dict[str, BaseDistribution]:
    """Ranges that hold all values of each parameter: the tables do not keep the true ones."""
    values: dict[str, list[Any]] = {}
    for one in params:
        for name, value in one.items():
            values.setdefault(name, []).append(value)
    return {name: _guessed(found) for name, found in values.items()}


def _guessed(values: list[Any]) -> BaseDistribution:
    numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    if len(numbers) < len(values):
        return CategoricalDistribution(list(dict.fromkeys(values)))
    low, high = min(numbers), max(numbers)
    log = low > 0 and high / low > LOG_FROM_RATIO
    if all(isinstance(v, int) for v in numbers):
        return IntDistribution(int(low), int(high), log=log)
    return FloatDistribution(float(low), float(high), log=log)
