"""Use torch's fused SGD and AdamW (``fused=True``), which need one pass over memory for each step, if they are correct.
LARS and LAMB use their kernels.

The fused kernels read a parameter, its gradient and its state by address. If these have different memory layouts (a
channels-last weight with a contiguous gradient), the kernels silently take wrong steps, on torch 2.15. Autograd gives
gradients the layout of their parameters; other gradients are converted here before the step.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim.optimizer import StateDict

from bigbatch.train_loop.optim.layerwise import alike, is_sharded, laid_out

DEVICES = ("cpu", "cuda")
"""Devices on which the fused step was compared with the formulas. Others use the multi-tensor step."""
IMPLEMENTATION = ("foreach", "fused", "capturable")
"""Keys of a group that choose how a step is computed, and do not change its result. SGD has no ``capturable``."""


def can_fuse(params: Iterable[Tensor], grad_scaler: bool) -> bool:
    """Whether all parameters may take a fused step.

    Not with a GradScaler on CPUs: torch's fused SGD takes the steps that the scaler wants to skip. Not for what torch
    refuses: other devices, complex and integer numbers. Not if a parameter's elements are not contiguous: its momentum
    would be, and the layouts would differ.
    """
    devices = ("cuda",) if grad_scaler else DEVICES
    return all(p.device.type in devices and p.is_floating_point() and not is_sharded(p) and _dense(p) for p in params)


def in_one_pass(weights: list[Tensor], *others: list[Tensor]) -> bool:
    """Whether LARS and LAMB may call torch's fused kernels: with weights and state that lie alike in memory.

    ``others``: lists of state. Each tensor of state was made like its weight, without gaps.
    """
    if weights[0].device.type not in DEVICES or torch.compiler.is_compiling():
        return False
    return all(alike(tensor, weight) for other in others for tensor, weight in zip(other, weights, strict=True))


def keep_implementation(optimizer: torch.optim.Optimizer) -> None:
    """Let a loaded checkpoint change the state of ``optimizer``, but not its implementation, fused or not.

    torch's loader would take the implementation from the checkpoint, and with it the device of AdamW's step numbers.
    """

    def before(optimizer: torch.optim.Optimizer, saved: StateDict) -> StateDict:
        pairs = zip(saved["param_groups"], optimizer.param_groups, strict=False)  # torch compares their number
        groups = [{**group, **{key: own[key] for key in IMPLEMENTATION if key in own}} for group, own in pairs]
        return {**saved, "param_groups": groups + saved["param_groups"][len(groups) :]}

    optimizer.register_load_state_dict_pre_hook(before)
    optimizer.register_load_state_dict_post_hook(_complete_state)
    optimizer.register_step_pre_hook(_lay_out_gradients)


def begin_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Give SGD a momentum of 0 where it has none yet. The step is the same.

    A fused step fails if some parameters have momentum and others, which had no gradient until now, have none.
    """
    for group in optimizer.param_groups:
        for p in group["params"] if group["fused"] and group.get("momentum") else []:
            if optimizer.state[p].get("momentum_buffer") is None:
                optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p, memory_format=torch.preserve_format)


@torch.no_grad()
def _lay_out_gradients(optimizer: torch.optim.Optimizer, *_: object) -> None:
    for group in optimizer.param_groups:
        for p in group["params"] if group["fused"] else []:
            if p.grad is None:
                continue
            if p.grad.layout != torch.strided:  # of an embedding; the fused step refuses it
                group.update(foreach=True, fused=False)
                _let_the_scaler_ask(optimizer)
                break
            if not alike(p.grad, p):
                p.grad = laid_out(p.grad, p)


def _let_the_scaler_ask(optimizer: torch.optim.Optimizer) -> None:
    """A step that is not fused cannot be left out on the device: from now on a GradScaler asks before it. In this step
    it has handed over ``found_inf`` already."""
    if getattr(optimizer, "found_inf", None) is not None:
        if optimizer.found_inf:  # type: ignore[attr-defined]
            optimizer.zero_grad()
        optimizer.found_inf = None  # type: ignore[attr-defined]
        optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]


@torch.no_grad()
def _complete_state(optimizer: torch.optim.Optimizer) -> None:
    begin_momentum(optimizer)
    for group in optimizer.param_groups:
        for p in group["params"] if group["fused"] else []:
            state = optimizer.state.get(p, {})
            for name, value in state.items():
                if isinstance(value, Tensor) and value.shape == p.shape:
                    state[name] = laid_out(value, p)


def _dense(p: Tensor) -> bool:
    return alike(torch.empty_like(p, device="meta", memory_format=torch.preserve_format), p)
