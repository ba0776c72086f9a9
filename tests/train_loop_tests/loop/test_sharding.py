"""A sharded network (``model.parallel=fsdp2``) on two gloo ranks trains, stops and resumes as one process does."""

import contextlib
import itertools
import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.train_loop.distributed import World
from bigbatch.train_loop.errors import CheckpointError
from bigbatch.train_loop.loop.sharded_state import check_shards
from bigbatch.train_loop.loop.step import TrainStep
from bigbatch.train_loop.model.networks import build_model
from bigbatch.train_loop.model.sharding import blocks, check_shardable, shard
from bigbatch.train_loop.optim import build_optimizer
from bigbatch.train_loop.optim.layerwise import is_dtensor
from helpers import sharded_training
from helpers.loop_references import run, val_reference
from helpers.sharded_training import (
    CPU,
    EMA,
    INPUTS,
    LARS,
    LISTED,
    OPTIMIZERS,
    SHARDED,
    Block,
    Listed,
    exact_weights,
    of_images,
    recomputed,
)
from helpers.small_disk import mounted
from helpers.tiny_training import StopsAt, bn_model, changed, install, outcome, two_ranks

Pair = tuple[Path, list[dict[str, Any]]]


pytestmark = pytest.mark.xdist_group("sharding")  # else each test process starts the ranks


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """The two-rank runs of sharded_training: their folder, and each rank's outcomes. One worker has begun "wider"; the
    folder "full" is a file system of its own, if one may be mounted."""
    folder = tmp_path_factory.mktemp("sharded")
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as disks:
        install(patch.setattr)
        with pytest.raises(Exception, match="stopped on request in epoch 1 after step 2"):
            run(EMA, checkpoint_dir=folder / "wider", reporter=StopsAt(2))
        with contextlib.suppress(pytest.skip.Exception):
            (folder / "full").symlink_to(disks.enter_context(mounted()))
        yield folder, two_ranks("sharded", folder, sharded_training.__file__)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_sharded_steps_are_those_of_one_process_in_float64(name: str, pair: Pair) -> None:
    """With uneven rows, parameters of which a rank has nothing, accumulation, and global norms."""
    one = exact_weights(name, World(0, 1, CPU))
    for rank in pair[1]:
        for mine, theirs in zip(one, rank[f"exact_{name}"], strict=True):
            assert theirs == pytest.approx(mine, rel=1e-12, abs=1e-13)


CASES: dict[str, tuple[TrainConfig, Any]] = {
    "equal segments": (SHARDED, bn_model),
    "accumulated": (changed(SHARDED, global_size=32), bn_model),
    "running": (changed(SHARDED, precise_bn="off"), bn_model),
    "lars": (LARS, bn_model),
    "listed recomputed": (LISTED, of_images),
    "average wider": (EMA, bn_model),
}


@pytest.mark.parametrize("names", CASES)
def test_a_sharded_run_has_the_losses_of_one_worker(names, pair, monkeypatch):
    """The same micro-batches: only the order of float32 sums differs. ``running`` has other statistics on each rank
    in training's validation: rank 0's count, so only training compares."""
    config, build = CASES[names]
    install(monkeypatch.setattr, build)
    whole = run(config)
    for rank, name in itertools.product(pair[1], names.split()):
        for one, two in zip(whole, rank[name]["records"], strict=True):
            for key in ("train_loss",) if name == "running" else ("train_loss", "val_loss"):
                assert two[key] == pytest.approx(getattr(one, key), rel=1e-4), (name, one.epoch, key)
            assert two["noise_scale"] is None


def test_each_rank_holds_its_part_of_each_tensor(pair: Pair) -> None:
    whole = [p.numel() for p in of_images().parameters()]
    first, second = (rank["listed"]["held"] for rank in pair[1])
    assert [a + b for a, b in zip(first, second, strict=True)] == whole
    assert max(sum(first), sum(second)) < 0.6 * sum(whole)  # rows are divided: 3 and 2 of 5
    assert (first[2], second[2]) == (1, 0)


def test_both_ranks_report_the_same(pair: Pair) -> None:
    for name in ("equal", "running", "fp16", "bf16"):
        assert pair[1][0][name]["weights"] == pair[1][1][name]["weights"]
    exact, rounded = (pair[1][0][name]["records"] for name in ("equal", "bf16"))
    assert rounded[0]["train_loss"] == pytest.approx(exact[0]["train_loss"], rel=2**-8)  # 8 bits
    assert rounded[-1]["train_loss"] != exact[-1]["train_loss"]
    assert pair[1][0]["fp16"]["records"][-1]["train_loss"] == pytest.approx(exact[-1]["train_loss"], rel=2**-8)


