"""Draws ``floors.svg``: the four floors with their wings, and what each floor imports from the floors below.

    python docs/pictures/make_floors.py

Wings and imports are read from the files that git tracks. A test compares the picture with them.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PICTURE = Path(__file__).with_name("floors.svg")
sys.path.insert(0, str(ROOT / "benchmarks"))

from import_graph import PACKAGES, Tree, all_imports, read_tree  # noqa: E402

PURPOSE = {
    "tune": "the search: plan, trials, study, displays",
    "search_spaces": "what is searched, and from which priors",
    "train_loop": "one training run, in plain PyTorch",
    "cluster": "a Ray cluster in a Slurm job; standard library only",
}
"""A line for each floor, highest floor first."""
WIDTH, FLOOR_WIDTH, GAP, MARGIN = 900, 620, 34, 16
TITLE_HEIGHT, ROW_HEIGHT, LEGEND_HEIGHT = 40, 28, 38
CHARACTER = 7.3
"""Width of a character at the size that wings are written in."""


class Floor(NamedTuple):
    """One folder of the picture."""

    name: str
    wings: list[str]
    below: dict[str, list[str]]
    """By floor, the parts of it that this floor imports."""


def floors(root: Path) -> list[Floor]:
    """The floors from the highest to the lowest, as the tracked files are."""
    tree = read_tree(root)
    return [Floor(name, wings(tree, name), below(tree, name)) for name in PURPOSE]


def wings(tree: Tree, floor: str) -> list[str]:
    """Folders that lie directly in a floor; of a floor without any, its files."""
    paths = [path.split("/")[1:] for path in tree.texts if path.startswith(f"{floor}/")]
    folders = {parts[0] for parts in paths if len(parts) > 1}
    return sorted(folders) or sorted({parts[0] for parts in paths} - {"__init__.py"})


def below(tree: Tree, floor: str) -> dict[str, list[str]]:
    """What ``floor`` imports of each other floor: wings and files, by name."""
    found: dict[str, set[str]] = {}
    for start, end, _ in all_imports(tree):
        other, _, rest = end.partition("/")
        if start.startswith(f"{floor}/") and other != floor and other in PACKAGES:
            found.setdefault(other, set()).add(rest.split("/")[0].removesuffix(".py"))
    return {name: sorted(found[name]) for name in PURPOSE if name in found}


def draw(drawn: list[Floor]) -> str:
    """The picture as SVG, without fonts or scripts from elsewhere."""
    tops, top = {}, MARGIN
    for floor in drawn:
        tops[floor.name] = top
        top += _height(floor) + GAP
    height = top - GAP + LEGEND_HEIGHT + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" role="img">',
        "<title>The four floors of BigBatch, their wings, and what each imports from the floors below</title>",
        '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#556"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#fff"/>',
    ]
    for floor in drawn:
        parts += _floor(floor, tops[floor.name])
    parts += _arrows(drawn, tops)
    parts += _legend(top - GAP + MARGIN)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _height(floor: Floor) -> int:
    return TITLE_HEIGHT + ROW_HEIGHT * len(_rows(floor.wings))


def _rows(names: list[str]) -> list[list[tuple[str, float, float]]]:
    """Rows of (name, x, width) that fit into a floor."""
    rows: list[list[tuple[str, float, float]]] = [[]]
    x = MARGIN + 12.0
    for name in names:
        width = CHARACTER * len(name) + 14
        if x + width > MARGIN + FLOOR_WIDTH - 8:
            rows.append([])
            x = MARGIN + 12.0
        rows[-1].append((name, x, width))
        x += width + 8
    return rows


def _floor(floor: Floor, top: int) -> list[str]:
    parts = [
        f'<rect x="{MARGIN}" y="{top}" width="{FLOOR_WIDTH}" height="{_height(floor)}" rx="6" '
        'fill="#eef1fb" stroke="#3f51b5"/>',
        f'<text x="{MARGIN + 12}" y="{top + 22}" font-size="15" font-weight="bold" fill="#1a237e">{floor.name}/</text>',
        f'<text x="{MARGIN + FLOOR_WIDTH - 12}" y="{top + 22}" font-size="13" text-anchor="end" fill="#445">'
        f"{escape(PURPOSE[floor.name])}</text>",
    ]
    for number, row in enumerate(_rows(floor.wings)):
        y = top + 34 + number * ROW_HEIGHT
        for name, x, width in row:
            parts += [
                _box(x, y, width, is_file=name.endswith(".py")),
                f'<text x="{x + width / 2:.0f}" y="{y + 15}" font-size="12" text-anchor="middle" fill="#223">'
                f"{name}</text>",
            ]
    return parts


def _box(x: float, y: int, width: float, *, is_file: bool) -> str:
    """The frame of a wing; a dashed one of a file."""
    style = 'fill="none" stroke="#9fa8da" stroke-dasharray="3 3"' if is_file else 'rx="4" fill="#fff" stroke="#9fa8da"'
    return f'<rect x="{x:.0f}" y="{y}" width="{width:.0f}" height="22" {style}/>'


def _legend(y: int) -> list[str]:
    """What the two kinds of frames mean."""
    parts, x = [], MARGIN + 12
    for meaning, is_file in (("a wing (a folder)", False), ("a file, in a floor without wings", True)):
        parts += [
            _box(x, y, 30, is_file=is_file),
            f'<text x="{x + 38}" y="{y + 15}" font-size="12" fill="#445">{meaning}</text>',
        ]
        x += 180
    return parts


def _arrows(drawn: list[Floor], tops: dict[str, int]) -> list[str]:
    """To the next floor straight down, to others around the right side."""
    parts, names, lane = [], list(tops), 0
    for floor in drawn:
        for other, imported in floor.below.items():
            label = escape(", ".join(imported) if len(imported) <= 2 else "most parts")
            if names.index(other) == names.index(floor.name) + 1:
                x, start, end = 110, tops[floor.name] + _height(floor), tops[other]
                parts += [_line(f"M{x} {start} V{end - 2}"), _label(x + 10, (start + end) // 2 + 4, label)]
                continue
            start, end = tops[floor.name] + 30 + 18 * lane, tops[other] + 30 + 18 * lane
            x = MARGIN + FLOOR_WIDTH + 26 + 125 * lane
            parts += [
                _line(f"M{MARGIN + FLOOR_WIDTH} {start} H{x} V{end} H{MARGIN + FLOOR_WIDTH + 2}"),
                _label(x + 6, (start + end) // 2, label),
            ]
            lane += 1
    return parts


def _line(path: str) -> str:
    return f'<path d="{path}" fill="none" stroke="#556" stroke-width="1.4" marker-end="url(#end)"/>'


def _label(x: int, y: int, text: str) -> str:
    return f'<text x="{x}" y="{y}" font-size="12" fill="#556">imports {text}</text>'


if __name__ == "__main__":
    PICTURE.write_text(draw(floors(ROOT)), encoding="utf-8")
