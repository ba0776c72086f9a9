"""``CITATION.cff`` says of the software what its metadata says."""

from __future__ import annotations

import tomllib

import pytest

from helpers.paths import ROOT


def test_the_citation_agrees_with_the_package() -> None:
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()  # what the format demands
    assert "version" not in citation  # the version is in one place, bigbatch.__version__
    assert citation["license"] == project["license"]
    assert citation["keywords"] == project["keywords"]