def test_a_run_that_was_stopped_ends_with_the_same_weights_bit_for_bit(pair: Pair) -> None:
    """Also after a kill between the shards and ``latest.pt``, whose folder of shards nothing names."""
    for rank in pair[1]:
        assert rank["stopped"]["error"].startswith("TrainingStopped: stopped on request in epoch 1 after step")
        assert rank["unnamed"] == 2
        assert rank["resumed"]["weights"] == rank["average"]["weights"] == rank["again"]["weights"]
        assert rank["again"]["records"] == []  # it had ended
    first = pair[1][0]  # each rank has running statistics of its own; rank 0's count
    assert first["resumed"]["buffers"] == first["average"]["buffers"]
    assert len(list((pair[0] / "stopped").glob("shards-*"))) == 2  # of latest.pt and previous.pt


def test_the_last_checkpoint_has_the_weights_whole(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, outcomes = pair
    content = torch.load(folder / "equal" / "latest.pt", weights_only=True)
    model = bn_model()
    model.load_state_dict(content["model"])
    assert [p.flatten().tolist() for p in model.parameters()] == outcomes[0]["equal"]["weights"]
    loss, top1 = val_reference(model)
    record = outcomes[0]["equal"]["records"][-1]
    assert (record["val_loss"], record["val_top1"]) == pytest.approx((loss, top1), rel=1e-5)
    means = torch.load(folder / "average" / "latest.pt", weights_only=True)["average"]
    shapes = [t.shape for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()]
    assert [mean.shape for mean in means] == shapes


def test_one_worker_goes_on_from_two(pair: Pair, tmp_path: Path) -> None:
    """From shards in the middle of an epoch, and from the checkpoint before where the latest's are damaged."""
    folder, outcomes = pair
    shutil.copytree(folder / "average", tmp_path / "damaged")
    latest = torch.load(tmp_path / "damaged" / "latest.pt", weights_only=True)["shards"]["folder"]
    largest = max((tmp_path / "damaged" / latest).glob("*.distcp"), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-100])
    whole = outcomes[0]["average"]
    for name, epochs in ((folder / "narrower", 3), (tmp_path / "damaged", 1)):
        found = outcome(name, EMA)
        assert len(found["records"]) == epochs
        assert found["records"][-1]["val_loss"] == pytest.approx(whole["records"][-1]["val_loss"], rel=1e-4)
        for mine, theirs in zip(found["weights"], whole["weights"], strict=True):
            assert mine == pytest.approx(theirs, abs=1e-3)  # a bias before BatchNorm moves by rounding alone
    assert "is cut off" in found["warned"][0]


def test_without_room_for_the_last_checkpoint_all_ranks_say_so_and_the_one_before_stays(pair: Pair) -> None:
    folder, outcomes = pair
    if not (folder / "full").exists():
        pytest.skip("needs root and the right to mount a tmpfs")
    assert all(rank["full"]["error"].startswith("DiskFull") for rank in outcomes)
    left = [torch.load(folder / "full" / f"{name}.pt", weights_only=True) for name in ("previous", "latest")]
    assert [content["progress"]["epoch"] for content in left] == [EMA.epochs - 2, EMA.epochs - 1]
    assert {one.name for one in (folder / "full").glob("shards-*")} == {one["shards"]["folder"] for one in left}


def test_ranks_with_unlike_numbers_of_batches_are_profiled(pair: Pair) -> None:
    """A pass that gathers a block's weights would wait for the rank that has no batch left."""
    (one, seconds), (other, the_same) = (rank["profiled"] for rank in pair[1])
    assert (one, other) == (3, 2) and seconds == the_same > 0


def test_an_index_that_would_run_code_is_refused(pair: Pair, tmp_path: Path) -> None:
    content = torch.load(pair[0] / "average" / "latest.pt", weights_only=True)
    check_shards(content, pair[0] / "average")
    (tmp_path / content["shards"]["folder"]).mkdir()
    (tmp_path / content["shards"]["folder"] / ".metadata").write_bytes(pickle.dumps(os.getcwd))
    with pytest.raises(CheckpointError, match="an index of shards names posix.getcwd"):
        check_shards(content, tmp_path)


