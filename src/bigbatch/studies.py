"""Studies in Python and in notebooks: open one, look at its tables and figures, search on.

It reads what ``bigbatch report`` and ``bigbatch export`` read, by the same code, and loads neither torch nor Ray. A
search runs in a process of its own, as ``bigbatch tune`` does.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from bigbatch.child_process import check_exit, our_script, run_child
from bigbatch.train_loop.config import ConfigError, TrainConfig, written_assignments
from bigbatch.tune.console.answer_words import answer_in_words
from bigbatch.tune.report.figure import ReportFigure, plotly_figure
from bigbatch.tune.report.figures import all_figures
from bigbatch.tune.report.recorded_study import open_recorded
from bigbatch.tune.runs.answer import leading_trial
from bigbatch.tune.runs.run import AnyTrial
from bigbatch.tune.runs.tables import epochs_table, trials_table
from bigbatch.tune.storage.frontier_file import frontier_json
from bigbatch.tune.storage.summary import find_study

if TYPE_CHECKING:
    from typing import Unpack

    import pandas as pd
    import pyarrow as pa
    from plotly.graph_objects import Figure

    from bigbatch.tune.plan.options import SearchKeywords

RUNS = "runs"
REPEATED = ("set", "enqueue", "warm_start")
"""Options of a search that take several values one by one. Other lists are written with commas."""


def open_study(study: str | Path, output: str | Path = RUNS) -> Study:
    """Open a study, also one that runs: as it is now. Open it again to see more.

    Args:
        study: its folder, or its name in ``output``.

    Raises ConfigError, in one line, if there is none, or if its ``study.json`` cannot be read.
    """
    found = Study(find_study(str(study), Path(output)))
    if found.problems and not found.plan:
        raise ConfigError(f"a study must be readable; got {str(study)!r}. {found.problems[0]}")
    for problem in found.problems:
        warnings.warn(f"{found.name}: {problem}", stacklevel=2)
    return found


@dataclass(frozen=True)
class BestTrial:
    """The trial to copy: that of ``best.json``."""

    trial: int
    """Its number."""
    value: float
    """Its value in the first objective, e.g. 0 to 1 for an accuracy, measured independently of the choice: on held-out
    examples, else as the mean over fresh seeds; without both, the value that chose it."""
    low: float | None
    high: float | None
    """The 95 % interval of ``value``, where there is one."""
    chosen_at: float
    """The value for which the search chose it."""
    parameters: Mapping[str, object]
    """The sampled parameters."""
    config: TrainConfig
    """What ``bigbatch train --config best.json`` would train."""


class Study:
    """A study at one moment. ``open_study`` makes it; nothing here writes to the study's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._recorded = open_recorded(folder)

    def __repr__(self) -> str:
        return f"<study {self.name}: {self.state}, {len(self.trials)} trials>"

    @property
    def name(self) -> str:
        """Its name."""
        return self._recorded.name

    @property
    def state(self) -> str:
        """``running``, ``in the queue``, ``interrupted``, ``done`` or ``failed``."""
        return self._recorded.summary.state

    @property
    def plan(self) -> Mapping[str, object]:
        """The study's plan: the values of ``study.json``."""
        return self._recorded.description

    @property
    def problems(self) -> Sequence[str]:
        """What could not be read, in sentences."""
        return self._recorded.problems

    @property
    def trials(self) -> pd.DataFrame:
        """A row for each trial that has begun, with the columns of ``trials.parquet``."""
        return self._tables[0].to_pandas()

    @property
    def epochs(self) -> pd.DataFrame:
        """A row for each epoch of each trial, with the columns of ``epochs.parquet``; ``metrics`` holds dicts."""
        # By default pyarrow gives maps as lists of pairs.
        return self._tables[1].to_pandas(maps_as_pydicts="lossy")

    @property
    def best(self) -> BestTrial:
        """The trial to copy: that of the answer.

        Raises ConfigError if no trial has run to its end, or if no trial has learned anything worth copying.
        """
        found, answer = self._best, self._recorded.frontier
        if found is None or found.values is None:
            raise self._too_early("a best trial")
        if answer is not None and not answer.usable:
            raise ConfigError(f"a best trial needs a usable answer; {self.name!r} has none. {self.answer[0]}")
        config = TrainConfig.from_dict(found.user_attrs["config"])
        value, low, high = found.values[0], None, None
        if answer is not None:
            reported = answer.leading.reported
            value, low, high = reported.value, reported.low, reported.high
        return BestTrial(found.number, value, low, high, found.values[0], dict(found.params), config)

    @property
    def answer(self) -> list[str]:
        """What the study found, in sentences, as at the end of the search; empty before a trial has finished, and for
        several objectives or a target."""
        found = self._recorded.frontier
        return answer_in_words(frontier_json(found), self._recorded.hours) if found else []

    @property
    def frontier(self) -> pd.DataFrame:
        """A row for each batch that was searched, with the columns of ``frontier.json`` and ``is_answer``.

        Raises ConfigError if no trial has run to its end, or if the search had no choice of batches.
        """
        import pandas as pd

        found = self._recorded.frontier
        if self._best is not None and (found is None or found.facts.name is None):
            raise ConfigError(
                f"a frontier needs a search of several batches; {self.name!r} searched one. "
                "Its best trial is study.best."
            )
        if found is None:
            raise self._too_early("a frontier")
        rows = pd.DataFrame(frontier_json(found)["rows"]).drop(columns="config")
        return rows.assign(is_answer=[row is found.answer_row for row in found.rows])

    @cached_property
    def figures(self) -> StudyFigures:
        """The figures of the report, by name."""
        return StudyFigures(all_figures(self._recorded))

    def config(self, trial: int) -> TrainConfig:
        """The configuration of a trial. Raises ConfigError if there is none."""
        for one in self._recorded.trials:
            if one.number == trial and "config" in one.user_attrs:
                return TrainConfig.from_dict(one.user_attrs["config"])
        raise ConfigError(f"a configuration is that of a trial of {self.name!r}; it has no trial {trial} that began.")

    def resume(self, **options: Unpack[SearchKeywords]) -> Study:
        """Continue, e.g. with ``study.resume(trials=32)`` until 32 trials have ended in all. Returns the later study.

        ``search`` explains options and errors.
        """
        options["resume"] = True
        return search(self.folder.name, output=self.folder.parent, **options)

    @cached_property
    def _tables(self) -> tuple[pa.Table, pa.Table]:
        recorded = self._recorded
        return trials_table(recorded.trials, recorded.objectives), epochs_table(recorded.trials)

    @cached_property
    def _best(self) -> AnyTrial | None:
        recorded = self._recorded
        return leading_trial(recorded.trials, recorded.frontier, recorded.objectives)

    def _too_early(self, what: str) -> ConfigError:
        return ConfigError(
            f"{what} needs a trial that ran to its end; {self.name!r} ({self.state}) has none. "
            "Open it again later, or search on with study.resume(trials=N)."
        )


