"""Puts figures into a page and collects what the page must carry to draw them."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

from bigbatch.tune.report.figure import ReportFigure, plain
from bigbatch.tune.report.markup import Markup, card, joined, tag
from bigbatch.tune.report.theme import HEIGHT, template

INSTALL = "pip install plotly"


@cache
def plotly_script() -> Path | None:
    """plotly.js as the Python package brings it along; None where plotly is not installed. Imports nothing of it."""
    found = importlib.util.find_spec("plotly")
    folders = list(found.submodule_search_locations or ()) if found else []
    paths = [Path(folder) / "package_data" / "plotly.min.js" for folder in folders]
    return next((path for path in paths if path.is_file()), None)


class FigureBook:
    """The figures of one page.

    Args:
        can_draw: whether plotly.js will be in the page.
    """

    def __init__(self, can_draw: bool) -> None:
        self._can_draw = can_draw
        self._drawn: dict[str, ReportFigure] = {}
        self.left_out: list[str] = []
        """Titles of figures that the page would have with plotly."""

    def place(self, figure: ReportFigure, prefix: str = "") -> Markup:
        """The figure's place in the page, with its title and caption.

        Args:
            prefix: what its name begins with in a page of several studies.
        """
        head = tag("h3", figure.title)
        if not figure.is_drawn:
            return card(head, tag("p", f"No figure. {figure.missing}", class_="soft"))
        if not self._can_draw:
            self.left_out.append(figure.title)
            return Markup("")
        name = f"{prefix}{figure.name}"
        self._drawn[name] = figure
        height = figure.layout.get("height", HEIGHT)
        slot = tag(
            "div", class_="plot", data_figure=name, style=f"height:{height}px", role="img", aria_label=figure.title
        )
        return tag("figure", head, slot, tag("figcaption", figure.caption), class_="card")

    def content(self) -> dict[str, object]:
        """What the page's script reads."""
        return {
            "templates": {"light": template(dark=False), "dark": template(dark=True)},
            "figures": {name: plain({"data": f.data, "layout": f.layout}) for name, f in self._drawn.items()},
        }

    @property
    def is_empty(self) -> bool:
        """Whether no figure needs a script."""
        return not self._drawn


def side_by_side(*parts: Markup) -> Markup:
    """Two figures beside each other where the page is wide enough, and below them why others are missing."""
    drawn = [part for part in parts if part.startswith("<figure")]
    beside = tag("div", *drawn, class_="pair") if len(drawn) > 1 else joined(drawn)
    return joined((beside, *(part for part in parts if part and part not in drawn)))
