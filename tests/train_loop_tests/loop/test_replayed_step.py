"""``model.compile=auto``: replayed steps against those that are none.

On a CPU a recorder of torch's operations stands for a CUDA graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.distributed import RankMeetings
from bigbatch.train_loop.launch import ray_worker
from bigbatch.train_loop.loop import assembly, replayed_step, train as loop
from bigbatch.train_loop.loop.assembly import Run, seed_batch, set_up
from bigbatch.train_loop.loop.checkpoint import CheckpointFolder
from bigbatch.train_loop.loop.replayed_step import CudaGraphs, ReplayedStep, replay_steps
from bigbatch.train_loop.optim import build, lamb, lars
from bigbatch.train_loop.reporter import EpochRecord, ListReporter
from helpers.recorded_steps import Recorder
from helpers.tiny_training import CONFIG, DropsAt, TinySource, bn_model, install


@dataclasses.dataclass
class Heard(ListReporter):
    notes: list[str] = dataclasses.field(default_factory=list)

    def noted(self, texts: Sequence[str]) -> None:
        self.notes.extend(texts)


def network() -> nn.Module:
    """BatchNorm and Dropout. A bias before BatchNorm has gradients of rounding alone, which Adam makes large."""
    model = bn_model()
    for layer in model.children():
        if isinstance(layer, nn.Conv2d):
            layer.bias = None
    return model


ONE = CONFIG.replace_keys({"batch.micro_size": 16})
"""Three epochs of four steps, each of one micro-batch, with another learning rate in each step."""
REPLAYS = 1 + 2 + 3
"""The third step is recorded, the last one of each epoch is none; the first replay is compared."""


def trained(config: TrainConfig, patch: pytest.MonkeyPatch, recorder: Recorder | None) -> tuple[Run, Heard]:
    """The run after its last epoch, and what its reporter heard."""
    heard, runs = Heard(), list[Run]()

    def begins(run: Run) -> None:
        runs.append(run)
        if recorder is not None:
            recorder.run, run.replay = run, ReplayedStep(run, recorder).take

    patch.setattr(loop, "replay_steps", begins)
    loop.train(config, reporter=heard, device=torch.device("cpu"))
    return runs[0], heard


def assert_alike(one: tuple[Run, Heard], other: tuple[Run, Heard]) -> None:
    torch.testing.assert_close(one[0].model.state_dict(), other[0].model.state_dict(), rtol=1e-4, atol=1e-6)
    for ours, theirs in zip(*([figures(r) for r in heard.records] for _, heard in (one, other)), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)


def figures(record: EpochRecord) -> list[float]:
    assert record.train_top1 is not None and record.val_top1 is not None and record.val_loss is not None
    return [record.train_loss, record.train_top1, record.val_loss, record.val_top1, float(record.optimizer_steps)]


@pytest.mark.parametrize("clip", [0.0, 0.05])
@pytest.mark.parametrize("name", ["sgd", "adamw", "lars", "lamb"])
def test_replays_are_the_steps_that_they_replace(name: str, clip: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mixed images and an average of the weights; LARS and LAMB as on a GPU."""
    install(monkeypatch.setattr, network)
    for module in (lars, lamb):
        monkeypatch.setattr(module, "in_one_pass", lambda *lists: False)
    rate = {"sgd": 0.2, "adamw": 0.01, "lars": 2.0, "lamb": 0.02}[name]
    config = ONE.replace_keys(
        {"optimizer.name": name, "peak_lr": rate, "clip_grad_norm": clip, "ema_decay": 0.9, "mixup_alpha": 0.2}
    )
    recorder = Recorder()
    replayed, plain = trained(config, monkeypatch, recorder), trained(config, monkeypatch, None)
    assert recorder.replays == REPLAYS and not replayed[1].notes
    assert_alike(replayed, plain)
    for ours, theirs in zip(replayed[0].average.tensors, plain[0].average.tensors, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert all(isinstance(group["lr"], float) for group in replayed[0].optimizer.state_dict()["param_groups"])


def test_half_precision_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch.setattr)
    config, recorder = ONE.replace_keys({"precision": "bf16"}), Recorder()
    replayed, plain = trained(config, monkeypatch, recorder), trained(config, monkeypatch, None)
    assert recorder.replays == REPLAYS
    assert_alike(replayed, plain)


