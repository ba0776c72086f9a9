"""The facts of a study that a space may use to choose its ranges: data, network, workers, device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bigbatch.train_loop.config import BatchConfig, ConfigError, DataConfig, ModelConfig, TrainConfig, resolve_key


@dataclass(frozen=True)
class Workload:
    """The facts of one study."""

    data: str
    """A data set's name, the path of an image folder, or ``FILE.py:FUNCTION``."""
    train_size: int
    """Images in the training split."""
    num_classes: int
    """0: not known, of a data set of the user's own."""
    image_size: int
    """Pixels a side; 0: a data set of the user's own without square images."""
    model: str
    """A network's name, never ``auto``."""
    epochs: int
    """A trial trains at most this many epochs."""
    workers: int = 1
    """Data-parallel workers of one trial."""
    accelerator: str = "cpu"
    """``cpu`` or ``cuda``."""
    memory_bytes: int = 0
    """Device memory of one worker; 0 = unknown."""
    max_micro_size: int = 256
    """Images that one worker can hold in one forward pass; larger batches accumulate gradients."""
    lr_spread: float = 16.0
    """Rates are searched from 1/lr_spread to lr_spread times the centre; wider for an optimizer of the user's own."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Dotted keys with the values that ``--set`` gives to every configuration. They override the space."""
    batches: tuple[int, ...] = ()
    """The global batches that ``--batch`` names, smallest first. Empty: the space chooses them."""
    smaller_step: bool = True
    """Whether the images that fill no global batch make a smaller last step, if they are many
    (``train_loop.config.last_step``). False if ``--set`` or the space decides."""

    def config(self, changes: Mapping[str, object] | None = None) -> TrainConfig:
        """The TrainConfig of this workload, with ``changes`` (keys as in ``--set``) applied.

        A user's space ends with it: ``return workload.config({"peak_lr": lr})``.
        Raises ConfigError for unknown keys and impossible values.
        """
        keys: dict[str, object] = {}
        for key, value in (changes or {}).items():
            if resolve_key(key) in keys:
                raise ConfigError(f"a key is set once; got {resolve_key(key)!r} under two names. Keep one of them.")
            keys[resolve_key(key)] = value
        base = TrainConfig(
            epochs=self.epochs,
            model=ModelConfig(name=self.model),
            data=DataConfig(name=self.data, image_size=self.image_size),
            batch=BatchConfig(max_micro_size=self.max_micro_size),
        )
        return base.replace_keys({**keys, **self.fixed})
