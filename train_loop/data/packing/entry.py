"""An image's place in a source, and the facts that its name gives."""

from __future__ import annotations

import os
import re
from typing import NamedTuple


class SourceEntry(NamedTuple):
    """An image's place in a source."""

    name: str
    """Inside the source, such as ``train/ant/7.jpg``; it identifies the image."""
    file: str
    offset: int
    """Bytes into ``file``; a row number in Parquet and pickles; -1: the file is the image."""
    size: int
    """Bytes."""


Labelled = list[tuple[str, str, SourceEntry]]
"""Part, class, entry."""


def part_of_file(file: str) -> str:
    """``train``, ``val``, … where a file's name says so, as in ``imagenet-train-000017.tar``."""
    match = re.search(r"(?<![a-z])(train|validation|valid|val|test)(?![a-z])", os.path.basename(file).lower())
    return match.group(1) if match else ""
