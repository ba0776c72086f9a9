"""What the API pages describe can be imported by its name."""

from __future__ import annotations

import importlib
import re

import pytest

from helpers.paths import ROOT

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
