"""A training run of milliseconds for the tests of the loop, and a second rank for it.

Run as a script it is one rank of a gloo group: ``python tiny_training.py CASE FOLDER RANK WORKERS``.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bigbatch.train_loop.config import BatchConfig, ModelConfig, OptimizerConfig, ScheduleConfig, TrainConfig
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.train_loop.data.source import Batch, DataSource
from bigbatch.train_loop.loop import assembly
from bigbatch.train_loop.loop.train import train
from bigbatch.train_loop.reporter import EpochRecord, ListReporter
from helpers.paths import ROOT

TRAIN_SIZE, VAL_SIZE, CLASSES, SIDE = 70, 23, 4, 8
CONFIG = TrainConfig(
    epochs=3, label_smoothing=0.1, precise_bn="on", precise_bn_images=48, model=ModelConfig(name="resnet18"),
    batch=BatchConfig(global_size=16, micro_size=8), schedule=ScheduleConfig(name="linear"),
    optimizer=OptimizerConfig(name="sgd", peak_lr=0.2, weight_decay=1e-3),
)  # fmt: skip
"""4 steps an epoch of 2 micro-batches. The model's name is not used: see ``install``."""
FOUND = CONFIG.replace_keys({"find_unused_parameters": True, "precise_bn": "off"})
"""For ``LeavesOut``."""


ACCUMULATED = CONFIG.replace_keys({"global_size": 32, "precise_bn_images": 8})
SMALL_LAST = CONFIG.replace_keys({"drop_last": False, "precise_bn_images": 40})
"""Of the micro-batches for BatchNorm two ranks have one and none, and three and two."""


class TinySource(DataSource):
    """Noise around one pattern a class; nothing divides evenly.

    ``poison``: a training image of NaN. ``holdout``: validation images that make no choice.
    """

    def __init__(self, poison: int | None = None, holdout: int = 0) -> None:
        names = tuple("abcd")
        sizes = TRAIN_SIZE, VAL_SIZE - holdout
        super().__init__(DataInfo("tiny", None, *sizes, CLASSES, SIDE, 3, names, "small", holdout_size=holdout))
        draws = torch.Generator().manual_seed(1)
        patterns = torch.randn(CLASSES, 3, SIDE, SIDE, generator=draws)
        labels = torch.arange(TRAIN_SIZE + VAL_SIZE) % CLASSES
        images = patterns[labels] + 2 * torch.randn(len(labels), 3, SIDE, SIDE, generator=draws)
        self.train = images[:TRAIN_SIZE].clone(), labels[:TRAIN_SIZE]
        self.val = images[TRAIN_SIZE:], labels[TRAIN_SIZE:]
        if poison is not None:
            self.train[0][poison] = torch.nan

    def read_train(self, batches: Sequence[Any], epoch: object) -> Iterator[Batch]:
        return ((self.train[0][rows], self.train[1][rows]) for rows in batches)

    def read_val(self, batches: Sequence[Any]) -> Iterator[Batch]:
        return ((self.val[0][rows], self.val[1][rows]) for rows in batches)

    def val_labels(self) -> Any:
        return self.val[1].numpy()


