"""What a trial costs beyond its training steps, and what a report costs: this project against stock Ray.

    python benchmarks/trial_overhead.py [--rounds 3] [--trials 3] [--epochs 4] [--output FILE.json]

Both arms run the same trials: a worker that imports torch and torchvision and reports some empty
epochs. Arm ``stock`` is the documented pattern with its default settings: a Tune function that
builds a ``TorchTrainer`` with ``TuneReportCallback``. Arm ``ours`` is ``bigbatch.tune.trials.trial_run`` with the
environment that ``ray_session`` sets. The arms alternate A B A B, each in a fresh process with
a fresh local Ray, one trial at a time. Prints a table and, last, one JSON line.

Of each trial:
  placed_s     Tune decided to start it → the trial's function runs (process start or reuse)
  workers_s    → the training function runs on the worker (controller, placement, process starts,
               process group)
  imports_s    → torch and torchvision are imported there
  reports_s    → all epochs were seen by the driver, divided by their number: one report
  teardown_s   last epoch seen → Tune says that the trial is over
  overhead_s   all of it together but the reports
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))
PARTS = ("placed_s", "workers_s", "imports_s", "report_s", "teardown_s", "overhead_s")


def train_empty(task: dict[str, Any]) -> None:
    """The worker: imports what training imports, then reports empty epochs."""
    started = time.time()
    import torch  # noqa: F401
    import torchvision  # noqa: F401

    imported = time.time()
    import ray.train

    for epoch in range(1, task["epochs"] + 1):
        ray.train.report({"epoch": epoch, "worker_started": started, "imported": imported, "sent": time.time()})


def train_empty_and_say_so(task: dict[str, Any]) -> object:
    """The same, with the end by which our workers tell that they may train the next trial."""
    from bigbatch.train_loop.launch.trial_task import WorkersEnd

    train_empty(task)
    return WorkersEnd()


def stock_trial(task: dict[str, Any]) -> None:
    running = time.time()
    import ray.train
    import ray.tune
    from ray.train.torch import TorchTrainer
    from ray.tune.integration.ray_train import TuneReportCallback

    run = ray.train.RunConfig(
        name=ray.tune.get_context().get_trial_id(), storage_path=task["storage"], callbacks=[TuneReportCallback()]
    )
    scaling = ray.train.ScalingConfig(num_workers=1, resources_per_worker={"CPU": 1})
    Path(task["storage"], ray.tune.get_context().get_trial_id() + ".running").write_text(str(running))
    TorchTrainer(train_empty, train_loop_config=task, scaling_config=scaling, run_config=run).fit()


def our_trial(task: dict[str, Any]) -> None:
    running = time.time()
    import ray.train
    import ray.tune

    from bigbatch.train_loop.launch import trainer
    from bigbatch.train_loop.launch.trial_task import Restarts
    from bigbatch.tune.trials.trial_run import _ReportToTune

    trial_id = ray.tune.get_context().get_trial_id()
    Path(task["storage"], trial_id + ".running").write_text(str(running))
    callback = _ReportToTune(Restarts(0, 0))
    run = ray.train.RunConfig(name=trial_id, storage_path=task["storage"], callbacks=[callback])
    scaling = ray.train.ScalingConfig(num_workers=1, resources_per_worker={"CPU": 1})
    trainer.make_trainer(train_empty_and_say_so, task, scaling, run).fit()


def run_arm(arm: str, trials: int, epochs: int) -> list[dict[str, float]]:
    """One arm in this process: a fresh local Ray, trials one after the other."""
    import logging

    from bigbatch.train_loop.launch import ray_internals
    from bigbatch.train_loop.launch.ray_session import LocalRay

    folder = Path(tempfile.mkdtemp(prefix="bbo"))
    if arm == "stock":
        connection = _stock_ray()
    else:
        session = LocalRay(2, 0, folder / "ray.log")
        session.__enter__()
        connection = session
    logging.disable(logging.WARNING)
    import ray
    import ray.tune

    clock = _Clock(folder)
    if arm == "stock":
        trainable = ray.tune.with_resources(stock_trial, {"CPU": 0.1})
    else:
        from bigbatch.tune.trials.trial_run import _EndsItsWorkers

        our_trial.__mixins__ = (_EndsItsWorkers,)  # type: ignore[attr-defined]
        trainable = ray.tune.with_resources(our_trial, ray.tune.PlacementGroupFactory([{}, {"CPU": 1.0}]))
    tuner = ray.tune.Tuner(
        trainable,
        param_space={"number": ray.tune.grid_search(list(range(trials))), "epochs": epochs, "storage": str(folder)},
        tune_config=ray.tune.TuneConfig(max_concurrent_trials=1, reuse_actors=arm == "ours"),
        run_config=ray.tune.RunConfig(storage_path=str(folder), name="bench", callbacks=[clock], verbose=0),
    )
    with ray_internals.quick_start_of_trials() if arm == "ours" else contextlib.nullcontext():
        tuner.fit()
    if connection is None:
        ray.shutdown()
    else:
        connection.__exit__(None, None, None)
    return clock.rows(epochs)


def _stock_ray() -> None:
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=True, log_to_driver=False)


class _Clock:
    """A Tune callback that notes when the driver sees what; built lazily to keep Ray out of imports."""

    def __new__(cls, folder: Path) -> Any:
        import ray.tune

        class Clock(ray.tune.Callback):
            def __init__(self) -> None:
                self.seen: dict[str, dict[str, Any]] = {}

            def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
                self.seen[trial.trial_id] = {"start": time.time(), "epochs": []}

            def on_trial_result(
                self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: Any
            ) -> None:
                if "epoch" in result:
                    self.seen[trial.trial_id]["epochs"].append((time.time(), dict(result)))

            def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
                self.seen[trial.trial_id]["end"] = time.time()

            def rows(self, epochs: int) -> list[dict[str, float]]:
                return [_row(folder, name, facts, epochs) for name, facts in self.seen.items()]

        return Clock()


def _row(folder: Path, name: str, facts: dict[str, Any], epochs: int) -> dict[str, float]:
    running = float((folder / f"{name}.running").read_text())
    last_seen, result = facts["epochs"][-1]
    imported, worker = result["imported"], result["worker_started"]
    row = {
        "placed_s": running - facts["start"],
        "workers_s": worker - running,
        "imports_s": imported - worker,
        "report_s": (last_seen - imported) / epochs,
        "teardown_s": facts["end"] - last_seen,
    }
    return row | {"overhead_s": sum(v for k, v in row.items() if k != "report_s")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--arm", choices=("stock", "ours"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.arm:
        print(json.dumps(run_arm(options.arm, options.trials, options.epochs)))
        return
    raw: dict[str, list[list[dict[str, float]]]] = {"stock": [], "ours": []}
    for _ in range(options.rounds):
        for arm, rounds in raw.items():
            rounds.append(_subprocess(arm, options))
    _report(raw, options)


def _subprocess(arm: str, options: argparse.Namespace) -> list[dict[str, float]]:
    command = [sys.executable, __file__, "--arm", arm, "--trials", str(options.trials), "--epochs", str(options.epochs)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "TUNE_"))}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
    if done.returncode:
        raise SystemExit(f"arm {arm} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def _report(raw: dict[str, list[list[dict[str, float]]]], options: argparse.Namespace) -> None:
    from store import store

    from bigbatch.tune.storage.description import provenance

    print(f"{'median [min, max] of a trial, s':34}{'stock':>24}{'ours':>24}{'ours / stock':>16}")
    summary: dict[str, Any] = {}
    for part in PARTS:
        values = {arm: [row[part] for rows in rounds for row in rows] for arm, rounds in raw.items()}
        cells = {a: f"{statistics.median(v):.2f} [{min(v):.2f}, {max(v):.2f}]" for a, v in values.items()}
        ratio = statistics.median(values["ours"]) / max(1e-9, statistics.median(values["stock"]))
        summary[part] = {a: statistics.median(v) for a, v in values.items()} | {"ratio": ratio}
        print(f"{part:34}{cells['stock']:>24}{cells['ours']:>24}{ratio:>16.2f}")
    pairs = [
        statistics.median(r["overhead_s"] for r in ours) / statistics.median(r["overhead_s"] for r in stock)
        for stock, ours in zip(raw["stock"], raw["ours"], strict=True)
    ]
    print(f"overhead ratio, round by round: {', '.join(f'{p:.2f}' for p in pairs)}")
    settings = {name: getattr(options, name) for name in ("rounds", "trials", "epochs")}
    result = {
        "benchmark": "trial_overhead", "settings": settings, "provenance": provenance(), "cpus": os.cpu_count(),
        "median": summary, "round_ratios": pairs, "raw": raw,
    }  # fmt: skip
    store(result, options.output)
    print(json.dumps({"median": summary, "round_ratios": pairs}))


if __name__ == "__main__":
    main()
