"""Why workers failed: which of several errors is the cause, its kind, and when to start them again."""

import errno
import pickle
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from ray.exceptions import ActorDiedError, OutOfMemoryError
from ray.train import WorkerGroupError
from ray.train.v2._internal.exceptions import (
    WorkerGroupStartupTimeoutError,
    WorkerHealthCheckFailedError,
    WorkerHealthCheckTimeoutError,
)
from ray.train.v2.api.exceptions import ControllerError

from bigbatch.train_loop.config import BatchConfig, ConfigError
from bigbatch.train_loop.errors import (
    CheckpointError,
    DeviceMemoryError,
    FailureKind,
    ImageError,
    LoaderError,
    NodeMemoryError,
    NonFiniteLossError,
    OwnCodeError,
    read_kind,
)  # fmt: skip
from bigbatch.train_loop.host.disk_space import DiskFull
from bigbatch.train_loop.launch import trial_task
from bigbatch.train_loop.launch.full_run import _error_of
from bigbatch.train_loop.launch.trial_task import StartsAgain, failed_end, failure_kind_of
from bigbatch.train_loop.loop.checkpoint import RunState
from bigbatch.train_loop.loop.oom_retry import _halved

LOST = RuntimeError("[gloo/transport/tcp/pair.cc:561] Connection closed by peer")


def group(**failures: Exception) -> WorkerGroupError:
    """Ray's error, from rank to error: ``r0=…``."""
    return WorkerGroupError("Training failed", {int(rank[1:]): error for rank, error in failures.items()})


def died(cause: Exception) -> WorkerHealthCheckFailedError:
    """As Ray reports a worker whose process is gone."""
    return WorkerHealthCheckFailedError("A worker health check failed.", failure=cause)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NonFiniteLossError("training loss is nan"), FailureKind.DIVERGED),
        (DeviceMemoryError("full"), FailureKind.DEVICE_MEMORY),
        (NodeMemoryError("full"), FailureKind.NODE_MEMORY),
        (MemoryError(), FailureKind.NODE_MEMORY),
        (LoaderError("killed by SIGKILL", killed=True), FailureKind.NODE_MEMORY),
        (LoaderError("ended with exit code 1"), FailureKind.PROCESS),
        (ConfigError("wrong"), FailureKind.CONFIGURATION),
        (CheckpointError("damaged"), FailureKind.CHECKPOINT),
        (ImageError("a.jpg"), FailureKind.IMAGES),
        (DiskFull("no room"), FailureKind.DISK),
        (RuntimeError("NonFiniteLossError: a user's own words, was not finite"), FailureKind.PROCESS),
    ],
)
def test_an_errors_kind_is_that_of_its_class_after_a_way_between_processes_too(error, kind) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert failure_kind_of(error) == kind and failure_kind_of(again) == kind and str(again) == str(error)
    end = failed_end(group(r0=LOST, r1=error))
    if kind != FailureKind.PROCESS and kind not in ("diverged", "configuration", "checkpoint"):  # those all ranks meet
        assert end.kind == kind and (end.failure or "").startswith("worker 1: ")
    assert read_kind(str(kind)) == kind and read_kind("of tomorrow") is None and read_kind(None) is None


def test_rays_memory_monitor_is_named_with_what_helps() -> None:
    end = failed_end(group(r0=LOST, r1=died(OutOfMemoryError("Task was killed due to the node running low on memory"))))
    assert end.kind == FailureKind.NODE_MEMORY
    assert end.failure is not None and "\n" not in end.failure
    assert end.failure.startswith("worker 1: the node's memory was nearly used up, and Ray ended this process")
    assert "--set data.loader.workers" in end.failure and "--mem" in end.failure


def test_a_process_that_the_kernel_ended_for_memory_is_told_from_one_that_just_died(monkeypatch) -> None:
    """By the control group's counter, before and after."""
    error = group(r0=died(ActorDiedError()))
    monkeypatch.setattr(trial_task, "count_memory_kills", lambda: 3)
    full, lost = failed_end(error, kills_before=2), failed_end(error, kills_before=3)
    assert full.kind == FailureKind.NODE_MEMORY and "the kernel ended a process of this job" in (full.failure or "")
    assert lost.kind == FailureKind.PROCESS and "memory" not in (lost.failure or "")
    shown = failed_end(group(r0=MemoryError()), kills_before=3)
    assert shown.kind == FailureKind.NODE_MEMORY and "the node's memory is full" in (shown.failure or "")


