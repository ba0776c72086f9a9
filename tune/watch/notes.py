"""Print the workers' warnings on the driver's screen, each once in a search."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from bigbatch.cluster.host import json_values
from bigbatch.train_loop.launch.record_lines import NOTES


class Notes:
    """Prints each warning once. The live table moves down to make room for it."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def hear(self, trial: int, result: Mapping[str, object]) -> None:
        """Print the new warnings in a trial's report."""
        for text in json_values.texts(result, NOTES):
            if text not in self._said:
                self._said.add(text)
                print(f"warning: trial {trial}: {text}", file=sys.stderr, flush=True)
