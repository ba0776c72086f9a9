"""A device's memory is too small: the micro-batch is halved, the global batch stays."""

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch

from bigbatch.train_loop.config import BatchConfig, ConfigError
from bigbatch.train_loop.errors import DeviceMemoryError, NodeMemoryError, TrainingStopped
from bigbatch.train_loop.host.ranks import SHARED_BY
from bigbatch.train_loop.loop import oom_retry
from bigbatch.train_loop.loop.checkpoint import RunState
from bigbatch.train_loop.loop.oom_retry import Halving
from bigbatch.train_loop.reporter import EpochRecord, ListReporter
from helpers.full_device import BELOW_TORCH, SmallDevice
from helpers.loop_references import run
from helpers.tiny_training import CONFIG, StopsAt, bn_on_one_value, changed, install, plain_model, untimed

WHOLE = changed(CONFIG, global_size=16, micro_size=16, precise_bn="off")
"""4 steps an epoch of one micro-batch of 16 images."""
CPU = torch.device("cpu")


class Told(ListReporter):
    """Keeps what it is told of halvings."""

    def __init__(self) -> None:
        super().__init__()
        self.halvings: list[Sequence[Halving]] = []

    def halved(self, halvings: Sequence[Halving]) -> None:
        self.halvings.append(halvings)


def by_epoch(records: Sequence[EpochRecord]) -> list[EpochRecord]:
    """Of an epoch that was trained twice, the later record."""
    return [*{record.epoch: record for record in records}.values()]


def test_a_first_step_that_does_not_fit_makes_the_run_that_had_the_small_micro_batch(monkeypatch, tmp_path) -> None:
    """Bit for bit, with BatchNorm and dropout: 16 → 8 → 4 images, and nothing else differs."""
    install(monkeypatch.setattr)
    small = run(changed(WHOLE, micro_size=4))
    device = SmallDevice(monkeypatch, images=5)
    halved = run(WHOLE, reporter=(reporter := Told()), checkpoint_dir=tmp_path)
    assert untimed(halved) == untimed(small)
    assert set(device.sizes) == {4} and len(device.sizes) == 3 * 4 * 4
    last = reporter.halvings[-1]
    assert [(one.micro_size_before, one.micro_size, one.accumulation_steps) for one in last] == [(16, 8, 2), (8, 4, 4)]
    assert "16" in str(last[0]) and "the global batch is the same" in str(last[0])


@pytest.mark.parametrize("at", [6, 8])
def test_the_run_goes_on_from_its_checkpoint_with_the_same_global_batches(monkeypatch, tmp_path, at) -> None:
    """After ``at`` steps, within and between epochs. Without BatchNorm the micro-batch changes rounding alone, so the
    reference is the run whose device was never full."""
    install(monkeypatch.setattr, plain_model)
    reference = run(WHOLE)
    device = SmallDevice(monkeypatch, images=8, begin_at=at)
    halved = by_epoch(run(WHOLE, reporter=(reporter := Told()), checkpoint_dir=tmp_path, checkpoint_every_s=0))
    assert [r.epoch for r in halved] == [1, 2, 3]
    for one, two in zip(reference, halved, strict=True):
        assert one.train_loss == pytest.approx(two.train_loss, rel=1e-5)
        assert one.val_loss == pytest.approx(two.val_loss, rel=1e-4)
        assert (one.optimizer_steps, one.learning_rate) == (two.optimizer_steps, two.learning_rate)
    assert device.sizes[:at] == [16] * at and set(device.sizes[at:]) == {8}
    kept = at // 4 * 4  # every_s=0: checkpoints at the ends of epochs
    assert len(device.sizes) == at + 2 * (12 - kept), "only the unfinished epoch was trained again"
    assert reporter.halvings[-1][-1].epoch == at // 4 + 1 and reporter.halvings[-1][-1].step == at % 4


def test_beside_other_trials_on_its_gpu_a_trial_gives_up_in_place_of_halving(monkeypatch, tmp_path) -> None:
    """The search repeats it with fewer beside it, from its checkpoint, and the micro-batch stays."""
    install(monkeypatch.setattr, plain_model)
    whole = run(WHOLE)
    device = SmallDevice(monkeypatch, images=8, begin_at=6)
    monkeypatch.setenv(SHARED_BY, "2")
    said = r"too small for the 2 trials that share a GPU \(CUDA out of memory"
    with pytest.raises(DeviceMemoryError, match=said) as error:
        run(WHOLE, checkpoint_dir=tmp_path, checkpoint_every_s=0)
    assert not error.value.halved and not (tmp_path / oom_retry.HALVINGS_FILE).exists()
    device.images = 16  # alone
    monkeypatch.setenv(SHARED_BY, "1")
    alone = run(WHOLE, checkpoint_dir=tmp_path)
    assert set(device.sizes) == {16} and untimed(alone[-1:]) == untimed(whole[-1:])


@pytest.mark.parametrize(
    ("build", "images", "said"),
    [
        (plain_model, 0, r"too small for micro-batches of one image \(CUDA out of memory"),
        (bn_on_one_value, 1, "micro-batches of one image .Expected more than 1 value per channel"),
    ],
    ids=["one image", "one image where BatchNorm refuses"],
)
def test_what_fits_at_no_micro_batch_fails_for_lack_of_memory(monkeypatch, tmp_path, build, images, said) -> None:
    """16 → 8 → 4 → 2 → 1."""
    install(monkeypatch.setattr, build)
    SmallDevice(monkeypatch, images=images)
    with pytest.raises(DeviceMemoryError, match=said) as found:
        run(WHOLE, reporter=(reporter := Told()), checkpoint_dir=tmp_path)
    assert not found.value.halved and [one.micro_size for one in reporter.halvings[-1]] == [8, 4, 2, 1]


