"""Everything here that needs a GPU, in order of value, within a time: tests, then benchmarks.

    make gpu                                   # the same as: python benchmarks/gpu.py --minutes 12
    python benchmarks/gpu.py --minutes 40 [--only tests optimizer_step] [--images IMAGES.tar] [--cifar10 CIFAR.tar.xz]
    python benchmarks/gpu.py --device cpu --tiny            # a dry run: the same command lines at tiny sizes
    python benchmarks/gpu.py --list

Says first whether there is a GPU. Then it runs, one after the other: the tests marked ``gpu``, a short step, searches
whose workers replay their steps and others that do not, and in what time is left the other benchmarks that have an arm
for a GPU (benchmarks/gpu_steps.py has the command lines). Each result is stored under --results as NAME_GPU.json when
its benchmark ends. What the time did not allow is listed. A later call with the same --folder goes
on there: a step that has passed at this commit on this device is not repeated (``--again`` repeats it), and a step
that was cut goes on where it can.

--cifar10: CIFAR-10 as an image folder or an archive of one (train/<class>/…, and val/ or test/).
Exit code: 0 when every step has passed; 1 where one failed; 2 without a GPU, or with wrong input; 75 where time was
too short; 130 after Ctrl-C. Steps that cannot run here are listed with the reason and change no exit code.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).resolve().parent)]

from gpu_steps import Settings, Step, steps  # noqa: E402

from bigbatch.tune.storage.description import git_state  # noqa: E402

NO_GPU, TRY_AGAIN, INTERRUPTED = 2, os.EX_TEMPFAIL, 130
GATHER_S = 90.0
"""Kept back for the report of a step that was cut: it reads what is there and trains nothing."""
STOP_S = 20.0
"""How long a step that is cut may take to end; it is killed then."""


@dataclass(frozen=True)
class Outcome:
    """How a step ended: ``passed``, ``failed`` or ``cut``; and what it was, to know it again."""

    name: str
    state: str
    seconds: float
    exit_code: int | None
    commit: str
    command: tuple[str, ...]


class State:
    """The outcomes so far, in ``steps.json``; written anew after each step. ``forget``: steps to run again."""

    def __init__(self, folder: Path, forget: Sequence[Step] = ()) -> None:
        self._path = folder / "steps.json"
        try:
            rows = json.loads(self._path.read_text())
        except (OSError, ValueError):
            rows = []
        known = (Outcome(**{**row, "command": tuple(row["command"])}) for row in rows)
        again = {step.name for step in forget}
        self._outcomes = {outcome.name: outcome for outcome in known if outcome.name not in again}

    def passed(self, step: Step, commit: str) -> bool:
        """Whether the same command has passed at the same commit, and its result is still there."""
        known = self._outcomes.get(step.name)
        same = known is not None and (known.state, known.commit, known.command) == ("passed", commit, step.command)
        return same and (step.result is None or step.result.exists())

    def add(self, outcome: Outcome) -> None:
        self._outcomes[outcome.name] = outcome
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps([asdict(o) for o in self._outcomes.values()], indent=1) + "\n")
        os.replace(partial, self._path)


def run_steps(
    wanted: Sequence[Step], state: State, folder: Path, commit: str, ends_at: float, now: Callable[[], float]
) -> dict[str, str]:
    """Run them in order until ``ends_at`` of the clock ``now``. What became of each: a state, or why it did not run."""
    said: dict[str, str] = {}
    for step in wanted:
        left = ends_at - now()
        if step.missing:
            said[step.name] = f"cannot run here: {step.missing}"
        elif state.passed(step, commit):
            said[step.name] = "passed before at this commit"
        elif left < 60 * step.least_minutes:
            said[step.name] = f"no time: it takes about {step.minutes:g} min, {max(0.0, left) / 60:.1f} min are left"
        else:
            limit = min(left, 60 * step.most_minutes)
            print(f"\n=== {step.name} (at most {limit / 60:.1f} min)\n{' '.join(step.command)}", flush=True)
            outcome = run_step(step, folder, commit, limit)
            state.add(outcome)
            said[step.name] = f"{outcome.state} after {outcome.seconds / 60:.1f} min"
    return said


def run_step(step: Step, folder: Path, commit: str, limit_s: float) -> Outcome:
    """Run one; its output goes to the screen and to ``NAME.log``. Ctrl-C ends it and is raised again."""
    began = time.monotonic()
    code = _run(step, step.command, folder, max(1.0, limit_s - (GATHER_S if step.gather else 0.0)))
    state = "cut" if code is None else "failed" if code else "passed"
    if step.gather and _run(step, step.gather, folder, GATHER_S) != 0:
        state = "failed" if state == "passed" else state
    return Outcome(step.name, state, time.monotonic() - began, code, commit, step.command)


def _run(step: Step, command: Sequence[str], folder: Path, limit_s: float) -> int | None:
    """The exit code; None where the command was cut. Nothing of it is left running."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **dict(step.environment)}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    log = folder / f"{step.name}.log"
    tee = subprocess.Popen(["tee", "-a", str(log)], stdin=process.stdout, start_new_session=True)
    try:
        return process.wait(timeout=limit_s)
    except subprocess.TimeoutExpired:
        print(f"{step.name}: the time is over", flush=True)
        return None
    finally:
        _end(process)
        assert process.stdout is not None
        process.stdout.close()
        tee.wait()


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the process and all that it started; SIGKILL to what is left then: a search first ends its cluster."""
    try:
        os.killpg(process.pid, signal.SIGTERM)
        until = time.monotonic() + STOP_S
        while time.monotonic() < until:
            process.poll()
            os.killpg(process.pid, 0)
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=STOP_S)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        return


# The machine


def gpu_name() -> str | None:
    """The first GPU as torch sees it, None where there is none. Asked in a process of its own: steps fork."""
    code = "import torch; print(torch.cuda.get_device_name(0) if torch.cuda.is_available() else '')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"error: torch must import; got: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout.strip() or None


def label_of(name: str) -> str:
    """``NVIDIA H200`` → ``h200``; ``NVIDIA A100-SXM4-80GB`` → ``a100-sxm4-80gb``."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower().replace("nvidia", "").replace("geforce", "")).strip("-") or "gpu"


