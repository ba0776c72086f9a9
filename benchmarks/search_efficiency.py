"""How many full runs a search needs: strategies replayed over recorded and invented learning curves.

    python benchmarks/search_efficiency.py --raw RUNS.jsonl [--curves FILE …] [--families wide projected]
        [--arms ours previous …] [--slots 8] [--seeds 16] [--processes 2] [--no-run] [--earlier RESULT.json]
        [--output FILE.json]

The unit is one **equivalent**: the slot hours of a mean whole run of the table. A search's **hit** is how many
equivalents are spent when the first row of the best hundredth has finished; a search that has none by the end of its
budget (``--budget`` equivalents) counts as 1.5 × the budget. **Regret** at 16, 24 and 40 equivalents is how much worse
than the table's best row the best finished run is, in points. A search ends at its hit, but not before 40 equivalents.

Of a family, each seed is a table of its own; a file of curves is the same table for all seeds. Each row is a median
over the seeds with a bootstrap interval (95 %, RESAMPLES draws). Ratios to random and to stock are ratios of medians,
resampled by seed. Regrets are also compared with those of ``previous`` seed by seed: the mean difference with its
interval, and how many searches were better and worse. There a regret counts as WORST points at most, also
that of a search that has finished nothing. ``search_arms.py`` says what the arms are. Small recorded runs are replayed
as if an epoch took ``--epoch-seconds`` (300), so that what a resume costs is in proportion.

Each finished search is appended to ``--raw`` at once; what is there is not run again, unless ``--without`` or
``--budget`` was another one. So the benchmark may be stopped at any moment, and continued later or with more arms; it
says how many of its searches are from other commits. ``--earlier`` also compares with the searches of a stored result,
seed by seed. Prints the tables and, last, one JSON line.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: the searches run side by side

import argparse  # noqa: E402
import json  # noqa: E402
import multiprocessing  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from collections.abc import Iterator, Mapping, Sequence  # noqa: E402
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from functools import cache  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from algoperf_curves import algoperf_table  # noqa: E402
from invented_curves import invented_table  # noqa: E402
from replay.curves import CurveTable  # noqa: E402
from replay.readers import read_curves  # noqa: E402
from replay.search import ReplayedEpoch  # noqa: E402
from search_arms import FIXED, run  # noqa: E402
from search_figures import (  # noqa: E402  # noqa: E402
    CUTS,
    against_earlier,
    against_table,
    earlier_table,
    early_table,
    early_values,
    markdown,
    overall,
    print_rows,
    summary,
)
from search_outcomes import outcome_of, regret_at, top_rows  # noqa: E402
from store import store  # noqa: E402

from bigbatch.tune.storage.description import git_state, provenance  # noqa: E402

FEW = 8
"""Invented tables of a family from which it is told how much early values say."""
SMALL_RUN_S = 3600.0
"""Tables whose mean run took less are replayed with epochs of ``--epoch-seconds``."""


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
                return _recorded(path, self.left_out(job.group), self.epoch_s)
        return invented_table(job.group, job.seed, self.rows)

    def left_out(self, group: str) -> tuple[str, ...]:
        """Those of ``without`` that a group's table has. An invented table keeps all of its parameters."""
        known = {name for path in self.files if group_of(path) == group for name in _parameters(path)}
        return tuple(name for name in self.without if name in known)


def group_of(path: Path) -> str:
    """The name of a file of curves in the result."""
    return path.resolve().name.split(".")[0]


def read_table(path: Path) -> CurveTable:
    """The curves of a file or a study: Parquet files are AlgoPerf's."""
    return algoperf_table(path) if path.suffix == ".parquet" else read_curves(path)


@cache
def _parameters(path: Path) -> frozenset[str]:
    return frozenset(name for curve in read_table(path).curves for name in curve.params)


@cache
def _recorded(path: Path, without: tuple[str, ...], epoch_s: float) -> CurveTable:
    table = read_table(path)
    if without:
        table = table.without(without)
    return table.at_epoch_s(epoch_s) if table.run_s < SMALL_RUN_S else table


