"""The table of keys in ``docs/training.md`` has every key of a configuration, with its default."""

from __future__ import annotations

import json
import re
from operator import attrgetter
from typing import Any

from bigbatch.train_loop.config import TrainConfig, config_keys
from helpers.paths import ROOT

PAGE = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")


def rows() -> list[tuple[str, str]]:
    """Key and default of each row."""
    table = PAGE.split("| key | default | meaning |")[1].split("\n\n")[0]
    return re.findall(r"^\| `([\w.]+)` \| ([^|]+) \| .+ \|$", table, flags=re.MULTILINE)


def test_the_table_has_each_key_once() -> None:
    assert sorted(key for key, _ in rows()) == sorted(config_keys())


def test_defaults_are_those_of_the_configuration() -> None:
    for key, written in rows():
        default: Any = attrgetter(key)(TrainConfig())
        text = written.strip("`")
        read = text if isinstance(default, str) else json.loads(text)
        assert read == (list(default) if isinstance(default, tuple) else default), key
