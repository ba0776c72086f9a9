"""A GPU that is none: tensors in the CPU's memory say that they are on ``cuda:0``.

It shows what a machine without a GPU does not: an operation on tensors of both devices is refused, as CUDA refuses it,
and where the host waits for the device is counted. It has no streams: nothing runs beside anything, and no memory is
short.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

GPU = torch.device("cuda", 0)
BETWEEN = {"copy_", "_foreach_copy_", "index", "index_put_"}
"""Operations that may get tensors of both devices. Others may get a number of the host, without dimensions, if they do
not put it beside numbers of the device."""
HOST_WAITS = {"_local_scalar_dense", "nonzero", "equal", "is_nonzero"}
"""Operations whose result on the device the host needs at once."""
WAITS: Counter[str] = Counter()
"""Where the host has waited for the device, by operation."""
STAGED_BYTES = 1 << 16
"""For a copy of more bytes from memory that is not page-locked the host may wait (CUDA's runtime API, "API
synchronization behavior")."""


class OnGpu(Tensor):
    """A tensor whose ``of_cpu`` is the CPU's. For autograd and C++ it is the CPU's, too."""

    of_cpu: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, of_cpu: Tensor) -> OnGpu:
        how: dict[str, Any] = {"strides": of_cpu.stride(), "storage_offset": of_cpu.storage_offset()}
        one: OnGpu = Tensor._make_wrapper_subclass(
            cls, of_cpu.shape, dtype=of_cpu.dtype, device=torch.device("cpu"), **how
        )
        one.of_cpu = of_cpu
        return one

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return GPU

    is_cuda, is_cpu = True, False

    def data_ptr(self) -> int:
        return self.of_cpu.data_ptr()

    def record_stream(self, stream: object) -> None:
        pass

    def tolist(self) -> Any:
        WAITS["tolist"] += 1
        return self.of_cpu.tolist()

    def numpy(self, *args: object, **keywords: object) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise AssertionError("a file would name this GPU, and a machine without it could not load it")

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        name, kwargs = func._schema.name.removeprefix("aten::"), kwargs or {}
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        of_host = [one for one in given if not isinstance(one, OnGpu)]
        if name not in BETWEEN and any(one.ndim or name in ("cat", "stack") for one in of_host):
            raise RuntimeError(f"Expected all tensors to be on the same device: {func} got {[*map(_kind, given)]}")
        if name in HOST_WAITS or (of_host and name in BETWEEN and not _is_asynchronous(name, args, kwargs)):
            WAITS[name] += 1
        if name.startswith("_fused_") and (found := kwargs.pop("found_inf", None)) is not None and found.of_cpu:
            return None  # as CUDA's kernels; the CPU's ones do not look
        result = func(*tree_map(_of_cpu, args), **tree_map(_of_cpu, kwargs))
        if name == "copy_" and not isinstance(args[0], OnGpu):
            return args[0]
        return return_and_correct_aliasing(func, args, kwargs, tree_map(_on_gpu, result))


def _is_asynchronous(name: str, args: Any, kwargs: Any) -> bool:
    return name == "copy_" and isinstance(args[0], OnGpu) and bool(args[2:3] == (True,) or kwargs.get("non_blocking"))


def _kind(one: Tensor) -> str:
    return f"{one.device}{list(one.shape)}"


def _of_cpu(one: object) -> object:
    return one.of_cpu if isinstance(one, OnGpu) else one


def _on_gpu(one: object) -> object:
    return OnGpu(one) if isinstance(one, Tensor) and not isinstance(one, OnGpu) else one


