"""Writes two lists: ``files.md``, every Python file of the four packages, and ``decisions/index.md``, every decision.

    python docs/make_files.py

A file's line is the first paragraph of its docstring, a decision's is its title. A test compares both pages with
the files that are there.
"""

from __future__ import annotations

import ast
import subprocess
from collections import defaultdict
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
PACKAGES = ("tune", "search_spaces", "train_loop", "cluster")
FILES_HEAD = """\
# Every file

Each Python file of the four packages, by wing. The words are the first paragraph of the file's own docstring.
`make pages` writes this page. Read [architecture.md](architecture.md) first: it says how the wings
work together.
"""
DECISIONS_HEAD = """\
# Decisions

Each page says why something is as it is: the context, the choice, what was rejected, and the figures.
`make pages` writes this list.

| | decision |
|---|---|
"""


def files_page(root: Path) -> str:
    """The list of the files that git tracks in ``root``."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *PACKAGES],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    by_wing: dict[str, list[str]] = defaultdict(list)
    for path in sorted(name for name in listed.stdout.split("\0") if name.endswith(".py") and (root / name).is_file()):
        by_wing[path.rpartition("/")[0]].append(path)
    parts = [FILES_HEAD]
    for wing in sorted(by_wing, key=lambda name: (PACKAGES.index(name.split("/")[0]), name)):
        rows = [f"| `{path.rpartition('/')[2]}` | {first_paragraph(root / path)} |" for path in by_wing[wing]]
        parts += [f"\n## {wing}\n\n| file | what it holds |\n|---|---|\n" + "\n".join(rows) + "\n"]
    return "".join(parts)


def first_paragraph(path: Path) -> str:
    """The first paragraph of a file's docstring, on one line, in Markdown."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("``", "`").replace("|", r"\|")


def decisions_page(root: Path) -> str:
    """The list of the decisions in ``root``."""
    rows = []
    for path in sorted((root / "docs" / "decisions").glob("[0-9]*.md")):
        title = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        rows.append(f"| {path.name[:3]} | [{title[3:].lstrip(' ·:')}]({path.name}) |\n")
    return DECISIONS_HEAD + "".join(rows)


PAGES = {DOCS / "files.md": files_page, DOCS / "decisions" / "index.md": decisions_page}

if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page(ROOT), encoding="utf-8")
