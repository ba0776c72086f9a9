"""Checkpoints: a killed run ends as an uninterrupted one to the bit, and no crash costs more than one."""

import errno
import functools
import os
import signal
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.amp.grad_scaler import GradScaler

from bigbatch.base import atomic_files
from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.train_loop.errors import CheckpointError
from bigbatch.train_loop.loop import assembly, checkpoint
from bigbatch.train_loop.loop.checkpoint import CheckpointFolder
from bigbatch.train_loop.loop.train import TrainResult, train
from bigbatch.train_loop.reporter import EpochRecord, ListReporter
from helpers.tiny_training import CONFIG, TinySource, changed, install, untimed

KEYS = ("config", "data", "model", "optimizer", "scaler", "progress")


class Killed(BaseException):
    """Stands for SIGKILL: nothing of the loop handles it."""


class Dies(ListReporter):
    """Asks for a checkpoint at the given poll and dies at the next, or dies in the report of an epoch."""

    def __init__(self, *, after_poll: int = 0, in_report: int = 0) -> None:
        super().__init__()
        self.polls, self.after_poll, self.in_report = 0, after_poll, in_report

    def checkpoint_requested(self) -> bool:
        self.polls += 1
        if self.after_poll and self.polls > self.after_poll:
            raise Killed
        return self.polls == self.after_poll

    def report(self, record: EpochRecord) -> None:
        if record.epoch == self.in_report:
            raise Killed
        super().report(record)


class Resumes(ListReporter):
    def __init__(self) -> None:
        super().__init__()
        self.history: list[EpochRecord] | None = None

    def resumed(self, history: Sequence[EpochRecord]) -> None:
        assert self.history is None and not self.records
        self.history = list(history)


def run(config: TrainConfig, reporter: Any = None, folder: Path | None = None, every_s: float = 60.0) -> TrainResult:
    options: dict[str, Any] = {"checkpoint_dir": folder, "checkpoint_every_s": every_s}
    return train(config, reporter=reporter or ListReporter(), device=torch.device("cpu"), **options)


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


VARIANTS: dict[str, Any] = {
    "sgd": {},
    "lars, running averages": {"optimizer.name": "lars", "precise_bn": "off"},
    "lamb, bf16, clipped": {"optimizer.name": "lamb", "precision": "bf16", "clip_grad_norm": 1.0},
    "adamw, fp16": {"optimizer.name": "adamw", "precision": "fp16", "peak_lr": 0.01},
}
DEATHS = [{"after_poll": 1}, {"after_poll": 6}, {"after_poll": 8}, {"in_report": 2}, {"in_report": 3}]
VARIED = [("adamw, fp16", death) for death in DEATHS]  # it has the most to restore
VARIED += [(variant, death) for variant in list(VARIANTS)[:-1] for death in (DEATHS[1], DEATHS[3])]


MOVING_SCALE = partial(GradScaler, init_scale=2.0**23, growth_interval=2)
"""It falls at first and then rises often: it is part of what must be restored."""


@functools.cache
def uninterrupted(variant: str) -> tuple[TrainResult, dict[str, torch.Tensor]]:
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        built = install(patch.setattr)
        patch.setattr(assembly, "GradScaler", MOVING_SCALE)
        return run(CONFIG.replace_keys(VARIANTS[variant])), weights(built.model)


@pytest.mark.parametrize(("variant", "death"), VARIED, ids=str)
def test_resumed_run_ends_bit_identical(built, monkeypatch, tmp_path, variant, death):
    """Death within an epoch, after its last step, and in the report that follows its checkpoint."""
    config = CONFIG.replace_keys(VARIANTS[variant])
    whole, expected = uninterrupted(variant)
    monkeypatch.setattr(assembly, "GradScaler", MOVING_SCALE)
    first, second = Dies(**death), Resumes()
    with pytest.raises(Killed):
        run(config, first, tmp_path, every_s=0 if "in_report" in death else 1e9)
    torch.manual_seed(99)  # a new process has other generators
    resumed = run(config, second, tmp_path, every_s=0)
    assert all(torch.equal(value, expected[name]) for name, value in built.model.state_dict().items())
    assert untimed(resumed.history) == untimed(whole.history)
    finished = death["in_report"] if "in_report" in death else (death["after_poll"] - 1) // 4
    assert untimed(second.history or []) == untimed(whole.history[:finished])
    assert untimed(second.records) == untimed(whole.history[finished:])  # nothing is reported again
    assert {record.resumed_from_epoch for record in second.records} <= {finished}


