"""What one training run is: frozen dataclasses, checked on construction, without torch.

A ``TrainConfig`` says everything that decides the outcome of a run and nothing about where it
runs: the number of workers, devices and folders are the launcher's. Global batch size is the
quantity of interest; micro-batch and accumulation steps follow from it (``BatchConfig.split``).

Bad values raise ``ConfigError``, whose message is one line: the rule, the value met, the fix.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

SCHEMA_VERSION = 1

OPTIMIZERS = ("sgd", "lars", "lamb", "adamw")
SCHEDULES = ("cosine", "poly", "linear", "one_cycle", "step", "constant")
LOSSES = ("cross_entropy", "bce")
STEMS = ("auto", "imagenet", "small", "small_pool")
PRECISIONS = ("auto", "off", "bf16", "fp16")
PRECISE_BN = ("auto", "on", "off")
LARS_MOMENTUM = ("in", "out")


DEFAULT_MICRO_SIZE = 256
"""Bound of the automatic micro-batch where nobody set or measured one."""


class ConfigError(ValueError):
    """A configuration that cannot be trained; the message names rule, value and fix."""


def _require(ok: bool, rule: str, value: object, fix: str) -> None:
    if not ok:
        raise ConfigError(f"{rule}; got {value!r}. {fix}")


def _choice(name: str, value: str, allowed: Iterable[str]) -> None:
    allowed = tuple(allowed)
    if value not in allowed:
        near = difflib.get_close_matches(str(value), allowed, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Choose one of {', '.join(allowed)}."
        raise ConfigError(f"{name} must be one of {', '.join(allowed)}; got {value!r}. {hint}")


def _finite(name: str, value: float, low: float, high: float = math.inf, *, open_low: bool = False) -> None:
    above = value > low if open_low else value >= low
    ok = math.isfinite(value) and above and value <= high
    interval = f"{'>' if open_low else '>='} {low:g}" + (f" and <= {high:g}" if high < math.inf else "")
    _require(ok, f"{name} must be {interval}", value, f"Set {name} inside that range.")


@dataclass(frozen=True)
class ModelConfig:
    """Which network."""

    name: str = "resnet50"
    """A torchvision classification model, e.g. ``resnet50``; ``auto`` is resolved by the plan."""
    stem: str = "auto"
    """``imagenet`` 7×7/2 + max-pool; ``small`` 3×3/1, no pool (He et al. 2016, CIFAR);
    ``small_pool`` 3×3/2 + max-pool, for small scans that were enlarged; ``auto`` by image size."""
    zero_init_last_gamma: bool = True
    """Start residual blocks as identity (Goyal et al. 2017, §5.1)."""
    sync_bn: bool = False
    """BatchNorm statistics over all workers instead of per micro-batch."""
    channels_last: bool = True
    activation_checkpointing: bool = False
    """Residual blocks keep only their input and compute the rest again in the backward pass: less
    memory for about a third more time (Chen et al. 2016). ResNets."""
    compile: bool = False
    """Training's forward and backward pass through ``torch.compile``."""

    def __post_init__(self) -> None:
        _choice("model.stem", self.stem, STEMS)
        _require(bool(self.name), "model.name must name a network", self.name, "Write e.g. resnet50.")
        if self.compile and self.activation_checkpointing:
            raise ConfigError(
                "model.compile chooses itself what to compute again; got model.activation_checkpointing=True too. "
                "Set one of them to false."
            )


