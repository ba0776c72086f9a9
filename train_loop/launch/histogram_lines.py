"""Histograms on their way from a trial's worker to the driver: a file of one JSON line an epoch.

They are too large for Ray's reports and for the study. The file is only appended to; after a resume the same epoch may
come again, and the last line counts. A line that a kill has cut off is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bigbatch.base import json_values

if TYPE_CHECKING:
    from bigbatch.train_loop.loop.watched_model import TensorHistogram

Bins = tuple[float, float, list[int]]
"""The ends of the first and of the last bin, and the counts."""


def histograms_file(log_file: Path) -> Path:
    """The file beside a trial's log."""
    return log_file.with_suffix(".histograms")


def append_histograms(file: Path, epoch: int, found: Mapping[str, TensorHistogram]) -> None:
    """Add an epoch's line. Raises OSError."""
    values = {name: [one.low, one.high, one.counts] for name, one in found.items()}
    with file.open("a") as lines:
        # A line break before it, too: a line that a kill has cut off would take this one in.
        lines.write(f"\n{_begin(epoch)}{json.dumps(values, separators=(',', ':'))}}}\n")


def read_histograms(file: Path, epoch: int) -> dict[str, Bins]:
    """The histograms of an epoch by name; none if the file does not have them."""
    try:
        text = file.read_text()
    except (OSError, ValueError):
        return {}
    start = text.rfind(f"\n{_begin(epoch)}")
    line = text[start + 1 :].partition("\n")[0] if start >= 0 else ""
    try:
        values = json_values.mapping(json_values.json_object(line), "histograms")
    except ValueError:  # cut off by a kill
        return {}
    return {name: (one[0], one[1], one[2]) for name, one in values.items() if isinstance(one, list) and len(one) == 3}


def _begin(epoch: int) -> str:
    return f'{{"epoch":{epoch},"histograms":'
