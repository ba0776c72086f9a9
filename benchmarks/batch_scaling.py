"""Does a large batch keep its accuracy? Equal epochs, growing batch, five ways to set the hyperparameters.

    python benchmarks/batch_scaling.py [--data digits] [--batches 16 64 256 1024] [--seeds 1 2 3 4 5] [--jobs 2]
    python benchmarks/batch_scaling.py --data cifar10 --model resnet18 --epochs 40 --base-lr 0.1 \\
        --batches 128 512 2048 8192 --jobs 1        # on a GPU

Methods (``--methods``), all with the same network, data, epochs and precise BatchNorm:

  sgd_fixed   Nesterov SGD with the base batch's learning rate at every batch
  sgd_linear  the same with the rate in proportion to the batch (Goyal et al. 2017); both with warmup
  lars        recipe nus-lars-32k, its rate by its own square-root rule
  lamb        recipe lamb-32k, its rate by the square-root rule of its paper (You et al. 2020)
  found       what one search, ``python tune/run.py --space large_batch --batch B,B,…``, finds for each batch

The smallest batch is the base. Warmups keep their share of the run. The search is one for all batches, with twelve
trials a batch (``--trials``), and trains the three best of each batch again (``--confirm``). It uses seeds of its own:
``--search-seed`` for its trials, the next ones to confirm. The configuration that it finds at a batch is trained anew
with each of ``--seeds``.

The table counts ``holdout_top1``: the half of the validation images (``--holdout``) by which no search chose anything.

Resumable: each finished training is a line in ``FOLDER/trainings.jsonl``, and one whose configuration
is there is not repeated (sgd_fixed and sgd_linear share the base batch's). ``--parts`` does a part:
``search``, ``train``, ``report``. The report, of all methods, batches and seeds asked for that are there, goes to
``--output FILE.json`` with a plot beside it, FILE.svg. A training whose loss stops being finite counts as chance.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).resolve().parent)]

from batch_scaling_plot import svg  # noqa: E402
from store import store  # noqa: E402

from bigbatch.train_loop.config import DataConfig, TrainConfig  # noqa: E402
from bigbatch.train_loop.config.given import read_config, recipe_path  # noqa: E402
from bigbatch.train_loop.config.last_step import with_smaller_step  # noqa: E402
from bigbatch.train_loop.data.catalogue import describe_data_set  # noqa: E402
from bigbatch.tune.runs.confirm_rule import MOST_SEEDS  # noqa: E402
from bigbatch.tune.storage.description import git_state, provenance  # noqa: E402
from bigbatch.tune.storage.frontier_file import FRONTIER_FILE, config_file  # noqa: E402

METHODS = {
    "sgd_fixed": "SGD, the base batch's rate",
    "sgd_linear": "SGD, linear scaling and warmup",
    "lars": "LARS, published recipe",
    "lamb": "LAMB, published recipe",
    "found": "found by `--space large_batch`",
}
RECIPES = {"lars": "nus-lars-32k", "lamb": "lamb-32k"}
WARMUP = 0.2
"""Of SGD's run, as a share of its epochs; MLPerf has 5 % to 37 %, Goyal 6 %."""


def base_config(o: argparse.Namespace) -> TrainConfig:
    """SGD at the base batch."""
    size = {"data.image_size": o.image_size} if o.image_size else {}
    return TrainConfig(epochs=o.epochs).replace_keys(
        {
            **size,
            "model.name": o.model,
            "data.name": o.data,
            "data.loader.workers": o.loader_workers,
            "data.holdout": o.holdout,
            "data.subset": o.subset,
            "model.stem": o.stem,
            "batch.global_size": o.batches[0],
            "peak_lr": o.base_lr,
            "weight_decay": 5e-4,
            "label_smoothing": 0.1,
            "schedule.name": "poly",
            "schedule.warmup_epochs": WARMUP * o.epochs,
        }
    )


