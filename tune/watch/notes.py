"""What workers met on their nodes and a person should know, on the driver's screen: each once a search."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from bigbatch.train_loop.launch.record_lines import NOTES


class Notes:
    """Says what it has not said before. The live table moves down for it."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def hear(self, trial: int, result: Mapping[str, Any]) -> None:
        """Look for notes in what a trial has reported."""
        for text in result.get(NOTES, ()):
            if text not in self._said:
                self._said.add(text)
                print(f"warning: trial {trial}: {text}", file=sys.stderr, flush=True)
