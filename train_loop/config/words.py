"""Other words for configuration keys: the short forms of tables and papers, and advice for unknown keys."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence

from bigbatch.base.command_line import nearest_word

ALIASES: Mapping[str, str] = types.MappingProxyType(
    {
        "lr": "optimizer.peak_lr",
        "learning_rate": "optimizer.peak_lr",
        "wd": "optimizer.weight_decay",
        "warmup": "schedule.warmup_epochs",
        "smoothing": "label_smoothing",
        "batch": "batch.global_size",
        "batch_size": "batch.global_size",
        "global_batch": "batch.global_size",
        "global_batch_size": "batch.global_size",
        "augment": "data.augment.enabled",
        "auto_augment": "data.augment.policy",
        "rand_ops": "data.augment.rand_ops",
        "rand_magnitude": "data.augment.rand_magnitude",
        "rand_magnitude_std": "data.augment.rand_magnitude_std",
        "rand_probability": "data.augment.rand_probability",
        "augment_repeats": "data.augment.repeats",
        "random_erasing": "data.augment.random_erasing",
        "min_crop_area": "data.augment.min_crop_area",
        "max_crop_ratio": "data.augment.max_crop_ratio",
        "mixup_alpha": "data.mix.mixup_alpha",
        "cutmix_alpha": "data.mix.cutmix_alpha",
        "loader": "data.loader.name",
        "loader_workers": "data.loader.workers",
        "pin_memory": "data.loader.pin_memory",
    }
)
"""The one table of other names of a key: the words of the live table and the plan, the usual ones, and short forms of
keys with three parts, whose last part (``workers``, ``policy``) would say too little."""

SPACE_PARAMETERS: Mapping[str, tuple[str, str]] = types.MappingProxyType(
    {
        "lr_multiplier": ("lr", "peak learning rate"),
        "one_minus_momentum": ("momentum", "momentum"),
        "one_minus_beta1": ("beta1", "beta1"),
        "decoupled_weight_decay": ("weight_decay", "weight decay"),
    }
)
"""Parameters of the built-in spaces that are no keys, as ``bigbatch tune`` shows them; the key that each decides, and
what that is."""

EXPLAINED_WORDS = types.MappingProxyType(
    {
        "betas": "It is two keys: write beta1=0.9 and beta2=0.999.",
        "optimizer.betas": "It is two keys: write optimizer.beta1=0.9 and optimizer.beta2=0.999.",
        "top-1": "It is a result, not a setting: leave it out.",
        "workers": "It is no key: write --workers N.",
        "trials": "It is no key: write --trials N.",
        "num_workers": "Write data.loader.workers=N for processes that read images, --workers N for those that train.",
    }
)
"""Words that somebody may write for a key, and what to write."""


def unknown_key(key: str, keys: Sequence[str], short: Mapping[str, str], parameters: Sequence[str] = ()) -> str:
    """The message for a word that is no key: advice, or the nearest key.

    Args:
        keys: all dotted keys; ``short``: their short forms.
        parameters: of the search space in use.
    """
    got = f"no such configuration key; got {key!r}."
    leaf = key.rsplit(".", 1)[-1]
    if key in EXPLAINED_WORDS:
        return f"{got} {EXPLAINED_WORDS[key]}"
    if key in SPACE_PARAMETERS:
        other, what = SPACE_PARAMETERS[key]
        return f"{got} It is a parameter of some search spaces: write {other}=VALUE, the {what} itself."
    if "." in key:
        known = ALIASES.get(leaf) or ALIASES.get(key.replace(".", "_"))
        near = known or nearest_word(key, keys) or short.get(leaf)
    else:
        begin = [one for one in (*short, *parameters) if key.lower() in one.split("_") and len(key) > 2]
        near = nearest_word(key, [*short, *ALIASES, *parameters, *keys]) or (begin[0] if len(begin) == 1 else None)
    if near == key:  # a short form, in a file, which holds whole keys
        near = short.get(key) or ALIASES[key]
    if near:
        return f"{got} Did you mean {near!r}?"
    return f"{got} Write e.g. lr, batch, warmup or epochs; docs/training.md lists all keys."


def amount(number: object, noun: str) -> str:
    """``1 trial``, ``8 trials``."""
    return f"{number} {noun}{'s' * (number != 1)}"


def epochs_text(count: int) -> str:
    """``1 epoch``, ``1,200 epochs``."""
    return f"{count:,} epoch{'' if count == 1 else 's'}"