def test_the_network_alone_does_not_fit(monkeypatch, tmp_path) -> None:
    """Then no micro-batch helps, and none is tried."""

    def build() -> torch.nn.Module:
        raise torch.OutOfMemoryError("CUDA out of memory")

    install(monkeypatch.setattr, build)
    with pytest.raises(DeviceMemoryError, match="the network and its optimizer, without any images"):
        run(WHOLE, checkpoint_dir=tmp_path)
    assert not oom_retry.read_halvings(tmp_path)


def test_a_later_start_keeps_the_micro_batch_that_fitted(built, monkeypatch, tmp_path):
    """Stopped, then resumed: with the configuration that it began with, and with the halved one as a study has it."""
    device = SmallDevice(monkeypatch, images=8)
    with pytest.raises(TrainingStopped):
        run(WHOLE, reporter=StopsAt(7), checkpoint_dir=tmp_path)
    halvings = oom_retry.read_halvings(tmp_path)
    assert [one.micro_size for one in halvings] == [8]
    for config, sizes in ((WHOLE, {8}), (oom_retry.config_after_oom(WHOLE, halvings), set[int]())):  # this has ended
        device.sizes.clear()
        run(config, reporter=(reporter := Told()), checkpoint_dir=tmp_path)
        assert set(device.sizes) == sizes and reporter.halvings == [halvings]
    with pytest.raises(ConfigError, match=r"optimizer\.peak_lr"):  # nothing else may differ
        run(changed(WHOLE, peak_lr=0.3), checkpoint_dir=tmp_path)


def test_a_bound_that_is_too_large_is_halved(built, monkeypatch, tmp_path):
    device = SmallDevice(monkeypatch, images=8)
    bounded = changed(WHOLE, global_size=32, micro_size=0, max_micro_size=16)
    run(bounded, checkpoint_dir=tmp_path)
    assert set(device.sizes) == {8}
    halvings = oom_retry.read_halvings(tmp_path)
    assert [one.micro_size_before for one in halvings] == [16], "it began with the bound"
    device.sizes.clear()
    run(changed(bounded, micro_size=4))
    assert set(device.sizes) == {4}, "a micro-batch that is given is taken"
    halved = oom_retry.config_after_oom(bounded, halvings).batch
    assert (halved.global_size, halved.micro_size, halved.max_micro_size) == (32, 0, 8)


@pytest.mark.parametrize(("workers", "global_size"), [(1, 6), (2, 510), (3, 96), (3, 510), (2, 1024)])
def test_every_halving_keeps_the_global_batch(workers: int, global_size: int) -> None:
    split = BatchConfig(global_size=global_size).split(workers)
    sizes = [split.micro_size]
    while split.micro_size > 1:
        split = oom_retry.at_most(split, split.micro_size // 2)
        assert split.global_size == global_size and split.workers == workers
        sizes.append(split.micro_size)
    assert sizes[-1] == 1 and all(later <= before // 2 for before, later in zip(sizes, sizes[1:], strict=False))


def test_ranks_that_fail_together_note_one_halving(tmp_path) -> None:
    error = torch.OutOfMemoryError("CUDA out of memory")
    split, progress = BatchConfig(global_size=64, micro_size=16).split(2), RunState(step=3)
    for rank in (0, 1):
        run = SimpleNamespace(split=split, progress=progress, world=SimpleNamespace(rank=rank))
        (halving,) = oom_retry._halved(run, error, (), tmp_path)
        assert halving == Halving(16, 8, 4, 1, 3, 0)


def test_the_errors_of_full_devices_and_full_nodes_are_told_apart() -> None:
    cuda = torch.device("cuda", 0)
    for text in BELOW_TORCH:
        assert oom_retry.is_device_memory_full(RuntimeError(text), cuda), text
    with pytest.raises(RuntimeError) as full:  # torch's own error: a petabyte of the host's memory
        torch.empty(1 << 50)
    assert oom_retry.is_device_memory_full(full.value, CPU) and not oom_retry.is_device_memory_full(full.value, cuda)
    other_failure = RuntimeError("ncclUnhandledCudaError: Last error:\nCuda failure 999 'unknown error'")
    asserted = RuntimeError("CUDA error: device-side assert triggered")
    for other in (MemoryError(), asserted, other_failure, ValueError("out of memory")):
        assert not oom_retry.is_device_memory_full(other, cuda) and not oom_retry.is_device_memory_full(other, CPU)


def test_on_cpus_the_nodes_memory_is_the_devices(monkeypatch, tmp_path) -> None:
    """So a smaller micro-batch is right; and where none is left, the message is about the node."""
    install(monkeypatch.setattr, plain_model)
    device = SmallDevice(monkeypatch, images=8, fill=lambda: torch.empty(1 << 50))
    assert len(by_epoch(run(WHOLE, checkpoint_dir=tmp_path / "a"))) == 3
    device.images = 0
    with pytest.raises(NodeMemoryError, match=r"--set data\.loader\.workers"):
        run(WHOLE, checkpoint_dir=tmp_path / "b")
