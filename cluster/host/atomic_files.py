"""Small JSON files through which job and nodes talk: on a shared file system, replaced as a whole, 0600."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from bigbatch.cluster.host.json_values import json_object


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` atomically; readers see the old or the new text, and only its owner sees either."""
    fresh = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.replace(fresh, path)


def write_json(path: Path, value: Mapping[str, object]) -> None:
    write_text(path, json.dumps(value))


def read_json(path: Path) -> dict[str, object]:
    """What ``path`` holds; empty if it is missing or no JSON object."""
    try:
        return json_object(path.read_text())
    except (OSError, ValueError):
        return {}