class StudyFigures(Mapping[str, "Figure"]):
    """Figures of a report by name. Each is made, as a plotly figure, when it is asked for."""

    def __init__(self, figures: Sequence[ReportFigure]) -> None:
        self._figures = {figure.name: figure for figure in figures if figure.data}
        self.missing: Mapping[str, str] = {figure.name: figure.missing for figure in figures if not figure.data}
        """Name of a figure that has nothing to show → the reason."""

    def __getitem__(self, name: str) -> Figure:
        if name in self._figures:
            return plotly_figure(self._figures[name])
        reason = self.missing.get(name) or f"The names are {', '.join(self._figures) or 'none'}."
        raise KeyError(f"there is no figure {name!r}. {reason}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._figures)

    def __len__(self) -> int:
        return len(self._figures)

    def __repr__(self) -> str:
        return f"<figures: {', '.join(self._figures) or 'none'}>"


def search(study: str, *, output: str | Path = RUNS, **options: Unpack[SearchKeywords]) -> Study:
    """Run ``bigbatch tune`` in a process of its own, print what it says, and open the study.

    Args:
        study: the name of its folder in ``output``.
        options: those of ``bigbatch tune``, with ``_`` for ``-``, e.g. ``max_epochs=4``. True writes the option alone.
            ``set`` may be a dict of keys.

    An interrupt (Ctrl-C, a notebook's stop button) is passed on: trials write a checkpoint, then this raises
    KeyboardInterrupt. ``open_study(…).resume()`` continues the search.

    Raises:
        ConfigError: for wrong input, with the search's own line.
        RuntimeError: if it ends with another exit code, with its last line. What it has saved can be opened.
    """
    study, output = str(study), str(output)
    words = [*our_script("tune", "run.py"), "--study", study, "--output", output, *_words(options)]
    folder = Path(output) / study
    try:
        code, last = run_child(words)
    except KeyboardInterrupt:
        if os.path.isdir(folder):
            print(f"The study is saved. To search on: open_study({str(folder)!r}).resume()", flush=True)
        raise
    check_exit(code, last, f"the search of {study!r}")
    return open_study(study, output)


def _words(options: Mapping[str, object]) -> list[str]:
    """The options as a command line."""
    words: list[str] = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if name == "set" and isinstance(value, Mapping):
            value = written_assignments(value)
        if value is None or value is False:
            continue
        if value is True:
            words.append(option)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            texts = [str(part) for part in value]
            words += [f"{option}={text}" for text in (texts if name in REPEATED else [",".join(texts)])]
        else:
            words.append(f"{option}={value}")
    return words
