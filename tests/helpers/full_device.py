"""A device whose memory holds few images: the loop's step raises torch's own error for larger micro-batches."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bigbatch.train_loop.loop.step import TrainStep

MESSAGE = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.00 GiB"

BELOW_TORCH = (
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call",
    "CUDA driver error: out of memory",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "GET was unable to find an engine to execute this computation",
    "FIND was unable to find an engine to execute this computation",
    "Unable to find a valid cuDNN algorithm to run convolution",
    "Triton Error [CUDA]: out of memory",
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, unhandled cuda error (run with "
    "NCCL_DEBUG=INFO for details), NCCL version 2.27.5\nncclUnhandledCudaError: Call to CUDA function failed.\n"
    "Last error:\nCuda failure 2 'out of memory'",
    "HIP out of memory. Tried to allocate 20.00 MiB",
)
"""How libraries below torch's allocator say that a device's memory is full, as RuntimeErrors."""

HOOK = """
import importlib.abc, importlib.util, os, sys

STEP = "bigbatch.train_loop.loop.step"

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != STEP:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (load(module), limit(module))
        return spec

def limit(module):
    import torch
    import torch.distributed as dist

    real = module.TrainStep.gradients

    def gradients(self, images, *arguments, **keywords):
        rank = dist.get_rank() if dist.is_initialized() else 0
        on_this_rank = os.environ["FULL_ON_RANK"] in ("any", str(rank))
        if on_this_rank and len(images) > int(os.environ["DEVICE_HOLDS_IMAGES"]):
            raise torch.OutOfMemoryError(os.environ["DEVICE_FULL_MESSAGE"])
        return real(self, images, *arguments, **keywords)

    module.TrainStep.gradients = gradients

sys.meta_path.insert(0, Finder())
"""


def small_device(folder: Path, images: int, rank: int | str = "any") -> dict[str, str]:
    """The environment of processes whose device, on ``rank``, holds a training step of ``images`` images."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(HOOK)
    device = {"DEVICE_HOLDS_IMAGES": str(images), "FULL_ON_RANK": str(rank), "DEVICE_FULL_MESSAGE": MESSAGE}
    return {"PYTHONPATH": str(folder), **device}


def device_full() -> None:
    """What torch raises when a GPU's memory is full."""
    raise torch.OutOfMemoryError(MESSAGE)


class SmallDevice:
    """The same in this process.

    Args:
        begin_at: gradients of so many micro-batches are computed before it is too small, as where other processes fill
            the device later.
        fill: raises the error.
    """

    def __init__(
        self, patch: pytest.MonkeyPatch, images: int, begin_at: int = 0, fill: Callable[[], object] = device_full
    ) -> None:
        self.sizes: list[int] = []
        """Of every micro-batch that was computed."""
        self.images, self.begin_at = images, begin_at
        real = TrainStep.gradients

        def gradients(step: TrainStep, images: torch.Tensor, *arguments: object, **keywords: object) -> object:
            if len(self.sizes) >= self.begin_at and len(images) > self.images:
                fill()
            self.sizes.append(len(images))
            return real(step, images, *arguments, **keywords)  # type: ignore[arg-type]

        patch.setattr(TrainStep, "gradients", gradients)
