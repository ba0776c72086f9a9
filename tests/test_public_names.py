"""The names of ``bigbatch`` itself: which there are, what they load, and that they are typed and documented."""

import ast
import importlib
import re

import pytest

import bigbatch
from helpers.paths import ROOT

INIT = ROOT / "src" / "bigbatch" / "__init__.py"
PUBLIC = {
    "ConfigError", "Study", "TrainConfig", "cancel", "logs", "open_study", "queue", "search",
    "submit", "train",
}  # fmt: skip
"""A name leaves this list only with a new major version (docs/decisions/020)."""


def test_the_public_names_are_there_and_nothing_else() -> None:
    assert set(bigbatch.__all__) == set(bigbatch._PLACES) == PUBLIC
    assert set(dir(bigbatch)) >= PUBLIC
    for name in PUBLIC:
        assert getattr(bigbatch, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'seearch'"):
        bigbatch.seearch  # noqa: B018


def test_type_checkers_see_each_name_where_it_is_loaded_from() -> None:
    """The imports under TYPE_CHECKING, and that what lies there is what a user gets."""
    conditions = [node for node in ast.parse(INIT.read_text()).body if isinstance(node, ast.If)]
    block = next(node for node in conditions if ast.unparse(node.test) == "TYPE_CHECKING")
    found = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert found.keys() == PUBLIC
    for name, module in found.items():
        assert module is not None and getattr(importlib.import_module(module), name) is getattr(bigbatch, name)
    assert (INIT.parent / "py.typed").exists()


def test_the_reference_lists_each_name() -> None:
    page = (ROOT / "docs" / "api" / "index.md").read_text(encoding="utf-8")
    listed = {name for row in re.findall(r"^\| (`.+?) \|", page, flags=re.MULTILINE) for name in row.split("`")[1::2]}
    assert {name.removeprefix("bigbatch.") for name in listed if name.count(".") == 1} == PUBLIC
