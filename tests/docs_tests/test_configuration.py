"""The table of keys in ``docs/training.md`` has every key of a configuration, with its type and default."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from bigbatch.train_loop.config import Options, TrainConfig, config_keys

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
TYPES = {bool: "bool", int: "int", float: "float", str: "string", Options: "options"}
LISTS = {"metrics": "list of string"}


def rows() -> list[tuple[str, str, str]]:
    """Key, type and default of each row."""
    table = PAGE.split("| key | type | default | meaning |")[1].split("\n\n")[0]
    return re.findall(r"^\| `([\w.]+)` \| ([^|]+) \| ([^|]+) \| .+ \|$", table, flags=re.MULTILINE)


def default_of(key: str) -> Any:
    value: Any = TrainConfig()
    for part in key.split("."):
        value = getattr(value, part)
    return value


def test_the_table_has_each_key_once() -> None:
    assert sorted(key for key, _, _ in rows()) == sorted(config_keys())


def test_types_and_defaults_are_those_of_the_configuration() -> None:
    for key, kind, written in rows():
        default = default_of(key)
        assert kind == TYPES.get(type(default), LISTS.get(key, "list of float")), key
        text = written.strip("`")
        read = text if isinstance(default, str) else json.loads(text)
        assert read == (list(default) if isinstance(default, tuple) else default), key
