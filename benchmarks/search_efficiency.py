"""How many full runs a search needs: strategies replayed over recorded and invented learning curves.

    python benchmarks/search_efficiency.py --raw RUNS.jsonl [--curves FILE …] [--families wide projected]
        [--arms ours previous …] [--slots 8] [--seeds 16] [--processes 2] [--no-run] [--output FILE.json]

The unit is one **equivalent**: the slot hours of a mean whole run of the table. A search's **hit** is how many
equivalents are spent when the first row of the best hundredth has finished; a search that has none by the end of its
budget (``--budget`` equivalents) counts as 1.5 × the budget. **Regret** at 16, 24 and 40 equivalents is how much worse
than the table's best row the best finished run is, in points. A search ends at its hit, but not before 40 equivalents.

Of a family, each seed is a table of its own; a file of curves is the same table for all seeds. Each row is a median
over the seeds with a bootstrap interval (95 %, RESAMPLES draws). Ratios to random and to stock are ratios of medians,
resampled by seed. ``search_arms.py`` says what the arms are. Small recorded runs are replayed as if an epoch took
``--epoch-seconds`` (300), so that what a resume costs is in proportion.

Each finished search is appended to ``--raw`` at once; what is there is not run again. So the benchmark may be stopped
at any moment, and continued later or with more arms. Prints the tables and, last, one JSON line.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: the searches run side by side

import argparse  # noqa: E402
import json  # noqa: E402
import math  # noqa: E402
import multiprocessing  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from collections import defaultdict  # noqa: E402
from collections.abc import Callable, Iterator, Mapping, Sequence  # noqa: E402
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from functools import cache  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from search_arms import FIXED, run  # noqa: E402
from store import store  # noqa: E402

from bigbatch.tune.simulate import CurveTable, ReplayedEpoch, read_curves, synthetic_table  # noqa: E402
from bigbatch.tune.simulate.compare import MISSED, outcome_of, regret_at, unit_of  # noqa: E402
from bigbatch.tune.study.provenance import git_state, provenance  # noqa: E402

CUTS = (16, 24, 40)
"""Equivalents at which the regret is measured."""
RESAMPLES = 2000
SMALL_RUN_S = 3600.0
"""Tables whose mean run took less are replayed with epochs of ``--epoch-seconds``."""


NAMES = {
    "random": "random",
    "random_asha": "random, `--stopping asha`",
    "stock": "Ray's `OptunaSearch` and `ASHAScheduler`",
    "previous": "before: TPE, ASHA from a quarter",
    "ours": "`--strategy auto`",
    "bound_best_first": "bound: knows the table, best first",
    "bound_losers_stopped": "bound: random, losers stopped at a tenth",
}
"""Arms on the page of results."""


@dataclass(frozen=True)
class Job:
    """One simulated search."""

    group: str
    """A family, or the name of a file."""
    arm: str
    slots: int
    seed: int

    @property
    def key(self) -> tuple[str, str, int, int]:
        """What the raw file knows it by."""
        return (self.group, self.arm, self.slots, self.seed)


@dataclass(frozen=True)
class Sources:
    """Where tables come from."""

    files: tuple[Path, ...]
    without: tuple[str, ...]
    epoch_s: float
    rows: int
    """Of an invented table."""
    budget: float

    def table(self, job: Job) -> CurveTable:
        """The table that a job searches."""
        for path in self.files:
            if group_of(path) == job.group:
                return _recorded(path, self.without, self.epoch_s)
        return synthetic_table(job.group, job.seed, self.rows)


def group_of(path: Path) -> str:
    """The name of a file of curves in the result."""
    return path.resolve().name.split(".")[0]


@cache
def _recorded(path: Path, without: tuple[str, ...], epoch_s: float) -> CurveTable:
    table = read_curves([path])
    if without:
        table = table.without(without)
    return table.at_epoch_s(epoch_s) if table.run_s < SMALL_RUN_S else table


def search(job: Job, sources: Sources) -> dict[str, Any]:
    """One simulated search, as a line of the raw file."""
    table = sources.table(job)
    eq_h, began = table.run_s / 3600, time.perf_counter()
    bar = min(table.objective.gain(table.curves[row].values[-1]) for row in table.top)
    hit = False

    def enough(epoch: ReplayedEpoch) -> bool:
        nonlocal hit
        hit = hit or (epoch.finished and table.objective.gain(epoch.value or 0.0) >= bar)
        return hit and epoch.hours >= max(CUTS) * eq_h

    found = run(job.arm, table, job.slots, job.seed, sources.budget * eq_h, enough)
    outcome = outcome_of(table, found)
    decisions = found.decision_s or [0.0]
    return {
        "group": job.group,
        "arm": job.arm,
        "slots": job.slots,
        "seed": job.seed,
        "table": table.name,
        "budget": sources.budget,
        "hit": None if outcome.hit_h is None else round(outcome.hit_h / eq_h, 3),
        "regret": {str(cut): round(unit_of(table) * regret_at(table, outcome, cut * eq_h), 4) for cut in CUTS},
        "trials": outcome.trials,
        "finished": outcome.finished,
        "decision_ms": round(1000 * sum(decisions) / max(1, outcome.trials), 2),
        "decision_ms_p99": round(1000 * float(np.quantile(decisions, 0.99)), 2),
        "took_s": round(time.perf_counter() - began, 2),
    }


# Running


def run_missing(jobs: Sequence[Job], sources: Sources, raw: Path, processes: int) -> list[dict[str, Any]]:
    """Run what ``raw`` lacks, append each result to it, and return all of its lines for these jobs."""
    wanted = {job.key for job in jobs}
    done = {key_of(line): line for line in lines_of(raw) if line["budget"] == sources.budget}
    missing = [job for job in jobs if job.key not in done]
    print(f"{len(jobs) - len(missing)} searches are in {raw.name}, {len(missing)} are to run", flush=True)
    commit = (git_state(ROOT) or {}).get("commit")
    with raw.open("a", encoding="utf-8") as file:
        for number, line in enumerate(_results(missing, sources, processes), start=1):
            done[key_of(line)] = line
            file.write(json.dumps({**line, "commit": commit}) + "\n")
            file.flush()
            if number % 20 == 0:
                print(f"{number} of {len(missing)}", flush=True)
    return [line for key, line in done.items() if key in wanted]


def key_of(line: Mapping[str, Any]) -> tuple[str, str, int, int]:
    """The job of a line of the raw file."""
    return (line["group"], line["arm"], line["slots"], line["seed"])


def lines_of(raw: Path) -> list[dict[str, Any]]:
    """The lines of the raw file. The last one may be cut by a kill."""
    lines = []
    for text in raw.read_text(encoding="utf-8").splitlines() if raw.exists() else []:
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return lines


def _results(jobs: Sequence[Job], sources: Sources, processes: int) -> Iterator[dict[str, Any]]:
    if processes == 1:
        yield from (search(job, sources) for job in jobs)
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        waiting: set[Future[dict[str, Any]]] = {pool.submit(search, job, sources) for job in jobs}
        while waiting:
            ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in ended)


# Figures


def hits(lines: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Equivalents of each search, misses at MISSED × the budget."""
    return np.array([MISSED * line["budget"] if line["hit"] is None else line["hit"] for line in lines])