@dataclass(frozen=True)
class DataConfig:
    """Which images."""

    name: str = "digits"
    """A data set's name (``digits``) or the path of an image folder with ``train/`` and ``val/``."""
    image_size: int = 0
    """Pixels a side; 0 = the data set's own (32 for digits, 224 for image folders)."""
    augment: bool = True
    loader_workers: int = 0
    """Decoding processes a worker; 0 decodes in the training process."""
    subset: float = 1.0
    """Part of the training images to use, of each class alike; validation stays whole."""
    random_erasing: float = 0.0
    """Part of the training images of which a rectangle becomes the mean colour (Zhong et al. 2020)."""
    mixup_alpha: float = 0.0
    """Of the Beta distribution of mixup's share (Zhang et al. 2018); 0 = off."""
    cutmix_alpha: float = 0.0
    """Of cutmix's (Yun et al. 2019); 0 = off. With both, each micro-batch takes one of them."""

    def __post_init__(self) -> None:
        _require(bool(self.name), "data.name must be a data set's name or a path", self.name, "Write e.g. digits.")
        _require(
            self.image_size == 0 or 8 <= self.image_size <= 1024,
            "data.image_size must be 0 (the data set's own) or 8 to 1024 pixels",
            self.image_size,
            "Write e.g. 224.",
        )
        _require(
            0 <= self.loader_workers <= 256,
            "data.loader_workers must be 0 to 256",
            self.loader_workers,
            "Write the cores that each worker may use for decoding.",
        )
        _finite("data.random_erasing", self.random_erasing, 0.0, 1.0)
        _finite("data.mixup_alpha", self.mixup_alpha, 0.0, 100.0)
        _finite("data.cutmix_alpha", self.cutmix_alpha, 0.0, 100.0)
        _require(0 < self.subset <= 1, "data.subset must be above 0 and at most 1", self.subset, "Write e.g. 0.1.")


@dataclass(frozen=True)
class BatchSplit:
    """How one optimiser step is cut: ``workers × accumulation_steps × micro_size`` images."""

    workers: int
    accumulation_steps: int
    micro_size: int

    @property
    def global_size(self) -> int:
        return self.workers * self.accumulation_steps * self.micro_size


