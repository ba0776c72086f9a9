"""What ``benchmarks/gpu.py`` runs, most valuable first: command lines at full size and at tiny sizes."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TINY_SEARCH = ("--trials", 2, "--max-epochs", 1, "--subset", "10%")
NO_CIFAR10 = "it needs CIFAR-10: write --cifar10 FOLDER or FILE.tar.xz"
REPLAYING_TORCH = (2, 13)
"""``LEAST_TORCH`` of replayed_step.py, which imports torch."""


@dataclass(frozen=True)
class Settings:
    """Where the steps run, and on what.

    Attributes:
        device: ``cuda`` or ``cpu``.
        tiny: sizes for which the figures mean nothing, to try the command lines.
        label: of the machine, as a part of file names, e.g. ``h200``.
        folder: of everything that is kept between calls but is no result.
        results: where results go, as ``NAME_LABEL.json``.
        images: a tar or a folder of JPEGs; None: generated.
        cifar10: an image folder with ``train/`` and ``val/``; None: there is none.
        cores: of the CPU, for loader processes.
    """

    device: str
    tiny: bool
    label: str
    folder: Path
    results: Path
    images: Path | None
    cifar10: Path | None
    cores: int


@dataclass(frozen=True)
class Step:
    """One test run or benchmark.

    Attributes:
        minutes: it usually takes on one GPU.
        least_minutes: with less than that left, the step is not begun.
        most_minutes: after them it is cut, so that one that hangs leaves time to the others.
        command: what is run, without a shell.
        result: the file that it writes when it ends; None where it writes none.
        gather: a command that makes the result of what there is, also after ``command`` was cut.
        environment: variables beside the caller's.
        missing: why the step cannot run here; empty where it can.
    """

    name: str
    minutes: float
    least_minutes: float
    command: tuple[str, ...]
    result: Path | None = None
    gather: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    missing: str = ""
    most_minutes: float = math.inf


def steps(s: Settings) -> list[Step]:
    """All steps, in the order of what they are worth."""
    every = [
        _tests(),
        _short_step(s),
        _optimizer_step(s),
        _trial_overhead(s, "auto"),
        _trial_overhead(s),
        _search_of_cifar10(s),
        _trial_overhead(s, "4"),
        _train_throughput(s, compiled=False),
        _train_throughput(s, compiled=True),
        _profile_cost(s),
        _input_pipeline(s),
        _batch_scaling(s),
    ]
    if s.tiny:
        return [replace(step, minutes=0.2, least_minutes=0.1, most_minutes=math.inf) for step in every]
    # What is cut and gathers nothing is lost, so a slower GPU gets three times as long.
    return [
        step if step.gather else replace(step, most_minutes=min(step.most_minutes, 3 * step.minutes)) for step in every
    ]


def _python(script: str, *words: object) -> tuple[str, ...]:
    return (sys.executable, str(HERE / script), *map(str, words))


def _result(s: Settings, name: str) -> Path:
    return s.results / f"{name}_{s.label}.json"


def _tests() -> Step:
    """Marked ``gpu``: tests that skip where there is no GPU. Other files may need packages that are not here. One that
    hangs shows where, and leaves time to the benchmarks."""
    files = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in path.read_text()]
    words = ("-m", "pytest", "-m", "gpu", "-ra", "--durations=10", "-o", "faulthandler_timeout=100", *map(str, files))
    return Step("tests", 4, 2, (sys.executable, *words), most_minutes=6)


def _short_step(s: Settings) -> Step:
    """ResNet-18 at 32 pixels in bf16: a step of about 6 ms, in which the host's part shows."""
    result = _result(s, "train_throughput_resnet18")
    sizes = ("--batch", 4, "--steps", 1, "--rounds", 2) if s.tiny else ("--batch", 512, "--steps", 50, "--rounds", 7)
    words = (
        "--device",
        s.device,
        "--model",
        "resnet18",
        "--size",
        32,
        "--precision",
        "bf16",
        "--no-real",
        "--replayed",
        *sizes,
    )
    command = _python("train_throughput.py", *words, "--generate", 20, "--output", result)
    return Step("train_throughput_resnet18", 1, 0.5, command, result)


def _optimizer_step(s: Settings) -> Step:
    result = _result(s, "optimizer_step")
    sizes = ("--rounds", 3, "--model", "resnet18") if s.tiny else ("--rounds", 41)
    return Step(
        "optimizer_step", 1, 0.5,
        _python("optimizer_step.py", "--device", s.device, *sizes, "--output", result), result,
    )  # fmt: skip


def _trial_overhead(s: Settings, replayed: str = "") -> Step:
    """What a trial takes beyond its epochs, and how long the first one takes to start: short trials on the digits.

    ``replayed``: an arm in which kept workers replay the steps of trial after trial, with so many trials on a GPU.
    """
    name, minutes, most, missing = "default_run_digits", 2.5, 4.0, ""
    sizes = TINY_SEARCH if s.tiny else ("--trials", 6, "--max-epochs", 3)
    words: tuple[object, ...] = ("--model", "resnet18", "--confirm", "none")
    if replayed:
        name, minutes, most = f"{name}_replayed_{replayed}", 1.5, 3.0
        missing = "" if s.tiny or _torch() >= REPLAYING_TORCH else "replays need torch {}.{}".format(*REPLAYING_TORCH)
        # Small batches: an epoch of fewer than five steps has none to replay.
        words += ("--batch", "64,128", "--trials-per-gpu", replayed, "--set", "model.compile=auto")
        sizes = TINY_SEARCH if s.tiny else ("--trials", 8, "--max-epochs", 3)
    result = _result(s, name)
    command = _python("default_run.py", "--output", result, "--", *words, *sizes)
    return Step(name, minutes, 1, command, result, missing=missing, most_minutes=most)