@contextmanager
def scales_weights(run: Run) -> Iterator[None]:
    yield
    with torch.no_grad():
        next(run.model.parameters()).mul_(1.5)


@contextmanager
def misses_a_bias(run: Run) -> Iterator[None]:
    """One of a few numbers: the way of all weights together hardly shows it."""
    last = list(run.model.parameters())[-1].detach()
    before = last.clone()
    yield
    last.copy_(before)


@pytest.mark.parametrize(("spoil", "why"), [(scales_weights, "ended "), (misses_a_bias, "left 1 of ")])
def test_a_replay_that_differs_ends_them(
    spoil: Callable[[Run], AbstractContextManager[None]], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch.setattr)
    recorder = Recorder(spoil)
    replayed, plain = trained(ONE, monkeypatch, recorder), trained(ONE, monkeypatch, None)
    assert recorder.replays == 1
    (note,) = replayed[1].notes
    assert f"model.compile=auto changes nothing: a replay {why}" in note
    assert_alike(replayed, plain)


class Looks(nn.Module):
    """Looks at a number of the device in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.body = bn_model()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.body(images)
        return outputs if outputs.sum().item() < 1e9 else -outputs


class Blind(Recorder):
    """Does not see that a host waits; and its recordings end with an error where there was one in them."""

    def waits(self, step: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, bool]:
        return step(), False

    def record(self, step: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        try:
            return super().record(step)
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")


@pytest.mark.parametrize("precision", ["off", "fp16"])
def test_what_cannot_be_recorded_is_said_and_trains_as_always(precision, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fp16 it is the scaler that looks on a CPU, after it has unscaled the gradients."""
    install(monkeypatch.setattr, Looks if precision == "off" else bn_model)
    config, recorder = ONE.replace_keys({"precision": precision}), Blind()
    replayed, plain = trained(config, monkeypatch, recorder), trained(config, monkeypatch, None)
    (note,) = replayed[1].notes
    assert "a step cannot be recorded (operation not permitted when stream is capturing" in note and "\n" not in note
    assert recorder.replays == 0
    assert_alike(replayed, plain)


def test_the_step_that_is_looked_at_has_its_rate_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's SGD that is not fused reads it there, which would spoil a recording."""
    install(monkeypatch.setattr)
    monkeypatch.setattr(build, "can_fuse", lambda *_: False)
    recorder = Recorder()
    monkeypatch.setattr(recorder, "record", lambda step: pytest.fail("it was tried"))
    replayed, plain = trained(ONE, monkeypatch, recorder), trained(ONE, monkeypatch, None)
    assert len(replayed[1].notes) == 1 and "the host waits" in replayed[1].notes[0]
    assert_alike(replayed, plain)


@pytest.mark.parametrize(
    ("method", "answer", "why"),
    [("waits", lambda step: (step(), True), "the host waits"), ("lacks_room", lambda: "a graph needs 9 GB", "9 GB")],
)
def test_what_is_known_before_is_not_tried(method: str, answer: Any, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch.setattr)
    recorder = Recorder()
    monkeypatch.setattr(recorder, method, answer)
    monkeypatch.setattr(recorder, "record", lambda step: pytest.fail("it was tried"))
    replayed, plain = trained(ONE, monkeypatch, recorder), trained(ONE, monkeypatch, None)
    assert len(replayed[1].notes) == 1 and why in replayed[1].notes[0]
    assert_alike(replayed, plain)