class _Calls(TorchFunctionMode):
    """Calls that name a device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if func is Tensor.to:
            return self._moved(func, *args, **kwargs)
        if func is Tensor.cpu:
            return self._moved(Tensor.to, args[0], "cpu")
        if func is Tensor.pin_memory:
            return _page_locked(args[0].clone())
        if func is torch.nn.functional.one_hot and isinstance(args[0], OnGpu):  # asks C++ for the device
            return OnGpu(func(args[0].of_cpu, *args[1:], **kwargs))
        if kwargs.pop("pin_memory", False):
            return _page_locked(self.__torch_function__(func, types, args, kwargs))
        device = kwargs.get("device")
        like = args[0] if args and isinstance(args[0], OnGpu) else None
        if device is None and not (like is not None and name.startswith("new_")):
            return func(*args, **kwargs)
        if func is torch.as_tensor and like is not None:
            return self._moved(Tensor.to, *args, **kwargs)
        if like is not None:
            args = (like.of_cpu, *args[1:])
        there = like is not None if device is None else torch.device(device).type == "cuda"
        if there and name in ("tensor", "as_tensor", "new_tensor"):
            WAITS[name] += 1
        result = func(*args, **kwargs | {"device": "cpu"} if device is not None and there else kwargs)
        return OnGpu(result) if there else result

    def _moved(self, func: Callable[..., Tensor], one: Tensor, *args: Any, copy: bool = False, **kwargs: Any) -> Tensor:
        if args and isinstance(args[0], Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        device, dtype, non_blocking, layout = torch._C._nn._parse_to(*args, **kwargs)
        if device is not None and (device.type == "cuda") != isinstance(one, OnGpu):
            assert not (one.requires_grad and torch.is_grad_enabled()), "no gradient passes between the devices"
            to_host = isinstance(one, OnGpu)
            WAITS["to"] += to_host or not non_blocking or (one.nbytes > STAGED_BYTES and not hasattr(one, "is_locked"))
            one = one.of_cpu.clone() if isinstance(one, OnGpu) else OnGpu(one.detach().clone())
            copy = False
        how = {"memory_format": layout} if layout is not None else {}
        return func(one, dtype or one.dtype, copy=copy, **how)


def _page_locked(one: Tensor) -> Tensor:
    one.is_locked = True  # type: ignore[attr-defined]
    return one


class _Event:
    def __init__(self, **keywords: object) -> None:
        pass

    def record(self, stream: object = None) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, later: object) -> float:
        return 1.0


class _Stream:
    def __init__(self, device: object = None) -> None:
        pass

    def record_event(self) -> _Event:
        return _Event()

    def wait_event(self, event: _Event) -> None:
        pass

    def synchronize(self) -> None:
        WAITS["synchronize"] += 1


class _Autocast(torch.autocast):
    def __init__(self, device_type: str, **keywords: Any) -> None:
        super().__init__("cpu", **keywords)


@contextlib.contextmanager
def pretended_gpu() -> Iterator[Counter[str]]:
    """A GPU within the block. Gives the waits of the host in it, by operation."""
    stream, properties = _Stream(), SimpleNamespace(total_memory=1 << 37, name="pretended", uuid="GPU-0")
    answers: dict[str, Any] = {
        "is_available": True, "is_initialized": True, "device_count": 1, "current_device": 0, "_lazy_init": None,
        "set_device": None, "synchronize": None, "current_stream": stream, "stream": contextlib.nullcontext(),
        "max_memory_allocated": 1 << 20, "reset_peak_memory_stats": None, "empty_cache": None,
        "get_device_properties": properties, "is_bf16_supported": True,
    }  # fmt: skip
    WAITS.clear()
    with pytest.MonkeyPatch.context() as patch:
        for name, answer in answers.items():
            patch.setattr(torch.cuda, name, lambda *args, _answer=answer, **keywords: _answer)
        patch.setattr(torch.cuda, "Event", _Event)
        patch.setattr(torch.cuda, "Stream", _Stream)
        patch.setattr(torch.cuda, "default_generators", (torch.default_generator,))
        patch.setattr(torch, "autocast", _Autocast)
        for name in ("_cuda_graph_capture_health_check", "_accelerator_graph_capture_health_check"):
            patch.setattr(torch.optim.Optimizer, name, lambda self: None, raising=False)
        for place in (torch.nn.utils.clip_grad, torch.optim.Optimizer):  # C++ says: the CPU
            patch.setattr(place, "_group_tensors_by_device_and_dtype", staticmethod(_one_group))
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        try:
            with _Calls():
                yield WAITS
        finally:
            torch.__future__.set_overwrite_module_params_on_conversion(False)


def _one_group(lists: list[list[Tensor]], with_indices: bool = False) -> Any:
    (first, *_), *_ = lists
    return {(first.device, first.dtype): (lists, list(range(len(lists[0]))))}