@dataclass(frozen=True)
class BatchConfig:
    """Images an optimiser step, and how they are cut."""

    global_size: int = 256
    """Images an optimiser step over all workers and accumulation steps."""
    micro_size: int = 0
    """Images a forward pass on one worker, also the ghost batch of BatchNorm; 0 = the largest
    divisor of the worker's share that is at most ``max_micro_size``."""
    max_micro_size: int = DEFAULT_MICRO_SIZE
    """Bound for the automatic micro-batch: what the device's memory holds; 0 = measured on a GPU
    (``memory_probe``), ``DEFAULT_MICRO_SIZE`` on a CPU."""

    def __post_init__(self) -> None:
        _require(self.global_size >= 2, "batch.global_size must be at least 2", self.global_size, "Write e.g. 1024.")
        _require(self.micro_size >= 0, "batch.micro_size must be 0 (automatic) or more", self.micro_size, "Write 0.")
        _require(self.max_micro_size >= 0, "batch.max_micro_size must be 0 (measured) or more", self.max_micro_size,
                 "Write 256.")  # fmt: skip
        if self.micro_size and self.global_size % self.micro_size:
            raise ConfigError(
                f"batch.micro_size must divide batch.global_size; got {self.micro_size} and {self.global_size}. "
                f"Use micro_size={math.gcd(self.micro_size, self.global_size)}."
            )

    def split(self, workers: int) -> BatchSplit:
        """Cut the global batch over ``workers``; raises ConfigError where it does not divide."""
        _require(workers >= 1, "workers must be at least 1", workers, "Write --workers 1.")
        if self.global_size % workers:
            lower = self.global_size // workers * workers
            fix = f"Use batch.global_size={lower or workers} or another number of workers."
            raise ConfigError(
                f"batch.global_size must divide over the workers; got {self.global_size} over {workers}. {fix}"
            )
        share = self.global_size // workers
        if self.micro_size:
            if share % self.micro_size:
                raise ConfigError(
                    f"batch.global_size must divide over workers × micro_size; got {self.global_size} over "
                    f"{workers} × {self.micro_size}. Use micro_size={math.gcd(share, self.micro_size)}."
                )
            return BatchSplit(workers, share // self.micro_size, self.micro_size)
        micro = next(m for m in range(min(share, self.max_micro_size or DEFAULT_MICRO_SIZE), 0, -1) if share % m == 0)
        return BatchSplit(workers, share // micro, micro)


@dataclass(frozen=True)
class OptimizerConfig:
    """Which optimiser; fields that it does not use are ignored and said so by ``used_fields``."""

    name: str = "sgd"
    peak_lr: float = 0.1
    """Learning rate after warmup, for the whole global batch (no hidden scaling)."""
    momentum: float = 0.9
    """sgd and lars."""
    nesterov: bool = True
    """sgd and lars."""
    beta1: float = 0.9
    """lamb and adamw."""
    beta2: float = 0.999
    """lamb and adamw."""
    eps: float = 1e-6
    """lamb and adamw: added to the root of the second moment."""
    weight_decay: float = 5e-5
    """Not applied to BatchNorm parameters and biases. sgd, lars: coupled (L2); lamb, adamw: decoupled."""
    trust_coefficient: float = 0.001
    """lars: η of You et al. 2017."""
    lars_momentum: str = "in"
    """lars: learning rate ``in`` the momentum buffer (paper, MLPerf) or ``out`` (NVIDIA, timm)."""
    lars_eps: float = 0.0
    """lars: added to the denominator of the trust ratio."""
    no_decay_lr_factor: float = 1.0
    """Rate of BatchNorm parameters and biases, as a part of that of the other parameters."""
    clip_grad_norm: float = 0.0
    """Global gradient norm is clipped to this before the step; 0 = off. LAMB's papers use 1."""

    def __post_init__(self) -> None:
        _choice("optimizer.name", self.name, OPTIMIZERS)
        _choice("optimizer.lars_momentum", self.lars_momentum, LARS_MOMENTUM)
        _finite("optimizer.peak_lr", self.peak_lr, 0.0, 1e4, open_low=True)
        for name in ("momentum", "beta1", "beta2"):
            value = getattr(self, name)
            _require(0.0 <= value < 1.0, f"optimizer.{name} must be at least 0 and below 1", value, "Write e.g. 0.9.")
        _finite("optimizer.eps", self.eps, 0.0, 1.0)
        _finite("optimizer.weight_decay", self.weight_decay, 0.0, 10.0)
        _finite("optimizer.trust_coefficient", self.trust_coefficient, 0.0, 10.0, open_low=True)
        _finite("optimizer.lars_eps", self.lars_eps, 0.0, 1.0)
        _finite("optimizer.no_decay_lr_factor", self.no_decay_lr_factor, 0.0, 1e4)
        _finite("optimizer.clip_grad_norm", self.clip_grad_norm, 0.0)
        if self.name == "sgd" and self.nesterov and self.momentum == 0.0:
            raise ConfigError(
                "Nesterov needs momentum above 0; got optimizer.momentum=0.0. Set momentum or nesterov=false."
            )


@dataclass(frozen=True)
class ScheduleConfig:
    """Learning rate over steps: linear warmup to the peak, then a decay to ``end_lr_factor``·peak."""

    name: str = "cosine"
    warmup_epochs: float = 0.0
    warmup_steps: int = 0
    """In place of ``warmup_epochs``; 0 = those."""
    warmup_start_factor: float = 0.0
    """Learning rate before the first step, as a part of the peak."""
    end_lr_factor: float = 0.0
    power: float = 2.0
    """poly: (1 − t)^power; MLPerf uses 2."""
    step_epochs: tuple[float, ...] = ()
    """step: epochs at which the rate is multiplied by ``step_factor``."""
    step_factor: float = 0.1

    def __post_init__(self) -> None:
        _choice("schedule.name", self.name, SCHEDULES)
        _finite("schedule.warmup_epochs", self.warmup_epochs, 0.0)
        _require(self.warmup_steps >= 0, "schedule.warmup_steps must be at least 0", self.warmup_steps, "Write 0.")
        if self.warmup_steps and self.warmup_epochs:
            raise ConfigError(
                f"warmup is in steps or in epochs; got schedule.warmup_steps={self.warmup_steps} and "
                f"warmup_epochs={self.warmup_epochs:g}. Set one of them to 0."
            )
        _finite("schedule.warmup_start_factor", self.warmup_start_factor, 0.0, 1.0)
        _finite("schedule.end_lr_factor", self.end_lr_factor, 0.0, 1.0)
        _finite("schedule.power", self.power, 0.0, 10.0, open_low=True)
        _finite("schedule.step_factor", self.step_factor, 0.0, 1.0)
        object.__setattr__(self, "step_epochs", tuple(float(e) for e in self.step_epochs))
        if list(self.step_epochs) != sorted(self.step_epochs) or any(e <= 0 for e in self.step_epochs):
            raise ConfigError(
                f"schedule.step_epochs must rise and be above 0; got {self.step_epochs!r}. Write e.g. [30, 60, 80]."
            )
        if self.name == "step" and not self.step_epochs:
            raise ConfigError("schedule step needs schedule.step_epochs; got none. Write e.g. [30, 60, 80].")


@dataclass(frozen=True)
class TrainConfig:
    """One training run, whole. JSON round trip: ``from_dict(to_dict(c)) == c``."""

    epochs: int = 12
    seed: int = 0
    precision: str = "auto"
    """``bf16``, ``fp16`` (with a gradient scaler) or ``off``; ``auto``: bf16 where the accelerator
    has it, fp16 on older accelerators, off on CPUs."""
    loss: str = "cross_entropy"
    """``bce``: binary cross entropy of each class by itself, mean over classes (Wightman et al. 2021, §3.1)."""
    label_smoothing: float = 0.0
    ema_decay: float = 0.0
    """Validate, and keep in checkpoints, a moving average of the weights that holds this part of the
    old one at each step; 0 = off."""
    precise_bn: str = "auto"
    """Recompute BatchNorm statistics from training batches before validation: ``auto`` where an
    epoch has too few steps for the running averages to follow (Wu & Johnson 2021, §3)."""
    precise_bn_images: int = 2048
    """At most so many training images for it."""
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)

    def __post_init__(self) -> None:
        _require(1 <= self.epochs <= 100_000, "epochs must be 1 to 100000", self.epochs, "Write e.g. 90.")
        _require(0 <= self.seed < 2**31, "seed must be 0 to 2147483647", self.seed, "Write e.g. 0.")
        _choice("precision", self.precision, PRECISIONS)
        _choice("precise_bn", self.precise_bn, PRECISE_BN)
        _choice("loss", self.loss, LOSSES)
        _require(0.0 <= self.ema_decay < 1.0, "ema_decay must be at least 0 and below 1", self.ema_decay, "0.999.")
        _require(
            0.0 <= self.label_smoothing < 1.0,
            "label_smoothing must be at least 0 and below 1",
            self.label_smoothing,
            "Write e.g. 0.1.",
        )
        _require(self.precise_bn_images >= 1, "precise_bn_images must be at least 1", self.precise_bn_images, "2048.")
        if self.schedule.warmup_epochs > self.epochs:
            raise ConfigError(
                f"schedule.warmup_epochs must not exceed epochs; got {self.schedule.warmup_epochs:g} of {self.epochs}. "
                f"Use warmup_epochs={self.epochs * 0.2:g} or more epochs."
            )

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values, with the schema's version."""
        return {"schema_version": SCHEMA_VERSION, **dataclasses.asdict(self)}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2) + "\n"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainConfig:
        """Inverse of ``to_dict``; missing keys take their defaults, unknown ones raise ConfigError."""
        values = dict(values)
        version = values.pop("schema_version", SCHEMA_VERSION)
        _require(
            version == SCHEMA_VERSION,
            f"this version reads TrainConfig schema {SCHEMA_VERSION}",
            version,
            "Use the bigbatch that wrote the file.",
        )
        return _build(cls, values, "")

    @classmethod
    def from_json(cls, text: str) -> TrainConfig:
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigError(f"a configuration is JSON; got text that is not ({error}). Check the file.") from None
        if not isinstance(values, dict):
            raise ConfigError(f"a configuration is a JSON object; got a {type(values).__name__}. Check the file.")
        return cls.from_dict(values)

    def replace_keys(self, changes: Mapping[str, Any]) -> TrainConfig:
        """A copy with dotted keys (or short ones, see ``resolve_key``) set; checks the whole anew."""
        values = self.to_dict()
        for key, value in changes.items():
            *path, leaf = resolve_key(key).split(".")
            node = values
            for part in path:
                node = node[part]
            node[leaf] = value
        return TrainConfig.from_dict(values)