def bn_model() -> nn.Module:
    """Convolutions, BatchNorm and Dropout."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(32, CLASSES),
    )  # fmt: skip


def dropout_first() -> nn.Module:
    """Dropout before BatchNorm, whose statistics it moves."""
    return nn.Sequential(
        nn.Dropout2d(0.3), nn.Conv2d(3, 8, 3, padding=1), nn.Dropout(0.3), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, CLASSES),
    )  # fmt: skip


def plain_model() -> nn.Module:
    """Without BatchNorm and Dropout: the gradient of a batch is the mean over its images."""
    return nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(6 * SIDE * SIDE, CLASSES))


def bn_on_one_value() -> nn.Module:
    """BatchNorm after a global pool: one image leaves it one value of each channel."""
    pooled = [nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3, CLASSES)]
    return nn.Sequential(*pooled)


class LeavesOut(nn.Module):
    """Leaves its second layer out in about half of the training forward passes. Draws as a seeded generator does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = plain_model(), plain_model()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits of images."""
        outputs: torch.Tensor = self.first(images)
        return outputs if self.training and torch.rand(()) < 0.5 else outputs + self.second(images)


class Centred(nn.Module):
    """Subtracts a moving mean of its outputs, in training too, and puts a new tensor in the mean's place each time."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body = bn_model()
        self.register_buffer("mean", torch.zeros(CLASSES))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits of images."""
        outputs: torch.Tensor = self.body(images)
        self.mean = self.mean * (0.5 if self.training else 1.0)
        if self.training:
            self.mean += 0.5 * outputs.detach().mean(0)
        return outputs * (1.0 - self.mean)


class Installed:
    """What ``train`` built: the last model, and the learning rate of each step the optimizer took."""

    model: nn.Module
    rates: list[float]
    watch: Callable[[torch.optim.Optimizer], object]
    """Gets each optimizer before its first step."""


def install(
    patch: Callable[[object, str, object], None],
    build: Callable[[], nn.Module] = bn_model,
    source: DataSource | None = None,
) -> Installed:
    """Make ``train`` use the tiny data and model. ``patch``: monkeypatch.setattr, or setattr."""
    built = Installed()
    built.rates, built.watch = [], lambda _: None
    real = assembly.build_optimizer

    def build_model(*_: object) -> nn.Module:
        built.model = build()
        return built.model

    def build_optimizer(*arguments: Any) -> torch.optim.Optimizer:
        optimizer = real(*arguments)
        optimizer.register_step_pre_hook(lambda o, *_: built.rates.append(o.param_groups[0]["lr"]))
        built.watch(optimizer)
        return optimizer

    patch(assembly, "open_data", lambda *_: source or TinySource())
    patch(assembly, "build_model", build_model)
    patch(assembly, "build_optimizer", build_optimizer)
    return built


class StopsAt(ListReporter):
    """Asks for a stop when it is asked for the n-th time."""

    def __init__(self, polls: int) -> None:
        super().__init__()
        self.left = polls

    def stop_requested(self) -> bool:
        self.left -= 1
        return self.left == 0


class DropsAt(StopsAt):
    """The run is dropped when it is asked for the n-th time."""

    dropped = StopsAt.stop_requested

    def stop_requested(self) -> bool:
        return False


def untimed(records: Sequence[EpochRecord]) -> list[dict[str, Any]]:
    """Records without what is measured with a clock, or of the process's memory, or says where the run was resumed."""
    left_out = {"memory_bytes", "resumed_from_epoch", "gpu_utilization", "gpu_energy_j"}
    return [{k: v for k, v in r.to_dict().items() if not k.endswith("_s") and k not in left_out} for r in records]


def changed(config: TrainConfig, **keys: object) -> TrainConfig:
    """``changed(CONFIG, optimizer__name="lamb")``."""
    return config.replace_keys({key.replace("__", "."): value for key, value in keys.items()})


def two_ranks(case: str, folder: Path, script: str = __file__) -> list[dict[str, Any]]:
    """Run ``case`` of ``script`` on two processes; what each rank's case returned."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}/tests", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, script, case, str(folder)]
    ranks = [
        subprocess.Popen(
            [*command, rank, "2"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rank in ("0", "1")
    ]
    outputs = [process.communicate(timeout=300)[0] for process in ranks]
    if any(process.returncode for process in ranks):
        raise AssertionError("\n".join(outputs))
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def outcome(
    folder: Path | None,
    config: TrainConfig,
    source: DataSource | None = None,
    reporter: ListReporter | None = None,
    build: Callable[[], nn.Module] = bn_model,
    every_s: float = 60.0,
) -> dict[str, Any]:
    """A run on this rank: records, whole weights, buffers and the numbers of elements that it holds; or the error."""
    reporter = reporter or ListReporter()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as caught:
        built = install(patch.setattr, build, source)
        warnings.simplefilter("always")
        device = torch.device("cpu")
        try:
            train(config, reporter=reporter, checkpoint_dir=folder, checkpoint_every_s=every_s, device=device)
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}", "records": len(reporter.records)}
    parameters = list(built.model.parameters())
    return {
        "records": [dataclasses.asdict(record) for record in reporter.records],
        "weights": [whole_tensor(p).flatten().tolist() for p in parameters],
        "buffers": [buffer.double().sum().item() for buffer in built.model.buffers()],
        "held": [(p.to_local() if hasattr(p, "to_local") else p).numel() for p in parameters],
        "warned": [str(one.message) for one in caught if "damaged" in str(one.message)],
    }


def whole_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor, also of one that is sharded."""
    whole: torch.Tensor = tensor.detach()
    return whole.full_tensor() if hasattr(whole, "full_tensor") else whole