class HoldsWriter(ListReporter):
    """Asks for a checkpoint at the second poll, and lets it be written at the sixth, two steps into the next epoch."""

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__()
        self.polls, self.then, self.held = 0, then, threading.Event()

    def checkpoint_requested(self) -> bool:
        self.polls += 1
        if self.polls == 6:
            self.then()
        return self.polls == 2


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_written_while_training_goes_on_is_the_moment_of_the_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variant: str
) -> None:
    """The thread writes when weights, momentum, average and records have all changed; then the process dies."""
    config = CONFIG.replace_keys({**VARIANTS[variant], "ema_decay": 0.9})
    torch.set_num_threads(1)
    built = install(monkeypatch.setattr)
    whole = run(config)
    expected = weights(built.model)

    def release_and_die() -> None:
        reporter.held.set()
        raise Killed

    def held_save(*arguments: Any) -> None:
        assert reporter.held.wait(300)
        real(*arguments)

    reporter, real = HoldsWriter(release_and_die), torch.save
    monkeypatch.setattr(torch, "save", held_save)
    with pytest.raises(Killed):
        run(config, reporter, tmp_path, every_s=1e9)
    content = torch.load(tmp_path / "latest.pt", weights_only=True)
    assert (content["progress"]["epoch"], content["progress"]["step"]) == (0, 2) and len(reporter.records) == 1
    resumed = run(config, folder=tmp_path, every_s=1e9)
    assert all(torch.equal(value, expected[name]) for name, value in built.model.state_dict().items())
    assert untimed(resumed.history) == untimed(whole.history)


def fail(*_: Any) -> None:
    raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("every_s", [0, 1e-9])
def test_an_error_of_the_thread_ends_the_run(built, monkeypatch, tmp_path, every_s):
    """With ``every_s`` 0 before the epoch's report; else before the next checkpoint."""
    saves, real = [0], torch.save

    def save(*arguments: Any) -> None:
        saves[0] += 1
        if saves[0] == 2:
            fail()
        real(*arguments)

    monkeypatch.setattr(torch, "save", save)
    with pytest.raises(OSError, match="Input/output"):
        run(CONFIG, reporter := ListReporter(), tmp_path, every_s)
    assert saves == [2] and len(reporter.records) <= 1
    assert number_of(tmp_path) is not None


def test_an_error_of_the_thread_does_not_hide_what_ends_the_run(monkeypatch, tmp_path, caplog):
    install(monkeypatch.setattr)
    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(Killed):
        run(CONFIG, Dies(after_poll=2), tmp_path, every_s=1e9)
    assert "the last checkpoint is not written: [Errno 5]" in caplog.text


def test_tensors_that_share_memory_share_it_in_the_file(tmp_path: Path) -> None:
    """As tied weights, of which a state dict has two names."""
    folder, weight = CheckpointFolder(tmp_path, 60), torch.arange(50_000.0)
    folder.save_behind({**content(1), "model": {"embedding": weight, "head": weight.view_as(weight)}})
    folder.wait()
    assert (tmp_path / "latest.pt").stat().st_size < 1.5 * 4 * 50_000
    loaded = folder.load()
    assert loaded and torch.equal(loaded["model"]["head"], weight)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_busy_device_writes_what_it_was_given_before_the_request(device: str, tmp_path: Path) -> None:
    """It still computes at the request, and changes the weights right after it. The copy's memory is used again."""
    folder, busy = CheckpointFolder(tmp_path, 60), torch.ones([64 if device == "cpu" else 8192] * 2, device=device)
    weight = torch.zeros(1 << 20, device=device)
    for number in (1.0, 2.0, 3.0):
        for _ in range(8):
            busy = busy @ busy / len(busy)
        weight.copy_(busy[0, 0].mul(number).expand_as(weight))
        folder.save_behind({**content(1), "model": {"whole": weight, "column": weight.view(1024, 1024)[:, 1]}})
        weight.zero_()
        loaded = folder.load()
        assert loaded and all(part.device.type == "cpu" and part.eq(number).all() for part in loaded["model"].values())


def test_finished_run_only_gives_its_result_again_and_a_fresh_one_is_not_called_resumed(built, tmp_path):
    first = run(CONFIG, fresh := Resumes(), tmp_path)
    assert fresh.history is None and {record.resumed_from_epoch for record in first.history} == {None}
    again = Resumes()
    second = run(CONFIG, again, tmp_path)
    assert second == first
    assert (again.records, again.history) == ([], list(first.history))
    assert (
        second.best_val_top1 == max(r.val_top1 for r in first.history) == first.history[first.best_epoch - 1].val_top1
    )


@pytest.mark.parametrize(
    ("every_s", "expected"),
    [
        (0, [(1, 0), (2, 0), (3, 0)]),
        (60, [(3, 0)]),
        (2, [(0, 3), (1, 2), (2, 0), (2, 3), (3, 0)]),
        (4, [(1, 0), (2, 0), (3, 0)]),
    ],
)
def test_checkpoints_are_written_when_due(built, monkeypatch, tmp_path, every_s, expected):
    """Steps of one second: (finished epochs, steps) of every checkpoint; the last one always."""
    reporter, seen, real = Dies(), list[tuple[int, int]](), CheckpointFolder.save

    def save(folder: CheckpointFolder, content: dict[str, Any]) -> None:
        seen.append((content["progress"]["epoch"], content["progress"]["step"]))
        real(folder, content)

    monkeypatch.setattr(CheckpointFolder, "save", save)
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: float(reporter.polls))
    run(CONFIG, reporter, tmp_path, every_s)
    assert seen == expected


