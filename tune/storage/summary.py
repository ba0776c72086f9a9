"""What the files of a study say about it, running or not: for ``bigbatch studies`` and ``bigbatch show``.

This takes no lease, opens no database and loads neither Optuna nor Ray. A study with a journal is read from it. Of a
study in a database the folder has the tables, which the driver rewrites while trials run, and ``progress.json``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path

from bigbatch.base import json_values
from bigbatch.base.atomic_files import read_json
from bigbatch.base.waits import STALE_S
from bigbatch.cluster.host import slurm_commands
from bigbatch.cluster.host.holder import is_alive
from bigbatch.cluster.host.lease import seen_lease
from bigbatch.cluster.host.optuna_journal import EVERYTHING, FACTS, JOURNAL_NAME, State, read_journal
from bigbatch.train_loop.config import ConfigError, Options, config_keys
from bigbatch.tune.budget.ledger import ledger_files, read_session
from bigbatch.tune.runs.metrics import COSTS, MAPS
from bigbatch.tune.runs.objectives import Objectives, objectives_of
from bigbatch.tune.runs.run import EPOCH_ATTR, Kind, Run, Runs, of_kind, search_trials
from bigbatch.tune.storage.description import STUDY_FILE, Description, read_description
from bigbatch.tune.storage.frontier_file import FRONTIER_FILE

TRIALS_TABLE, EPOCHS_TABLE, PROGRESS_NAME = "trials.parquet", "epochs.parquet", "progress.json"
DEFAULT_RUNS = "runs"
"""The folder of studies that commands read by default."""
QUEUE_ANSWER_S = 5.0
"""How long Slurm is waited for. Without its answer a study counts as interrupted."""
RUNNING, QUEUED, INTERRUPTED, DONE, FAILED, UNREADABLE = (
    "running", "in the queue", "interrupted", "done", "failed", "unreadable",
)  # fmt: skip


@dataclass
class StudySummary:
    """One study's folder."""

    folder: Path
    state: str
    """``running``, ``in the queue``, ``interrupted``, ``done``, ``failed`` or ``unreadable``."""
    why: str = ""
    """Who runs it, or why it cannot be read."""
    description: Description = field(default_factory=dict)
    """study.json."""
    study: Runs = field(default_factory=Runs)
    ended: int = 0
    best: float | None = None
    held_s: float = 0.0
    """Device seconds, of all drivers of the study."""
    elsewhere_s: float = 0.0
    """Device seconds of drivers in other folders, as the last driver here noted them."""
    damaged: tuple[str, ...] = ()
    """Names of the ledger's files that cannot be read; their hours are in no sum."""
    problem: str = ""
    """What is wrong with the journal, in a sentence."""
    changed_at: float = 0.0
    """Seconds since the epoch; 0: not known."""

    @property
    def name(self) -> str:
        """The study's name, that of its folder if study.json does not say it."""
        return json_values.text(self.description, "name") or self.folder.name

    @cached_property
    def answer(self) -> Mapping[str, object]:
        """The content of frontier.json; empty without one."""
        return read_json(self.folder / FRONTIER_FILE)

    @property
    def best_trial(self) -> Run | None:
        """The complete trial that is best in the first objective; of equal ones the next one decides."""
        try:
            objectives = objectives_of(self.description)
        except ConfigError:  # a later version may know more metrics
            objectives = Objectives()
        return objectives.best(search_trials(self.study.trials))

    @property
    def planned(self) -> int | None:
        """The number of trials that were asked for; None: as many as the budget allows, or not known."""
        return json_values.whole_number_or_none(self.description, "trials")

    @property
    def watched(self) -> str | None:
        """The first objective, if it is a metric of an epoch; None for a target, or for what a run costs."""
        first = json_values.text(self.description, "objective", "val_top1:max").partition(",")[0]
        name, colon, way = first.partition(":")
        return name if colon and "=" not in way and not name.endswith(COSTS) else None

    @property
    def has_gpus(self) -> bool:
        """Whether its devices are GPUs."""
        return json_values.number(json_values.mapping(self.description, "machine"), "gpus") > 0


