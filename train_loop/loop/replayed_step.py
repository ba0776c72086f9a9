"""The training step of one GPU as a CUDA graph, which the host starts with one call (``model.compile=auto``).

A small network's step is hundreds of short kernels, and the host takes longer to start them than the device takes to
run them. A graph holds them all: forward, loss, metric sums, backward, clipping and optimizer. Work that uses a number
of the host stays outside: the batch's copy and preparation, mixing, the seed, the moving average of the weights. The
learning rate is a number on the device, and so is fp16's scale.

The first steps with a shape run normally. Then one is recorded. The next one runs twice: as a replay, and normally. If
both change the weights alike, the following steps of this shape are replays. The last step of an epoch is never a
replay: it may be smaller, and hooks that read gradients run in it. If recording or replaying fails, all steps run
normally, and one line says why.
"""

from __future__ import annotations

import math
import platform
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from bigbatch.train_loop.config.rules import is_own
from bigbatch.train_loop.host.ranks import memory_part, trials_on_gpu
from bigbatch.train_loop.loop.assembly import Run, seed_batch
from bigbatch.train_loop.model.sharding import is_shared_out
from bigbatch.train_loop.optim.build import LR_FACTOR, set_learning_rate
from bigbatch.train_loop.optim.layerwise import norms
from bigbatch.train_loop.plugins.nested import Nested
from bigbatch.train_loop.reporter import report_notes

FIRST_STEPS = 3
"""Steps with a shape before one is recorded. In them cuDNN chooses its kernels, and the optimizer makes its state."""
ALIKE = 0.02
"""Two steps with the same batch may differ by this fraction of the step's length: cuDNN may add in any order."""
LEAST_TORCH = "2.13"
"""In older versions, after a recording that CUDA refused, torch's allocator and generator act as if it continued."""

Step = Callable[[], torch.Tensor]
"""Takes a step with the batch in the static tensors. Returns its loss ``[]``, detached."""


class CudaGraphs:
    """Makes replays of a GPU's steps."""

    kept_bytes = 0
    """The device's memory that the last recording keeps for its graph."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def waits(self, step: Step) -> tuple[torch.Tensor, bool]:
        """Take a step. Returns its loss, and whether the host has waited for the device in it.

        An attempt to record a step that waits would corrupt torch's generator.
        """
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                loss = step()
            finally:
                torch.cuda.set_sync_debug_mode(before)
        return loss, any("called a synchronizing" in str(one.message) for one in said)

    def lacks_room(self) -> str:
        """The reason if the device has too little memory for replays, else empty.

        A graph keeps the memory of a step for itself, in addition to that of normal steps. The comparison keeps two
        copies of weights and state.
        """
        free, total = torch.cuda.mem_get_info(self._device)
        # torch's idle blocks are free, too: a recording begins by giving them back.
        room = min(free + torch.cuda.memory_reserved(self._device), int(total * memory_part(trials_on_gpu())))
        room -= torch.cuda.memory_allocated(self._device)
        needed = 2 * torch.cuda.max_memory_allocated(self._device)
        return "" if needed <= room else "the device has no memory for a second step beside the first"

    def record(self, step: Step) -> tuple[Callable[[], None], torch.Tensor]:
        """Record a step without taking it. Returns its replay, and the tensor in which each replay leaves its loss."""
        graph = torch.cuda.CUDAGraph()
        # The outer block restores the stream: torch does not if the end of a recording fails. ``thread_local``: other
        # threads continue meanwhile, one that writes a checkpoint and those of the backward pass.
        with (
            torch.cuda.stream(torch.cuda.current_stream(self._device)),
            torch.cuda.graph(graph, capture_error_mode="thread_local"),
        ):
            before = torch.cuda.memory_reserved(self._device)
            loss = step()
        self.kept_bytes = torch.cuda.memory_reserved(self._device) - before
        return graph.replay, loss


def replay_steps(run: Run) -> None:
    """Make the run's steps replays, if its configuration asks for it. If that is impossible, a line says why."""
    if run.config.model.compile != "auto":
        return
    if reason := _why_not(run):
        _say(run, reason)
    else:
        run.replay = ReplayedStep(run, CudaGraphs(run.world.device)).take


