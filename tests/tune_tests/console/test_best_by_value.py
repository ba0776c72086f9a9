"""The line of the live display with the best trial of each batch."""

from __future__ import annotations

import io
import random

from rich.console import Console

from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.console.display import LiveTable, SearchProgress, best_by_value
from bigbatch.tune.plan.search_plan import FrontierPlan
from bigbatch.tune.runs.observer import TrialView

BATCHES = FrontierPlan("global_batch_size", (128, 256, 1024))


def ended(number: int, batch: int, value: float, state: str = "COMPLETE") -> TrialView:
    records: list[dict[str, object]] = [{"epoch": 1, "val_top1": value}]
    return TrialView(number, {"global_batch_size": batch}, TrainConfig(epochs=1), state, records, "because")


def test_each_batch_has_its_best_finished_trial() -> None:
    confirmation = ended(4, 256, 0.99)
    confirmation.confirms = 1
    trials = [ended(0, 128, 0.9), ended(1, 256, 0.8), ended(2, 128, 0.95), ended(3, 1024, 0.97, "PRUNED"), confirmation]
    assert best_by_value(trials, BATCHES) == "best by batch: 128 95.0 % · 256 80.0 % · 1,024 –"


def test_the_line_is_never_wider_than_eighty_columns_and_keeps_the_largest_batches() -> None:
    rng = random.Random(1)
    for _ in range(200):
        values = tuple(sorted(rng.sample([2**k for k in range(5, 22)], rng.randint(2, 16))))
        trials = [ended(i, rng.choice(values), rng.random()) for i in range(rng.randint(0, 40))]
        width = rng.randint(45, 120)
        line = best_by_value(trials, FrontierPlan("global_batch_size", values), width)
        shown = [part for part in line.removeprefix("best by batch: ").split(" · ") if part != "…"]
        assert len(line) <= min(80, width)
        best: dict[object, float] = {}
        for trial in trials:
            value, batch = 100 * float(str(trial.records[0]["val_top1"])), trial.params["global_batch_size"]
            best[batch] = max(best.get(batch, 0.0), value)
        texts = [f"{v:,} " + (f"{best[v]:.1f} %" if v in best else "–") for v in values]
        assert shown == [text for text in texts if text in shown] and (len(shown) == len(values)) == ("…" not in line)
        if any(text.endswith("–") for text in shown):
            continue
        with_value = [text for text in texts if not text.endswith("–")]
        assert shown == with_value[len(with_value) - len(shown) :], "the smallest are left out"


def test_the_live_display_has_the_line_from_the_beginning_and_keeps_its_height() -> None:
    progress = SearchProgress(planned=4, concurrency=1, finished={}, frontier=BATCHES)
    display = LiveTable(progress, Console(file=io.StringIO(), width=80))

    def drawn() -> list[str]:
        console = Console(width=100, record=True, file=io.StringIO())
        console.print(display._draw())
        return console.export_text().splitlines()

    display.trial_started(ended(0, 256, 0.8, "RUNNING"))
    before = drawn()
    assert sum(line.startswith("best by batch: 128 – · 256 – ·") for line in before) == 1
    display.trial_ended(ended(0, 256, 0.8))
    after = drawn()
    assert "best by batch: 128 – · 256 80.0 % · 1,024 –" in [line.rstrip() for line in after]
    assert len(after) == len(before), "it does not jump"
    without = SearchProgress(4, 1, {}, frontier=FrontierPlan("global_batch_size", (256,)))
    display = LiveTable(without, Console(file=io.StringIO(), width=80))
    assert not any("best by" in line for line in drawn())
