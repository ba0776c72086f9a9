"""The configuration of one training run: frozen dataclasses that are checked on construction. Loads no torch.

A ``TrainConfig`` says everything that decides the outcome of a run and nothing about where it
runs: the number of workers, devices and folders are the launcher's. Global batch size is the
quantity of interest; micro-batch and accumulation steps follow from it (``BatchConfig.split``).

Bad values raise ``ConfigError``, whose message is one line: the rule, the value met, the fix.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bigbatch.base.json_values import written_json
from bigbatch.train_loop.config.data_sections import DataConfig
from bigbatch.train_loop.config.rules import (
    ConfigError,
    ConflictError,
    Options,
    Section,
    check_component,
    field_types,
    is_open,
    is_section,
    require,
    require_one_of,
)
from bigbatch.train_loop.config.sections import (
    BatchConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainableConfig,
)
from bigbatch.train_loop.config.words import ALIASES, unknown_key

RUNTIME_KEYS = (
    "data.loader.workers",
    "data.loader.pin_memory",
)
"""Keys that change the speed of a run, not its result: it may resume with other values."""

SCHEMA_VERSION = 4
LOSSES = ("cross_entropy", "bce")
PRECISIONS = ("auto", "off", "bf16", "fp16")
PRECISE_BN = ("auto", "on", "off")


T = TypeVar("T")
Nested = dict[str, Any]
"""Values of sections and keys, as JSON holds them."""


@dataclass(frozen=True)
class TrainConfig(Section):
    """One training run, whole. JSON round trip: ``from_dict(to_dict(c)) == c``."""

    epochs: int = 12
    seed: int = 0
    precision: str = "auto"
    """``bf16``, ``fp16`` (with a gradient scaler) or ``off``; ``auto``: bf16 where the accelerator
    has it, fp16 on older accelerators, off on CPUs."""
    loss: str = "cross_entropy"
    """``bce``: binary cross entropy of each class by itself, mean over classes; every class of a mixed image has
    target 1 (Wightman et al. 2021, §3.1). Or a function of the user's own, ``FILE.py:FUNCTION``."""
    label_smoothing: float = 0.0
    ema_decay: float = 0.0
    """Validate, and keep in checkpoints, a moving average of the weights that holds this part of the
    old one at each step; 0 = off."""
    precise_bn: str = "auto"
    """Recompute BatchNorm statistics from training batches before validation: ``auto`` where an
    epoch has too few steps for the running averages to follow (Wu & Johnson 2021, §3)."""
    precise_bn_images: int = 2048
    """At most this many training images for it, and a quarter of a small data set (`precise_bn.images_of`)."""
    validate_every: int = 1
    """Validate every so many epochs, and after the last one. A search needs each epoch's value: there it must be 1."""
    noise_scale: bool = True
    """Measure the gradient noise scale, with one or two passes over the gradients in each step."""
    bf16_gradients: bool = False
    """Several workers: sum gradients over them in bf16, half of the bytes, each sum rounded to 8 bits."""
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    loss_options: Options = field(default_factory=Options)
    """Arguments of a loss of the user's own: ``loss_options.gamma=2``."""
    metrics: tuple[str, ...] = ()
    """Further metrics of validation, of the user's own or torchmetrics'."""
    trainable: TrainableConfig = field(default_factory=TrainableConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(1 <= self.epochs <= 100_000, "epochs must be 1 to 100000", self.epochs, "Write e.g. 90.")
        require(0 <= self.seed < 2**31, "seed must be 0 to 2147483647", self.seed, "Write e.g. 0.")
        require_one_of("precision", self.precision, PRECISIONS)
        require_one_of("precise_bn", self.precise_bn, PRECISE_BN)
        check_component("loss", self.loss, LOSSES)
        if self.loss not in LOSSES and self.label_smoothing:
            raise ConflictError(
                f"label_smoothing is for the built-in losses; got {self.label_smoothing:g} with loss={self.loss}. "
                "Write label_smoothing=0, and smooth the labels in the loss itself."
            )
        require(0.0 <= self.ema_decay < 1.0, "ema_decay must be at least 0 and below 1", self.ema_decay, "Write 0.999.")
        require(
            0.0 <= self.label_smoothing < 1.0,
            "label_smoothing must be at least 0 and below 1",
            self.label_smoothing,
            "Write e.g. 0.1.",
        )
        require(self.precise_bn_images >= 2, "precise_bn_images must be at least 2", self.precise_bn_images, "Write 2.")
        require(self.validate_every >= 1, "validate_every must be at least 1 epoch", self.validate_every, "Write 1.")
        if self.schedule.warmup_epochs > self.epochs:
            raise ConflictError(
                f"schedule.warmup_epochs must not exceed epochs; got {self.schedule.warmup_epochs:g} of {self.epochs}. "
                f"Use warmup_epochs={self.epochs * 0.2:g} or more epochs."
            )

    def validates(self, epoch: int) -> bool:
        """Whether a run validates after this epoch, 1-based."""
        return epoch % self.validate_every == 0 or epoch == self.epochs

    def check_workers(self, workers: int) -> None:
        """Raise ConfigError if the global batch does not divide over the workers.

        A whole training function divides its work itself.
        """
        if not self.trainable.name:
            self.batch.split(workers)

    def to_dict(self) -> Nested:
        """Nested plain values, with the schema's version. For a whole training function, only the keys that it uses."""
        values = {"schema_version": SCHEMA_VERSION, **_plain(dataclasses.asdict(self))}
        if self.trainable.name:
            return {key: values[key] for key in ("schema_version", "epochs", "seed", "trainable")}
        del values["trainable"]
        return values

    def to_json(self) -> str:
        """``to_dict`` as text, indented, with a line break at its end."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def outcome_json(self) -> str:
        """The configuration with each of ``RUNTIME_KEYS`` at its default: equal if runs may resume each other.

        It holds only values that are not the default, so that a new key does not change it: its hash names folders.
        """
        defaults = TrainConfig()
        values = self.replace_keys({key: value_at(defaults, key) for key in RUNTIME_KEYS}).to_dict()
        return json.dumps(_changed(values, defaults.to_dict()), indent=2) + "\n"

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> TrainConfig:
        """Inverse of ``to_dict``. Missing keys take their defaults.

        Raises ConfigError for unknown keys, impossible values, and files of other versions.
        """
        if not isinstance(values, Mapping):
            raise ConfigError(f"a configuration is a JSON object; got a {type(values).__name__}. Check the file.")
        version = values.get("schema_version", SCHEMA_VERSION)
        require(
            version == SCHEMA_VERSION,
            f"this version reads TrainConfig schema {SCHEMA_VERSION}",
            version,
            "Use the bigbatch that wrote the file.",
        )
        return _build(cls, {key: value for key, value in values.items() if key != "schema_version"}, "")

    @classmethod
    def from_json(cls, text: str | bytes) -> TrainConfig:
        """Inverse of ``to_json``.

        Raises ConfigError for text that is no JSON object, and as ``from_dict``.
        """
        try:
            values: Any = written_json(text)
        except ValueError as error:  # also of a number of more than 4,300 digits
            raise ConfigError(f"a configuration is JSON; got text that is not ({error}). Check the file.") from None
        return cls.from_dict(values)

    def replace_keys(self, changes: Mapping[str, object]) -> TrainConfig:
        """A copy with dotted keys (or short ones, see ``resolve_key``) set; checks the whole anew."""
        values: Nested = {}  # of the sections that change: a search makes many configurations
        for key, value in changes.items():
            *path, leaf = resolve_key(key).split(".")
            if path and path[0] not in values:
                section = getattr(self, path[0])
                values[path[0]] = _plain(dict(section) if isinstance(section, Mapping) else dataclasses.asdict(section))
            node = values
            for name in path:
                node = node.setdefault(name, {})
            node[leaf] = value
        return dataclasses.replace(self, **_fields(TrainConfig, values, ""))


def data_config(values: Mapping[str, object]) -> DataConfig:
    """The section ``data`` alone, from those of the dotted keys in ``values`` that belong to it.

    Raises ConfigError for impossible values, but not for those that only other sections rule out.
    """
    ours = {key: value for key, value in values.items() if resolve_key(key).startswith("data.")}
    return TrainConfig().replace_keys(ours).data


def _plain(values: Nested) -> Nested:
    """Without classes of this package, which a checkpoint must not name."""
    return {name: _plain(value) if isinstance(value, dict) else value for name, value in values.items()}


def value_at(config: TrainConfig, key: str) -> object:
    """The value of a dotted key."""
    value: object = config
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name)
    return value


def _build(cls: type[T], values: object, prefix: str) -> T:
    return cls(**_fields(cls, values, prefix))


def _fields(cls: type, values: object, prefix: str) -> dict[str, Any]:
    """A section's fields. Raises ConfigError for unknown keys and impossible values of sections within it."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{prefix.rstrip('.')} must be an object; got {values!r}. Write its fields as key: value.")
    hints = field_types(cls)
    for key in values:
        if key not in hints:
            raise ConfigError(unknown_key(prefix + str(key), [*config_keys()], short_keys()))
    return {
        key: _build(hints[key], value, f"{prefix}{key}.") if is_section(hints[key]) else value
        for key, value in values.items()
    }


def _changed(values: Nested, defaults: Nested) -> Nested:
    """The part of ``values`` that differs from ``defaults``, also within sections."""
    return {
        key: _changed(value, defaults[key]) if isinstance(value, dict) else value
        for key, value in values.items()
        if value != defaults.get(key)
    }


@functools.cache
def config_keys() -> Mapping[str, object]:
    """Every dotted key of a TrainConfig with its type, in the order of declaration."""
    found: dict[str, object] = {}

    def walk(cls: type, prefix: str) -> None:
        for name, kind in field_types(cls).items():
            if is_section(kind):
                walk(kind, f"{prefix}{name}.")
            else:
                found[prefix + name] = kind

    walk(TrainConfig, "")
    return types.MappingProxyType(found)


@functools.cache
def short_keys() -> Mapping[str, str]:
    """Short forms of keys with two parts: a leaf that occurs once (``peak_lr``), or a section for its name."""
    leaves: dict[str, list[str]] = {}
    outer = [key for key in config_keys() if key.count(".") < 2]
    for key in outer:
        leaves.setdefault(key.rsplit(".", 1)[-1], []).append(key)
    short = {leaf: full[0] for leaf, full in leaves.items() if len(full) == 1}
    short |= {key.split(".")[0]: key for key in outer if key.endswith(".name")}
    return types.MappingProxyType(short)


def resolve_key(key: str) -> str:
    """The dotted key that ``key`` stands for: itself, a short form, or an alias.

    Raises ConfigError, which names the nearest key.
    """
    if (full := known_key(key)) is None:
        raise ConfigError(unknown_key(key, [*config_keys()], short_keys()))
    return full


def known_key(key: str) -> str | None:
    """As ``resolve_key``, but None for a word that is no key."""
    return key if key in config_keys() or is_open(key) else short_keys().get(key) or ALIASES.get(key)


def differing_keys(old: Mapping[str, object], new: Mapping[str, object], prefix: str = "") -> list[str]:
    """``["epochs 12 → 30", …]``: the dotted keys of two dicts whose values differ, with both values.

    Without ``RUNTIME_KEYS``.
    """
    found: list[str] = []
    for key in {**old, **new}:
        a, b = (list(v) if isinstance(v, tuple) else v for v in (old.get(key), new.get(key)))  # JSON has no tuples
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differing_keys(a, b, f"{prefix}{key}.")
        elif a != b and prefix + key not in RUNTIME_KEYS:
            found.append(f"{prefix}{key} {a!r} → {b!r}")
    return found
