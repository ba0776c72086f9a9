"""What was measured at one size: its file in the study's folder, and where its numbers come from."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bigbatch.base import json_values
from bigbatch.base.atomic_files import write_json
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.launch.options import PROFILES_FILE
from bigbatch.tune.runs import metrics
from bigbatch.tune.scaling.scale_plan import ScalePlan, SizePlan

SIZE_FILE = "size.json"
SIZE_VERSION = 1
SIZES_FOLDER = "sizes"


@dataclass(frozen=True)
class SizeResult:
    """One finished size. Times are seconds."""

    workers: int
    nodes: int
    kind: str
    """``serial``, ``multi-GPU`` (on CPUs ``multi-core``) or ``multi-node``."""
    device: str
    global_size: int
    accumulation_steps: int
    micro_size: int
    peak_lr: float
    steps_per_epoch: int
    step_s: float
    """Mean of the profiled steps."""
    data_s: float
    """The part of it that waits for images."""
    communication_s: float
    """The part of it that sums gradients and is not hidden; 0 for one worker."""
    profile_epoch_s: float
    """An epoch with its validation, estimated from the profile."""
    images_per_s: float
    """Of whole epochs of training; without training, of the profiled steps."""
    epoch_s: float
    """With validation and checkpoints: the median of training; without training, as ``profile_epoch_s``."""
    epochs: int
    """That were trained."""
    objective: float | None
    """After the last epoch. None: nothing was trained, or there is no such number."""
    noise_scale: float | None
    """Images; the median of the second half of the epochs. None: not measured."""
    searched: bool = False
    """Whether its configuration comes from a search at this size."""
    diverged: bool = False
    """Whether its loss became infinite or NaN. Its times are then those of the profile."""

    @property
    def communication_share(self) -> float:
        """Of a step, 0 to 1."""
        return self.communication_s / self.step_s

    @property
    def data_share(self) -> float:
        """Of a step, 0 to 1."""
        return self.data_s / self.step_s


def size_folder(output: Path, workers: int) -> Path:
    """The folder of a size."""
    return output / SIZES_FOLDER / str(workers)


def write_size(output: Path, result: SizeResult) -> None:
    """Write the file that says: this size is done."""
    values = {"schema_version": SIZE_VERSION, **dataclasses.asdict(result)}
    write_json(size_folder(output, result.workers) / SIZE_FILE, values, indent=2, durable=True)


def read_sizes(output: Path) -> list[SizeResult]:
    """All finished sizes of a folder, smallest first. Raises ConfigError for a damaged file."""
    paths = sorted((output / SIZES_FOLDER).glob(f"*/{SIZE_FILE}"))
    return sorted((_read_size(path) for path in paths), key=lambda one: one.workers)


def _read_size(path: Path) -> SizeResult:
    try:
        values = json.loads(path.read_text())
        if values.pop("schema_version") != SIZE_VERSION:
            raise ValueError("of another version")
        names = {field.name for field in dataclasses.fields(SizeResult)}
        return SizeResult(**{name: value for name, value in values.items() if name in names})
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"a finished size is a readable {SIZE_FILE}; got {str(path)!r} ({error}). Remove the file: the same "
            "command measures this size again."
        ) from None


def read_profile(folder: Path) -> dict[str, object] | None:
    """The last whole line of ``profile.jsonl`` in a folder; None without one."""
    try:
        lines = (folder / PROFILES_FILE).read_text().splitlines(keepends=True)
        # A process that was killed may have left half a line.
        whole = [line for line in lines if line.endswith("\n")]
        return json_values.json_object(whole[-1]) if whole else None
    except (OSError, ValueError):
        return None


def read_history(folder: Path) -> list[dict[str, object]]:
    """The records of a training's ``result.json``; empty before it has ended."""
    try:
        return json_values.objects(json_values.json_object((folder / "result.json").read_text()), "history")
    except (OSError, ValueError):
        return []


def collected(
    plan: ScalePlan,
    size: SizePlan,
    profile: Mapping[str, object],
    history: Sequence[Mapping[str, object]],
    *,
    searched: bool = False,
    diverged: bool = False,
) -> SizeResult:
    """One size from its profile and from the records of its training."""
    epochs = len(history)
    epoch_s = sum(json_values.number(profile, name) for name in ("train_s", "bn_s", "val_s"))
    phases = json_values.mapping(profile, "phases")
    later = history[1:] or history  # the first epoch also warms up
    return SizeResult(
        workers=size.workers,
        nodes=size.nodes,
        kind=size.kind,
        device=json_values.text(profile, "device"),
        global_size=json_values.whole_number(profile, "global_size"),
        accumulation_steps=json_values.whole_number(profile, "accumulation_steps"),
        micro_size=json_values.whole_number(profile, "micro_size"),
        peak_lr=size.config.optimizer.peak_lr,
        steps_per_epoch=json_values.whole_number(profile, "steps_per_epoch"),
        step_s=json_values.number(phases, "step"),
        data_s=json_values.number(phases, "data"),
        # The difference of two measured times may come out below 0.
        communication_s=max(0.0, json_values.number(phases, "communication")),
        profile_epoch_s=epoch_s,
        images_per_s=(
            statistics.median(json_values.number(record, "images_per_s") for record in later)
            if later
            else json_values.number(profile, "images_per_s")
        ),
        epoch_s=statistics.median(metrics.of_record(metrics.EPOCH_S, record) for record in later) if later else epoch_s,
        epochs=epochs,
        objective=_finite(plan.objective.final(history)) if history else None,
        noise_scale=typical_noise(history),
        searched=searched,
        diverged=diverged,
    )


def typical_noise(history: Sequence[Mapping[str, object]]) -> float | None:
    """The median noise scale of the second half of the epochs, in images: it grows while a network learns."""
    half = history[len(history) // 2 :]
    values = [value for record in half if (value := json_values.number_or_none(record, "noise_scale")) is not None]
    return statistics.median(values) if values else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
