"""Where the repository and its scripts lie."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TUNE = ROOT / "tune" / "run.py"
TRAIN = ROOT / "train_loop" / "run.py"
