"""``--fidelity``: cheap runs of a search's configurations, with fewer epochs, fewer images or smaller ones."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from bigbatch.search_spaces.priors import short_run_factor
from bigbatch.train_loop.config import ScheduleConfig, TrainConfig, last_step

SIZE = "image_size"
CHEAP_RUN = "ran to the end of its cheap run"
"""Why a cheap run has ended. It is PRUNED, so that it is never the best."""


@dataclass(frozen=True)
class Fidelity:
    """How cheap runs differ from full ones."""

    kind: str
    """``epochs``, ``subset`` or ``image_size``."""
    cheap: float
    full: float
    cheap_images: int
    """Training images of a cheap run."""
    full_images: int
    fixed: frozenset[str] = frozenset()
    """Keys of the configuration that ``--set`` fixes."""
    smaller_step: bool = False
    """See ``Workload.smaller_step``."""

    @property
    def text(self) -> str:
        """As on the command line: ``epochs=4``."""
        return f"{self.kind}={self.cheap:g}"

    def cheaper(self, config: TrainConfig) -> TrainConfig:
        """The cheap run of a configuration: the same but for its fidelity and what must follow it.

        With fewer epochs, warmup and steps of the schedule keep their share of the run. With fewer steps in all, LARS
        and LAMB take longer ones, as the space's prior says (``short_run_factor``), unless ``--set`` fixes them.
        """
        if self.kind == SIZE:
            share = self.cheap / self.full
            sizes = {"data.image_size": int(self.cheap)}
            if config.data.val_image_size:
                sizes["data.val_image_size"] = round(config.data.val_image_size * share)
            return config.replace_keys(sizes)
        if self.kind == "subset":
            cheap = config.replace_keys({"data.subset": self.cheap})
            if self.smaller_step:  # of fewer images others are left over
                cheap = last_step.with_smaller_step(cheap.replace_keys({last_step.KEY: True}), self.cheap_images)
            return self._longer_steps(config, cheap)
        share = self.cheap / self.full
        data = dataclasses.replace(
            config.data,
            progressive_start=round(config.data.progressive_start * share),
            progressive_end=round(config.data.progressive_end * share),
        )
        schedule = _shortened(config.schedule, share)
        return self._longer_steps(
            config, dataclasses.replace(config, epochs=int(self.cheap), schedule=schedule, data=data)
        )

    def _longer_steps(self, full: TrainConfig, cheap: TrainConfig) -> TrainConfig:
        name, batch = full.optimizer.name, full.batch.global_size
        key = {"lars": "optimizer.trust_coefficient", "lamb": "optimizer.peak_lr"}.get(name)
        if key is None or key in self.fixed:
            return cheap
        steps = [
            epochs * max(1, images // batch)
            for epochs, images in ((full.epochs, self.full_images), (cheap.epochs, self.cheap_images))
        ]
        times = short_run_factor(name, steps[1]) / short_run_factor(name, steps[0])
        value = getattr(full.optimizer, key.rpartition(".")[2]) * times
        return cheap.replace_keys({key: value})


@dataclass(frozen=True)
class FidelityPlan:
    """What ``--fidelity`` asks for."""

    runs: Fidelity
    first: int
    """Cheap runs."""
    trials: int
    """Full runs, of the best cheap ones."""

    def cost(self, epochs: int) -> tuple[int, int]:
        """Epochs and training images of all runs, if none is stopped. ``epochs``: of a full run."""
        cheap = int(self.runs.cheap) if self.runs.kind == "epochs" else epochs
        parts = ((self.first * cheap, self.runs.cheap_images), (self.trials * epochs, self.runs.full_images))
        return sum(part for part, _ in parts), sum(part * images for part, images in parts)

    def cost_in_words(self, epochs: int) -> str:
        """What all runs cost at most. ``epochs``: of a full run."""
        whole, images = self.cost(epochs)
        smaller = f" ({self.first * epochs:,} epochs at {self.runs.cheap:g} px)" if self.runs.kind == SIZE else ""
        return f"{whole:,} epochs = {images:,} training images{smaller}"

    def describe(self, open_ended: bool) -> str:
        """For the plan that is printed. ``open_ended``: a budget is the only limit."""
        cheap, full = (_IN_WORDS[self.runs.kind](value) for value in (self.runs.cheap, self.runs.full))
        if open_ended:
            return f"half of the budget for cheap runs, {cheap}; the rest for the best of them in full, {full}"
        return f"{self.first} cheap runs, {cheap}; then the best {self.trials} in full, {full}"


_IN_WORDS = {
    "epochs": lambda value: f"{value:g} epochs",
    "subset": lambda value: f"{100 * value:g} % of the training images",
    "image_size": lambda value: f"{value:g} px",
}


def _shortened(schedule: ScheduleConfig, share: float) -> ScheduleConfig:
    return dataclasses.replace(
        schedule,
        warmup_epochs=schedule.warmup_epochs * share,
        warmup_steps=round(schedule.warmup_steps * share),
        step_epochs=tuple(epoch * share for epoch in schedule.step_epochs),
    )