class Nodes(Recorder):
    """Looks for nodes of autograd that live when a step is recorded."""

    alive: Sequence[str] | None = None

    def waits(self, step: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, bool]:
        found = super().waits(step)
        for _, node in self._nodes():
            node.metadata["before"] = True
        return found

    def record(self, step: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        self.alive = [name for name, node in self._nodes() if "before" in node.metadata]
        return super().record(step)

    def _nodes(self) -> Iterator[tuple[str, Any]]:
        for name, p in self.run.model.named_parameters():
            grad_fn: Any = p.view_as(p).grad_fn
            yield name, grad_fn.next_functions[0][0]


def test_no_node_of_an_earlier_step_lives_when_one_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a node adds up its gradient in the stream of that step, which CUDA refuses within a recording."""
    install(monkeypatch.setattr)
    recorder = Nodes()
    trained(ONE.replace_keys({"ema_decay": 0.9, "clip_grad_norm": 0.05, "precision": "bf16"}), monkeypatch, recorder)
    assert recorder.alive == [] and recorder.replays == REPLAYS


def test_the_memory_that_a_graph_keeps_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """``--trials-per-gpu auto`` shares a GPU by it."""
    install(monkeypatch.setattr)
    recorder = Recorder()
    recorder.kept_bytes = 1 << 40
    _, heard = trained(ONE, monkeypatch, recorder)
    assert all((record.memory_bytes or 0) > 1 << 40 for record in heard.records)


def test_another_shape_is_recorded_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of images that grow from epoch to epoch."""
    install(monkeypatch.setattr)
    recorder = Recorder()
    run, taken = steps_of(recorder, [(epoch, size, 1.0) for epoch, size in enumerate((16, 8)) for _ in range(5)])
    # The first two of a shape are the caller's; the third is recorded, the fourth compared.
    assert not notes_of(run) and recorder.replays == 4
    assert taken == [False, False, True, True, True] * 2


def steps_of(recorder: Recorder, steps: Sequence[tuple[int, int, float]]) -> tuple[Run, list[bool]]:
    """A run after steps of (epoch, images, factor of the images); and which of them were taken for the caller."""
    run = set_up(ONE, Heard(), CheckpointFolder(None, 0.0), torch.device("cpu"))
    recorder.run, run.replay = run, ReplayedStep(run, recorder).take
    images, labels = TinySource().train
    taken = []
    for epoch, size, factor in steps:
        run.progress.epoch = epoch
        seed_batch(run, 0, 0)
        batch = images[:size] * factor, labels[:size], labels[:size]
        taken.append(run.replay is not None and run.replay(batch, 0.1) is not None)
        if not taken[-1]:
            run.sums.add(*run.step.gradients(*batch[:2], 1, last=True), labels[:size])
            run.step.update(0.1, 1)
    return run, taken


def notes_of(run: Run) -> list[str]:
    assert isinstance(run.reporter, Heard)
    return run.reporter.notes


def test_shapes_that_change_from_step_to_step_are_not_recorded_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch.setattr)
    run, taken = steps_of(recorder := Recorder(), [(0, size, 1.0) for size in (16, 16, 16, 16, 8, 16, 16, 16, 16)])
    assert taken == [False, False, True, True] + [False] * 5 and recorder.replays == 1
    (note,) = notes_of(run)
    assert "the batches of an epoch differ in shape" in note


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, "it needs a GPU"),
        ({"seed": 1}, "it needs torch 99"),
        (
            {"model.activation_checkpointing": True},
            "activation checkpointing reads the generator's state in a step",
        ),
        ({"batch.micro_size": 8}, "a step has several micro-batches"),
        (
            {"loss": "mine.py:loss", "label_smoothing": 0},
            "a replay would leave out the Python code of mine.py:loss",
        ),
    ],
)
def test_what_cannot_be_replayed_is_said_before_the_first_step(changes: dict[str, object], why: str) -> None:
    heard = Heard()
    with pytest.MonkeyPatch.context() as patch:
        install(patch.setattr)
        run = set_up(
            ONE.replace_keys({"model.compile": "auto"}), heard, CheckpointFolder(None, 0.0), torch.device("cpu")
        )
        patch.setattr(replayed_step, "LEAST_TORCH", "99")
        if changes:
            run.config = run.config.replace_keys(changes)
            run.split, run.world = (
                run.config.batch.split(1),
                dataclasses.replace(run.world, device=torch.device("cuda")),
            )
        replay_steps(run)
    assert run.replay is None
    (note,) = heard.notes
    assert f"model.compile=auto changes nothing: {why}." in note


# On a GPU

GPU = TrainConfig().replace_keys(
    {
        "model.name": "resnet18", "model.compile": "auto", "epochs": 2, "batch.global_size": 128,
        "batch.micro_size": 128, "peak_lr": 0.05, "schedule.warmup_epochs": 1, "precise_bn": "off",
    }
)  # fmt: skip


