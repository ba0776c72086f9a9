"""What a report costs: seconds to write it, its size, and until Chromium has drawn all of its figures.

    python benchmarks/report_time.py --trials 1000 --output benchmarks/results/report_time_2cpu.json

The study is invented (``tests/helpers/invented_studies.py``): real configurations of ``large_batch``, a curve of up
to 12 epochs each, and every way to end. It is written by ``bigbatch report`` in a process of its own, and opened from
the file in a new browser each time. Without Chromium only the writing is measured.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from store import store  # noqa: E402

from bigbatch.tune.study.provenance import package_version, provenance  # noqa: E402
from helpers.browser import chromium, opened_browser  # noqa: E402
from helpers.invented_studies import invented_study  # noqa: E402

WRITTEN_S, DRAWN_S, MOST_BYTES = 20.0, 3.0, 5_000_000
"""The targets, at 1,000 trials."""


def write(folder: Path) -> float:
    """Seconds of ``bigbatch report``, from the start of its process to its end."""
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "bigbatch", "report", str(folder)], cwd=ROOT / "src", check=True, capture_output=True
    )
    return time.perf_counter() - began


def draw(path: Path) -> tuple[float, int]:
    """Seconds from opening the page until its last figure is drawn, and how many there are."""
    with opened_browser() as page:
        drawn_ms = page.open(path)
        return drawn_ms / 1000, int(page.evaluate("document.documentElement.dataset.drawn"))


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
        "written_s": written,
        "drawn_s": [seconds for seconds, _ in drawn],
        "figures": drawn[0][1] if drawn else None,
        "bytes": size,
        "plotly": package_version("plotly"),
        "provenance": provenance(),
    }
    store(result, options.output)
    opened = f"drawn in {statistics.median(s for s, _ in drawn):.2f} s" if drawn else "no Chromium"
    print(f"{options.trials} trials: written in {statistics.median(written):.2f} s, {size / 1e6:.2f} MB, {opened}")


if __name__ == "__main__":
    main()
