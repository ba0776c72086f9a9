"""Small pieces of HTML, and the figures of a page. Texts of a study are escaped here, so none of them can be code."""

from __future__ import annotations

import html
import importlib.util
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.report.figure import HEIGHT, ReportFigure, plain, template


class Markup(str):
    """HTML that this package wrote. Any other text is escaped before it comes into a page."""

    __slots__ = ()


def escaped(value: object) -> Markup:
    """A text as HTML shows it; ``Markup`` stays as it is. Characters that UTF-8 cannot hold become ``?``."""
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(str(value).encode("utf-8", "replace").decode(), quote=True))


def tag(name: str, *content: object, **attributes: object) -> Markup:
    """An element. ``class_`` stands for ``class``, other ``_`` for ``-``; an attribute that is None is left out."""
    given = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    words = "".join(f' {key}="{escaped(value)}"' for key, value in given.items())
    return Markup(f"<{name}{words}>{joined(content)}</{name}>")


def joined(parts: Iterable[object]) -> Markup:
    """Pieces one after the other, each escaped unless it is ``Markup``."""
    return Markup("".join(escaped(part) for part in parts))


def table(titles: Sequence[str], rows: Sequence[Sequence[object]], chosen: int | None = None) -> Markup:
    """A table that scrolls in itself where it is too wide; on a phone each row is a block of its own.

    Args:
        chosen: the row that stands out.
    """
    head = tag("tr", *(tag("th", title, scope="col") for title in titles))
    lines = [
        tag(
            "tr",
            *(tag("td", cell, data_label=title) for title, cell in zip(titles, row, strict=True)),
            class_="chosen" if place == chosen else None,
        )
        for place, row in enumerate(rows)
    ]
    return tag("div", tag("table", tag("thead", head), tag("tbody", *lines), class_="stacked"), class_="scroll")


def definition_list(pairs: Iterable[tuple[str, object]]) -> Markup:
    """Names and values. Pairs with an empty value are left out."""
    return tag("dl", *(joined((tag("dt", name), tag("dd", value))) for name, value in pairs if str(value)))


def card(*content: object, class_: str = "card") -> Markup:
    """A piece of the page with a frame around it."""
    return tag("div", *content, class_=class_)


def copy_block(text: str, name: str, label: str) -> Markup:
    """A text with a button that copies it.

    Args:
        name: its id in the page.
        label: on the button.
    """
    return joined((tag("pre", text, id=name), tag("p", tag("button", label, type="button", data_copies=name))))


@cache
def plotly_script() -> bytes:
    """plotly.js as the Python package brings it along, without an import of it. Raises ConfigError without plotly."""
    found = importlib.util.find_spec("plotly")
    script = Path(found.origin).parent / "package_data" / "plotly.min.js" if found and found.origin else None
    if script is None or not script.is_file():
        raise ConfigError("figures need plotly; it is not installed. Run: pip install plotly.")
    return script.read_bytes()


class FigureBook:
    """The figures of one page."""

    def __init__(self) -> None:
        self.drawn: dict[str, ReportFigure] = {}
        """By name, the placed ones that need a script."""

    def place(self, figure: ReportFigure) -> Markup:
        """The figure's place in the page, with its title and caption."""
        head = tag("h3", figure.title)
        if not figure.data:
            return card(head, tag("p", f"No figure. {figure.missing}", class_="soft"))
        self.drawn[figure.name] = figure
        style = f"height:{figure.layout.get('height', HEIGHT)}px"
        slot = tag("div", class_="plot", data_figure=figure.name, style=style, role="img", aria_label=figure.title)
        return tag("figure", head, slot, tag("figcaption", figure.caption), class_="card")

    def content(self) -> dict[str, object]:
        """What the page's script reads."""
        return {
            "templates": {"light": template(dark=False), "dark": template(dark=True)},
            "figures": {name: plain({"data": f.data, "layout": f.layout}) for name, f in self.drawn.items()},
        }
