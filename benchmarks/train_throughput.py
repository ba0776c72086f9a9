"""Training images a second on ResNet-50: this project's loop against timm's and torchvision's reference loops.

    python benchmarks/train_throughput.py [--size 64] [--batch 16] [--steps 3] [--rounds 7] [--output FILE.json]
    python benchmarks/train_throughput.py --size 224 --batch 256 --precision bf16 --steps 20 --loader-workers 12 \\
        --compile --images /path/to/image-folder       # on a GPU

All arms train torchvision's network in the same precision and memory format with Nesterov SGD and label
smoothing 0.1, in one process. They take their turn in each round, in another order each time, and ratios are
taken within a round. What differs is what each project does around that:

  ours         ``take_step`` of train_loop/loop/train.py, which counts loss, accuracy and gradient norms on the device
  timm         ``train_one_epoch`` of timm's train.py (1.0.29.dev0, aa4b585): its task, optimizer factory and
               meters, and its ``loss.item()`` each step; its own loader, with the prefetcher on GPUs
  torchvision  ``train_one_epoch`` of references/classification/train.py: autocast, ``accuracy`` with
               topk=(1, 5), three ``.item()`` each step; DataLoader and transforms as its presets have them

The two scripts cannot be imported; their steps are written again below, without what is off by default (clipping,
weight averages, mixing). --synthetic: one batch of noise on the CPU, copied to the device in each step; our arm's is
of bytes that it normalises in the step, as its loader gives them. --real: an image folder (--images, with train/ and
val/; generated if not given), random resized crop and flip.
``profile`` in the result: operators by their own time in two steps of our arm. Prints tables and, last, a JSON line.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).resolve().parent)]

from input_pipeline import generated  # noqa: E402
from optimizer_step import present, spread, timm_version  # noqa: E402

from bigbatch.train_loop.config import DataConfig, TrainConfig  # noqa: E402

Batch = tuple[torch.Tensor, torch.Tensor]
Arm = Callable[[Iterator[Batch], int], None]
"""Takes so many steps with batches from an iterator."""
LR, MOMENTUM, WEIGHT_DECAY, SMOOTHING = 0.01, 0.9, 5e-5, 0.1


class NotReplayed(Exception):
    """An arm of replays takes normal steps. A line on stderr has said why."""


def configuration(o: argparse.Namespace, folder: Path, compile_: str) -> TrainConfig:
    return TrainConfig().replace_keys(
        {
            "model.name": o.model,
            "model.stem": "imagenet",
            "model.compile": compile_,
            "model.channels_last": o.channels_last,
            "data.name": str(folder),
            "data.image_size": o.size,
            "data.loader.workers": o.loader_workers,
            "batch.global_size": o.batch,
            "batch.micro_size": o.batch,
            "precision": o.precision,
            "peak_lr": LR,
            "weight_decay": WEIGHT_DECAY,
            "label_smoothing": SMOOTHING,
        }
    )


def network(o: argparse.Namespace, classes: int) -> nn.Module:
    import torchvision

    torch.manual_seed(0)
    layout = torch.channels_last if o.channels_last else torch.contiguous_format
    return torchvision.models.get_model(o.model, num_classes=classes).to(o.device, memory_format=layout)


def autocast(o: argparse.Namespace) -> contextlib.AbstractContextManager[Any]:
    return torch.autocast(o.device, dtype=torch.bfloat16, enabled=o.precision == "bf16")


# The arms' steps


def our_arm(o: argparse.Namespace, folder: Path, compile_: str) -> tuple[Arm, Callable[[], Iterator[Batch]]]:
    from bigbatch.train_loop.loop import replayed_step
    from bigbatch.train_loop.loop.assembly import set_up
    from bigbatch.train_loop.loop.checkpoint import CheckpointFolder
    from bigbatch.train_loop.loop.train import take_step
    from bigbatch.train_loop.reporter import ListReporter

    config = configuration(o, folder, compile_)
    run = set_up(config, ListReporter(), CheckpointFolder(None, 0.0), torch.device(o.device))
    replayed_step.LEAST_TORCH = "2"  # older versions go wrong only after a recording that CUDA refused
    replayed_step.replay_steps(run)

    def steps(batches: Iterator[Batch], count: int) -> None:
        for batch in itertools.islice(batches, count):
            take_step(run, [batch], LR)
            run.progress.step += 1
        if compile_ == "auto" and o.device == "cuda" and run.replay is None:
            raise NotReplayed

    def real() -> Iterator[Batch]:
        for epoch in itertools.count():
            for (batch,) in run.source.train_batches(0, epoch, run.split, 0):
                yield batch

    return steps, real


def timm_arm(o: argparse.Namespace, folder: Path, classes: int) -> tuple[Arm, Callable[[], Iterator[Batch]]]:
    import timm.optim
    import timm.utils
    from timm.task import ClassificationTask

    model = network(o, classes)
    optimizer = timm.optim.create_optimizer_v2(
        model, opt="sgd", lr=LR, weight_decay=WEIGHT_DECAY, momentum=MOMENTUM
    )  # Nesterov
    device = torch.device(o.device)
    task = ClassificationTask(model, criterion_kwargs={"smoothing": SMOOTHING}, device=device, verbose=False)
    if o.compile:
        task.compile()
    losses, update_time, data_time = (timm.utils.AverageMeter() for _ in range(3))

    def steps(batches: Iterator[Batch], count: int) -> None:
        task.get_trainable_module().train()
        optimizer.zero_grad()
        data_start = update_start = time.time()
        for image, target in itertools.islice(batches, count):
            image, target = image.to(device), target.to(device)
            if o.channels_last:
                image = image.contiguous(memory_format=torch.channels_last)
            data_time.update(time.time() - data_start)
            with autocast(o):
                loss = task(image, target)["loss"]
            loss.backward()
            optimizer.step()
            losses.update(loss.item(), image.shape[0])
            optimizer.zero_grad()
            update_time.update(time.time() - update_start)
            data_start = update_start = time.time()

    return steps, lambda: timm_batches(o, folder, device)


def timm_batches(o: argparse.Namespace, folder: Path, device: torch.device) -> Iterator[Batch]:
    """Epoch after epoch of timm's own loader."""
    import timm.data

    loader = timm.data.create_loader(
        timm.data.create_dataset("", root=str(folder), split="train", is_training=True),
        input_size=(3, o.size, o.size),
        batch_size=o.batch,
        is_training=True,
        color_jitter=0.0,
        num_workers=o.loader_workers,
        pin_memory=o.device == "cuda",
        use_prefetcher=o.device == "cuda",
        persistent_workers=o.loader_workers > 0,
        device=device,
    )
    while True:
        yield from loader