def _torch() -> tuple[int, ...]:
    """Its version's first two numbers."""
    return tuple(map(int, re.findall(r"\d+", importlib.metadata.version("torch"))[:2]))


def _search_of_cifar10(s: Settings) -> Step:
    """The default search, with as many trials on the GPU as it has room for; on the digits where sizes are tiny."""
    result = _result(s, "default_run_cifar10")
    words: tuple[object, ...] = ("--model", "resnet18", "--confirm", "none", "--trials-per-gpu", "auto")
    if s.tiny:
        words += ("--data", "digits", *TINY_SEARCH)
    else:
        words += ("--data", s.cifar10 or "cifar10", "--batch", "512,4k", "--trials", 8, "--max-epochs", 6)
    return Step(
        "default_run_cifar10", 3, 2, _python("default_run.py", "--output", result, "--", *words), result,
        missing="" if s.tiny or s.cifar10 else NO_CIFAR10,
    )  # fmt: skip


def _train_throughput(s: Settings, compiled: bool) -> Step:
    """ResNet-50 at 224 pixels in bf16."""
    name = "train_throughput_compiled" if compiled else "train_throughput"
    result = _result(s, name)
    sizes: tuple[object, ...] = ("--size", 224, "--batch", 256, "--steps", 20, "--rounds", 7, "--generate", 128)
    sizes += ("--loader-workers", max(1, s.cores - 2))
    if s.tiny:
        sizes = ("--size", 32, "--batch", 4, "--steps", 1, "--rounds", 2, "--generate", 8, "--model", "resnet18")
    words = ("--device", s.device, "--precision", "bf16", "--compile" if compiled else "--no-compile", *sizes)
    # What a dry run is to show is the command line; compiling for a CPU takes a minute.
    environment = (("TORCHDYNAMO_DISABLE", "1"),) if s.tiny else ()
    command = _python("train_throughput.py", *words, "--output", result)
    return Step(name, 8 if compiled else 3, 2, command, result, environment=environment)


def _profile_cost(s: Settings) -> Step:
    """Where the time of a ResNet-50 step goes, and what measuring it costs."""
    result = _result(s, "profile_cost")
    sizes: tuple[object, ...] = ("--size", 224, "--batch", 256, "--steps", 10, "--rounds", 7, "--generate", 128)
    sizes += ("--loader-workers", max(1, s.cores - 2))
    if s.tiny:
        sizes = ("--size", 32, "--batch", 4, "--steps", 1, "--rounds", 2, "--generate", 8, "--model", "resnet18")
    command = _python("profile_cost.py", "--device", s.device, "--precision", "bf16", *sizes, "--output", result)
    return Step("profile_cost", 4, 2, command, result)


def _input_pipeline(s: Settings) -> Step:
    result = _result(s, "input_pipeline")
    images: tuple[object, ...] = ("--images", s.images) if s.images else ("--generate", 16 if s.tiny else 300)
    sizes: tuple[object, ...] = ("--rounds", 5, "--batch", 50, "--workers", max(1, s.cores - 2))
    if s.tiny:
        sizes = ("--rounds", 1, "--batch", 4, "--passes", 1, "--workers", 1, "--epochs", 2)
    command = _python("input_pipeline.py", "--device", s.device, *images, *sizes, "--output", result)
    return Step("input_pipeline", 8, 5, command, result)


def _batch_scaling(s: Settings) -> Step:
    """Ends with what time allows: its trainings are kept one by one."""
    result = _result(s, "batch_scaling_digits" if s.tiny else "batch_scaling_cifar10")
    words: tuple[object, ...] = ("--folder", s.folder / "batch_scaling")
    if s.tiny:
        words += ("--epochs", 1, "--batches", 64, 128, "--seeds", 1, "--methods", "sgd_linear", "lars", "--jobs", 1)
    else:
        words += ("--data", s.cifar10 or "cifar10", "--model", "resnet18", "--epochs", 16, "--base-lr", 0.1)
        words += ("--batches", 128, 512, 2048, 8192, "--seeds", 1, 2, 3, "--jobs", 2)
        words += ("--loader-workers", max(1, s.cores // 2 - 1), "--methods", *_methods())
    return Step(
        "batch_scaling", 30, 4,
        _python("batch_scaling.py", *words, "--parts", "search", "train"), result,
        gather=_python("batch_scaling.py", *words, "--parts", "report", "--output", result),
        missing="" if s.tiny or s.cifar10 else NO_CIFAR10,
    )  # fmt: skip


def _methods() -> list[str]:
    """Searches need Ray and Optuna; the other methods need torch alone."""
    can_search = all(importlib.util.find_spec(name) for name in ("ray", "optuna"))
    return ["sgd_linear", "lars", "lamb", "sgd_fixed", *["found"] * can_search]