def _is_study(folder: Path) -> bool:
    """Whether a folder holds a study. One of another user that may not be entered counts: it is called unreadable."""
    try:
        return (folder / STUDY_FILE).is_file()
    except PermissionError:
        return True
    except OSError:  # no name of a folder
        return False


def find_study(text: str, output: Path) -> Path:
    """The folder of the study that ``text`` names, in ``output`` or as a path. Raises ConfigError if there is none."""
    for folder in (output / text, Path(text), Path(text).parent):
        if _is_study(folder) and (folder.name == Path(text).name or os.path.isfile(text)):
            return folder
    if os.path.isdir(text):
        raise ConfigError(
            f"a study is a folder with {STUDY_FILE}; got {text!r}, a folder without it.{_listed(Path(text))} "
            "Write a study's path, or its name and --output DIR."
        )
    listed = _listed(output)
    raise ConfigError(
        f"a study is named by its folder; there is none called {text!r} in {str(output)!r}.{listed} "
        "Write its path, or --output DIR."
    )


def _listed(folder: Path) -> str:
    """Which studies lie in a folder, in a sentence; empty if none does."""
    known = [path.parent.name for path in sorted(folder.glob(f"*/{STUDY_FILE}"))] if os.path.isdir(folder) else []
    return f" It has {', '.join(known[:5])}{' …' * (len(known) > 5)}." if known else ""


def entries(output: Path) -> list[Path]:
    """What is in a folder of studies, by name. Raises ConfigError if it cannot be read."""
    try:
        return sorted(output.iterdir())
    except OSError as error:
        raise ConfigError(
            f"--output must be a folder of studies; got {str(output)!r} ({error.strerror}). Write --output DIR."
        ) from None


def list_studies(output: Path) -> list[StudySummary]:
    """The studies in a folder, the one that changed last at the end. Other files and folders are left out.

    Raises ConfigError if the folder cannot be read.
    """
    found = [summarize(path, details=False) for path in entries(output) if path.is_dir() and _is_study(path)]
    ask_queue(found)
    return sorted(found, key=lambda one: (one.changed_at, one.name))


def summarize(folder: Path, *, details: bool = True) -> StudySummary:
    """What the files in ``folder`` say. Never raises: a study that cannot be read says so in its state."""
    summary = StudySummary(folder, UNREADABLE)
    with contextlib.suppress(OSError):
        names = (STUDY_FILE, JOURNAL_NAME, TRIALS_TABLE, PROGRESS_NAME)
        found = (path.stat().st_mtime for name in names if (path := folder / name).exists())
        summary.changed_at = max(found, default=0.0)  # another process may be removing the folder
    try:
        summary.description = read_description(folder)
        _read_trials(summary, details)
        _read_hours(summary)
        _judge(summary)
    except Exception as error:  # files that someone has edited may hold anything
        summary.state, summary.why = UNREADABLE, " ".join(str(error).split())
    return summary


def _read_hours(summary: StudySummary) -> None:
    files = ledger_files(summary.folder / "ledger")
    summary.elsewhere_s = _elsewhere_s(files)
    read = {path.name: read_session(path) for path in files}
    sessions = [used for used in read.values() if used is not None]
    summary.damaged = tuple(name for name, used in read.items() if used is None)
    summary.held_s = summary.elsewhere_s + sum(used.held_s for used in sessions)


def _elsewhere_s(files: Sequence[Path]) -> float:
    """Device seconds of the study's other drivers, as the latest session that knew of any has written them.

    Args:
        files: of a ledger, in the order of their names.
    """
    found = (json_values.number(read_json(path), "elsewhere_device_s") for path in reversed(files))
    return next((seconds for seconds in found if seconds), 0.0)