def test_checkpoint_of_another_configuration_is_refused(built, tmp_path):
    run(CONFIG, folder=tmp_path)
    changes: dict[str, Any] = {"epochs": 4, "micro_size": 4, "schedule__name": "cosine", "peak_lr": 0.1}
    with pytest.raises(ConfigError) as caught:
        run(changed(CONFIG, **changes), folder=tmp_path)
    message = str(caught.value)
    assert "epochs 3 → 4" in message and "batch.micro_size 8 → 4" in message and "\n" not in message
    assert "optimizer.peak_lr 0.2 → 0.1" in message and "schedule.name 'linear' → 'cosine'" in message
    assert str(tmp_path) in message and "Use another folder" in message


def test_checkpoint_of_other_data_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch.setattr)
    run(CONFIG, folder=tmp_path)
    more = TinySource()
    object.__setattr__(more.info, "train_size", 71)
    install(monkeypatch.setattr, source=more)
    with pytest.raises(ConfigError, match="data.train_size 70 → 71"):
        run(CONFIG, folder=tmp_path)
    images = TinySource()
    object.__setattr__(images.info, "content", "one")
    install(monkeypatch.setattr, source=images)
    run(CONFIG, folder=tmp_path / "new")
    object.__setattr__(images.info, "content", "another")
    with pytest.raises(ConfigError, match="data.content 'one' → 'another'"):
        run(CONFIG, folder=tmp_path / "new")
    renamed = TinySource()
    object.__setattr__(renamed.info, "class_names", ("other", *renamed.info.class_names[1:]))
    install(monkeypatch.setattr, source=renamed)
    with pytest.raises(ConfigError, match=f"class 0 '{TinySource().info.class_names[0]}' → 'other'. Use another"):
        run(CONFIG, folder=tmp_path)


def content(number: int) -> dict[str, Any]:
    return {**dict.fromkeys(KEYS), "model": torch.full((5000,), float(number)), "progress": {"epoch": number}}


def two_checkpoints(path: Path) -> CheckpointFolder:
    folder = CheckpointFolder(path, 60)
    for number in (1, 2):
        folder.save(content(number))
    return folder


def number_of(folder: Path) -> int | None:
    loaded = CheckpointFolder(folder, 60).load()
    return None if loaded is None else loaded["progress"]["epoch"]


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def half_a_save(value: object, file: Any) -> None:
    file.write(b"PK\x03\x04 half a checkpoint")
    file.flush()
    die()


def nth_replace(n: int) -> Callable[..., None]:
    """os.replace that is killed in place of its n-th call."""
    real, calls = os.replace, [0]

    def replace(*arguments: Any) -> None:
        calls[0] += 1
        if calls[0] == n:
            die()
        real(*arguments)

    return replace


CRASHES: dict[str, tuple[Any, str, Callable[..., None], int]] = {
    "while it is written": (torch, "save", half_a_save, 2),
    "before it is on the disk": (os, "fsync", die, 2),
    "before the old one is put aside": (os, "replace", nth_replace(1), 2),
    "between the two renames": (os, "replace", nth_replace(2), 2),
    "after the renames": (atomic_files, "_sync_folder", die, 3),
}


@pytest.mark.parametrize("moment", CRASHES)
def test_crash_in_a_write_leaves_a_whole_checkpoint(tmp_path: Path, moment: str) -> None:
    """A child process is really killed in the third write, by a thread; what is then loaded, and written on."""
    folder = two_checkpoints(tmp_path)
    owner, name, replacement, expected = CRASHES[moment]
    child = os.fork()
    if child == 0:
        try:
            setattr(owner, name, replacement)
            folder.save_behind(content(3))
            folder.wait()
        finally:
            os._exit(1)  # not reached: the write is killed
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert number_of(tmp_path) == expected
    folder.save(content(4))
    assert number_of(tmp_path) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest.pt", "previous.pt"]


def truncate(path: Path, fraction: float) -> None:
    with open(path, "r+b") as file:
        file.truncate(int(path.stat().st_size * fraction))


def flip(path: Path, number: float) -> None:
    """A byte in the middle of the weights."""
    data = bytearray(path.read_bytes())
    data[data.index(torch.full((4,), number).numpy().tobytes()) + 400] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("fraction", [0.0, 0.01, 0.5, 0.9, 0.999, None], ids=lambda fraction: fraction or "a byte")
def test_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path, fraction: float | None) -> None:
    two_checkpoints(tmp_path)

    def damage(name: str, number: float) -> None:
        flip(tmp_path / name, number) if fraction is None else truncate(tmp_path / name, fraction)

    damage("latest.pt", 2.0)
    with pytest.warns(UserWarning, match=r"damaged checkpoint .*latest\.pt .* goes on from .*previous\.pt"):
        assert number_of(tmp_path) == 1
    damage("previous.pt", 1.0)
    with pytest.raises(CheckpointError, match=r"latest\.pt .* and .*previous\.pt .* Remove the files"):
        number_of(tmp_path)