def tables_of(group: str, sources: Sources) -> list[CurveTable]:
    """The group's table, or the first FEW of its invented ones."""
    recorded = any(group_of(path) == group for path in sources.files)
    return [sources.table(Job(group, "", 1, seed)) for seed in range(1 if recorded else FEW)]


def search(job: Job, sources: Sources) -> dict[str, Any]:
    """One simulated search, as a line of the raw file."""
    table = sources.table(job)
    eq_h, began = table.run_s / 3600, time.perf_counter()
    bar = min(table.objective.gain(table.curves[row].values[-1]) for row in top_rows(table))
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
        "without": list(sources.left_out(job.group)),
        "hit": None if outcome.hit_h is None else round(outcome.hit_h / eq_h, 3),
        "regret": {str(cut): round(table.scale * regret_at(table, outcome, cut * eq_h), 4) for cut in CUTS},
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
    done = {key_of(line): line for line in lines_of(raw) if fits(line, sources)}
    missing = [job for job in jobs if job.key not in done]
    print(f"{len(jobs) - len(missing)} searches are in {raw.name}, {len(missing)} are to run", flush=True)
    commit = (git_state(ROOT) or {}).get("commit")
    others = sum(done[job.key].get("commit") != commit for job in jobs if job.key in done)
    if others:
        print(f"{others} of those in {raw.name} are from other commits than {commit}", flush=True)
    with raw.open("a", encoding="utf-8") as file:
        for number, line in enumerate(_results(missing, sources, processes), start=1):
            done[key_of(line)] = line = {**line, "commit": commit}
            file.write(json.dumps(line) + "\n")
            file.flush()
            if number % 20 == 0:
                print(f"{number} of {len(missing)}", flush=True)
    return [line for key, line in done.items() if key in wanted]


def fits(line: Mapping[str, Any], sources: Sources) -> bool:
    """Whether a line of the raw file was made with these options. Older lines do not say what was left out."""
    left_out = list(sources.left_out(line["group"]))
    return line["budget"] == sources.budget and line.get("without", left_out) == left_out


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
    add("--first-seed", type=int, default=0, help="above 0: seeds that took no part in a choice")
    add("--rows", type=int, default=500, help="of an invented table")
    add("--budget", type=float, default=60.0, help="equivalents of a search")
    add("--without", nargs="*", default=[], help="parameters that follow from others, of the files that have them")
    add("--epoch-seconds", type=float, default=300.0)
    add("--processes", type=int, default=1)
    add("--raw", type=Path, required=True, help="JSON lines; continued where it exists")
    add("--earlier", type=Path, metavar="RESULT.json", help="a stored result of an earlier commit")
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
        for seed in range(args.first_seed, args.first_seed + args.seeds)
        for group in groups
        for arm in args.arms
    ]
    facts = provenance()
    if args.no_run:
        wanted = {job.key for job in jobs}
        lines = [line for line in lines_of(args.raw) if key_of(line) in wanted and fits(line, sources)]
    else:
        lines = run_missing(jobs, sources, args.raw, args.processes)
    rows = summary(lines)
    print_rows(rows)
    tables = {str(slots): markdown(rows, slots, groups) for slots in args.slots}
    against = {
        f"{arm}, {slots} slots": table
        for slots in args.slots
        for arm in args.arms
        if (table := against_table(rows, slots, arm, groups))
    }
    then = json.loads(args.earlier.read_text())["raw"] if args.earlier else []
    changes = against_earlier([line for line in then if fits(line, sources)], lines, groups)
    early = {group: early_values(tables_of(group, sources)) for group in groups}
    print("", *tables.values(), "", *against.values(), "", early_table(early), earlier_table(changes), sep="\n")
    figures = {"rows": rows, "overall": overall(rows, args.aside), "tables": tables, "against_previous": against}
    figures |= {"against_earlier": changes, "earlier_table": earlier_table(changes)} if args.earlier else {}
    figures |= {"early_values": early, "early_table": early_table(early)}
    result = {"provenance": facts, "budget": args.budget, **figures, "raw": lines}
    store(result, args.output)
    print(json.dumps({"overall": result["overall"]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
