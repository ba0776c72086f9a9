"""Whether built-in models and images are as fast as in an earlier commit: both commits, by turns.

    python benchmarks/two_commits.py BEFORE [AFTER] [--rounds 5] [--images 160] [--output FILE.json]

Both are checked out beside each other and read the same generated images, with the packages of this environment. The
second round has them in the opposite order, and so on. Each figure is of a fresh process:

- **folder, packed**: CPU seconds that ``benchmarks/input_pipeline.py`` of that commit needs to read 1,000 images at 224
  px, from an image folder and from ``bigbatch pack --profile full``, without loader processes.
- **train**: processor seconds of ``bigbatch train``, Ray's included, for two epochs of ResNet-18 on digits (as root, by
  control group).
- **train_wall**: seconds of that command from its start to its end.
- **search_wall**: the same of a search of two trials of one epoch: what starts and ends a search costs.
- **first_step**: seconds from where that search begins to start Ray to its first trial's first step.
- **epochs**: seconds within the epochs of that run.
- **trial**: seconds that a trial costs beyond its training steps, by ``benchmarks/trial_overhead.py`` of that commit.

Prints the ratio AFTER / BEFORE of each round's medians: median and range. Below 1 is faster. The range of BEFORE alone
is the noise.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from processor_account import ProcessorAccount, open_account  # noqa: E402
from store import store  # noqa: E402

BATCH, PASSES, TRIALS, EPOCHS = 50, 3, 3, 4
READ = (
    "import json, sys; from pathlib import Path; from input_pipeline import measure, our_arm;"
    "path, skipped, passes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]);"
    f"print(json.dumps(measure(our_arm(Path(path), {BATCH}), 0, 0, passes + 1, skipped, 'cpu')))"
)
RUN = {"epochs": 2, "data": {"name": "digits"}, "model": {"name": "resnet18"}, "batch": {"global_size": 64}}
SEARCH = "--space smoke --trials 2 --max-epochs 1 --confirm none --output searches"
EPOCH_PARTS = ("train_s", "bn_s", "val_s", "checkpoint_s")


def check_out(commit: str, folder: Path) -> str:
    """The files of ``commit`` in ``folder``. Returns its whole name. Raises SystemExit if there is none."""
    found = subprocess.run(
        ["git", "rev-parse", "--verify", f"{commit}^{{commit}}"], cwd=ROOT, capture_output=True, text=True
    )
    if found.returncode:
        raise SystemExit(f"a commit of this repository is needed; got {commit!r}. See `git log --oneline`.")
    name = found.stdout.strip()
    folder.mkdir()
    archive = subprocess.Popen(["git", "archive", name], cwd=ROOT, stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", str(folder)], stdin=archive.stdout, check=True)
    if archive.wait():
        raise SystemExit(f"git archive {name} failed")
    return name


def output_of(checkout: Path, words: Sequence[str], cwd: Path, account: ProcessorAccount | None = None) -> str:
    """What Python prints there, with the package of that checkout. Raises SystemExit if it fails."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "TUNE_", "BIGBATCH_"))}
    environment["PYTHONPATH"] = f"{checkout / 'src'}{os.pathsep}{checkout / 'benchmarks'}"
    environment["OMP_NUM_THREADS"] = "1"
    words = [sys.executable, *words]
    words = account.counted(words) if account else words
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def measure(checkout: Path, images: Path, count: int) -> dict[str, float | None]:
    """All figures of one commit."""
    with tempfile.TemporaryDirectory(prefix="bigbatch-two-") as name:
        cwd = Path(name)
        found: dict[str, float | None] = {}
        for figure, part in (("folder", "images"), ("packed", "full")):
            words = ["-c", READ, str(images / part), str(count // BATCH), str(PASSES)]
            found[figure] = 1000 / float(output_of(checkout, words, cwd))
        account = open_account()
        (cwd / "config.json").write_text(json.dumps(RUN))
        words = ["-m", "bigbatch", "train", "--config", "config.json", "--output", "run"]
        began = time.monotonic()
        output_of(checkout, words, cwd, account)
        found["train_wall"] = time.monotonic() - began
        found["train"] = account.seconds() if account else None
        if account:
            account.close()
        history = json.loads((cwd / "run" / "result.json").read_text())["history"]
        found["epochs"] = sum(record[part] for record in history for part in EPOCH_PARTS)
        began = time.monotonic()
        output_of(checkout, ["-m", "bigbatch", "tune", *SEARCH.split()], cwd)
        found["search_wall"] = time.monotonic() - began
        ledger = json.loads(next(cwd.glob("searches/*/ledger/*.json")).read_text())
        found["first_step"] = ledger["ray_start_s"] + ledger["trial_start_s"]
        script = str(checkout / "benchmarks" / "trial_overhead.py")
        words = [script, "--arm", "ours", "--trials", str(TRIALS), "--epochs", str(EPOCHS)]
        rows = json.loads(output_of(checkout, words, cwd).strip().splitlines()[-1])
        found["trial"] = statistics.median(row["overhead_s"] for row in rows)
    return found


def write_images(folder: Path, count: int) -> None:
    """The image folder ``images`` and the packed set ``full``, as ``benchmarks/input_pipeline.py`` makes them."""
    from input_pipeline import pack_all, write_tree

    write_tree(argparse.Namespace(generate=count), folder / "images")
    pack_all(folder)


def compared(rounds: Sequence[dict[str, dict[str, float | None]]]) -> dict[str, dict[str, Any]]:
    """By figure: the ratios after / before of each round, their median and range, and the figures of both.

    ``noise``: the largest figure of ``before`` over the smallest. Figures that were not measured are left out.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in rounds[0]["before"]:
        pairs = [(one["before"][name], one["after"][name]) for one in rounds]
        known = [(before, after) for before, after in pairs if before and after]
        if len(known) < len(pairs):
            continue
        ratios = [after / before for before, after in known]
        before = [one for one, _ in known]
        found[name] = {
            "ratios": ratios,
            "median": statistics.median(ratios),
            "range": [min(ratios), max(ratios)],
            "before": statistics.median(before),
            "after": statistics.median(one for _, one in known),
            "noise": max(before) / min(before),
        }
    return found


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", metavar="BEFORE")
    parser.add_argument("after", metavar="AFTER", nargs="?", default="HEAD")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=160, help="of the data set that is made")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if options.rounds < 1 or options.images < 2 * BATCH:
        raise SystemExit(
            f"--rounds is 1 or more and --images {2 * BATCH} or more; got {options.rounds} and {options.images}."
        )
    from bigbatch.tune.storage.description import provenance

    with tempfile.TemporaryDirectory(prefix="bigbatch-commits-") as name:
        folder = Path(name)
        commits = {arm: check_out(getattr(options, arm), folder / arm) for arm in ("before", "after")}
        write_images(folder, options.images)
        rounds = []
        for number in range(options.rounds):
            order = ("before", "after") if number % 2 == 0 else ("after", "before")
            rounds.append({arm: measure(folder / arm, folder, options.images) for arm in order})
            print(f"round {number + 1} of {options.rounds}: {json.dumps(rounds[-1])}", flush=True)
    found = compared(rounds)
    print(f"{'after / before':16}{'median':>8}{'range':>16}{'before':>10}{'after':>10}{'noise':>8}")
    for figure, one in found.items():
        span = f"{one['range'][0]:.3f}–{one['range'][1]:.3f}"
        print(f"{figure:16}{one['median']:8.3f}{span:>16}{one['before']:10.2f}{one['after']:10.2f}{one['noise']:8.3f}")
    result = {
        "benchmark": "two_commits", "settings": {"rounds": options.rounds, "images": options.images},
        "commits": commits, "provenance": provenance(), "cpus": os.cpu_count(), "figures": found, "rounds": rounds,
    }  # fmt: skip
    store(result, options.output)
    print(json.dumps({"commits": commits, "figures": found}))


if __name__ == "__main__":
    main()