def _case_loop(folder: Path, rank: int) -> dict[str, Any]:
    """Everything that needs two ranks, in one pair of processes: starting one takes seconds."""

    def run(name: str, config: TrainConfig, **keywords: Any) -> dict[str, Any]:
        return outcome(folder / name, config, **keywords)

    local: list[None] = []  # an entry for each micro-batch whose gradients were not sent
    real = DistributedDataParallel.no_sync
    DistributedDataParallel.no_sync = lambda self: local.append(None) or real(self)  # type: ignore[method-assign]
    return {
        "equal": run("equal", CONFIG) | {"local": len(local)},
        "accumulated": run("accumulated", ACCUMULATED) | {"local": len(local)},
        "running": run("running", changed(CONFIG, precise_bn="off")),
        "holdout": run("holdout", CONFIG, source=TinySource(holdout=9)),
        "small_last": run("small_last", SMALL_LAST, build=dropout_first),
        "sync_bn": run("sync_bn", changed(CONFIG, sync_bn=True)),
        "poisoned": run("poisoned", CONFIG, source=TinySource(poison=5)),
        "fp16": run("fp16", changed(CONFIG, precision="fp16")),
        "stopped": run("stopped", CONFIG, reporter=StopsAt(1 if rank == 1 else 1000)),
        "resumed": run("stopped", CONFIG),
        "dropped": run("dropped", CONFIG, reporter=DropsAt(1 if rank == 1 else 1000))
        | {"checkpoint": (folder / "dropped" / "latest.pt").exists()},
        "bf16": run("bf16", changed(CONFIG, bf16_gradients=True)),
        "found": run("found", FOUND, build=LeavesOut),
        "centred": run("centred", CONFIG, build=Centred),
        "centred_stopped": run("centred2", CONFIG, build=Centred, reporter=StopsAt(2 if rank == 1 else 1000)),
        "centred_resumed": run("centred2", CONFIG, build=Centred),
        "found_accumulated": run("found_accumulated", changed(FOUND, global_size=32), build=LeavesOut),
        "unused": run("unused", changed(FOUND, find_unused_parameters=False), build=LeavesOut),  # the group's end
    }


def _case_noise(folder: Path, rank: int) -> dict[str, Any]:
    """What is summed for the noise scale, with micro-batches of two sizes."""
    from bigbatch.train_loop.optim.noise_scale import GradientNorms

    config = TrainConfig.from_json((folder / "config.json").read_text())
    install(setattr, plain_model)
    seen, real, reporter = list[list[object]](), GradientNorms.estimate, ListReporter()
    GradientNorms.estimate = lambda self, sums, big_batch: seen.append([sums, big_batch]) or real(self, sums, big_batch)  # type: ignore[method-assign]
    for micro_size in (32, 16):
        train(changed(config, micro_size=micro_size), reporter=reporter, device=torch.device("cpu"))
    return {"seen": seen, "found": [record.noise_scale for record in reporter.records]}


def be_a_rank(cases: Mapping[str, Callable[[Path, int], dict[str, Any]]]) -> None:
    """What a script does that ``two_ranks`` starts: write what its case returns."""
    import torch.distributed as dist

    case, folder, rank, workers = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=workers)
    (folder / f"rank{rank}.json").write_text(json.dumps(cases[case](folder, rank)))
    gc.collect()  # DDP's cycles keep gloo's threads, which would abort the interpreter's exit
    dist.destroy_process_group()


if __name__ == "__main__":
    be_a_rank({"loop": _case_loop, "noise": _case_noise})
