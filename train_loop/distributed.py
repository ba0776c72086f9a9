"""Communication between ranks: sums over them, and decisions that all ranks make at the same step."""

from __future__ import annotations

import math
import os
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import nn

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.errors import OwnCodeError

PREPARE_S = 4 * 3600.0
"""How long ranks wait for each other's preparations; a collective would give up earlier."""
ALL_KNOW_S = 30.0
"""How long rank 0 waits for the others to read what it tells them, before it may end."""
QUESTIONS = 1000
"""The most questions a second, from all ranks that wait, to the store, which is a thread of one process."""
PIECE_BYTES = 64 << 20
"""The part of a file that is on a device at a time while it is sent."""
COLLECTIVE_VARIABLE = "BIGBATCH_COLLECTIVE_S"
"""Under torchrun and srun: seconds after which a collective fails that some rank does not join. Unset: torch's own."""


T = TypeVar("T")


def collective_timeout(env: Mapping[str, str] = os.environ) -> timedelta | None:
    """The value of ``COLLECTIVE_VARIABLE``; None if it is not set. Raises ConfigError for a wrong value."""
    text = env.get(COLLECTIVE_VARIABLE)
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 1 <= seconds <= 7 * 24 * 3600:
        raise ConfigError(f"{COLLECTIVE_VARIABLE} is seconds, 1 to 604800; got {text!r}. Write e.g. 1800, or unset it.")
    return timedelta(seconds=seconds)


