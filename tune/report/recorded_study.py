"""Read a study for a report, also while it runs or where its files are damaged. Nothing is written or locked.

The journal is read up to its first incomplete line. If there is none, as with a database, or if it cannot be read, the
tables say what they know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bigbatch.cluster.host.optuna_journal import JOURNAL_NAME, read_journal
from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.runs.answer import answer_of
from bigbatch.tune.runs.frontier import Frontier
from bigbatch.tune.runs.objectives import Objectives, objectives_of
from bigbatch.tune.runs.run import AnyTrial, Run, count_ended
from bigbatch.tune.storage.summary import (
    DONE,
    INTERRUPTED,
    TRIALS_TABLE,
    UNREADABLE,
    StudySummary,
    summarize,
    trials_of_tables,
)

BATCH_PARAMETER = "global_batch_size"


@dataclass(frozen=True)
class RecordedStudy:
    """What a report needs to know of a study."""

    summary: StudySummary
    trials: tuple[AnyTrial, ...] = ()
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


def recorded_at_end(folder: Path, trials: Sequence[AnyTrial]) -> RecordedStudy:
    """The study whose search ends in this process.

    Args:
        trials: all of them.
    """
    summary = summarize(folder, details=False)
    done = summary.planned is None or count_ended(trials) >= summary.planned
    return _recorded(replace(summary, state=DONE if done else INTERRUPTED, why=""), trials, ())


def _recorded(summary: StudySummary, trials: Sequence[AnyTrial], problems: Sequence[str]) -> RecordedStudy:
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


def _read_trials(summary: StudySummary) -> tuple[list[Run], list[str]]:
    problems = [f"{summary.why}."] if summary.state == UNREADABLE and summary.why else []
    if (summary.folder / JOURNAL_NAME).exists():
        try:
            found = read_journal(summary.folder, summary.name, Run)
        except (OSError, AttributeError, TypeError) as error:  # foreign values where ours should be
            problems.append(f"The journal cannot be read ({_one_line(error)}); the tables are shown instead.")
        else:
            if found is None and (kept := _tables_or_none(summary.folder)):
                return kept, [*problems, f"The journal has no trial of {summary.name!r}; the tables are shown instead."]
            trials = found.trials if found else []
            if found and found.cut_at is not None:
                problems.append(f"The journal is damaged at line {found.cut_at}; what comes before is shown.")
            elif (lost := _lost(trials, summary.folder)) > 0:
                problems.append(f"The journal lacks {lost} trials that {TRIALS_TABLE} has: it was cut short.")
            return trials, problems
    try:
        return trials_of_tables(summary.folder), problems
    except Exception as error:
        return [], [*problems, f"The tables cannot be read ({_one_line(error)})."]


def _tables_or_none(folder: Path) -> list[Run] | None:
    try:
        return trials_of_tables(folder)
    except Exception:  # damaged as well
        return None


def _lost(trials: Sequence[AnyTrial], folder: Path) -> int:
    """How many trials the tables have beyond the journal's last. Whole, it is always ahead of them."""
    try:
        import pyarrow.parquet as pq

        numbers = pq.read_table(folder / TRIALS_TABLE, columns=["trial"])["trial"].to_pylist()
    except Exception:  # not there yet, or damaged: the journal says it all
        return 0
    last = max((trial.number for trial in trials), default=-1)
    return sum(number > last for number in numbers)
