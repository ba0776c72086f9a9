"""What is measured while a whole training function runs, and how its errors end the trial."""

import logging
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from ray.exceptions import ActorDiedError

from bigbatch.train_loop.config import Options, TrainableConfig, TrainConfig
from bigbatch.train_loop.distributed import World
from bigbatch.train_loop.errors import FailureKind, OwnCodeError, TrainingStopped
from bigbatch.train_loop.launch.own_training import train_own
from bigbatch.train_loop.launch.ray_worker import _end_of_all_ranks, _trial_log
from bigbatch.train_loop.launch.trial_task import TrialTask

ALONE = World(0, 1, torch.device("cpu"))
OWN = """from pathlib import Path

def train(config, report, resume):
    counter, held = Path(config["counter"]), []
    for epoch, joules in enumerate(config["joules"], start=1):
        counter.write_text(str(int(counter.read_text()) + joules * 1000))
        held.append(b"x" * config["bytes"])
        report(epoch=epoch, value=0.5)
"""


PATIENT = """
def train(config, report, resume):
    done = int((resume / "epoch").read_text()) if resume else 0
    for epoch in range(done + 1, config["epochs"] + 1):
        (report.checkpoint_folder / "epoch").write_text(str(epoch))
        try:
            report(epoch=epoch, value=0.5)
        except Exception as error:
            if config["then"] == "returns":
                return
            if config["then"] == "raises":
                raise ValueError("of a library") from None
            if config["then"] == "passes":
                raise
"""


class Sent:
    """Keeps the records. ``dies_at``: an actor that it asks is gone when it is to send this epoch."""

    def __init__(self, dies_at: int | None = None) -> None:
        self.records: list[Mapping[str, object]] = []
        self.dies_at = dies_at

    def send(self, records: Sequence[Mapping[str, object]]) -> None:
        if any(record["epoch"] == self.dies_at for record in records):
            raise ActorDiedError()
        self.records += records

    def stop_requested(self) -> bool:
        return False


def task_of(folder: Path, options: Options, text: str = OWN) -> TrialTask:
    (folder / "own.py").write_text(text)
    trainable = TrainableConfig(f"{folder}/own.py:train", options)
    return TrialTask(
        name="t", config=TrainConfig(epochs=2, trainable=trainable), workers=1, worker_resources={"CPU": 1.0},
        restarts=0, ray_storage=folder, checkpoint_dir=folder / "checkpoint", checkpoint_every_s=600.0,
        log_file=folder / "log.txt", stop_file=folder / "stop", reported=("accuracy",),
    )  # fmt: skip


PRINTS = """
import logging, subprocess, sys

log = logging.getLogger("mine")
log.propagate = False
log.addHandler(logging.StreamHandler())
print("while it is imported", file=sys.stderr)

def train(config, report, resume):
    log.warning("by a handler")
    logging.lastResort.emit(logging.makeLogRecord({"msg": "without a handler"}))
    sys.stdout.reconfigure(line_buffering=True)
    subprocess.run(["echo", "by a process"], stdout=sys.stdout, check=True)
    report(epoch=1, value=0.5)
    print("last words", end="")
"""


def test_the_log_has_what_is_printed_and_logged(tmp_path: Path) -> None:
    train_own(task_of(tmp_path, Options({}), PRINTS), Sent(), ALONE, logging.getLogger("t"))
    logged = ["while it is imported", "by a handler", "without a handler", "by a process", "last words"]
    assert (tmp_path / "log.txt").read_text().splitlines() == logged


def test_each_record_has_the_energy_since_the_one_before_and_the_memory(tmp_path, counter):
    sent, megabytes_64 = Sent(), 64 * 2**20
    options = Options({"counter": str(counter), "joules": [3, 7], "bytes": megabytes_64})
    train_own(task_of(tmp_path, options), sent, ALONE, logging.getLogger("test"))
    assert [record["gpu_energy_j"] for record in sent.records] == [3.0, 7.0]
    assert [record["gpu_utilization"] for record in sent.records] == [pytest.approx(0.9)] * 2
    assert all(isinstance(m := record["memory_bytes"], int) and m > megabytes_64 for record in sent.records)


@pytest.mark.parametrize(("then", "has_fault"), [("passes", False), ("raises", True)])
def test_a_stop_that_the_function_passes_on_is_no_error_in_the_log(tmp_path, caplog, monkeypatch, then, has_fault):
    monkeypatch.setattr(Sent, "stop_requested", lambda _: True)
    with caplog.at_level(logging.INFO), pytest.raises(TrainingStopped):
        train_own(task_of(tmp_path, Options({"then": then}), PATIENT), Sent(), ALONE, logging.getLogger("t"))
    assert ("Traceback" in caplog.text) == has_fault and "the function ended" in caplog.text