@functools.cache
def training_images(name: str, subset: float) -> int:
    return describe_data_set(DataConfig(name=name, subset=subset)).train_size


def configuration(method: str, batch: int, o: argparse.Namespace) -> TrainConfig:
    """What ``method`` trains at ``batch``; its seed is still to be set. Raises FileNotFoundError before a search.

    All methods train on the images that fill no global batch where a search would.
    """
    config = configuration_of(method, batch, o)
    return config if method == "found" else with_smaller_step(config, training_images(o.data, o.subset))


def configuration_of(method: str, batch: int, o: argparse.Namespace) -> TrainConfig:
    base = base_config(o)
    if method == "sgd_fixed":
        return base.replace_keys({"global_size": batch})
    if method == "sgd_linear":
        return base.replace_keys({"global_size": batch, "peak_lr": o.base_lr * batch / o.batches[0]})
    if method == "found":
        found = TrainConfig.from_json((search_folder(o) / config_file(batch)).read_text())
        data = dataclasses.replace(base.data, drop_last=found.data.drop_last)  # a path may be another one here
        return dataclasses.replace(found, data=data)
    recipe = read_config(recipe_path(RECIPES[method]))
    optimizer = dataclasses.replace(
        recipe.optimizer, peak_lr=recipe.optimizer.peak_lr * (batch / recipe.batch.global_size) ** 0.5
    )
    warmup = {"lars": 14 / 90, "lamb": 782 / 3519}[method]  # of the recipe's epochs, and of its steps
    schedule = dataclasses.replace(recipe.schedule, warmup_epochs=warmup * o.epochs, warmup_steps=0)
    return dataclasses.replace(
        base.replace_keys({"global_size": batch, "label_smoothing": recipe.label_smoothing}),
        optimizer=optimizer,
        schedule=schedule,
    )


# The search


def search_folder(o: argparse.Namespace) -> Path:
    batches = "-".join(map(str, o.batches))
    return Path(o.folder, f"search-{Path(o.data).name}-{batches}-seed{o.search_seed}").absolute()


def search(o: argparse.Namespace) -> None:
    """One search over all batches; resumes, or does nothing."""
    folder = search_folder(o)
    if (folder / "finished.json").exists():
        return
    command = [sys.executable, str(ROOT / "tune" / "run.py"), "--study", folder.name, "--output", str(folder.parent)]
    if (folder / "study.json").exists():
        command += ["--resume"]
    else:
        command += ["--space", "large_batch", "--data", o.data, "--model", o.model, "--max-epochs", str(o.epochs)]
        command += ["--batch", ",".join(map(str, o.batches)), "--trials", str(o.trials or 12 * len(o.batches))]
        command += ["--seed", str(o.search_seed), "--holdout", str(o.holdout), "--confirm", o.confirm]
        command += ["--set", f"model.stem={o.stem}", f"data.loader.workers={o.loader_workers}"]
        command += [f"image_size={o.image_size}"] * (o.image_size > 0)
        command += ["--subset", str(o.subset)] * (o.subset < 1)
    started = time.monotonic()
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": str(o.threads)})
    facts = {"wall_s": time.monotonic() - started, "command": [Path(w).name for w in command], "git": git_state(ROOT)}
    (folder / "finished.json").write_text(json.dumps(facts) + "\n")


# Trainings


def training_key(config: TrainConfig) -> str:
    return hashlib.sha256(config.to_json().encode()).hexdigest()[:16]