def ask_queue(found: Iterable[StudySummary]) -> None:
    """Ask Slurm once which interrupted studies wait in its queue. Without an answer nothing changes."""
    jobs = {job: one for one in found if one.state == INTERRUPTED and (job := _job_of(one))}
    if not jobs or not slurm_commands.is_installed("squeue"):
        return
    try:
        text = slurm_commands.run("squeue", "--me", "--noheader", "--format=%i %t", timeout_s=QUEUE_ANSWER_S)
    except slurm_commands.SlurmError:
        return
    for line in text.splitlines():
        job, _, state = line.partition(" ")
        if job in jobs:
            jobs[job].state, jobs[job].why = (QUEUED if state.strip() == "PD" else RUNNING), f"job {job}"


def _job_of(summary: StudySummary) -> str:
    """The job of the last session, which may have been put back into the queue."""
    sessions = json_values.objects(summary.description, "sessions")
    return json_values.text(json_values.mapping(sessions[-1], "slurm"), "job_id") if sessions else ""


def _read_trials(summary: StudySummary, details: bool) -> None:
    tabled = _numbers_in_table(summary.folder) if details else []  # before the journal, which may grow meanwhile
    try:
        stored = read_journal(summary.folder, summary.name, Run, EVERYTHING if details else FACTS)
    except (OSError, AttributeError, TypeError) as error:  # foreign values where ours should be
        text, stored = " ".join(str(error).split())[:300], None
        summary.problem = f"The journal cannot be read ({type(error).__name__}: {text}); only the tables can be."
    noted = read_json(summary.folder / PROGRESS_NAME) if stored is None else {}
    if stored is not None:
        summary.study = Runs(stored.trials)
        if stored.cut_at is not None:
            summary.problem = f"The journal is damaged at line {stored.cut_at}; only what comes before can be read."
        elif lost := sum(number >= len(stored.trials) for number in tabled):
            summary.problem = f"The journal lacks {lost} trials that {TRIALS_TABLE} has: it was cut short."
    elif details or not noted:
        summary.study = Runs(trials_of_tables(summary.folder))
        if (summary.folder / JOURNAL_NAME).exists() and not summary.problem and summary.study.trials:
            summary.problem = f"The journal has no trial of {summary.name!r}; only the tables have them."
    if summary.study.trials:
        best = summary.best_trial
        summary.ended, summary.best = summary.study.ended, best.value if best else None
    elif noted:
        summary.ended = json_values.whole_number(noted, "finished")
        summary.best = json_values.number_or_none(noted, "best")


def _numbers_in_table(folder: Path) -> list[int]:
    try:
        import pyarrow.parquet as pq

        numbers: list[int] = pq.read_table(folder / TRIALS_TABLE, columns=["trial"])["trial"].to_pylist()
        return numbers
    except Exception:  # not there yet, or damaged: the journal says it all
        return []


def trials_of_tables(folder: Path) -> list[Run]:
    """The trials as the study's two tables have them: without those that have not begun, and without ranges."""
    if not (folder / TRIALS_TABLE).exists():
        return []
    import pyarrow.parquet as pq

    trials = [_from_row(row) for row in pq.read_table(folder / TRIALS_TABLE).to_pylist()]
    by_number = {trial.number: trial for trial in trials}
    if (folder / EPOCHS_TABLE).exists():
        for row in pq.read_table(folder / EPOCHS_TABLE).to_pylist():
            # Arrow gives a map as pairs, and null for what a record does not have.
            row = {name: dict(found) if name in MAPS else found for name, found in row.items() if found is not None}
            if (number := row.pop("trial")) in by_number:
                by_number[number].user_attrs[f"{EPOCH_ATTR}{row['epoch']:05d}"] = row
    return trials


