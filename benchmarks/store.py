"""How a benchmark's raw result is stored."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def store_measured(
    benchmark: str, settings: dict[str, Any], summary: dict[str, Any], raw: object, output: Path | None
) -> None:
    """Store a result of this machine as it is now, and print its summary as one JSON line."""
    from bigbatch.tune.storage.description import provenance

    result = {"benchmark": benchmark, "settings": settings, "provenance": provenance(), "cpus": os.cpu_count()}
    store({**result, "summary": summary, "raw": raw}, output)
    print(json.dumps(summary))


def store(result: dict[str, Any], output: Path | None) -> None:
    """Write a result with its ``provenance`` as JSON; nothing without ``output``.

    Of absolute paths in the command only the name is kept: results are published, and where a data set lay on the
    machine that measured says nothing to others.
    """
    if output is None:
        return
    facts = result["provenance"]
    command = [os.path.basename(word) if os.path.isabs(word) else word for word in facts["command"]]
    output.write_text(json.dumps({**result, "provenance": {**facts, "command": command}}, indent=1) + "\n")
