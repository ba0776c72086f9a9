"""Several studies side by side: what the report's first table says of each, and the figures of all together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bigbatch.tune.report.answer_figures import compared_frontiers, compared_histories
from bigbatch.tune.report.figure import ReportFigure
from bigbatch.tune.report.recorded_study import RecordedStudy
from bigbatch.tune.report.trial_points import StudyPoints

DECISIVE = (
    ("data", "data sets"), ("val_size", "validation images"), ("model", "networks"), ("max_epochs", "epochs"),
)  # fmt: skip
"""Keys of study.json that decide what values mean, and their names."""


@dataclass(frozen=True)
class ComparedStudy:
    """A row of the comparison. None: not known, or there is none."""

    study: str
    state: str
    finished: int | None = None
    """Trials that ran to their end."""
    begun: int | None = None
    best: float | None = None
    """The best value of the first objective."""
    answer: object = None
    """The largest batch within the tolerance of the best."""
    answer_value: float | None = None
    """The value there, by what did not choose it."""
    device_hours: float | None = None
    """Held by the search."""


def compared_study(study: RecordedStudy, points: StudyPoints | None) -> ComparedStudy:
    """The row of one study. ``points``: None where it cannot be read."""
    if points is None:
        return ComparedStudy(study.shown_name, study.summary.state)
    found = study.frontier
    return ComparedStudy(
        study=study.shown_name,
        state=study.summary.state,
        finished=len(points.finished),
        begun=len(points.searched),
        best=points.best_first[0].value if points.best_first else None,
        answer=found.answer_row.value if found and found.answer_row else None,
        answer_value=found.answer_best.reported.value if found and found.answer_best else None,
        device_hours=study.summary.held_s / 3600,
    )


def compared_figures(points: Sequence[StudyPoints]) -> list[ReportFigure]:
    """The figures that show all studies."""
    return [make(points) for make in (compared_frontiers, compared_histories)] if points else []


def differences(points: Sequence[StudyPoints]) -> list[str]:
    """What decides values, and is not the same in all studies."""
    found = {"objectives": {one.study.objectives.text for one in points}}
    for key, word in DECISIVE:
        found[word] = {str(one.study.description.get(key)) for one in points}
    return [word for word, values in found.items() if len(values) > 1]
