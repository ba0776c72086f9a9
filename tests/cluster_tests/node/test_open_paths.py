"""What Ray's dashboard serves without a token is what docs/security.md names."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

from helpers.paths import ROOT


def test_every_path_that_ray_leaves_open_is_named():
    """Ray's own list, read in its source: a new version may leave more open."""
    package = Path(str(importlib.util.find_spec("ray").origin)).parent
    tree = ast.parse((package / "dashboard" / "http_server_head.py").read_text())
    lists = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and "public_" in node.targets[0].id
    }
    assert set(lists) == {"public_exact_paths", "public_path_prefixes"}
    text = (ROOT / "docs" / "security.md").read_text()
    harmless = {"/favicon.ico", "/-/healthz"}  # a picture, and a path of Ray Serve, which does not run
    opened = set().union(*lists.values()) - harmless
    assert "/api/gcs_healthz" in opened and [path for path in sorted(opened) if f"`{path}`" not in text] == []
