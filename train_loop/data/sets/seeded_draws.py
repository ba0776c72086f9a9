"""Random draws of a user's code that repeat: Python's, NumPy's and torch's generators, seeded for a block."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def seeded_draws(*position: object) -> Iterator[None]:
    """Within the block the three global generators begin as a function of ``position`` alone; after it they go on as
    if the block had not been: in the training process they are the model's.

    Of torch it is the CPU's generator. Generators that the user's code makes by itself are its own matter.
    """
    digest = hashlib.blake2b(repr(position).encode(), digest_size=32).digest()
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(digest)
    np.random.seed(np.frombuffer(digest, np.uint32))
    torch.default_generator.manual_seed(int.from_bytes(digest[:8], "little"))
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