def set_up_process(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


def training(config: TrainConfig) -> dict[str, Any]:
    """One run to its end, in a process of its own."""
    from bigbatch.train_loop.errors import NonFiniteLossError
    from bigbatch.train_loop.loop.train import train
    from bigbatch.train_loop.reporter import ListReporter

    reporter, failed, started = ListReporter(), None, time.monotonic()
    try:
        train(config, reporter=reporter)
    except NonFiniteLossError as error:
        failed = str(error)
    last = reporter.records[-1] if reporter.records and not failed else None
    return {
        "key": training_key(config),
        "batch": config.batch.global_size,
        "seed": config.seed,
        "holdout_top1": last.holdout_top1 if last else None,
        "val_top1": last.val_top1 if last else None,
        "val_loss": last.val_loss if last else None,
        "train_loss": last.train_loss if last else None,
        "optimizer_steps": last.optimizer_steps if last else None,
        "failed": failed,
        "wall_s": time.monotonic() - started,
        "config": config.to_dict(),
    }


def finished(o: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The trainings that are there, by key. A last line that a kill cut off is passed over."""
    rows: dict[str, dict[str, Any]] = {}
    path = Path(o.folder, "trainings.jsonl")
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        rows[row["key"]] = row
    return rows


def wanted(o: argparse.Namespace) -> Iterator[tuple[str, int, TrainConfig]]:
    """Method, batch and configuration of each training asked for, large batches first: they are fast."""
    for seed in o.seeds:
        for batch in sorted(o.only_batches or o.batches, reverse=True):
            for method in o.methods:
                try:
                    config = configuration(method, batch, o)
                except FileNotFoundError:
                    print(f"{method} at batch {batch}: not searched yet", file=sys.stderr)
                    continue
                yield method, batch, dataclasses.replace(config, seed=seed)


def train_all(o: argparse.Namespace) -> None:
    done = finished(o)
    tasks = {training_key(config): config for _, _, config in wanted(o)}
    tasks = {key: config for key, config in tasks.items() if key not in done}
    path = Path(o.folder, "trainings.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    git = git_state(ROOT)
    with (
        ProcessPoolExecutor(o.jobs, get_context("spawn"), set_up_process, (o.threads,)) as pool,
        path.open("a") as file,
    ):
        print("\n" * bool(file.tell()), end="", file=file)  # after a line that a kill cut off
        for future in as_completed([pool.submit(training, config) for config in tasks.values()]):
            row = future.result() | {"git": git}
            print(json.dumps(row), file=file, flush=True)
            optimizer = row["config"]["optimizer"]
            result = row["failed"] or f"{row['holdout_top1']:.2%}"
            print(
                f"batch {row['batch']:>5} seed {row['seed']} {optimizer['name']:>4} lr {optimizer['peak_lr']:<8.4g} "
                f"{result}  {row['wall_s']:.0f} s",
                flush=True,
            )


# Report


def gather(o: argparse.Namespace) -> dict[str, dict[int, list[dict[str, Any]]]]:
    done = finished(o)
    table: dict[str, dict[int, list[dict[str, Any]]]] = {method: {} for method in o.methods}
    for method, batch, config in wanted(o):
        row = done.get(training_key(config))
        if row:
            table[method].setdefault(batch, []).append(row)
    return table


def summary(rows: list[dict[str, Any]], chance: float) -> dict[str, float]:
    """Of the holdout's top-1 in percent."""
    values = [100 * (chance if row["holdout_top1"] is None else row["holdout_top1"]) for row in rows]
    return {
        "mean": mean(values),
        "sd": stdev(values) if len(values) > 1 else 0.0,
        "min": min(values),
        "max": max(values),
        "n": len(values),
        "failed": sum(row["failed"] is not None for row in rows),
    }


def markdown(cells: dict[str, dict[int, dict[str, float]]], o: argparse.Namespace) -> str:
    """Top-1 on the holdout in percent, mean ± standard deviation over seeds; in brackets what is lost."""
    best = max((row[o.batches[0]]["mean"] for row in cells.values() if o.batches[0] in row), default=None)
    head = " | ".join(f"batch {batch:,}" for batch in o.batches)
    lines = [f"| holdout top-1, % | {head} |", "|---" * (len(o.batches) + 1) + "|"]
    for method, row in cells.items():
        words = []
        for batch in o.batches:
            c = row.get(batch)
            if c is None:
                words.append("–")
                continue
            lost = "" if best is None or batch == o.batches[0] else f" ({c['mean'] - best:+.1f})"
            spread = f" ± {c['sd']:.1f}" if c["n"] > 1 else ""
            n = "" if c["n"] == len(o.seeds) else f", n = {c['n']:g}"
            words.append(f"{c['mean']:.1f}{spread}{n}{lost}")
        lines.append(f"| {METHODS[method]} | {' | '.join(words)} |")
    return "\n".join(lines)


def report(o: argparse.Namespace) -> None:
    chance = 1 / describe_data_set(DataConfig(name=o.data)).num_classes
    rows = gather(o)
    cells = {m: {b: summary(r, chance) for b, r in by_batch.items()} for m, by_batch in rows.items() if by_batch}
    table = markdown(cells, o)
    print(table)
    if not o.output:
        return
    found, folder = {}, search_folder(o)
    if "found" in rows and (folder / "finished.json").exists():
        frontier = json.loads((folder / FRONTIER_FILE).read_text())
        found = {**json.loads((folder / "finished.json").read_text()), "frontier": frontier}
    result = {
        "benchmark": "batch_scaling",
        "settings": {k: v for k, v in vars(o).items() if k not in ("folder", "output", "parts")},
        "cpus": os.cpu_count(),
        "provenance": provenance(),
        "table": table,
        "cells": cells,
        "search": found,
        "trainings": rows,
    }
    store(result, o.output)
    counts = sorted({c["n"] for by_batch in cells.values() for c in by_batch.values()})
    seeds = " to ".join(str(n) for n in (counts if len(counts) < 3 else (counts[0], counts[-1])))
    title = f"{o.model} on {o.data}, {o.epochs} epochs, {seeds} seeds"
    o.output.with_suffix(".svg").write_text(svg(cells, METHODS, title))


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = p.add_argument
    add("--data", default="digits")
    add("--model", default="resnet18")
    add("--epochs", type=int, default=12)
    add("--batches", type=int, nargs="+", default=[16, 64, 256, 1024], help="the first is the base")
    add("--only-batches", type=int, nargs="+", help="train these alone")
    add("--base-lr", type=float, default=0.01, help="of SGD at the base batch")
    add("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    add("--search-seed", type=int, default=100, help="of the search's trials; those after it confirm")
    add("--trials", type=int, help="of the search (default: twelve a batch)")
    add("--confirm", default="3x3", help="how many of each batch's best trials, with how many fresh seeds")
    add("--holdout", type=float, default=0.5, help="part of the validation images that the table counts")
    add("--subset", type=float, default=1.0, help="part of the training images")
    add("--image-size", type=int, default=0, help="pixels a side; 0: the data set's own, 224 for a folder")
    add("--stem", default="auto", help="of the network, e.g. small_pool")
    add("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    add("--parts", nargs="+", default=["search", "train", "report"], choices=["search", "train", "report"])
    add("--jobs", type=int, default=2, help="trainings side by side")
    add("--threads", type=int, default=1, help="CPU threads of a training")
    add("--loader-workers", type=int, default=0)
    add("--folder", type=Path, default=Path("runs", "batch_scaling"), help="where finished trainings and searches are")
    add("--output", type=Path)
    o = p.parse_args(argv)
    if seen := set(o.seeds) & set(range(o.search_seed, o.search_seed + 1 + MOST_SEEDS)):
        p.error(
            f"a search must not see the seeds that judge it; it uses {o.search_seed} and the {MOST_SEEDS} after it, "
            f"and --seeds has {min(seen)}. Choose other --seeds, or another --search-seed."
        )
    if sorted(o.batches) != o.batches:
        p.error(f"--batches must rise; got {o.batches}")
    return o


def main() -> None:
    o = parse()
    if "search" in o.parts and "found" in o.methods:
        search(o)
    if "train" in o.parts:
        train_all(o)
    if "report" in o.parts:
        report(o)


if __name__ == "__main__":
    main()