def _build(cls: type, values: Mapping[str, Any], prefix: str) -> Any:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{prefix.rstrip('.')} must be an object; got {values!r}. Write its fields as key: value.")
    hints = typing.get_type_hints(cls)
    names = {f.name for f in dataclasses.fields(cls)}
    kwargs = {}
    for key, value in values.items():
        if key not in names:
            raise ConfigError(_unknown_key(prefix + str(key)))
        if dataclasses.is_dataclass(hints[key]):
            kwargs[key] = _build(typing.cast(type, hints[key]), value, f"{prefix}{key}.")
        else:
            kwargs[key] = _coerce(hints[key], value, prefix + key)
    return cls(**kwargs)


def _coerce(kind: Any, value: Any, key: str) -> Any:
    """JSON's value as the field's type; int → float is the only silent change."""
    origin = typing.get_origin(kind)
    if origin is tuple:
        if isinstance(value, (list, tuple)):
            return tuple(_coerce(typing.get_args(kind)[0], v, key) for v in value)
    elif kind is bool:
        if isinstance(value, bool):
            return value
    elif kind is int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, float) and value.is_integer():
            return int(value)
    elif kind is float:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    elif kind is str and isinstance(value, str):
        return value
    word = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}.get(
        kind, "a list of numbers"
    )
    raise ConfigError(f"{key} must be {word}; got {value!r}. Write {key}={_example(kind)}.")


