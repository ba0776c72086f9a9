"""How long `make check` takes, and which of its stages takes how much of it.

    python benchmarks/check_time.py [--stages format lint …] [--jobs 2] [--limit-min 40] [--output FILE.json]

Runs the stages of `make check` one after the other, with the Makefile's own commands and this interpreter. Of each it
measures wall time and the CPU time of its processes, and takes the number of tests and the slowest of them from pytest.
CPU time says what a stage costs where others use the machine too; it leaves out processes that nobody waited for, such
as some of Ray's. Ends with 1 if a stage failed or all together took longer than the limit. Prints a table and, last,
one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OTHERS = ("coverage", "lowest")
"""Targets of the Makefile that may be measured too."""
SLOWEST = 15
"""Tests of which the time is kept; `make test` prints as many."""


def stages_of_check(makefile: str) -> list[str]:
    """The targets behind ``check:``. Raises ValueError where there is no such line."""
    found = re.search(r"^check:(.*)$", makefile, flags=re.MULTILINE)
    if found is None:
        raise ValueError("the Makefile has no target check")
    return found[1].split()


def run_stage(name: str, jobs: int) -> dict[str, Any]:
    """Run ``make NAME``, with its output on the terminal as well."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = ["make", "--no-print-directory", name, f"PYTHON={sys.executable}", f"JOBS={jobs}"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "stage": name,
        "exit_code": process.returncode,
        "wall_s": round(time.monotonic() - began, 1),
        "cpu_s": round(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, 1),
        **of_pytest("".join(lines)),
    }


def of_pytest(text: str) -> dict[str, Any]:
    """Numbers of tests by outcome and the slowest tests in seconds, of what pytest printed; empty of other output."""
    last = re.findall(r"^=* ?((?:\d+ [a-z]+, )*\d+ [a-z]+) in [\d.]+s", text, flags=re.MULTILINE)
    if not last:
        return {}
    counts = {word: int(number) for number, word in re.findall(r"(\d+) ([a-z]+)", last[-1])}
    slow = re.findall(r"^([\d.]+)s (call|setup|teardown) +(.+)", text, flags=re.MULTILINE)
    return {"tests": counts, "slowest_s": {f"{test} ({part})": float(s) for s, part, test in slow[:SLOWEST]}}


def report(stages: list[dict[str, Any]]) -> None:
    print(f"\n{'stage':12}{'wall':>10}{'CPU':>10}  tests")
    for stage in stages:
        tests = ", ".join(f"{number} {word}" for word, number in stage.get("tests", {}).items())
        failed = "" if stage["exit_code"] == 0 else f"  FAILED with {stage['exit_code']}"
        print(f"{stage['stage']:12}{stage['wall_s']:8.0f} s{stage['cpu_s']:8.0f} s  {tests}{failed}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    known = stages_of_check((ROOT / "Makefile").read_text())
    parser.add_argument("--stages", nargs="+", choices=[*known, *OTHERS], default=known, help="only these stages")
    parser.add_argument("--jobs", type=int, default=2, help="test processes at a time (default 2)")
    parser.add_argument("--limit-min", type=float, default=40, help="end with 1 beyond so many minutes (default 40)")
    parser.add_argument("--output", type=Path, help="store the result as JSON")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    stages = [run_stage(name, options.jobs) for name in options.stages]
    report(stages)
    total_s = sum(stage["wall_s"] for stage in stages)
    print(f"{'all':12}{total_s:8.0f} s  ({total_s / 60:.1f} min; at most {options.limit_min:g})")

    sys.path.insert(0, str(ROOT / "src"))
    from store import store

    from bigbatch.tune.storage.description import provenance

    result: dict[str, Any] = {
        "benchmark": "check_time",
        "cpus": len(os.sched_getaffinity(0)),
        "load_before": round(load, 2),
        "jobs": options.jobs,
        "total_s": round(total_s, 1),
        "limit_s": 60 * options.limit_min,
        "stages": stages,
    }
    store({**result, "provenance": provenance()}, options.output)
    short = [{key: stage[key] for key in ("stage", "exit_code", "wall_s", "cpu_s")} for stage in stages]
    print(json.dumps({**result, "stages": short}))
    return int(any(stage["exit_code"] for stage in stages) or total_s > result["limit_s"])


if __name__ == "__main__":
    raise SystemExit(main())
