"""Writes ``decisions/index.md``, the list of all decisions by their titles. A test compares it with the files there.

python docs/make_decisions.py
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "decisions"
INDEX = FOLDER / "index.md"
HEAD = """\
# Decisions

Each page says why something is as it is: what was chosen, why, what was rejected, and the figures.
`make pages` writes this list.

| | decision |
|---|---|
"""


def index() -> str:
    """The list of the decisions that are there."""
    rows = []
    for path in sorted(FOLDER.glob("[0-9]*.md")):
        title = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        rows.append(f"| {path.name[:3]} | [{title[3:].lstrip(' ·:')}]({path.name}) |\n")
    return HEAD + "".join(rows)


if __name__ == "__main__":
    INDEX.write_text(index(), encoding="utf-8")
