"""A machine whose one GPU is only a number: searches ask Ray for it and share it, and their trials train on the CPU."""

from __future__ import annotations

from pathlib import Path

HOOK = """
import importlib.util, sys

MACHINE, RAYS_DEVICE = "bigbatch.tune.plan.machine", "ray.train.v2.torch.train_loop_utils"
RAYS_GROUP = "ray.train.torch.config"

class Finder:
    def __init__(self):
        self.left = {MACHINE: machine, RAYS_DEVICE: device, RAYS_GROUP: group}

    def find_spec(self, name, path, target=None):
        change = self.left.pop(name, None)
        if change is None:
            return None
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (load(module), change(module))
        return spec

def machine(module):
    real = module.local_machine

    def local_machine():
        (node,) = real().nodes
        return module.Machine((module.Node(node.cpus, 1, node.memory_bytes, 16 * 2**30),))

    module.local_machine = local_machine

def device(module):
    import torch

    module.get_devices = lambda: [torch.device("cpu")]

def group(module):
    real = module._setup_torch_process_group

    def _setup_torch_process_group(backend, **more):
        real(backend="gloo", **more)

    _setup_torch_process_group.__module__ = module.__name__  # so that it is pickled by its name
    module._setup_torch_process_group = _setup_torch_process_group

sys.meta_path.insert(0, Finder())
"""


def pretended_gpu(folder: Path) -> dict[str, str]:
    """The environment of a search on such a machine."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(HOOK)
    return {"PYTHONPATH": str(folder)}
