"""What a report costs: seconds to write it, its size, and until Chromium has drawn all of its figures.

    python benchmarks/report_time.py --trials 1000 --output benchmarks/results/report_time_2cpu.json

The study is invented (``tests/helpers/invented_studies.py``): real configurations of ``large_batch``, a curve of up
to 12 epochs each, and every way to end. It is written by ``bigbatch report`` in a process of its own, and opened from
the file in a new browser each time. On a busy machine the processor's time says more than the wall clock. Without
Chromium only the writing is measured.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from store import store  # noqa: E402

from bigbatch.tune.storage.description import package_version, provenance  # noqa: E402
from helpers.browser import chromium, opened_browser  # noqa: E402
from helpers.invented_studies import invented_study  # noqa: E402

WRITTEN_S, DRAWN_S, MOST_BYTES = 20.0, 3.0, 5_000_000
"""The targets, at 1,000 trials."""


def write(folder: Path) -> tuple[float, float]:
    """Seconds of ``bigbatch report``, from the start of its process to its end, and of the processor's time."""
    began, used = time.perf_counter(), children_s()
    subprocess.run(
        [sys.executable, "-m", "bigbatch", "report", str(folder)], cwd=ROOT / "src", check=True, capture_output=True
    )
    return time.perf_counter() - began, children_s() - used


def children_s() -> float:
    """Seconds of processor time of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def draw(path: Path) -> tuple[float, float, int]:
    """Seconds from opening the page until its last figure is drawn, of its process's time, and how many there are."""
    with opened_browser() as page:
        page.send("Performance.enable")
        drawn_ms = page.open(path)
        metrics = {one["name"]: one["value"] for one in page.send("Performance.getMetrics")["metrics"]}
        figures = int(page.evaluate("document.documentElement.dataset.drawn"))
        return drawn_ms / 1000, metrics["ProcessTime"], figures


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bigbatch-report-") as home:
        folder = invented_study(Path(home) / "study", options.trials)
        written = [write(folder) for _ in range(options.repeats)]
        report = folder / "report.html"
        size = report.stat().st_size
        drawn = [draw(report) for _ in range(options.repeats)] if chromium() else []
    result = {
        "benchmark": "report_time",
        "trials": options.trials,
        "targets": {"written_s": WRITTEN_S, "drawn_s": DRAWN_S, "bytes": MOST_BYTES},
        "written_s": [seconds for seconds, _ in written],
        "written_cpu_s": [seconds for _, seconds in written],
        "drawn_s": [seconds for seconds, _, _ in drawn],
        "drawn_cpu_s": [seconds for _, seconds, _ in drawn],
        "figures": drawn[0][2] if drawn else None,
        "load": os.getloadavg()[0],
        "bytes": size,
        "plotly": package_version("plotly"),
        "provenance": provenance(),
    }
    store(result, options.output)
    opened = f"drawn in {middle(drawn, 0)} s ({middle(drawn, 1)} s CPU)" if drawn else "no Chromium"
    words = f"written in {middle(written, 0)} s ({middle(written, 1)} s CPU), {size / 1e6:.2f} MB, {opened}"
    print(f"{options.trials} trials: {words}")


def middle(rows: Sequence[Sequence[float]], place: int) -> str:
    """The median of a column."""
    return f"{statistics.median(row[place] for row in rows):.2f}"


if __name__ == "__main__":
    main()
