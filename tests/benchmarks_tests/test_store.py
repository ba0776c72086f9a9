"""What is stored of a benchmark."""

import json
from pathlib import Path
from typing import Any

from store import store


def test_a_result_names_no_folder_of_the_machine(tmp_path: Path) -> None:
    command = ["benchmarks/a.py", "--images", str(tmp_path / "images.tar"), "--output", "benchmarks/results/a.json"]
    result: dict[str, Any] = {"provenance": {"command": command, "host": "h"}, "raw": [1]}
    store(result, tmp_path / "a.json")
    stored = json.loads((tmp_path / "a.json").read_text())
    assert stored["provenance"]["command"] == [*command[:2], "images.tar", *command[3:]]
    assert stored["raw"] == [1] and stored["provenance"]["host"] == "h" and result["provenance"]["command"] == command
    store(result, None)
