"""The structure of this repository in figures: rooms, arrows, circles, floors, lengths, types and words.

    python benchmarks/house.py [--root DIR] [--arrows FOLDER] [--check] [--output FILE.json]

A **room** is a Python file or a wing (a folder with Python files) that lies directly in a folder.
The folder's own ``__init__.py`` is no room; imports of it and by it are counted apart. An **arrow**
is an ordered pair of rooms of which one imports the other, anywhere in its files. Imports within
functions and under ``TYPE_CHECKING`` count. Rooms that import each other, directly or through
others, are a **circle of rooms**. The arrows **back up** are the smallest set of arrows whose removal
leaves no circle (in a circle of more than 16 rooms: a small set, not proven the smallest). A **circle
between files** is a strongly connected component of at least two files of the repository.

The files are those that git tracks (``git add`` new ones first), so that a file that symlinks show
twice counts once. ``import_graph.py`` says how imports resolve. The code measured is that of the four
packages and ``base/`` unless a row says otherwise; the product is these and ``src/``. A function's length goes from
``def`` to its last line: decorators do not count, nested functions do. p90 and p95 are nearest ranks.
``--check`` fails where a target is missed; a goal is where the house is to go, and fails nothing. Prints a
table, lists of what is long or to be mended and, last, one JSON line.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import math
import re
import signal
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from import_graph import (
    BASE,
    PACKAGES,
    Function,
    Tree,
    all_imports,
    broken_floors,
    circles,
    folder_of,
    import_statements,
    read_tree,
)

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("train_loop", "train_loop/data", "cluster", "tune")
FUNCTION_LINES, FILE_LINES, LINE_CHARACTERS = 45, 400, 100
SLEEPS = "time.sleep calls in tests outside tests/slurm"
MAY_SLEEP = ("tests/slurm/", "tests/helpers/waiting.py")
"""The tests of Slurm, and the helper that waits."""
SMALL_LINES = 60
"""A module of fewer lines that one other imports may read better within that one."""
SHELLS = ("", "bash", "sh", "shell", "console")
"""Languages of a code block in the README that make it a command."""
AT_MOST: dict[str, float] = {
    "train_loop: rooms": 13,
    "train_loop: arrows": 38,
    "train_loop/data: rooms": 9,
    "train_loop/data: arrows": 26,
    "cluster: rooms": 7,
    "cluster: arrows": 16,
    "tune: rooms": 16,
    "tune: arrows": 52,
    **{f"{folder}: circles of rooms": 0 for folder in FOLDERS},
    **{f"{folder}: arrows back up": 0 for folder in FOLDERS},
    "circles between files, module level": 0,
    "circles between files, all imports": 0,
    "imports that break the floors": 0,
    "function lines, p95": FUNCTION_LINES,
    "file lines, p95": FILE_LINES,
    "test file lines, p95": FILE_LINES,
    "Any per 1,000 lines": 5,
    "README words": 900,
    "README word of the first command": 150,
    "documentation words": 42_000,
    "decisions": 25,
    SLEEPS: 0,
}
AT_LEAST: dict[str, float] = {"typed functions, %": 100, "public docstrings, %": 90}
SMALL = f"modules with one importer and under {SMALL_LINES} lines"
COMMENT_LINES = "comment lines per 100 lines"
GOALS: dict[str, float] = {
    "product: lines": 46_000,
    "product: modules": 330,
    "tune: lines": 20_000,
    "tests: lines": 38_000,
    SMALL: 25,
    "README: words, as wc -w counts": 950,
    COMMENT_LINES: 2,
}
"""Of the comments at least, of all others at most."""

# Lengths, types, comments, words


def functions_of(node: ast.AST) -> list[Function]:
    inner = (child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr))
    found = [function for child in inner for function in functions_of(child)]
    return [node, *found] if isinstance(node, Function) else found


def length(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def count_any(module: ast.Module) -> int:
    """Uses of ``Any``, also in the strings of annotations and of ``cast``; imports of it do not count."""
    quoted: list[ast.AST | None] = []
    for node in ast.walk(module):
        quoted += [getattr(node, "annotation", None), getattr(node, "returns", None)]
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "cast":
            quoted += node.args[:1]
    strings = {n for q in quoted if q for n in ast.walk(q) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    plain: int = sum(getattr(node, "id", getattr(node, "attr", "")) == "Any" for node in ast.walk(module))
    return plain + sum(len(re.findall(r"\bAny\b", str(node.value))) for node in strings)


def typed(module: ast.Module) -> list[bool]:
    """For each function, whether every parameter (but ``self`` and ``cls``) and the result has a type."""
    methods = {f for c in ast.walk(module) if isinstance(c, ast.ClassDef) for f in c.body if isinstance(f, Function)}
    found = []
    for function in functions_of(module):
        given = function.args
        static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorator_list)
        positional = [*given.posonlyargs, *given.args][function in methods and not static :]
        others = [given.vararg, given.kwarg]
        parameters = [*positional, *given.kwonlyargs, *(other for other in others if other)]
        found.append(function.returns is not None and all(p.annotation for p in parameters))
    return found


def public_docstrings(body: Iterable[ast.stmt]) -> list[bool]:
    """For each public class, function and method (not ``@overload``), whether it has a docstring."""
    found = []
    for node in body:
        if not isinstance(node, ast.ClassDef | Function) or node.name.startswith("_"):
            continue
        if not any(ast.unparse(d).endswith("overload") for d in node.decorator_list):
            found.append(ast.get_docstring(node) is not None)
        found += public_docstrings(node.body) if isinstance(node, ast.ClassDef) else []
    return found


def count_comments(text: str) -> tuple[int, int]:
    """All comments, and those with a line of their own.

    Without marks for tools (``noqa``, ``type:``, ``fmt:``, the interpreter's line).
    """
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [token for token in tokens if token.type == tokenize.COMMENT]
    marks = r"#!|#\s*(noqa|type:|fmt:|ruff:|mypy:|pragma:)"
    said = [token for token in comments if not re.match(marks, token.string)]
    return len(said), sum(token.line.lstrip().startswith("#") for token in said)


def count_sleeps(module: ast.Module) -> int:
    """Calls of ``time.sleep``, under whatever name it was imported, also in strings: code of other processes."""
    statements = [node for node, _ in import_statements(module)]
    names = set()
    for statement in statements:
        for alias in statement.names:
            if isinstance(statement, ast.Import) and alias.name == "time":
                names.add(f"{alias.asname or 'time'}.sleep")
            if isinstance(statement, ast.ImportFrom) and (statement.module, alias.name) == ("time", "sleep"):
                names.add(alias.asname or "sleep")
    calls = sum(isinstance(node, ast.Call) and ast.unparse(node.func) in names for node in ast.walk(module))
    strings = (n.value for n in ast.walk(module) if isinstance(n, ast.Constant) and isinstance(n.value, str))
    return calls + sum(text.count("time.sleep(") for text in strings)


def readme_words(text: str) -> tuple[int, int]:
    """Words, and the word at which the first command stands (0: there is none).

    A word is what stands between spaces and has a letter or digit, outside code blocks; a link's text counts, its
    target does not. A command is a code block of a shell.
    """
    words, command, fence = 0, 0, ""
    for line in text.splitlines():
        mark = re.match(r"\s*(```+|~~~+)\s*(\w*)", line)
        if mark and not fence:
            fence = mark[1]
            command = command or (words + 1) * (mark[2] in SHELLS)
        elif mark and mark[1].startswith(fence):
            fence = ""
        elif not fence:
            words += len(re.findall(r"\S*[^\W_]\S*", re.sub(r"\]\([^)]*\)", "]", line)))
    return words, command


# The figures


def rank(values: Iterable[int], share: float) -> int:
    """The nearest rank; 0 of no values."""
    ordered = sorted(values)
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else 0


def percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 100.0


Part = tuple[dict[str, float], dict[str, list[str]]]
"""Figures, and lists of what is to be mended; the length of each list is a figure as well."""


def measure(root: Path) -> Part:
    """All figures and lists of a repository. Raises CalledProcessError where git tracks nothing there."""
    tree = read_tree(root)
    code = [path for path in tree.texts if path.split("/")[0] in PACKAGES or path.startswith(BASE)]
    figures: dict[str, float] = {}
    lists: dict[str, list[str]] = {}
    parts = (size(tree), structure(tree), lengths(tree, code), hints(tree, code), of_tests(tree))
    for numbers, found in parts:
        figures |= {**numbers, **{name: len(values) for name, values in found.items()}}
        lists |= found
    readme = root / "README.md"
    words, command = readme_words(readme.read_text() if readme.exists() else "")
    figures |= {"README words": words, "README word of the first command": command}
    pages = sorted((root / "docs").rglob("*.md"))
    figures["documentation words"] = sum(len(page.read_text(encoding="utf-8").split()) for page in pages)
    figures["decisions"] = sum(page.parent.name == "decisions" and page.name != "index.md" for page in pages)
    return figures, lists


def size(tree: Tree) -> Part:
    """How much there is to read."""
    counts = {path: len(text.splitlines()) for path, text in tree.texts.items()}
    product = [path for path in counts if path.split("/")[0] in (*PACKAGES, "src")]
    importers: dict[str, set[str]] = defaultdict(set)
    for found in all_imports(tree):
        if found.importer in product:
            importers[found.imported].add(found.importer)
    small = [
        f"{path} {counts[path]}: {min(importers[path])}"
        for path in sorted(product)
        if counts[path] < SMALL_LINES and len(importers[path]) == 1 and not path.endswith("__init__.py")
    ]
    readme = tree.root / "README.md"
    figures: dict[str, float] = {
        "product: lines": sum(counts[path] for path in product),
        "product: modules": len(product),
        "tune: lines": sum(lines for path, lines in counts.items() if path.startswith("tune/")),
        "tests: lines": sum(lines for path, lines in counts.items() if path.startswith("tests/")),
        "README: words, as wc -w counts": len(readme.read_text().split()) if readme.exists() else 0,
    }
    return figures, {SMALL: small}


def structure(tree: Tree) -> Part:
    imports = all_imports(tree)
    figures: dict[str, float] = {}
    lists: dict[str, list[str]] = {}
    for name in FOLDERS:
        folder = folder_of(name, tree, imports)
        deferred = [all(i.in_function for i in causes) for causes in folder.arrows.values()]
        figures |= {
            f"{name}: rooms": len(folder.rooms),
            f"{name}: arrows": len(folder.arrows),
            f"{name}: arrows of imports in functions alone": sum(deferred),
            f"{name}: files that import its __init__": len({i.importer for i in folder.of_init}),
            f"{name}: files that its __init__ imports": len({i.imported for i in folder.by_init}),
        }
        lists[f"{name}: circles of rooms"] = [" ".join(circle) for circle in folder.circles]
        lists[f"{name}: arrows back up"] = [" -> ".join(arrow) for arrow in folder.back_up]
    outer = circles(i[:2] for i in imports if not i.in_function)
    lists["circles between files, module level"] = [" ".join(circle) for circle in outer]
    lists["circles between files, all imports"] = [" ".join(c) for c in circles(i[:2] for i in imports)]
    broken = sorted({i[:2] for i in broken_floors(tree, imports)})
    lists["imports that break the floors"] = [f"{start} imports {end}" for start, end in broken]
    return figures, lists


def lengths(tree: Tree, code: list[str]) -> Part:
    functions = [length(f) for path in code for f in functions_of(tree.modules[path])]
    lines = [line for path in code for line in tree.texts[path].splitlines()]
    files = [len(tree.texts[path].splitlines()) for path in code]
    figures = {
        "lines": len(lines),
        "function lines, p50": rank(functions, 0.5),
        "function lines, p90": rank(functions, 0.9),
        "function lines, p95": rank(functions, 0.95),
        "function lines, max": rank(functions, 1),
        "file lines, p90": rank(files, 0.9),
        "file lines, p95": rank(files, 0.95),
        "file lines, max": rank(files, 1),
        "lines over 100 characters, %": 100 * sum(len(x) > LINE_CHARACTERS for x in lines) / (len(lines) or 1),
    }
    lists = {
        f"functions over {FUNCTION_LINES} lines": long_functions(tree, tree.texts),
        f"files over {FILE_LINES} lines": long_files(tree, tree.texts),
    }
    return figures, lists


def long_functions(tree: Tree, paths: Iterable[str]) -> list[str]:
    found = [(length(f), path, f.name) for path in paths for f in functions_of(tree.modules[path])]
    return [f"{path}: {name} {count}" for count, path, name in sorted(found, reverse=True) if count > FUNCTION_LINES]


def long_files(tree: Tree, paths: Iterable[str]) -> list[str]:
    counts = sorted(((len(tree.texts[path].splitlines()), path) for path in paths), reverse=True)
    return [f"{path} {count}" for count, path in counts if count > FILE_LINES]


def hints(tree: Tree, code: list[str]) -> Part:
    lines = sum(len(tree.texts[path].splitlines()) for path in code) or 1
    marks = [mark for path in code for mark in typed(tree.modules[path])]
    documented = [mark for path in code for mark in public_docstrings(tree.modules[path].body)]
    comments, own_lines = (sum(c) for c in zip((0, 0), *(count_comments(tree.texts[p]) for p in code), strict=True))
    figures = {
        "Any per 1,000 lines": 1000 * sum(count_any(tree.modules[path]) for path in code) / lines,
        "typed functions, %": percent(sum(marks), len(marks)),
        "public docstrings, %": percent(sum(documented), len(documented)),
        "comments per 100 lines": 100 * comments / lines,
        COMMENT_LINES: 100 * own_lines / lines,
    }
    return figures, {}


def of_tests(tree: Tree) -> Part:
    tests = [path for path in tree.texts if path.startswith("tests/")]
    sleeps = {path: count_sleeps(tree.modules[path]) for path in tests if not path.startswith(MAY_SLEEP)}
    figures: dict[str, float] = {
        "test file lines, p95": rank((len(tree.texts[path].splitlines()) for path in tests), 0.95),
        SLEEPS: sum(sleeps.values()),
    }
    return figures, {"files of tests that sleep": [f"{path} {count}" for path, count in sleeps.items() if count]}


def missed(figures: dict[str, float]) -> list[str]:
    """The figures that miss their target. A README without a command misses that one."""
    high = [name for name, limit in AT_MOST.items() if figures[name] > limit]
    low = [name for name, limit in AT_LEAST.items() if figures[name] < limit]
    without = [] if figures["README word of the first command"] else ["README word of the first command"]
    return [*high, *low, *without]


def unreached(figures: dict[str, float]) -> list[str]:
    """The figures that have not reached their goal."""
    return [n for n, goal in GOALS.items() if (figures[n] < goal if n == COMMENT_LINES else figures[n] > goal)]


def report(figures: dict[str, float], lists: dict[str, list[str]]) -> None:
    print(f"{'figure':52}{'now':>10}{'target':>16}  reached")
    late = [*missed(figures), *unreached(figures)]
    for name, value in figures.items():
        limit = {**AT_MOST, **AT_LEAST, **GOALS}.get(name)
        kind = "goal" if name in GOALS else "at least" if name in AT_LEAST else "at most"
        target = "" if limit is None else f"{kind} {limit:,g}"
        reached = "" if limit is None else "no" if name in late else "yes"
        shown = f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
        print(f"{name:52}{shown:>10}{target:>16}  {reached}".rstrip())
    for name, found in lists.items():
        if found:
            print(f"\n{name}:", *found, sep="\n  ")


def print_arrows(name: str, root: Path) -> None:
    tree = read_tree(root)
    folder = folder_of(name, tree, all_imports(tree))
    if not folder.rooms:
        raise SystemExit(f"--arrows {name}: git tracks no Python file there; write a folder such as train_loop/data")
    apart = {("(room)", "__init__"): folder.of_init, ("__init__", "(room)"): folder.by_init}
    for (start, end), causes in [*folder.arrows.items(), *apart.items()]:
        for cause in causes:
            mark = " (in a function)" if cause.in_function else ""
            print(f"{start} -> {end}: {cause.importer} imports {cause.imported}{mark}")
    summary = {"folder": name, "rooms": len(folder.rooms), "arrows": len(folder.arrows)}
    print(json.dumps(summary))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository (default: this one)")
    parser.add_argument("--arrows", metavar="FOLDER", help="print only the arrows of a folder, with their imports")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    parser.add_argument("--output", type=Path, help="store figures and lists as JSON")
    options = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it without a traceback.
    if options.arrows:
        print_arrows(options.arrows.strip("/"), options.root)
        return 0
    figures, lists = measure(options.root)
    report(figures, lists)
    rounded = {name: round(value, 2) for name, value in figures.items()}
    result: dict[str, Any] = {"benchmark": "house", "figures": rounded, "missed": missed(figures)}
    if options.output:
        sys.path.insert(0, str(ROOT / "src"))
        from store import store

        from bigbatch.tune.storage.description import provenance

        store({**result, "lists": lists, "provenance": provenance()}, options.output)
    print(json.dumps(result))
    return int(options.check and bool(result["missed"]))


if __name__ == "__main__":
    raise SystemExit(main())
