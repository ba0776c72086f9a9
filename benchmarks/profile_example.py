"""The profile that docs/profiling.md shows: what ``bigbatch train --profile-steps 50`` prints, on digits.

    python benchmarks/profile_example.py --output benchmarks/results/profile_example_2cpu.json

It is an example of the table and no measure of a network: one process, as a user starts it. Stored are the printed
lines, the figures behind them (``profile.jsonl``) and the configuration.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from store import store  # noqa: E402

from bigbatch.train_loop.config import TrainConfig  # noqa: E402
from bigbatch.tune.storage.description import provenance  # noqa: E402


def configuration(global_size: int) -> TrainConfig:
    """ResNet-18 on digits with this batch, else the defaults."""
    default = TrainConfig()
    return dataclasses.replace(
        default,
        model=dataclasses.replace(default.model, name="resnet18"),
        data=dataclasses.replace(default.data, name="digits"),
        batch=dataclasses.replace(default.batch, global_size=global_size),
    )


def profile(config: TrainConfig, steps: int) -> tuple[list[str], dict[str, object]]:
    """The printed lines and the line of ``profile.jsonl``. Raises CalledProcessError if the command fails."""
    with tempfile.TemporaryDirectory(prefix="bigbatch-profile-") as home:
        file = Path(home, "config.json")
        file.write_text(config.to_json())
        words = ["train", "--config", str(file), "--profile-steps", str(steps), "--output", str(Path(home, "run"))]
        done = subprocess.run(
            [sys.executable, "-m", "bigbatch", *words], cwd=ROOT / "src", check=True, capture_output=True, text=True
        )
        figures: dict[str, object] = json.loads(Path(home, "run", "profile.jsonl").read_text())
        lines = done.stdout.partition("\nthe figures are in ")[0].rstrip().splitlines()  # a folder that is gone then
        return lines, figures


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    config, facts, load = configuration(options.batch), provenance(), os.getloadavg()[0]
    lines, figures = profile(config, options.steps)
    stored = {
        "benchmark": "profile_example", "cpus": os.cpu_count(), "load": load, "lines": lines, "figures": figures,
        "config": config.to_dict(), "provenance": facts,
    }  # fmt: skip
    store(stored, options.output)
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
