"""Keys as earlier versions wrote them: schema 1 held the 27 keys of ``data`` side by side.

What was written then stays readable: stored files through ``migrated``, keys that somebody types (``--set``) or that a
space of a user's own names through ``EARLIER_KEYS``.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence

from bigbatch.train_loop.config.own_options import is_open
from bigbatch.train_loop.config.rules import ConfigError

SCHEMA_VERSION = 2
READABLE_VERSIONS = (1, 2)

FLAT_DATA: Mapping[str, str] = types.MappingProxyType(
    {
        "name": "data.name",
        "image_size": "data.image_size",
        "val_image_size": "data.val_image_size",
        "progressive_from": "data.progressive_from",
        "progressive_start": "data.progressive_start",
        "progressive_end": "data.progressive_end",
        "augment": "data.augment.enabled",
        "loader_workers": "data.loader.workers",
        "loader_slots": "data.loader.slots",
        "loader": "data.loader.name",
        "prefetch_factor": "data.loader.prefetch_factor",
        "persistent_workers": "data.loader.persistent_workers",
        "pin_memory": "data.loader.pin_memory",
        "non_blocking": "data.loader.non_blocking",
        "drop_last": "data.drop_last",
        "on_bad_image": "data.on_bad_image",
        "subset": "data.subset",
        "auto_augment": "data.augment.policy",
        "rand_ops": "data.augment.rand_ops",
        "rand_magnitude": "data.augment.rand_magnitude",
        "rand_magnitude_std": "data.augment.rand_magnitude_std",
        "rand_probability": "data.augment.rand_probability",
        "augment_repeats": "data.augment.repeats",
        "test_flip": "data.test_flip",
        "random_erasing": "data.augment.random_erasing",
        "mixup_alpha": "data.mix.mixup_alpha",
        "cutmix_alpha": "data.mix.cutmix_alpha",
    }
)
"""The keys of ``data`` in schema 1, in the order in which they stood there, and the dotted keys of today."""

EARLIER_KEYS: Mapping[str, str] = types.MappingProxyType(
    {f"data.{old}": new for old, new in FLAT_DATA.items() if f"data.{old}" != new}
)
"""Dotted keys of schema 1 → their present names."""

SHORT: Mapping[str, str] = types.MappingProxyType({old.removeprefix("data."): new for old, new in EARLIER_KEYS.items()})
"""The same without ``data.``. They stay as the short forms: ``workers`` or ``policy`` alone would say too little."""


LATER_KEYS = (
    "model.options",
    "model.pretrained",
    "optimizer.options",
    "optimizer.larc",
    "optimizer.min_trust_ratio",
    "optimizer.max_trust_ratio",
    "optimizer.nvlamb",
    "optimizer.pre_normalise",
    "optimizer.bias_correction",
    "loss_options",
    "metrics",
    "schedule.base_momentum",
    "schedule.max_momentum",
)
"""Keys outside ``data`` that did not exist when full runs were first named by the text of ``in_schema_1``."""


def migrated(values: Mapping[str, object]) -> dict[str, object]:
    """A stored configuration (``TrainConfig.to_dict`` of any version) with the keys of today.

    Keys of schema 1 are moved wherever they are met, as people also write such files by hand, without a version.
    Unknown keys are kept; the reader of the configuration refuses them. ``values`` is not changed.

    Raises:
        ConfigError: a key is there by its earlier and by its present name.
    """
    changed = dict(values)
    if "schema_version" in values:
        changed["schema_version"] = SCHEMA_VERSION
    data = values.get("data")
    if not isinstance(data, Mapping):
        return changed
    flat = [key for key, value in data.items() if f"data.{key}" in EARLIER_KEYS and not isinstance(value, Mapping)]
    new = {key: dict(value) if isinstance(value, Mapping) else value for key, value in data.items() if key not in flat}
    for old in flat:
        _, section, leaf = FLAT_DATA[old].split(".")
        target = new.setdefault(section, {})
        if not isinstance(target, dict) or leaf in target:
            raise ConfigError(
                f"a key is set once; got 'data.{old}', its earlier name, and {FLAT_DATA[old]!r}. Keep {FLAT_DATA[old]}."
            )
        target[leaf] = data[old]
    return {**changed, "data": new}


def in_schema_1(values: Mapping[str, object], defaults: Mapping[str, object]) -> dict[str, object]:
    """``values`` (``TrainConfig.to_dict``) as schema 1 would have written them, key for key in its order.

    Its text names the folders of full runs, which must be found again. A key that came later is in it only where it
    differs from its default: runs from before it existed had that.
    """
    data = {old: _at(values, new) for old, new in FLAT_DATA.items()}
    known = set(FLAT_DATA.values())
    sections = values["data"]
    for key in _dotted(sections, "data.") if isinstance(sections, Mapping) else ():
        if key not in known and (is_open(key) or _at(values, key) != _at(defaults, key)):
            data[key.removeprefix("data.")] = _at(values, key)
    return {**_without(values, LATER_KEYS, defaults), "schema_version": 1, "data": data}


def _without(values: Mapping[str, object], keys: Sequence[str], defaults: Mapping[str, object]) -> dict[str, object]:
    """``values`` without those of ``keys`` that have their defaults."""
    kept: dict[str, object] = dict(values)
    for key in keys:
        section, _, leaf = key.rpartition(".")
        if _at(values, key) != _at(defaults, key):
            continue
        if not section:
            del kept[leaf]
        elif isinstance(found := kept[section], Mapping):
            kept[section] = {name: value for name, value in found.items() if name != leaf}
    return kept


def _at(values: Mapping[str, object], key: str) -> object:
    found: object = values
    for part in key.split("."):
        if not isinstance(found, Mapping):
            raise KeyError(key)
        found = found[part]
    return found


def _dotted(values: Mapping[str, object], prefix: str) -> list[str]:
    found: list[str] = []
    for name, value in values.items():
        found += _dotted(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [prefix + name]
    return found