def _number_or_word(raw: str) -> float | str:
    """JSON knows neither ``.3`` nor ``1.``; people type them."""
    try:
        return float(raw)
    except ValueError:
        return raw


def _example(kind: Any) -> str:
    return {bool: "true", int: "2", float: "0.1", str: "auto"}.get(kind, "[30, 60]")


@functools.cache
def keys() -> Mapping[str, Any]:
    """Every dotted key of a TrainConfig with its type, in the order of declaration."""
    found: dict[str, Any] = {}

    def walk(cls: type, prefix: str) -> None:
        hints = typing.get_type_hints(cls)
        for f in dataclasses.fields(cls):
            if dataclasses.is_dataclass(hints[f.name]):
                walk(typing.cast(type, hints[f.name]), f"{prefix}{f.name}.")
            else:
                found[prefix + f.name] = hints[f.name]

    walk(TrainConfig, "")
    return types.MappingProxyType(found)


@functools.cache
def short_keys() -> Mapping[str, str]:
    """Short forms: a leaf that occurs once (``peak_lr``), or a section for its name (``optimizer``)."""
    leaves: dict[str, list[str]] = {}
    for key in keys():
        leaves.setdefault(key.rsplit(".", 1)[-1], []).append(key)
    short = {leaf: full[0] for leaf, full in leaves.items() if len(full) == 1}
    short |= {key.split(".")[0]: key for key in keys() if key.endswith(".name")}
    return types.MappingProxyType(short)


def resolve_key(key: str) -> str:
    """The dotted key that ``key`` stands for; raises ConfigError naming the nearest valid one."""
    if key in keys():
        return key
    if key in short_keys():
        return short_keys()[key]
    raise ConfigError(_unknown_key(key))


def _unknown_key(key: str) -> str:
    known = [*keys()] if "." in key else [*keys(), *short_keys()]
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    if not near:  # compare the leaf alone: `optimiser.lr` should still find `optimizer.peak_lr`
        near = [k for k in keys() if key.rsplit(".", 1)[-1] in k][:1]
    hint = f"Did you mean {near[0]!r}?" if near else f"Known keys: {', '.join(keys())}."
    return f"no such configuration key; got {key!r}. {hint}"


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """``["epochs=30", "schedule.name=poly"]`` → {"epochs": 30, "schedule.name": "poly"}.

    Values are read as JSON and, failing that, as words. Raises ConfigError for a missing ``=``,
    an unknown key, or a key that is given twice.
    """
    changes: dict[str, Any] = {}
    for text in assignments:
        key, equals, raw = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set takes key=value; got {text!r}. Write e.g. --set epochs=30.")
        full = resolve_key(key.strip())
        if full in changes:
            raise ConfigError(f"a key is set once; got {full!r} twice. Keep one --set {full}=….")
        try:
            value = json.loads(raw)
        except json.JSONDecodeError:
            value = _number_or_word(raw)
        kind = keys()[full]
        if kind is str and not isinstance(value, str):
            value = raw
        if kind is bool and isinstance(value, str) and value.lower() in ("true", "false"):
            value = value.lower() == "true"
        changes[full] = _coerce(kind, value, full)
    return changes


def differing_keys(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """``["epochs 12 → 30", …]``: the dotted keys of two dicts whose values differ, with both values."""
    found: list[str] = []
    for key in {**old, **new}:
        a, b = (list(v) if isinstance(v, tuple) else v for v in (old.get(key), new.get(key)))  # JSON has no tuples
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differing_keys(a, b, f"{prefix}{key}.")
        elif a != b:
            found.append(f"{prefix}{key} {a!r} → {b!r}")
    return found