def torchvision_arm(o: argparse.Namespace, folder: Path, classes: int) -> tuple[Arm, Callable[[], Iterator[Batch]]]:
    from torchvision import datasets, transforms

    model: Any = network(o, classes)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=LR, momentum=MOMENTUM, nesterov=True)
    criterion = nn.CrossEntropyLoss(label_smoothing=SMOOTHING)
    if o.compile:
        model = torch.compile(model)
    meters: dict[str, float] = {"loss": 0.0, "acc1": 0.0, "acc5": 0.0}

    def steps(batches: Iterator[Batch], count: int) -> None:
        model.train()
        for image, target in itertools.islice(batches, count):
            image, target = image.to(o.device), target.to(o.device)
            if o.channels_last:  # the reference has no such option; the same format in all arms
                image = image.contiguous(memory_format=torch.channels_last)
            with autocast(o):
                output = model(image)
                loss = criterion(output, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            top1, top5 = accuracy(output, target, (1, 5))
            meters["loss"] += loss.item()
            meters["acc1"] += top1.item()
            meters["acc5"] += top5.item()

    def real() -> Iterator[Batch]:
        normalise = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        crop = [transforms.RandomResizedCrop(o.size, antialias=True), transforms.RandomHorizontalFlip(0.5)]
        late = [transforms.PILToTensor(), transforms.ConvertImageDtype(torch.float), normalise]
        dataset = datasets.ImageFolder(str(folder / "train"), transforms.Compose([*crop, *late]))
        loader = torch.utils.data.DataLoader(
            dataset, o.batch, shuffle=True, drop_last=True, num_workers=o.loader_workers, pin_memory=o.device == "cuda"
        )
        while True:
            yield from loader

    return steps, real


def accuracy(output: torch.Tensor, target: torch.Tensor, topk: tuple[int, ...]) -> list[torch.Tensor]:
    """As utils.py of torchvision's references computes it: percent within the first k."""
    with torch.inference_mode():
        best = output.topk(max(topk), 1, True, True).indices.t()
        hits = best.eq(target[None])
        return [hits[:k].flatten().sum(dtype=torch.float32) * (100.0 / target.size(0)) for k in topk]


# Measuring


def image_folder(o: argparse.Namespace, root: Path) -> Path:
    if o.images:
        return Path(o.images)
    several = itertools.cycle(generated(o.generate))
    for number, data in enumerate(itertools.islice(several, max(o.generate, 2 * o.batch))):
        for part in ("train", "val"):
            folder = root / part / f"class{number % 10}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number:05d}.jpg").write_bytes(data)
    return root