def cifar10_folder(source: Path | None, folder: Path) -> Path | None:
    """An image folder with ``train/`` and ``val/`` of what was given. Raises SystemExit where it is none."""
    if source is None:
        return None
    found = source
    if source.is_file():
        found = folder / "cifar10"
        if not (found / "whole").exists():
            shutil.rmtree(found, ignore_errors=True)
            with tarfile.open(source) as archive:
                archive.extractall(found, filter="data")
            (found / "whole").touch()
        found = next((path.parent for path in sorted(found.glob("**/train")) if path.is_dir()), found)
    if (found / "test").is_dir() and not (found / "val").exists():
        linked = folder / "cifar10-parts"
        linked.mkdir(exist_ok=True)
        for name, part in (("train", "train"), ("val", "test")):
            if not (linked / name).exists():
                (linked / name).symlink_to((found / part).resolve(), target_is_directory=True)
        found = linked
    if not (found / "train").is_dir() or not (found / "val").is_dir():
        raise SystemExit(f"error: --cifar10 must hold train/ and val/ (or test/); got {source}")
    return found


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    add = parser.add_argument
    add("--minutes", type=float, default=12.0, help="of all steps together")
    add("--only", nargs="+", metavar="STEP", help="run these alone; --list names them")
    add("--list", action="store_true", help="print the steps, and end")
    add("--again", action="store_true", help="repeat steps that have passed")
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--tiny", action="store_true", help="tiny sizes, whose figures mean nothing")
    add("--images", type=Path, help="a tar or a folder of JPEGs for input_pipeline (default: generated)")
    add(
        "--cifar10",
        type=Path,
        help="CIFAR-10, for a search and batch_scaling: an image folder, or an archive of one",
    )
    add("--folder", type=Path, default=Path("runs", "gpu"), help="logs and what is not finished")
    add("--results", type=Path, default=ROOT / "benchmarks" / "results")
    o = parser.parse_args(argv)
    if o.minutes <= 0:
        parser.error(f"--minutes must be above 0; got {o.minutes:g}. Write e.g. --minutes 12.")
    if o.tiny and o.results == ROOT / "benchmarks" / "results":
        o.results = o.folder / "results"  # figures of tiny sizes are no results
    for option in ("images", "cifar10"):
        path = getattr(o, option)
        if path is not None and not path.exists():
            parser.error(f"--{option} must exist; got {str(path)!r}. Correct the path, or leave it out.")
    return o


def settings(o: argparse.Namespace, label: str) -> Settings:
    for folder in (o.folder, o.results):
        folder.mkdir(parents=True, exist_ok=True)
    folder = o.folder.resolve()
    images = o.images.resolve() if o.images else None
    cores = len(os.sched_getaffinity(0))
    return Settings(
        o.device, o.tiny, label, folder, o.results.resolve(), images, cifar10_folder(o.cifar10, folder), cores
    )


def chosen(every: Sequence[Step], only: Sequence[str] | None) -> list[Step]:
    unknown = set(only or ()) - {step.name for step in every}
    if unknown:
        raise SystemExit(
            f"error: --only takes names of steps; got {', '.join(sorted(unknown))}. "
            f"Write some of: {' '.join(step.name for step in every)}."
        )
    return [step for step in every if not only or step.name in only]


def main(argv: Sequence[str] | None = None) -> int:
    o = parse(argv)
    ends_at = time.monotonic() + 60 * o.minutes
    name = gpu_name()
    print(f"GPU: {name}" if name else "GPU: none that torch can use")
    if o.device == "cuda" and name is None and not o.list:
        print("error: these steps need a GPU; got none. Try the commands with --device cpu --tiny.", file=sys.stderr)
        return NO_GPU
    label = label_of(name) if o.device == "cuda" and name else f"{len(os.sched_getaffinity(0))}cpu"
    wanted = chosen(steps(settings(o, label)), o.only)
    if o.list:
        for step in wanted:
            print(f"{step.name:34}about {step.minutes:3g} min   {step.missing or ' '.join(step.command)}")
        return 0
    git = git_state(ROOT) or {}
    commit = f"{git.get('commit')}{' with changes' if git.get('dirty') else ''}"
    state = State(o.folder, forget=wanted if o.again else ())
    try:
        said = run_steps(wanted, state, o.folder, commit, ends_at, time.monotonic)
    except KeyboardInterrupt:
        print("\nInterrupted. Write the same command again to go on.", file=sys.stderr)
        return INTERRUPTED
    return report(said)


def report(said: dict[str, str]) -> int:
    """Print what became of each step. Returns the exit code."""
    print("\n=== steps")
    for name, what in said.items():
        print(f"{name:34}{what}")
    states = list(said.values())
    if any(what.startswith("failed") for what in states):
        return 1
    if any(what.startswith(("no time", "cut")) for what in states):
        print("The time was too short. Write the same command again to go on.")
        return TRY_AGAIN
    return 0


if __name__ == "__main__":
    sys.exit(main())
