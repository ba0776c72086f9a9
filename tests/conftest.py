"""Shared fixtures: commands run as a user runs them, tiny image data, no leftovers."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.processes import AS_URGENT_AS_OTHERS, clean_environment

# Before torch and numpy are loaded, here and in what tests start: on a busy machine threads that wait for each other
# cost more than they bring, sums depend on their number, and loader processes are forked from this one.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.update(AS_URGENT_AS_OTHERS)
# So that images are decoded in the training process unless a test asks for loader processes.
os.environ.setdefault("BIGBATCH_WORKER_CORES", "1")
# A shell starts what it puts into the background (&) with SIGINT ignored, and what the tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in a hook of its own
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which tests must not run side by side with `-n 2 --dist loadgroup`. Without pytest-xdist this says nothing.

    Tests of Slurm share one virtual cluster. Most slow tests start Ray with all cores and kill its processes: two of
    them at a time would wait for each other. Slow ones with a group of their own kill nothing, and run beside them.
    """
    for item in items:
        if item.get_closest_marker("xdist_group"):
            continue
        for marker, group in (("slurm", "slurm"), ("without_ray", ""), ("exhaustive", "ray"), ("slow", "ray")):
            if item.get_closest_marker(marker):
                if group:
                    item.add_marker(pytest.mark.xdist_group(group))
                break


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A run that hangs later, and is killed, prints no failures at its end: those on a GPU are printed at once."""
    if report.failed and "gpu" in report.keywords:
        print(f"\n{report.nodeid}\n{report.longreprtext}", flush=True)


@pytest.fixture(autouse=True, scope="session")
def _nobody_waits_for_the_disk() -> Iterator[None]:
    """No test cuts the power, and what a killed process has written stays: fsync would take half of a test's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(autouse=True)
def _runs_begin_without_a_collection(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run collects garbage first: half a second with all that pytest has loaded, ten times what a tiny run takes.

    Not so where a device's memory is to become free.
    """
    loaded = sys.modules.get("bigbatch.train_loop.loop.oom_retry")
    if loaded and not request.node.get_closest_marker("gpu"):
        monkeypatch.setattr(loaded, "gc", SimpleNamespace(**{**vars(gc), "collect": lambda: 0}))


@pytest.fixture
def run_command(tmp_path: Path):
    """Run a Python script of the repository; returns the finished process with its output."""

    def run(script: Path, *arguments: object, timeout_s: float = 240, cwd: Path | None = None, **env: str):
        words = [sys.executable, str(script), *map(str, arguments)]
        return subprocess.run(
            words, cwd=cwd or tmp_path, env={**clean_environment(), **env}, capture_output=True, text=True,
            timeout=timeout_s,
        )  # fmt: skip

    return run


@pytest.fixture(scope="session")
def tiny_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image folder that trains in a moment: 2 classes of coloured noise, 64 + 16 images of 16 px."""
    import numpy as np
    from PIL import Image

    root = tmp_path_factory.mktemp("tiny-images")
    rng = np.random.default_rng(0)
    for split, count in (("train", 32), ("val", 8)):
        for label, name in enumerate(("dark", "light")):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 128, (16, 16, 3)) + 120 * label
                Image.fromarray(pixels.astype("uint8")).save(folder / f"{i:03d}.png")
    return root


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 60 MB; skips where none may be mounted."""
    from helpers.small_disk import mounted

    with mounted() as folder:
        yield folder


# At these rates a run learns with every seed and on every CPU, so that a search of a few trials has an answer.
TINY_SPACE = '''
"""One learning rate, a few epochs of tiny images."""

def space(trial, workload):
    """Learning rate of SGD at batch 16."""
    lr = trial.suggest_float("peak_lr", 3e-2, 6e-2, log=True)
    return workload.config({"batch.global_size": 16, "optimizer": "sgd", "peak_lr": lr, "precise_bn": "on"})
'''


@pytest.fixture
def tiny_space(tmp_path: Path) -> Path:
    """A user's own space file, searching the learning rate alone."""
    path = tmp_path / "tiny_space.py"
    path.write_text(TINY_SPACE)
    return path
