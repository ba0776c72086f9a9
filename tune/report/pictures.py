"""The figures of a report as plotly figures, for notebooks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bigbatch.tune.report import answer_figures, course_figures, space_figures
from bigbatch.tune.report.figure import HEIGHT, FigureMaker, ReportFigure, guarded, plain, template
from bigbatch.tune.report.rate_figures import rate_figures
from bigbatch.tune.report.recorded_study import RecordedStudy, StudyPoints, open_recorded

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MAKERS: tuple[FigureMaker, ...] = (
    answer_figures.frontier,
    answer_figures.frontier_costs,
    answer_figures.history_over_hours,
    course_figures.learning_curves,
    space_figures.parameter_importance,
    space_figures.noise_by_batch,
    course_figures.device_hours,
    course_figures.slot_timeline,
)
"""All figures of a study but the maps of rates, of which there is one for each optimizer."""


def all_figures(study: RecordedStudy) -> list[ReportFigure]:
    """Every figure of a study, also those that say why they show nothing."""
    points = StudyPoints(study)
    return [*(guarded(make, points) for make in MAKERS), *rate_figures(points)]


def study_figures(folder: Path | str, *, dark: bool = False) -> dict[str, Figure]:
    """The figures of a study as plotly figures by name, e.g. to show in a notebook.

    Args:
        folder: the study's.
        dark: for a dark page.
    """
    figures = all_figures(open_recorded(Path(folder)))
    return {figure.name: plotly_figure(figure, dark=dark) for figure in figures if figure.is_drawn}


def plotly_figure(figure: ReportFigure, *, dark: bool = False) -> Figure:
    """One figure with its title."""
    from plotly.graph_objects import Figure

    made = Figure(data=plain(figure.data), layout=plain({**figure.layout, "template": template(dark)}))
    made.update_layout(title={"text": figure.title, "font": {"size": 17}, "yref": "container", "y": 0.98})
    margin = made.layout.margin
    made.update_layout(margin_t=max(48, margin.t or 0), height=(made.layout.height or HEIGHT) + 40)
    return made
