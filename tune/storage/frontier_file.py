"""``frontier.json``, and ``frontier/VALUE.json``: the configuration of each value, for ``bigbatch train --config``."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from bigbatch.base.atomic_files import write_json

if TYPE_CHECKING:  # what only reads these files needs no Optuna
    from bigbatch.tune.runs.frontier import Frontier, FrontierRow

SCHEMA_VERSION = 1
FRONTIER_FILE, FRONTIER_FOLDER = "frontier.json", "frontier"
_OF_BEST = (
    "trial", "objective", "chosen_at", "seeds", "seeds_diverged", "seeds_failed", "learned", "still_rises",
    "last_change", "epochs", "optimizer_steps", "images_per_s", "epoch_s", "gpu_hours", "noise_scale", "config",
)  # fmt: skip


def frontier_json(frontier: Frontier) -> dict[str, object]:
    """The content of frontier.json, documented in docs/study-folder.md."""
    facts, row, best = frontier.facts, frontier.answer_row, frontier.answer_best
    return {
        "schema_version": SCHEMA_VERSION,
        "usable": frontier.usable,
        "unusable_because": frontier.unusable_because,
        "dimension": facts.name,
        "objective": facts.objective.name,
        "direction": facts.objective.direction,
        "tolerance": str(facts.tolerance),
        "allowance": frontier.allowance,
        "baseline": frontier.baseline,
        "examples": {
            "choosing": facts.examples.choosing,
            "held_out": facts.examples.held_out,
            "noun": facts.examples.noun,
        },
        "workers": facts.workers,
        "answer": {"value": row.value, "trial": best.trial, "is_certain": frontier.is_certain}
        if row and best
        else None,
        "rows": [_row_values(row) for row in frontier.rows],
    }


def _row_values(row: FrontierRow) -> dict[str, object]:
    reported = dataclasses.asdict(row.best.reported) if row.best else {}
    return {
        "value": row.value,
        "tried": row.tried,
        "finished": row.finished,
        "diverged": row.diverged,
        "worse_by": row.worse_by,
        "worse_at_most": row.worse_at_most,
        "refuted": row.refuted,
        "reported": reported.get("value"),
        "low": reported.get("low"),
        "high": reported.get("high"),
        "reported_by": reported.get("by"),
        "values": reported.get("values"),
        **{name: getattr(row.best, name, None) for name in _OF_BEST},
    }


def write_frontier(frontier: Frontier, folder: Path) -> None:
    """Write frontier.json and, where values are compared, their configurations, each file at once.

    A value that has not learned has no file: nobody should train it.
    """
    if frontier.facts.name is not None:
        (folder / FRONTIER_FOLDER).mkdir(exist_ok=True)
        for row in frontier.rows:
            if row.best is not None and row.best.learned is not False and frontier.usable:
                write_json(folder / config_file(row.value), dict(row.best.config), indent=2)
            else:
                (folder / config_file(row.value)).unlink(missing_ok=True)
    write_json(folder / FRONTIER_FILE, frontier_json(frontier), indent=2, durable=True)


def config_file(value: object) -> str:
    """Path of a value's configuration in the study's folder, e.g. ``frontier/8192.json``.

    A value that cannot be a visible file's name gets a part of its hash: ``a/b`` and ``a:b`` are two files.
    """
    text = str(value)
    name = re.sub(r"[^A-Za-z0-9._-]+|^(\.+|$)", "_", text)[:200]
    if name != text:
        name += f"-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
    return f"{FRONTIER_FOLDER}/{name}.json"
