"""What the API pages describe can be imported. The table of ``docs/training.md`` has every key of a configuration."""

import importlib
import json
import re
from operator import attrgetter
from typing import Any

import pytest

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


TEXTS = {page.name: page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "api").glob("*.md"))}
NAMES = [name for text in TEXTS.values() for name in re.findall(r"^::: (\S+)$", text, flags=re.MULTILINE)]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_the_reference_exists(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), f"docs/api names {name}, which is not there"


@pytest.mark.parametrize("page", TEXTS)
def test_the_imports_of_an_example_work(page: str) -> None:
    for line in re.findall(r"^from bigbatch\S* import .+$", TEXTS[page], flags=re.MULTILINE):
        found: dict[str, object] = {}
        exec(line, found)
        assert found.keys() - {"__builtins__"}, line