@pytest.mark.parametrize("then", ["passes", "returns", "raises", "goes on"])
def test_a_lost_actor_is_no_end_of_the_function_whatever_it_makes_of_it(tmp_path: Path, then: str) -> None:
    """Ray is to start the workers again, and the function goes on from its checkpoint. No epoch comes twice."""
    task = task_of(tmp_path, Options({"then": then}), PATIENT)
    first, second = Sent(dies_at=2), Sent()
    with pytest.raises(ActorDiedError) as lost:
        train_own(task, first, ALONE, logging.getLogger("test"))
    for workers in (1, 2):
        assert _end_of_all_ranks(lost.value, workers) is None, "no reason to end the trial"
    train_own(task, second, ALONE, logging.getLogger("test"))
    assert [record["epoch"] for record in first.records] == [1]
    assert [record["epoch"] for record in second.records] == [1, 2], "of the checkpoint, which was kept before"


ODD = """
class Odd(Exception):
    def __str__(self):
        raise TypeError("of __str__")

def train(config, report, resume):
    try:
        raise Odd() if config["odd"] else ValueError("plain")
    except Exception as error:
        raise error from error
"""


@pytest.mark.parametrize("odd", [True, False])
def test_an_error_that_is_its_own_cause_or_has_no_text_is_the_users(tmp_path: Path, odd: bool) -> None:
    with pytest.raises(OwnCodeError, match="(?s)own.py.*line 8, in train.*(Odd: <exception str|ValueError: plain)"):
        train_own(task_of(tmp_path, Options({"odd": odd}), ODD), Sent(), ALONE, logging.getLogger("test"))


def test_a_name_of_a_file_that_is_no_utf8_is_told_and_printed(tmp_path: Path) -> None:
    """Ray did not carry such a reason, so the failed trial was complete; a line with such a name was left out."""
    name = os.fsdecode(b"\xe9.jpg")
    end = _end_of_all_ranks(OwnCodeError(f"lacks {name}"), 1)
    assert end is not None and end.failure == r"OwnCodeError: lacks \udce9.jpg"
    package = logging.getLogger("bigbatch.train_loop")
    before = (list(package.handlers), package.propagate)
    try:
        log = _trial_log(tmp_path / "names.log", 0)  # a logger of this name is no other test's
        log.propagate = False  # pytest's own log, which pytest-xdist sends as UTF-8
        log.info("%s", f"reads {name}")
        log.handlers[0].close()
    finally:
        package.handlers[:], package.propagate = before
    assert r"reads \udce9.jpg" in (tmp_path / "names.log").read_text(encoding="utf-8")


FORKS = """
import multiprocessing, signal, sys, threading, time
from bigbatch.train_loop.launch.ray_worker import _let_children_end

def handler(number, frame):  # Ray's
    sys.exit(1)

def fork():
    for _ in range(5):
        process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        process.start()
        process.terminate()
        process.join(30)
        print(process.exitcode)
        process.kill()

signal.signal(signal.SIGTERM, handler)
_let_children_end()
thread = threading.Thread(target=fork)  # as Ray Train's workers do
thread.start()
thread.join()
print(signal.getsignal(signal.SIGTERM) is handler, signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""


def test_a_process_that_a_user_forks_is_ended_as_soon_as_it_is_there() -> None:
    """The signal was lost while the process began, and a search with a ``multiprocessing.Pool`` hung for ever."""
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.splitlines() == ["-15"] * 5 + ["True set()"]


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        ("torch.OutOfMemoryError('CUDA out of memory.')", FailureKind.DEVICE_MEMORY),
        ("RuntimeError('CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`')", "device memory"),
        ("MemoryError()", FailureKind.NODE_MEMORY),
        ("RuntimeError('the teacher is out of memory')", FailureKind.OWN_CODE),
    ],
)
def test_a_full_memory_in_users_code_is_told_from_its_faults(tmp_path: Path, raised: str, kind: str) -> None:
    """A neighbour may be the reason on a shared GPU, and no node is at fault that has failed so."""
    text = f"import torch\n\ndef train(config, report, resume):\n    raise {raised}\n"
    task = task_of(tmp_path, Options(), text)
    with pytest.raises(OwnCodeError) as failed:
        train_own(task, Sent(), ALONE, logging.getLogger("test"))
    end = _end_of_all_ranks(failed.value, 1)
    assert end is not None and end.kind == kind and "line 4, in train" in str(end.failure)
    assert _end_of_all_ranks(failed.value, 2) is None, "the other ranks wait"