def noise(o: argparse.Namespace, classes: int, as_ours: bool) -> Iterator[Batch]:
    """As an arm's loader would give it."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (o.batch,), generator=generator)
    if as_ours:
        images = torch.randint(256, (o.batch, o.size, o.size, 3), dtype=torch.uint8, generator=generator)
    else:
        images = torch.randn(o.batch, 3, o.size, o.size, generator=generator)
    return itertools.repeat((images, labels))


def seconds(arm: Arm, batches: Iterator[Batch], steps: int, device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    arm(batches, steps)
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def arms_here(
    o: argparse.Namespace, folder: Path, classes: int
) -> dict[str, tuple[Arm, Callable[[], Iterator[Batch]]]]:
    """Each loop's steps and batches; timm's where the installed version has what its train.py uses."""
    makers = {"ours": lambda: our_arm(o, folder, "on" if o.compile else "off")}
    if o.replayed:
        makers["ours, replayed"] = lambda: our_arm(o, folder, "auto")
    if timm_version():
        makers["timm"] = lambda: timm_arm(o, folder, classes)
    makers["torchvision"] = lambda: torchvision_arm(o, folder, classes)
    return present(makers)


def measure(o: argparse.Namespace, folder: Path) -> dict[str, Any]:
    from bigbatch.train_loop.data.catalogue import describe_data_set

    classes = describe_data_set(DataConfig(name=str(folder), image_size=o.size)).num_classes
    arms = arms_here(o, folder, classes)
    result: dict[str, Any] = {}
    for kind in ("synthetic", "real"):
        if not getattr(o, kind):
            continue
        batches = {
            name: noise(o, classes, name.startswith("ours")) if kind == "synthetic" else real()
            for name, (_, real) in arms.items()
        }
        for name, (steps, _) in list(arms.items()):
            try:
                # Caches, state, compiling, recording, the loader's processes.
                seconds(steps, batches[name], 6, o.device)
            except NotReplayed:
                del arms[name]
        raw: dict[str, list[float]] = {name: [] for name in arms}
        order, shuffle = list(arms), random.Random(0)
        for _ in range(o.rounds):
            shuffle.shuffle(order)
            for name in order:
                elapsed = seconds(arms[name][0], batches[name], o.steps, o.device)
                raw[name].append(o.steps * o.batch / elapsed)
        ratios = {
            f"ours / {other}": spread([a / b for a, b in zip(raw["ours"], raw[other], strict=True)])
            for other in arms
            if other != "ours"
        }
        result[kind] = {
            "images_per_s": {name: spread(values) for name, values in raw.items()},
            "ratios": ratios,
            "profile": profile(arms["ours"][0], batches["ours"], o.device),
            "raw_images_per_s": raw,
        }
        report(kind, result[kind])
    return result


def profile(arm: Arm, batches: Iterator[Batch], device: str) -> list[dict[str, Any]]:
    """The ten operators with most time of their own, on the accelerator where there is one."""
    from torch.profiler import ProfilerActivity

    cuda = device == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with torch.profiler.profile(activities=activities) as recorded:
        seconds(arm, batches, 2, device)
    name = "self_device_time_total" if cuda else "self_cpu_time_total"
    events = sorted(recorded.key_averages(), key=lambda e: getattr(e, name), reverse=True)
    total = sum(getattr(e, name) for e in events) or 1.0
    return [{"name": e.key, "share": getattr(e, name) / total, "calls": e.count} for e in events[:10]]


def report(kind: str, r: dict[str, Any]) -> None:
    print(f"\n{kind}: images/s{'':12}{'median':>10}{'quartiles':>22}")
    for name, s in r["images_per_s"].items():
        print(f"{name:30}{s['median']:10.1f}{s['q1']:14.1f} {s['q3']:7.1f}")
    for name, s in r["ratios"].items():
        print(f"{name:30}{s['median']:10.3f}{s['q1']:14.3f} {s['q3']:7.3f}")
    print("our step's time:", ", ".join(f"{e['name']} {e['share']:.0%}" for e in r["profile"][:6]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add, switch = parser.add_argument, argparse.BooleanOptionalAction
    add("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    add("--model", default="resnet50")
    add("--size", type=int, default=64, help="pixels a side")
    add("--batch", type=int, default=16)
    add("--precision", choices=("off", "bf16"), default="off")
    add("--channels-last", action=switch, default=True)
    add("--compile", action=switch, default=False)
    add("--replayed", action=switch, default=False, help="also our step as a CUDA graph (model.compile=auto)")
    add("--synthetic", action=switch, default=True)
    add("--real", action=switch, default=True)
    add("--images", help="an image folder with train/ and val/ (default: --generate)")
    add("--generate", type=int, default=256, help="images of noise, 500 × 375, repeated up to two batches")
    add("--loader-workers", type=int, default=0)
    add("--steps", type=int, default=3, help="of an arm in a round")
    add("--rounds", type=int, default=7)
    add("--threads", type=int, default=1, help="of the CPU")
    add("--output", type=Path)
    o = parser.parse_args()
    if o.rounds < 2:
        parser.error(f"--rounds must be at least 2, for a spread; got {o.rounds}")
    torch.set_num_threads(o.threads)
    torch.backends.cudnn.benchmark = True
    from store import store

    from bigbatch.tune.storage.description import provenance

    with tempfile.TemporaryDirectory() as name:
        measured = measure(o, image_folder(o, Path(name)))
    machine = torch.cuda.get_device_name() if o.device == "cuda" else f"{os.cpu_count()} CPUs"
    settings = {k: v for k, v in vars(o).items() if k not in ("output", "images")} | {"own_images": bool(o.images)}
    result = {
        "benchmark": "train_throughput", "settings": settings, "provenance": provenance(), "machine": machine,
        "timm": timm_version(), **measured,
    }  # fmt: skip
    store(result, o.output)
    print(json.dumps({kind: r["ratios"] for kind, r in measured.items()}))
    if o.replayed and o.device == "cuda" and any("ours / ours, replayed" not in r["ratios"] for r in measured.values()):
        raise SystemExit("error: no step is replayed: a line above says why. Leave --replayed out.")


if __name__ == "__main__":
    main()
