"""``frontier.json``, and ``frontier/VALUE.json``: the configuration of each value, for ``bigbatch train --config``."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from bigbatch.cluster.host.atomic_files import write_json

if TYPE_CHECKING:  # what only reads these files needs no Optuna
    from bigbatch.tune.study.frontier import Frontier, FrontierRow

SCHEMA_VERSION = 1
FRONTIER_FILE, FRONTIER_FOLDER = "frontier.json", "frontier"
_OF_BEST = (
    "trial", "objective", "low", "high", "seeds", "seeds_diverged", "epochs", "optimizer_steps", "images_per_s",
    "epoch_s", "gpu_hours", "noise_scale", "holdout", "config",
)  # fmt: skip


def frontier_json(frontier: Frontier) -> dict[str, object]:
    """The content of frontier.json, documented in docs/study-folder.md."""
    facts = frontier.facts
    return {
        "schema_version": SCHEMA_VERSION,
        "dimension": facts.name,
        "objective": facts.objective.name,
        "direction": facts.objective.direction,
        "tolerance": facts.tolerance,
        "validation_images": facts.images,
        "workers": facts.workers,
        "answer": {
            "value": frontier.answer_row.value,
            "trial": frontier.answer_best.trial,
            "is_certain": frontier.is_certain,
        },
        "rows": [_row_values(row) for row in frontier.rows],
    }


def _row_values(row: FrontierRow) -> dict[str, object]:
    return {
        "value": row.value,
        "tried": row.tried,
        "finished": row.finished,
        "diverged": row.diverged,
        "worse_by": row.worse_by,
        "worse_at_most": row.worse_at_most,
        **{name: getattr(row.best, name, None) for name in _OF_BEST},
    }


def write_frontier(frontier: Frontier, folder: Path) -> None:
    """Write frontier.json and the configurations into a study's folder, each file at once."""
    (folder / FRONTIER_FOLDER).mkdir(exist_ok=True)
    for row in frontier.rows:
        if row.best is not None:
            write_json(folder / config_file(row.value), dict(row.best.config), indent=2)
    write_json(folder / FRONTIER_FILE, frontier_json(frontier), indent=2, durable=True)


def config_file(value: object) -> str:
    """Path of a value's configuration in the study's folder, e.g. ``frontier/8192.json``.

    A value that cannot be a file's name gets a part of its hash: ``a/b`` and ``a:b`` are two files.
    """
    text = str(value)
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", text)
    if name != text:
        name += f"-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
    return f"{FRONTIER_FOLDER}/{name}.json"
