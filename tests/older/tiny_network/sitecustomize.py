"""With this folder on PYTHONPATH each Python knows ``tiny_network``, also Ray's workers."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from typing import Any


class _AfterTorchvision(importlib.abc.MetaPathFinder):
    """Registers the network as soon as torchvision's models are loaded."""

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        if name != "torchvision.models":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        load = spec.loader.exec_module

        def load_and_register(module: ModuleType) -> None:
            load(module)
            import tiny_network

            tiny_network.register()

        spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _AfterTorchvision())