def _say(run: Run, reason: str) -> None:
    text = f"model.compile=auto changes nothing: {reason}."
    report_notes([(platform.node(), text)], run.reporter, run.world.rank)


def _why_not(run: Run) -> str:
    """The reason why the run's steps cannot be recorded, as far as it is known before the first step; else empty."""
    config = run.config
    code = " and ".join(filter(is_own, (config.model.name, config.loss, config.optimizer.name)))
    reasons = {
        "it needs a GPU": run.world.device.type != "cuda",
        "it is for one worker": run.world.workers > 1 or is_shared_out(run.model),
        "a step has several micro-batches": run.split.accumulation_steps > 1,
        "activation checkpointing reads the generator's state in a step": config.model.activation_checkpointing,
        f"a replay would leave out the Python code of {code}": bool(code),
        f"it needs torch {LEAST_TORCH}": torch.__version__ < LEAST_TORCH,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


class ReplayedStep:
    """Takes the steps of a run by replay where it can."""

    def __init__(self, run: Run, recorder: CudaGraphs) -> None:
        self._run, self._recorder = run, recorder
        self._shapes: object = None
        self._epoch = -1
        self._seen = 0
        self._static: list[torch.Tensor] = []
        self._rates = [torch.zeros((), device=run.world.device) for _ in run.optimizer.param_groups]
        self._recorded: tuple[Callable[[], None], torch.Tensor] | None = None
        self._is_right = False

    def _refuse(self, reason: str) -> None:
        """Replay no step from now on, and say why."""
        self._run.replay = None
        _say(self._run, reason)

    def take(self, batch: Sequence[Nested], rate: float) -> torch.Tensor | None:
        """Take a step, without the average of the weights. Returns its loss ``[]``; None: the caller must take it.

        Args:
            batch: the network's input, the targets of the loss, and the labels that are not mixed, on the device.
            rate: learning rate.
        """
        tensors = [one for one in batch if isinstance(one, torch.Tensor)]
        if len(tensors) < len(batch):
            self._refuse("images and labels must be a tensor each")
            return None
        shapes = [(one.shape, one.stride(), one.dtype) for one in tensors]
        if shapes != self._shapes:
            if self._epoch == self._run.progress.epoch:  # to record again and again takes longer than it saves
                self._refuse("the batches of an epoch differ in shape")
                return None
            self._shapes, self._seen, self._recorded, self._is_right = shapes, 0, None, False
        self._epoch = self._run.progress.epoch
        self._seen += 1
        if self._seen < FIRST_STEPS:
            return None
        if self._recorded is None:
            return self._first(tensors, rate)
        for static, one in zip(self._static, tensors, strict=True):
            static.copy_(one)
        return self._replay(rate) if self._is_right else self._compare(rate)

    def _step(self) -> torch.Tensor:
        """The work that is recorded: a step with the static batch, at the learning rate in the optimizer."""
        run, (images, targets, labels) = self._run, self._static
        loss, outputs = run.step.gradients(images, targets, 1, last=True)
        run.sums.add(loss, outputs, labels)
        run.step.clip_and_step()
        run.optimizer.zero_grad(set_to_none=True)
        return loss

    def _first(self, tensors: list[torch.Tensor], rate: float) -> torch.Tensor:
        """Take a step in the form that will be recorded: with batch and rates on the device. Then record it."""
        self._static = [one.clone() for one in tensors]
        _count_on_device(self._run.optimizer)
        self._fill_rates(rate)
        with self._rates_on_device():
            loss, waited = self._recorder.waits(self._step)
            if reason := "the host waits for the device in a step" if waited else self._recorder.lacks_room():
                self._refuse(reason)
            else:
                self._record()
        return loss

    def _record(self) -> None:
        try:
            self._recorded = self._recorder.record(self._step)
            self._run.graph_bytes = self._recorder.kept_bytes
        except Exception as error:  # its class depends on the cause and on the version of torch
            self._run.optimizer.zero_grad(set_to_none=True)
            self._run.scaler.update(self._run.scaler.get_scale())  # and nothing of the broken step
            self._refuse(f"a step cannot be recorded ({_first_cause(error)})")

    @contextmanager
    def _rates_on_device(self) -> Iterator[None]:
        """Within the block the optimizer has its rates on the device."""
        groups = self._run.optimizer.param_groups
        numbers = [group["lr"] for group in groups]
        for group, rate in zip(groups, self._rates, strict=True):
            group["lr"] = rate
        try:
            yield
        finally:
            for group, number in zip(groups, numbers, strict=True):
                group["lr"] = number

    def _fill_rates(self, rate: float) -> None:
        for group, on_device in zip(self._run.optimizer.param_groups, self._rates, strict=True):
            on_device.fill_(rate * group.get(LR_FACTOR, 1.0))

    def _replay(self, rate: float) -> torch.Tensor:
        assert self._recorded is not None
        replay, loss = self._recorded
        self._fill_rates(rate)
        replay()
        return loss.clone()  # the next replay writes there

    def _compare(self, rate: float) -> torch.Tensor:
        """Take the step as a replay, undo it, and take it normally. If the results differ, there are no replays."""
        run, weights = self._run, [p.detach() for p in self._run.model.parameters()]
        state = [one for values in run.optimizer.state.values() for one in values.values() if torch.is_tensor(one)]
        changed = [one.detach() for one in (*weights, *run.model.buffers(), *state, run.sums.values, run.step.skipped)]
        before, scale = [one.clone() for one in changed], run.scaler.state_dict()
        self._replay(rate)
        replayed, its_scale = [one.clone() for one in changed], run.scaler.state_dict()
        for one, old in zip(changed, before, strict=True):
            one.copy_(old)
        run.scaler.load_state_dict(scale)
        seed_batch(run, run.progress.step, 0)
        set_learning_rate(run.optimizer, rate)
        loss = self._step()
        way, apart = (_distance(weights, others[: len(weights)]) for others in (before, replayed))
        if not math.isfinite(way):  # ``LossWatch`` soon reports it
            return loss
        self._is_right = way > 0  # at a rate of 0 they always agree
        # The change of a small tensor does not show in the norm over all tensors.
        left = sum(
            torch.equal(other, old) and not torch.equal(one, old)
            for one, old, other in zip(changed, before, replayed, strict=True)
        )
        if left:
            self._refuse(f"a replay left {left} of {len(changed)} tensors unchanged that the step changes")
        elif run.scaler.state_dict() != its_scale:
            self._refuse("a replay changed fp16's scale otherwise than the step")
        elif not apart <= ALIKE * way:  # also where it is NaN
            self._refuse(f"a replay ended {apart:.2g} away from the normal step's weights; that step moved {way:.2g}")
        return loss


def _first_cause(error: BaseException) -> str:
    """The first line of the first error. The end of a recording then fails, too, with an error that tells no cause."""
    while error.__context__ is not None and not error.__suppress_context__:
        error = error.__context__
    return next(iter(str(error).splitlines()), type(error).__name__)


def _count_on_device(optimizer: torch.optim.Optimizer) -> None:
    """Let AdamW count its steps on the device, as LAMB does: a replay does not change a number of the host."""
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = True
            for p in group["params"]:
                if "step" in (state := optimizer.state.get(p, {})):
                    state["step"] = state["step"].to(p.device)


@torch.no_grad()
def _distance(these: list[torch.Tensor], those: list[torch.Tensor]) -> float:
    """The L2 distance over all tensors together. Waits for the device."""
    return norms(list(torch._foreach_sub(these, those))).norm().item()
