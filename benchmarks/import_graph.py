"""Which file of this repository imports which: arrows between rooms, circles, broken floors. `house.py` uses it.

An import is looked for in the folders of ``pythonpath`` in pyproject.toml, and symbolic links that git tracks are
followed: ``bigbatch.tune`` is ``tune/``. ``from package import name`` is an import of the
submodule of that name if there is one, else of the package's ``__init__.py``. That Python also runs the
``__init__.py`` files on the way to a submodule is not counted. Modules that a program names in a string are not seen.
"""

from __future__ import annotations

import ast
import subprocess
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("tune", "search_spaces", "train_loop", "cluster")
BASE = "src/bigbatch/base/"
"""What every floor may use. It imports nothing of them."""
EXACT_ROOMS = 16
"""Rooms of a circle up to which the smallest set of arrows back up is searched among all orders."""
MAY_IMPORT = {
    "tune": ("tune/", "search_spaces/", "train_loop/", "cluster/host/", BASE),
    "search_spaces": ("search_spaces/", "train_loop/config/", "train_loop/config.py"),
    "train_loop": ("train_loop/", "cluster/host/", BASE),
    "cluster": ("cluster/", BASE),
    BASE.rstrip("/"): (BASE,),
}
Arrow = tuple[str, str]
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Import(NamedTuple):
    """One file imports another; both are paths from the root with ``/``."""

    importer: str
    imported: str
    in_function: bool


class Tree(NamedTuple):
    """Text and syntax of every Python file that git tracks, by its path from the root."""

    root: Path
    texts: dict[str, str]
    modules: dict[str, ast.Module]
    links: dict[str, str]
    """Symbolic links to folders of the repository, and these."""


def read_tree(root: Path) -> Tree:
    """Raises CalledProcessError where ``root`` is not in a git repository."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True)
    names = [name for name in listed.stdout.split("\0") if name]
    linked = {name for name in names if (root / name).is_symlink()}
    code = [name for name in names if name.endswith(".py") and name not in linked and (root / name).is_file()]
    texts = {name: (root / name).read_text() for name in code}
    here = root.resolve()
    links = {name: (root / name).resolve().relative_to(here).as_posix() for name in linked if (root / name).is_dir()}
    return Tree(root, texts, {path: ast.parse(text, path) for path, text in texts.items()}, links)


def all_imports(tree: Tree) -> list[Import]:
    """Of files of the repository by one another, each pair and depth once; a file never imports itself."""
    found = set()
    settings = tree.root / "pyproject.toml"
    pytest = tomllib.loads(settings.read_text()).get("tool", {}).get("pytest", {}) if settings.exists() else {}
    on_path = [folder.strip("./") for folder in pytest.get("ini_options", {}).get("pythonpath", [])]
    for path, module in tree.modules.items():
        own = [] if path.split("/")[0] in PACKAGES else [path.rpartition("/")[0]]
        roots = ("", *own, *on_path)
        for statement, in_function in import_statements(module):
            for name in _names(statement, path):
                target = next((t for t in (_file_of(n, roots, tree) for n in name) if t), None)
                if target and target != path:
                    found.add(Import(path, target, in_function))
    return sorted(found)


def import_statements(node: ast.AST, in_function: bool = False) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, in_function
        elif not isinstance(child, ast.expr):  # which is most of a file, and holds no statement
            yield from import_statements(child, in_function or isinstance(child, Function))


def _names(statement: ast.Import | ast.ImportFrom, path: str) -> Iterator[tuple[str, ...]]:
    """For each name that is imported, the dotted modules that it may be, best first."""
    if isinstance(statement, ast.Import):
        yield from ((alias.name,) for alias in statement.names)
        return
    words = path.split("/")[: -statement.level] if statement.level else []
    module = ".".join([*words, statement.module] if statement.module else words)
    yield from ((f"{module}.{alias.name}", module) for alias in statement.names)


def _file_of(module: str, roots: Iterable[str], tree: Tree) -> str | None:
    for root in roots:
        base = "/".join(filter(None, [root, *module.split(".")]))
        for link, target in tree.links.items():
            if f"{base}/".startswith(f"{link}/"):
                base = target + base[len(link) :]
        for path in (f"{base}/__init__.py", f"{base}.py"):
            if path in tree.modules:
                return path
    return None


def circles(arrows: Iterable[Arrow]) -> list[list[str]]:
    """Strongly connected components of more than one node."""
    after: dict[str, set[str]] = defaultdict(set)
    for start, end in arrows:
        after[start].add(end)
    reached = {node: _reached(node, after) for node in list(after)}
    found = {frozenset(o for o in ends if node in reached.get(o, ())) for node, ends in reached.items()}
    return sorted(sorted(circle) for circle in found if len(circle) > 1)


def _reached(node: str, after: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = [node]
    while waiting:
        for end in after.get(waiting.pop(), set()) - seen:
            seen.add(end)
            waiting.append(end)
    return seen


# Rooms and floors


class Folder(NamedTuple):
    """What lies directly in a folder. Each arrow has the imports that cause it."""

    rooms: list[str]
    arrows: dict[Arrow, list[Import]]
    circles: list[list[str]]
    back_up: list[Arrow]
    of_init: list[Import]
    """Imports of the folder's own ``__init__.py`` by its rooms."""
    by_init: list[Import]


