"""Where the repository and its scripts lie."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TUNE = ROOT / "tune" / "run.py"
TRAIN = ROOT / "train_loop" / "run.py"


def product_files() -> list[Path]:
    """The Python files of the packages."""
    folders = ("cluster", "search_spaces", "src/bigbatch/base", "train_loop", "tune")
    return [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
