"""``--batch``: the global batches to search. Standard library only, for login nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from bigbatch.search_spaces.check import ParamRange
from bigbatch.search_spaces.registry import Space
from bigbatch.search_spaces.trial import BATCH_KEY
from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.config import BatchConfig, ConfigError, divisible

UNITS = {"": 1, "k": 1024}
EXAMPLE = "Write e.g. --batch 8192 or --batch 2k,8k,32k (k = 1024)."


def parse_batches(text: str | None) -> tuple[int, ...]:
    """``8192`` → (8192,); ``2k,8k,32k`` → (2048, 8192, 32768), smallest first. None: empty. Raises ConfigError."""
    if text is None:
        return ()
    found = []
    for word in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*([kK]?)\s*", word)
        if re.fullmatch(r"\s*-\d.*", word):
            raise ConfigError(f"--batch must not be negative; got {text!r}. {EXAMPLE}")
        if not match or not int(match[1]):
            raise ConfigError(
                f"--batch takes numbers of images above 0, with commas between them; got {text!r}. {EXAMPLE}"
            )
        found.append(int(match[1]) * UNITS[match[2].lower()])
    twice = sorted({batch for batch in found if found.count(batch) > 1})
    if twice:
        raise ConfigError(f"--batch names each batch once; got {twice[0]} twice in {text!r}. Keep one of them.")
    return tuple(sorted(found))


def pinned_batch(batches: Sequence[int], overrides: Mapping[str, object]) -> dict[str, object]:
    """What ``--batch`` fixes: a single batch is as ``--set batch=…``. Raises ConfigError if that is given as well."""
    if batches and BATCH_KEY in overrides:
        raise ConfigError(
            f"the batch is given once; got --set {BATCH_KEY}={overrides[BATCH_KEY]} and --batch "
            f"{','.join(map(str, batches))}. Leave out one of them."
        )
    return {BATCH_KEY: batches[0]} if len(batches) == 1 else {}


def check_batches(batches: Sequence[int], workload: Workload) -> None:
    """Raise ConfigError for a batch that exceeds the training set or does not divide over the workers."""
    for batch in batches:
        if batch > workload.train_size:
            raise ConfigError(
                f"--batch must be at most the {workload.train_size:,} training images; got {batch}. "
                f"Write --batch {workload.train_size} or less."
            )
        if not divides(batch, workload):
            fix = divisible(batch, workload.workers, workload.max_micro_size)
            raise ConfigError(
                f"--batch must divide over the {workload.workers} workers of a trial, in equal micro-batches of 2 "
                f"images or more; got {batch}. Write e.g. --batch {fix}."
            )


def divides(batch: int, workload: Workload) -> bool:
    """Whether the workers of a trial can train this global batch."""
    try:
        BatchConfig(batch, max_micro_size=workload.max_micro_size).split(workload.workers)
    except ConfigError:
        return False
    return True


def check_batches_are_searched(space: Space, workload: Workload, ranges: Mapping[str, ParamRange]) -> None:
    """Raise ConfigError if ``--batch`` names several batches and the space does not search the batch."""
    if workload.batches and not any(space.key_of(name) == BATCH_KEY for name in ranges):
        raise ConfigError(
            f"--batch with several batches needs a space that searches the batch; got space {space.name!r}, which "
            f"does not. Write one batch, e.g. --batch {workload.batches[0]}."
        )