LEAST = replayed_step.LEAST_TORCH


def any_torch(patch: pytest.MonkeyPatch) -> None:
    """Older versions go wrong only after a recording that CUDA refused: there is none here, and a GPU may have one."""
    patch.setattr(replayed_step, "LEAST_TORCH", "2")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "precision"),
    [("sgd", "auto"), ("adamw", "auto"), ("lars", "auto"), ("lamb", "auto"), ("lars", "fp16"), ("lamb", "fp16")],
)
def test_a_gpu_replays_most_steps_of_a_network(
    name, precision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With SGD a thread writes a checkpoint after each step, and frees locked memory while a step is recorded."""
    rate = {"sgd": 0.05, "adamw": 0.002, "lars": 2.0, "lamb": 0.01}[name]
    keys = {"optimizer.name": name, "peak_lr": rate, "ema_decay": 0.9, "precision": precision}
    config = GPU.replace_keys(keys)
    any_torch(monkeypatch)
    monkeypatch.setattr(assembly, "RankMeetings", lambda world: RankMeetings(world, interval_s=0.0))
    replays, replay = [], ReplayedStep._replay
    monkeypatch.setattr(ReplayedStep, "_replay", lambda self, rate: replays.append(rate) or replay(self, rate))
    auto, off = Heard(), Heard()
    files: dict[str, Any] = {"checkpoint_dir": tmp_path, "checkpoint_every_s": 1e-9} if name == "sgd" else {}
    loop.train(config, reporter=auto, device=torch.device("cuda", 0), **files)
    loop.train(config.replace_keys({"model.compile": "off"}), reporter=off, device=torch.device("cuda", 0))
    assert not auto.notes and len(replays) > 10
    for ours, theirs in zip(auto.records, off.records, strict=True):
        assert ours.train_loss == pytest.approx(theirs.train_loss, rel=0.1)
        assert ours.optimizer_steps == theirs.optimizer_steps


@pytest.mark.gpu
def test_a_gpu_goes_on_where_the_host_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch.setattr, Looks)
    any_torch(monkeypatch)
    heard = Heard()
    loop.train(ONE.replace_keys({"model.compile": "auto"}), reporter=heard, device=torch.device("cuda", 0))
    assert len(heard.notes) == 1 and "the host waits" in heard.notes[0] and len(heard.records) == ONE.epochs


@pytest.mark.gpu
def test_a_graph_draws_anew_from_the_seed_of_each_step() -> None:
    """What a replay of dropout rests on."""
    graphs, device = CudaGraphs(torch.device("cuda", 0)), torch.device("cuda", 0)
    replay, drawn = graphs.record(lambda: torch.rand(8, device=device))
    generator = torch.cuda.default_generators[0]
    found = []
    for seed in (1, 2, 1):
        generator.manual_seed(seed)
        replay()
        found.append(drawn.clone())
    assert torch.equal(found[0], found[2]) and not torch.equal(found[0], found[1])
    generator.manual_seed(1)
    assert torch.equal(torch.rand(8, device=device), found[0]), "as without a graph: replay and step are compared"


@pytest.mark.gpu
def test_a_gpu_drops_out_in_a_replay_what_it_would_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32: another mask would show in the losses."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    install(monkeypatch.setattr, network)
    any_torch(monkeypatch)
    replays, replay = [], ReplayedStep._replay
    monkeypatch.setattr(ReplayedStep, "_replay", lambda self, rate: replays.append(rate) or replay(self, rate))
    auto, off = Heard(), Heard()
    for heard, compiled in ((auto, "auto"), (off, "off")):
        config = ONE.replace_keys({"model.compile": compiled, "precision": "off"})
        loop.train(config, reporter=heard, device=torch.device("cuda", 0))
    assert not auto.notes and len(replays) == REPLAYS
    for ours, theirs in zip(auto.records, off.records, strict=True):
        assert ours.train_loss == pytest.approx(theirs.train_loss, rel=2e-3)


def in_a_trial(config: TrainConfig, reporter: ListReporter, device: torch.device) -> str:
    """The name of the error with which the training ends, in the thread that trains each trial of a process."""

    def target() -> str:
        try:
            loop.train(config, reporter=reporter, device=device)
        except Exception as error:
            return type(error).__name__
        return ""

    return ray_worker.in_training_thread(target)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def test_a_process_replays_the_steps_of_trial_after_trial(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with another batch and optimizer. Some are dropped, diverge, or cannot be recorded; none leaves memory."""
    on_gpu, there, replays, kept = device != "cpu", torch.device(device), list[str](), list[int]()
    monkeypatch.setattr(assembly, "RankMeetings", lambda world: RankMeetings(world, interval_s=0.0))
    for name, value in (("_trials", 0), ("_first_bytes", 0), ("_leftovers", False)):
        monkeypatch.setattr(ray_worker, name, value)
    replay, record = ReplayedStep._replay, CudaGraphs.record
    monkeypatch.setattr(ReplayedStep, "_replay", lambda self, rate: replays.append("") or replay(self, rate))
    monkeypatch.setattr(CudaGraphs, "record", lambda self, step: [record(self, step), kept.append(self.kept_bytes)][0])
    config, sizes = (GPU, (128, 64)) if on_gpu else (ONE, (16, 8))
    config = config.replace_keys({"model.compile": "auto"})
    if on_gpu:
        any_torch(monkeypatch)
    else:
        install(monkeypatch.setattr, network)
        monkeypatch.setattr(lars, "in_one_pass", lambda *lists: False)

        def begins(run: Run) -> None:
            if run.config.model.compile == "auto":
                recorder = Recorder()
                recorder.run, run.replay = run, ReplayedStep(run, recorder).take

        monkeypatch.setattr(loop, "replay_steps", begins)

    def left() -> tuple[int, int]:
        assert ray_worker.between_trials()
        return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

    def trial(name: str, rate: float, size: int, reporter: ListReporter | None = None, more: Any = None) -> Any:
        """How it ended, its losses, and how many steps were replays."""
        keys = {"optimizer.name": name, "peak_lr": rate, "batch.global_size": size, "batch.micro_size": size}
        keys |= more or {}
        heard, before = reporter or Heard(), len(replays)
        ended = in_a_trial(config.replace_keys(keys), heard, there)
        return ended, [record.train_loss for record in heard.records], len(replays) - before

    (tensors, blocks), (large, small), ended = left(), sizes, []
    monkeypatch.setattr(ray_worker, "_first_bytes", 0)  # the first trial loads CUDA's libraries
    diverges = {"optimizer.weight_decay": 1.0}
    for words in (
        ("sgd", 0.05, large, DropsAt(7)), ("adamw", 0.002, small, None), ("sgd", 300.0, small, None, diverges),
        ("lars", 2.0, large),
    ):  # fmt: skip
        ended.append(trial(*words))
        now = left()
        assert now[0] - tensors < 1 << 20 and now[1] - blocks < 32 << 20, (words, now, tensors, blocks)
    assert [end for end, *_ in ended] == ["TrainingStopped", "", "NonFiniteLossError", ""]
    assert all(count for _, _, count in ended), ended
    assert not on_gpu or min(kept) > 1 << 20

    if not on_gpu or torch.__version__ >= LEAST:
        with monkeypatch.context() as patch:
            install(patch.setattr, Looks)
            patch.setattr(CudaGraphs, "waits", lambda self, step: (step(), False))
            patch.setattr(Recorder, "waits", lambda self, step: (step(), False))
            heard = Heard()
            assert in_a_trial(ONE.replace_keys({"model.compile": "auto"}), heard, there) == ""
        assert not on_gpu or "a step cannot be recorded" in heard.notes[0]
        ray_worker.between_trials()
    for name, losses, size in (("lars", ended[3][1], large), ("adamw", ended[1][1], small)):
        rate = 2.0 if name == "lars" else 0.002
        again, off = trial(name, rate, size), trial(name, rate, size, None, {"model.compile": "off"})
        assert again[2] and not off[2]
        for other in (again[1], off[1]):
            assert losses == pytest.approx(other, rel=0.25 if on_gpu else 1e-4)