class Meeting:
    """Ranks that a launcher has started with the usual variables, before they form a process group.

    A collective fails after a while. Preparations that may take longer use this class.
    """

    def __init__(self) -> None:
        """Raises ConfigError if ``COLLECTIVE_VARIABLE`` has a wrong value, or a launcher's variable is missing."""
        self._timeout = collective_timeout()
        try:
            store, self._rank, self._workers = next(dist.rendezvous("env://"))
        except ValueError as error:  # a shell may have kept some of them
            raise ConfigError(
                f"ranks meet by the variables of torchrun; got {error}. Unset RANK, WORLD_SIZE and LOCAL_RANK, or "
                "start the command with torchrun."
            ) from None
        # torchrun --max-restarts: the agent's store still holds what the workers before wrote, with their addresses.
        # Agents of several nodes count restarts differently, but there torch makes a new store.
        alone = os.environ.get("GROUP_WORLD_SIZE") == "1"
        start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if alone else "0"
        self._store: Any = dist.PrefixStore(f"bigbatch/start-{start}", store)

    def of_first(self, make: Callable[[], T]) -> T:
        """On all ranks: the value that ``make`` returns on rank 0, or the error of the user's input that it raises.

        The value is pickled and small.
        """
        value, error = None, None
        if self._rank == 0:
            try:
                value = make()
            except (ConfigError, OwnCodeError) as refused:
                error = refused
            self._store.set("bigbatch/first", pickle.dumps((value, error)))
        else:
            self._await("bigbatch/first", PREPARE_S)
            value, error = pickle.loads(self._store.get("bigbatch/first"))
        self._arrive("bigbatch/known")
        if self._rank == 0:  # it goes on last: it may hold the store, which ends with it, and refuse the run next
            self._await("bigbatch/known/all", ALL_KNOW_S)
        if error is not None:
            raise error
        return cast(T, value)

    def join(self, backend: str, prepare: Callable[[], None] | None = None) -> None:
        """``init_process_group``, once ``prepare`` has run on every rank, however long it takes."""
        if prepare is not None:
            prepare()
            self._arrive("bigbatch/prepared")
            self._await("bigbatch/prepared/all", PREPARE_S)
        dist.init_process_group(
            backend, store=self._store, rank=self._rank, world_size=self._workers, timeout=self._timeout
        )

    def _arrive(self, place: str) -> None:
        """Count this rank at ``place``. The last one says that all are there: two keys for any number of ranks."""
        if self._store.add(place, 1) == self._workers:
            self._store.set(f"{place}/all", "")

    def _await(self, key: str, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        while not self._store.check([key]) and time.monotonic() < until:  # Store.wait would ignore Ctrl-C
            time.sleep(max(0.2, self._workers / QUESTIONS))


@dataclass(frozen=True)
class World:
    """The workers of a run and this one's place among them. Without torch.distributed, or with one
    worker, every method returns at once."""

    rank: int
    workers: int
    device: torch.device

    @classmethod
    def current(cls, device: torch.device) -> World:
        """The ranks of torch's process group; one worker if there is no group."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size(), device)
        return cls(0, 1, device)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over the ranks, in place, equal on all of them to the last bit."""
        if self.workers > 1:
            dist.all_reduce(values, op=dist.ReduceOp.SUM)
        return values

    def max(self, values: Sequence[float]) -> list[float]:
        """Largest value over the ranks, place by place, in float64. NaN is not allowed."""
        if self.workers == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor.tolist()

    def wait(self) -> None:
        """Wait until all ranks are here. With NCCL ``barrier`` would warn that it must guess the device."""
        self.max([0.0])

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, sorted by rank. ``value``: small and picklable."""
        if self.workers == 1:
            return [value]
        gathered = [value] * self.workers
        dist.all_gather_object(gathered, value)
        return gathered

    def of_first(self, value: T) -> T:
        """Rank 0's picklable value, of any size, on all ranks."""
        if self.workers == 1:
            return value
        given = [value]
        dist.broadcast_object_list(given, src=0, device=self.device)
        return given[0]

    def bytes_of_first(self, data: bytes | None) -> bytes | bytearray:
        """Rank 0's bytes on all ranks. The other ranks give None."""
        if self.workers == 1:
            return data or b""
        size = self.of_first(len(data or b""))
        whole = bytearray(data or size)
        for piece in torch.frombuffer(whole, dtype=torch.uint8).split(PIECE_BYTES) if whole else ():
            there = piece.to(self.device)  # on a CPU the piece itself
            dist.broadcast(there, src=0)
            if self.rank:
                piece.copy_(there)
        return whole

    def share_buffers(self, model: nn.Module) -> None:
        """Copy rank 0's buffers (BatchNorm's running statistics) to all ranks: those of one type at once, since a
        network has hundreds of small ones."""
        if self.workers == 1:
            return
        kinds: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
        for buffer in model.buffers():
            kinds.setdefault((buffer.dtype, buffer.device), []).append(buffer.detach())
        for buffers in kinds.values():
            values = torch.cat([buffer.flatten() for buffer in buffers])
            dist.broadcast(values, src=0)
            for buffer, part in zip(buffers, values.split([buffer.numel() for buffer in buffers]), strict=True):
                buffer.copy_(part.view_as(buffer))


class RankMeetings:
    """Decides at which steps the ranks communicate: about once every ``interval_s``.

    Each meeting costs a collective and waits for the device. A single worker looks at the clock after each step; on a
    CPU, where nothing is waited for, it meets at every step. Of several workers rank 0 measures how long steps take and
    tells the others when to meet next: at most twice as many steps on as before, because the first steps, and steps of
    a new shape, take a hundred times as long as others.
    """

    def __init__(self, world: World, interval_s: float = 1.0) -> None:
        self._world = world
        self._alone = world.workers == 1
        self._interval_s = 0.0 if self._alone and world.device.type == "cpu" else interval_s
        self._steps = 1
        self._left = 1
        self._last = time.monotonic()

    def due(self) -> bool:
        """Whether the ranks meet after this step. Call it once for each step, on every rank."""
        self._left -= 1
        return self._left <= 0 or (self._alone and time.monotonic() - self._last >= self._interval_s)

    def meet(self, values: Sequence[float]) -> list[float]:
        """The maximum of each value over the ranks. Also sets the next meeting."""
        now = time.monotonic()
        step_s = max((now - self._last) / max(self._steps - self._left, 1), 1e-6)
        steps = max(1.0, min(self._interval_s / step_s, 2.0 * self._steps, 1000.0))
        *agreed, steps = self._world.max([*values, steps if self._world.rank == 0 else 0.0])
        self._steps = self._left = int(steps)
        self._last = time.monotonic()
        return agreed


def pick_device() -> torch.device:
    """The current CUDA device if there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