def test_a_worker_that_died_is_named_not_one_that_only_lost_it() -> None:
    said = "The actor is dead because its worker process has died."
    failure = failed_end(group(r0=LOST, r1=died(RuntimeError(f"{said} Some common causes include: (1) rain")))).failure
    assert failure is not None and failure.startswith("worker 1: ") and said in failure and "rain" not in failure


def test_a_worker_that_was_killed_is_said_to_be_in_our_words() -> None:
    """The text is that of Ray 2.60 after a SIGKILL."""
    rays = (
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: "
        "Worker unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) rain"
    )
    failure = failed_end(group(r1=died(RuntimeError(rays)))).failure
    assert failure == "worker 1: its process died without a word: a signal or a crash ended it"


def test_a_worker_that_does_not_answer_is_said_to_hang_not_which_variable_of_ray_waits_longer() -> None:
    rays = "A worker health check has been hanging for 612.34 seconds. Marking the worker as dead.\nWorker info: W(\n)"
    failure = failed_end(group(r1=WorkerHealthCheckTimeoutError(rays))).failure
    assert failure == "worker 1: its process has not answered for 612 s: it, its node or a file system hangs"


def test_workers_without_a_place_are_said_to_be_without_one() -> None:
    failure = failed_end(ControllerError(WorkerGroupStartupTimeoutError(2))).failure
    assert failure == "Ray found no room for its workers, a minute at a time"


def test_a_lost_connection_is_told_by_its_message_not_by_the_frames_below_it() -> None:
    said = "Got the following error when running the callback: RuntimeError: Read error: Connection reset by peer"
    for frames in (
        "\n\nAt:\n  /torch/hooks.py(31): <lambda>\n",
        "\nException raised from wait at a.cpp:7:\nframe #0: c10",
    ):
        assert failed_end(group(r0=RuntimeError(said + frames))).failure == f"worker 0: {said}"


def test_workers_start_again_as_often_as_the_micro_batch_is_halved_and_never_where_all_would_meet_it(
    tmp_path: Path,
) -> None:
    split, again = BatchConfig(global_size=1024, micro_size=256).split(2), StartsAgain(tmp_path)
    for _ in range(8):
        run = SimpleNamespace(split=split, progress=RunState(), world=SimpleNamespace(rank=1))
        _halved(run, torch.OutOfMemoryError("CUDA out of memory"), (), tmp_path)
        split = type(split)(2, split.accumulation_steps * 2, split.micro_size // 2)
        assert again(group(r0=LOST)) is True, "the note tells, where Ray names the other one"
        assert again(group(r0=LOST, r1=DeviceMemoryError("full", halved=True))) is True
    assert split.micro_size == 1
    for error in (DeviceMemoryError("also at one image"), ImageError("a.png"), OwnCodeError("the code of …")):
        assert again(group(r0=LOST, r1=error)) is False
    for other in (LOST, died(ActorDiedError()), MemoryError()):
        assert again(group(r0=other)) is None, "as often as Ray may"


@pytest.mark.parametrize(
    ("met", "said"),
    [
        (died(ActorDiedError()), "LostPeerError: worker 1: .*The actor died .*; repeat the command to resume"),
        (died(OutOfMemoryError("full")), "NodeMemoryError: the node's memory was nearly used up"),
        (ValueError("a fault of the loop"), "LostPeerError: worker 1: ValueError: a fault of the loop"),
        (ImageError("cannot read a.png"), "ImageError: cannot read a.png"),
        (LoaderError("ended with exit code 1"), "LostPeerError: worker 1: LoaderError: ended with exit code 1"),
        (OSError(errno.ENOSPC, "No space left on device"), r"DiskFull: .*No space left on device"),
        (RuntimeError("a library lost the number: Disk quota exceeded"), "DiskFull: .*Disk quota exceeded"),
        (OwnCodeError("the code of loss=f\nTraceback"), "OwnCodeError: the code of loss=f\nTraceback"),
    ],
)
def test_a_full_run_ends_with_an_error_of_which_the_command_prints_one_line(met, said, monkeypatch) -> None:
    """Not with Ray's traceback. What Ray says of memory keeps its own words."""
    monkeypatch.setattr(trial_task, "count_memory_kills", lambda: 0)
    error = _error_of(failed_end(group(r0=LOST, r1=met)))
    assert re.match(said, f"{type(error).__name__}: {error}", re.DOTALL)
