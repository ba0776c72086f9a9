"""What is refused: in one line, whose words the test reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest

from bigbatch.train_loop.config import ConfigError


def refusal(call: Callable[[], object], match: str = "") -> str:
    """The one line of the ``ConfigError`` that this call raises; it must match the pattern."""
    with pytest.raises(ConfigError) as refused:
        call()
    said = str(refused.value)
    assert "\n" not in said and re.search(match, said), said
    return said


def refused_command(
    capsys: pytest.CaptureFixture[str], main: Callable[[Sequence[str]], int], words: Sequence[str]
) -> str:
    """The one line of a command that ends with exit code 2 and says nothing else."""
    capsys.readouterr()
    try:
        code = main(words)
    except SystemExit as end:  # the parser's own
        code = int(str(end.code))
    out, error = capsys.readouterr()
    assert code == 2 and out == "" and error.count("\n") == 1, error
    return error