def bootstrap(columns: Sequence[np.ndarray], figure: Callable[..., float]) -> tuple[float, float, float]:
    """``figure`` of the columns, and its 95 % interval over resampled seeds. Columns of one length go together."""
    rng = np.random.default_rng(0)
    draws = []
    for _ in range(RESAMPLES):
        picks = rng.integers(len(columns[0]), size=len(columns[0]))
        draws.append(figure(*(column[picks] for column in columns)))
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(figure(*columns)), float(low), float(high)


def _median(values: np.ndarray) -> float:
    return float(np.median(values))


def _ratio(others: np.ndarray, ours: np.ndarray) -> float:
    return float(np.median(others) / np.median(ours))


def summary(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each group, number of slots and arm."""
    by: dict[tuple[str, int, str], list[Mapping[str, Any]]] = defaultdict(list)
    for line in sorted(lines, key=lambda line: line["seed"]):
        by[(line["group"], line["slots"], line["arm"])].append(line)
    rows = []
    for (group, slots, arm), own in by.items():
        row: dict[str, Any] = {"group": group, "slots": slots, "arm": arm, "searches": len(own)}
        row["hit"] = [round(v, 2) for v in bootstrap([hits(own)], _median)]
        row["missed"] = sum(line["hit"] is None for line in own)
        for cut in CUTS:
            regrets = np.array([line["regret"][str(cut)] for line in own])
            row[f"regret_{cut}"] = [round(v, 3) for v in bootstrap([regrets], _median)]
        for other in ("random", "stock"):
            paired = _paired(by.get((group, slots, other), []), own)
            if paired and arm != other:
                row[f"times_{other}"] = [round(v, 2) for v in bootstrap(paired, _ratio)]
        row["ms_a_trial"] = round(float(np.median([line["decision_ms"] for line in own])), 1)
        rows.append(row)
    return rows


def _paired(others: Sequence[Mapping[str, Any]], own: Sequence[Mapping[str, Any]]) -> list[np.ndarray]:
    """Hits of both with the same seeds; empty if they share none."""
    seeds = {line["seed"] for line in others} & {line["seed"] for line in own}
    if not seeds:
        return []
    return [hits([line for line in lines if line["seed"] in seeds]) for lines in (others, own)]


def overall(rows: Sequence[Mapping[str, Any]], aside: Sequence[str] = ()) -> list[dict[str, Any]]:
    """For each number of slots and arm, the geometric means over the groups of the ratios to random and to stock.

    Groups ``aside`` have means of their own. A mean is over the groups that have the ratio.
    """
    found = []
    for slots, arm, kept in sorted({(row["slots"], row["arm"], row["group"] in aside) for row in rows}):
        own = [r for r in rows if (r["slots"], r["arm"], r["group"] in aside) == (slots, arm, kept)]
        mean: dict[str, Any] = {"slots": slots, "arm": arm, "aside": kept, "groups": len(own)}
        for name in ("times_random", "times_stock"):
            logs = [math.log(row[name][0]) for row in own if name in row]
            if logs:
                mean[name] = round(math.exp(np.mean(logs)), 2)
        found.append(mean)
    return found


def markdown(rows: Sequence[Mapping[str, Any]], slots: int, groups: Sequence[str]) -> str:
    """Two tables for the page of results: hits, and regrets at CUTS, by arm and group."""
    own = {(row["arm"], row["group"]): row for row in rows if row["slots"] == slots}
    groups = [group for group in groups if any(key[1] == group for key in own)]
    arms = [arm for arm in FIXED if any((arm, group) in own for group in groups)]
    head = "".join(f" {group} |" for group in groups) + "\n|---|" + "---|" * len(groups)
    hit_lines = [f"| hit, {slots} slots |{head}"]
    regret_lines = [f"| regret at {', '.join(map(str, CUTS))} equivalents, {slots} slots |{head}"]
    for arm in arms:
        cells = [own.get((arm, group)) for group in groups]
        hit_lines.append(f"| {NAMES[arm]} | " + " | ".join(map(_hit_cell, cells)) + " |")
        regret_lines.append(f"| {NAMES[arm]} | " + " | ".join(map(_regret_cell, cells)) + " |")
    return "\n".join([*hit_lines, "", *regret_lines])


def _hit_cell(row: Mapping[str, Any] | None) -> str:
    """E.g. ``23 (15–31), × 2.6; 2 of 16 missed``: the median with its interval, and its ratio to random search."""
    if row is None:
        return "–"
    median, low, high = row["hit"]
    times = f", × {row['times_random'][0]:.1f}" if "times_random" in row else ""
    missed = f"; {row['missed']} of {row['searches']} missed" if row["missed"] else ""
    return f"{median:.0f} ({low:.0f}–{high:.0f}){times}{missed}"


def _regret_cell(row: Mapping[str, Any] | None) -> str:
    return "–" if row is None else " / ".join(f"{row[f'regret_{cut}'][0]:.2f}" for cut in CUTS)


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    for group, slots in dict.fromkeys((row["group"], row["slots"]) for row in rows):
        print(f"\n{group}, {slots} slots")
        print(f"{'arm':22} {'hit (equivalents)':>22} {'missed':>8} {'x random':>20} {'x stock':>20}", end="")
        print("".join(f"{f'regret at {cut}':>24}" for cut in CUTS) + f"{'ms':>8}")
        for row in (row for row in rows if (row["group"], row["slots"]) == (group, slots)):
            print(f"{row['arm']:22} {_words(row['hit']):>22} {row['missed']:>3} of {row['searches']:<2}", end="")
            print(f" {_words(row.get('times_random')):>20} {_words(row.get('times_stock')):>20}", end="")
            print("".join(f"{_words(row[f'regret_{cut}']):>24}" for cut in CUTS) + f"{row['ms_a_trial']:>8}")


def _words(figure: Sequence[float] | None) -> str:
    return "" if figure is None else f"{figure[0]:.3g} ({figure[1]:.3g}–{figure[2]:.3g})"


# The command


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = p.add_argument
    add("--curves", nargs="*", type=Path, default=[], help="files or studies")
    add("--families", nargs="*", default=["wide", "projected"], help="invented tables")
    add("--aside", nargs="*", default=["steps"], help="families and names of files on which nothing was chosen")
    add("--arms", nargs="+", default=list(FIXED), help="see search_arms.py; or STRATEGY+STOPPING")
    add("--slots", nargs="+", type=int, default=[8])
    add("--seeds", type=int, default=16)
    add("--rows", type=int, default=500, help="of an invented table")
    add("--budget", type=float, default=60.0, help="equivalents of a search")
    add("--without", nargs="*", default=[], help="parameters of files that follow from others")
    add("--epoch-seconds", type=float, default=300.0)
    add("--processes", type=int, default=1)
    add("--raw", type=Path, required=True, help="JSON lines; continued where it exists")
    add("--no-run", action="store_true", help="summarise what the raw file has")
    add("--output", type=Path)
    return p.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    sources = Sources(tuple(args.curves), tuple(args.without), args.epoch_seconds, args.rows, args.budget)
    groups = [*args.families, *map(group_of, args.curves)]
    jobs = [
        Job(group, arm, slots, seed)
        for slots in args.slots
        for seed in range(args.seeds)
        for group in groups
        for arm in args.arms
    ]
    facts = provenance()
    if args.no_run:
        wanted = {job.key for job in jobs}
        lines = [line for line in lines_of(args.raw) if key_of(line) in wanted and line["budget"] == args.budget]
    else:
        lines = run_missing(jobs, sources, args.raw, args.processes)
    rows = summary(lines)
    print_rows(rows)
    tables = {str(slots): markdown(rows, slots, groups) for slots in args.slots}
    print("", *tables.values(), sep="\n")
    figures = {"rows": rows, "overall": overall(rows, args.aside), "tables": tables}
    result = {"provenance": facts, "budget": args.budget, **figures, "raw": lines}
    store(result, args.output)
    print(json.dumps({"overall": result["overall"]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