def test_a_parameter_without_a_gradient_is_named(pair: Pair) -> None:
    for rank, outcomes in enumerate(pair[1]):
        error = outcomes["unused"]["error"]
        assert error.startswith("UnusedParameterError: with 2 workers each parameter must get a gradient")
        assert f" got none on rank {rank}. Use it in each forward pass" in error


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model.parallel": "fsdp"}, "model.parallel must be one of ddp, fsdp2; got 'fsdp'"),
        ({"parallel": "fsdp2", "find_unused_parameters": True}, "got model.find_unused_parameters=true. Write"),
    ],
)
def test_what_does_not_go_together_is_refused(keys: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig().replace_keys(keys)


def test_parameters_that_cannot_be_sharded_are_refused() -> None:
    model = Listed()
    model.temperature = nn.Parameter(torch.ones(()))
    with pytest.raises(ConfigError, match="got 'temperature' of shape .* Give it shape .1., or write"):
        check_shardable(model, "own")
    model.temperature = nn.Parameter(torch.ones(1, dtype=torch.float64), requires_grad=False)
    check_shardable(model, "own")
    model.temperature.requires_grad_()
    with pytest.raises(ConfigError, match="of one type; got float32 and float64 in model.name=own. Give"):
        check_shardable(model, "own")


def test_tensors_of_any_strides_are_sharded(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 3)).to(memory_format=torch.channels_last)
    model.register_buffer("mean", torch.ones(1).expand(3))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        shard(model, World(0, 1, CPU), bf16_gradients=False)
        after = {k: v.full_tensor() if is_dtensor(v) else v for k, v in model.state_dict().items()}
    finally:
        torch.distributed.destroy_process_group()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_of_recomputed_blocks_no_cast_weight_is_left_after_the_block(tmp_path: Path) -> None:
    """What autocast casts is whole, and would take as much memory as the shards of some workers together."""
    cast: list[StorageWeakRef] = []

    class SeesCasts(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = function(*args, **(kwargs or {}))
            if isinstance(made, torch.Tensor) and made.dtype == torch.bfloat16 and made.shape == (INPUTS, INPUTS):
                cast.append(StorageWeakRef(made.untyped_storage()))
            return made

    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        model = shard(recomputed(), World(0, 1, CPU), bf16_gradients=False)
        optimizer = build_optimizer(model, SHARDED.optimizer)
        step = TrainStep(
            SHARDED, CPU, lambda x: x, model, model, optimizer, GradScaler(enabled=False), None, "bf16"
        )  # fmt: skip
        with SeesCasts(), step.autocast():
            outputs = model(torch.ones(4, 3, 8, 8))
            assert len(cast) >= 3 and all(one.expired() for one in cast)
        outputs.float().sum().backward()
        assert all(p.grad is not None for p in model.parameters())
    finally:
        torch.distributed.destroy_process_group()


def test_the_blocks_are_what_a_network_repeats() -> None:
    with torch.device("meta"):
        from torchvision.models import densenet121, resnet18, swin_t, vit_b_16

        networks = (resnet18, vit_b_16, swin_t, densenet121)
        kinds = [" ".join(dict.fromkeys(type(part).__name__ for part in blocks(net()))) for net in networks]
        assert kinds == ["BasicBlock", "EncoderBlock", "SwinTransformerBlock PatchMerging", "_DenseLayer Conv2d"]
        assert len(blocks(resnet18())) == 8 and len(blocks(vit_b_16())) == 12
    tied = Listed()
    tied.blocks[1].register_module("linear", tied.blocks[2].get_submodule("linear"))
    assert blocks(tied) == [tied.blocks[0]]
    assert not blocks(Block())


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "coatnet_nano_rw_224"])
def test_networks_of_timm_are_sharded_and_recomputed_block_by_block(name: str) -> None:
    pytest.importorskip("timm")
    keys = {"model": f"timm/{name}", "parallel": "fsdp2", "activation_checkpointing": True}
    config = TrainConfig().replace_keys(keys)
    model = build_model(config.model, DataInfo("d", None, 4, 4, 3, 64, 3, ("a", "b", "c"), "imagenet"))
    found = blocks(model)
    assert len(found) >= 10 and all("Block" in type(part).__name__ or "Stem" in type(part).__name__ for part in found)
    inside, whole = ([p.numel() for part in parts for p in part.parameters()] for parts in (found, [model]))
    assert sum(inside) > 0.8 * sum(whole)
    model(torch.randn(2, 3, 64, 64)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