def room_of(path: str, folder: str) -> str | None:
    """The room of a file; "" for the folder's own ``__init__.py``; None outside the folder."""
    if not path.startswith(f"{folder}/"):
        return None
    head, _, rest = path[len(folder) + 1 :].partition("/")
    return head if rest else head.removesuffix(".py").replace("__init__", "")


def folder_of(name: str, tree: Tree, imports: Iterable[Import]) -> Folder:
    rooms = sorted({room for path in tree.modules if (room := room_of(path, name))})
    arrows: dict[Arrow, list[Import]] = defaultdict(list)
    for found in imports:
        start, end = room_of(found.importer, name), room_of(found.imported, name)
        if start is not None and end is not None and start != end:
            arrows[start, end].append(found)
    between = {arrow: causes for arrow, causes in sorted(arrows.items()) if all(arrow)}
    of_init = [cause for (_, end), causes in sorted(arrows.items()) if not end for cause in causes]
    by_init = [cause for (start, _), causes in sorted(arrows.items()) if not start for cause in causes]
    return Folder(rooms, between, circles(between), back_up(between), of_init, by_init)


def back_up(arrows: dict[Arrow, list[Import]]) -> list[Arrow]:
    """The fewest arrows without which there is no circle; of equally many, those of the fewest imports."""
    found = []
    for circle in circles(arrows):
        inside = {a: 1000 + len(causes) for a, causes in arrows.items() if set(a) <= set(circle)}
        order = (_best_order if len(circle) <= EXACT_ROOMS else _good_order)(circle, inside)
        found += [(start, end) for start, end in inside if order.index(end) < order.index(start)]
    return sorted(found)


def _best_order(rooms: list[str], cost: dict[Arrow, int]) -> list[str]:
    """From the highest floor to the lowest, by dynamic programming over the sets of rooms placed so far."""
    best: dict[frozenset[str], tuple[int, list[str]]] = {frozenset(): (0, [])}
    for _ in rooms:
        following: dict[frozenset[str], tuple[int, list[str]]] = {}
        for placed, (price, order) in best.items():
            for room in set(rooms) - placed:
                paid = price + sum(cost.get((room, higher), 0) for higher in placed)
                key = placed | {room}
                if key not in following or (paid, [*order, room]) < following[key]:
                    following[key] = (paid, [*order, room])
        best = following
    return best[frozenset(rooms)][1]


def _good_order(rooms: list[str], cost: dict[Arrow, int]) -> list[str]:
    """The room with the most arrows out of it, less those into it, is placed next (Eades et al. 1993, in short)."""
    left, order = set(rooms), []
    while left:
        weight = {r: sum(((s == r) - (e == r)) * c for (s, e), c in cost.items() if {s, e} <= left) for r in left}
        order.append(min(left, key=lambda room: (-weight[room], room)))
        left.remove(order[-1])
    return order


def broken_floors(tree: Tree, imports: Iterable[Import]) -> list[Import]:
    """Imports that the floors forbid. While there is no ``cluster/host``, all of ``cluster`` is allowed."""
    host = any(path.startswith("cluster/host/") for path in tree.modules)
    below = "cluster/host/" if host else "cluster/"
    allowed = {
        package: tuple(below if place == "cluster/host/" else place for place in places)
        for package, places in MAY_IMPORT.items()
    }
    return [
        found
        for found in imports
        for floor, places in allowed.items()
        if found.importer.startswith(f"{floor}/") and not found.imported.startswith(places)
    ]