def _from_row(row: Mapping[str, object]) -> Run:
    value = json_values.number_or_none(row, "value")
    names = (
        "gpu_hours", "ended_because", "attempts", "retries", "continues", "paused_in_epoch", "diverged", "confirms",
        "infeasible", "failure_kind", "ray_trial_id",
    )  # fmt: skip
    # Of a trial that violates no constraint, the table says False.
    attrs = {name: found for name in names if (found := row.get(name)) is not None and found is not False}
    config: dict[str, object] = {}
    for column, found in row.items():
        if column.startswith("config.") and found is not None:
            dotted = column.removeprefix("config.")
            *sections, key = dotted.split(".")
            place = config
            for section in sections:
                place = place.setdefault(section, {})  # type: ignore[assignment]
            # Sections of open keys are one column of JSON text: each study may have other keys.
            place[key] = json.loads(str(found)) if config_keys().get(dotted) is Options else found
    started, ended = row.get("started_at"), row.get("ended_at")
    return Run(
        number=json_values.whole_number(row, "trial"),
        state=State[json_values.text(row, "state")],
        values=list(json.loads(json_values.text(row, "values", "{}")).values()) or ([] if value is None else [value]),
        params=json.loads(json_values.text(row, "parameters", "{}")),
        user_attrs=attrs | ({"config": config} if config else {}),
        # Optuna's times are local and without a zone; the tables have UTC.
        datetime_start=started.astimezone().replace(tzinfo=None) if isinstance(started, datetime) else None,
        datetime_complete=ended.astimezone().replace(tzinfo=None) if isinstance(ended, datetime) else None,
    )


def _judge(summary: StudySummary) -> None:
    """Fill in the study's state."""
    holder = who_runs(summary.folder)
    sessions = json_values.objects(summary.description, "sessions")
    outcome = json_values.text(sessions[-1], "outcome") if sessions else ""
    if holder:
        summary.state, summary.why = RUNNING, holder
    elif outcome != "ended" and _lacks_confirmations(summary.study.trials):
        summary.state, summary.why = INTERRUPTED, _why_interrupted(outcome)
    elif summary.planned is not None and summary.ended >= summary.planned > 0:
        summary.state = DONE if summary.best is not None else FAILED
    elif outcome == "ended" and summary.ended and summary.best is None:
        summary.state, summary.why = FAILED, "no trial ran to its end"
    elif outcome == "ended" and summary.planned is None and summary.best is not None:
        summary.state = DONE
    elif outcome == "crashed":
        summary.state, summary.why = FAILED, "its driver failed"
    else:
        summary.state = INTERRUPTED
        summary.why = _why_interrupted(outcome) if sessions else "it never began"


def _lacks_confirmations(trials: Iterable[Run]) -> bool:
    """Whether confirmations have begun and not ended."""
    return not all(trial.state.is_finished() for trial in of_kind(trials, Kind.CONFIRMATION))


def _why_interrupted(outcome: str) -> str:
    """``outcome``: that of the last session."""
    return {"disk full": "it could not write", "": "killed", "ended": "no room or time was left"}.get(outcome, "")


def who_runs(folder: Path) -> str:
    """The living driver that holds a study's folder, in words; empty if there is none."""
    seen = seen_lease(folder)
    if seen is None:
        return ""
    alive = is_alive(seen.holder)
    if alive is None:  # on another machine: it gives a sign of life every few seconds
        alive = seen.age_s <= STALE_S
    return seen.holder.words() if alive else ""


def since_words(seconds: float) -> str:
    """How long ago something was: ``now``, ``5 min ago``, ``3 h ago``, ``2 days ago``."""
    if seconds < 60:
        return "now"
    for unit, length, most in (("min", 60, 60), ("h", 3600, 48)):
        if seconds < length * most:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds / 86400:.0f} days ago"


def changed_words(summary: StudySummary, now: float | None = None) -> str:
    """How long ago a study's files have changed."""
    return since_words((time.time() if now is None else now) - summary.changed_at) if summary.changed_at else "–"


def counted(states: Iterable[State]) -> dict[str, int]:
    """How often each state occurs: first the ends, then the others."""
    listed = list(states)
    order = sorted(State, key=lambda state: (not state.is_finished(), state))
    return {state.name: listed.count(state) for state in order if state in listed}


def resume_words(found: StudySummary) -> str:
    """The command that continues a study."""
    parts = ["bigbatch", "tune", "--resume", "--study", found.folder.name]
    parent = found.folder.parent
    if parent != Path(DEFAULT_RUNS):
        parts += ["--output", str(parent)]
    if not (found.folder / "optuna.journal").exists():
        parts += ["--storage", "URL"]  # of its database; study.json does not keep it
    return shlex.join(parts)
