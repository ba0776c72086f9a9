"""``train_loop/run.py`` as it is typed: real torchrun, really killed, and wrong input."""

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from bigbatch.cluster.host.allocation import usable_cpus
from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.launch.command import main
from bigbatch.train_loop.loop.train import train
from bigbatch.train_loop.reporter import EpochRecord, ListReporter
from helpers.commands import run, run_process
from helpers.paths import ROOT, TRAIN
from helpers.ranks import write_config
from helpers.searches import Search

EPOCHS = 24


@pytest.fixture
def best(tmp_path: Path, tiny_images: Path) -> Path:
    """A search's best.json: a small network with dropout, 2 steps an epoch of 4 micro-batches."""
    path = write_config(
        tmp_path, tiny_images, epochs=4, model__name="squeezenet1_1", data__image_size=32, batch__global_size=32,
        batch__micro_size=8, optimizer__peak_lr=0.005,
    )  # fmt: skip
    path.write_text(json.dumps({"value": 0.9, "trial": 3, "config": json.loads(path.read_text())}))
    return path


class OnTwoRanks(Search):
    program = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, TRAIN)


@pytest.fixture
def torchrun(best: Path, tmp_path: Path) -> Iterator[Callable[[], Search]]:
    """Start the full run on two ranks."""
    started: list[Search] = []
    words = ("--config", "best.json", "--set", f"epochs={EPOCHS}", "--output", "out", "--checkpoint-every-s", 0)

    def start() -> Search:
        started.append(OnTwoRanks(*words, cwd=tmp_path, OMP_NUM_THREADS="1"))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.kill_tree()


def epochs_in(lines: Sequence[str]) -> list[int]:
    return [int(match[1]) for line in lines if (match := re.match(r"epoch +(\d+)/", line))]


@pytest.mark.slow
@pytest.mark.without_ray
def test_killed_and_interrupted_run_ends_as_one_that_was_not(torchrun, best, tmp_path):
    """SIGKILL after some epochs, Ctrl-C after some more, then to the end."""
    killed = torchrun()
    killed.wait_for(f"epoch  3/{EPOCHS}")
    killed.kill_tree()
    killed.end()  # with epochs that went by before the signal came

    interrupted = torchrun()
    interrupted.wait_for(f"epoch {epochs_in(killed.lines)[-1] + 2:2}/{EPOCHS}")
    os.killpg(interrupted.process.pid, signal.SIGINT)
    assert interrupted.end() not in (0, 2)
    before, said, _ = interrupted.stderr().partition("To resume: repeat the command")
    assert said and "Traceback" not in before

    last = torchrun()
    assert last.end(300) == 0, last.stderr()
    reported = epochs_in(killed.lines + interrupted.lines + last.lines)
    # The checkpoint comes before the report: at the kill one line may be lost, none comes twice.
    assert reported == sorted(set(reported)) and len(reported) >= EPOCHS - 1
    compare_with_one_process(json.loads((tmp_path / "out" / "result.json").read_text()))


def compare_with_one_process(result: dict[str, Any]) -> None:
    """Same micro-batches on one worker: equal but for the order of float32 sums, over 48 steps."""
    config = TrainConfig.from_dict(result["config"])
    assert (config.epochs, result["record"]["workers"]) == (EPOCHS, 2)
    torch.set_num_threads(1)
    whole = train(config, reporter=ListReporter(), device=torch.device("cpu")).history
    resumed = [EpochRecord.from_dict(values) for values in result["history"]]
    assert [r.epoch for r in resumed] == list(range(1, EPOCHS + 1))
    assert [r.optimizer_steps for r in resumed] == [r.optimizer_steps for r in whole]
    assert [r.learning_rate for r in resumed] == [r.learning_rate for r in whole]
    for key in ("train_loss", "val_loss"):
        assert [getattr(r, key) for r in resumed] == pytest.approx([getattr(r, key) for r in whole], rel=1e-3), key
    assert result["record"] == result["history"][-1]
    best = max(resumed, key=lambda r: (r.val_top1, -r.epoch))
    assert result["best"] == {"epoch": best.epoch, "val_top1": best.val_top1, "val_loss": best.val_loss}
    assert len({r.resumed_from_epoch for r in resumed}) == 3


@pytest.fixture
def expect_refusal(tmp_path: Path) -> Callable[..., None]:
    """The command ends with one line and 2, and nothing was started or written."""

    def expect(argv: list[str], named: str, **env: str) -> None:
        before = sorted(tmp_path.rglob("*"))
        done = run(*argv, cwd=tmp_path, main=main, **env)
        assert done.returncode == 2
        assert named in done.stderr and done.stderr.count("\n") == 1 and "error: " in done.stderr
        assert done.stdout == "" and sorted(tmp_path.rglob("*")) == before

    return expect


BAD_INPUT = {
    "unknown key": ("--set epoch=3", "Did you mean 'epochs'?"),
    "value out of range": ("--set epochs=0", "epochs must be 1 to 100000; got 0"),
    "batch that exceeds the data": ("--set global_size=128", "64 training images"),
    "unknown network": ("--set model.name=resnet19", "resnet18"),
    "network left to the plan": ("--set model.name=auto", "--set model.name=resnet50"),
    "batch that does not divide": ("--workers 3", "batch.global_size must divide"),
    "workers": ("--workers 0", "--workers must be at least 1; got 0"),
    "cores": ("--set global_size=64 micro_size=1 --workers 64", f"at most {usable_cpus()}, the number of"),
    "data": ("--data nowhere/at/all", "the data path must exist as a folder; got 'nowhere/at/all'"),
    "data twice": ("--data digits --set data.name=digits", "set once"),
    "time": ("--checkpoint-every-s -1", "--checkpoint-every-s must not be negative; got -1"),
    "time that is none": ("--checkpoint-every-s nan", "--checkpoint-every-s must be finite; got nan"),
    "time without end": ("--checkpoint-every-s inf", "--checkpoint-every-s must be finite; got inf"),
    "option": ("--epoch 3", "no such option; got '--epoch'"),
    "output is a file": ("--output best.json", "--output must be a writable folder"),
    "output below a file": ("--output best.json/x", "--output must be a writable folder"),
    "output that nobody can make": ("--output /proc/bigbatch", "--output"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_wrong_input_is_one_line_and_2(case: str, best: Path, expect_refusal: Any) -> None:
    words, named = BAD_INPUT[case]
    expect_refusal(["--config", str(best), *words.split()], named)


def test_a_searchs_study_is_no_folder_for_a_run(best: Path, expect_refusal: Any) -> None:
    (best.parent / "study.json").write_text("{}")
    expect_refusal(["--config", str(best), "--output", "."], "a study's. Write --output OTHER.")


def test_unreadable_configuration_is_refused(tmp_path: Path, expect_refusal: Any) -> None:
    path = tmp_path / "c.json"
    expect_refusal(["--config", str(path)], "--config must be a readable file; got")
    expect_refusal(["--config", str(tmp_path)], "--config takes a file, or a study's folder with best.json; got")
    no_object = "a configuration is a JSON object"
    for content, named in (("{", "a configuration is JSON"), ("[1]", no_object), ('{"config": 3}', no_object)):
        path.write_text(content)
        expect_refusal(["--config", str(path)], named)


ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
"""torchrun's variables for one process."""


def test_a_rank_that_waited_for_another_says_that_it_ended(monkeypatch, best: Path) -> None:
    """In place of gloo's traceback: the other rank's message has the cause."""

    def lost(*_: object, **__: object) -> None:
        raise RuntimeError("[/pytorch/gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:10640")

    monkeypatch.setattr("bigbatch.train_loop.loop.train.train", lost)
    done = run("--config", best, "--output", "out", cwd=best.parent, main=main, **ALONE)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.endswith("failed: another worker has ended; its own message says why\n")


def test_workers_that_contradict_torchrun_are_refused(best, expect_refusal):
    argv, said = ["--config", str(best), "--workers", "4"], "torchrun started 2 workers; got --workers 4"
    expect_refusal(argv, said, **{**ALONE, "WORLD_SIZE": "2"})


def test_wrong_input_is_answered_from_any_folder_without_torch(tmp_path: Path) -> None:
    """Which modules were loaded is read from Python's own list of import times."""
    command = (sys.executable, "-X", "importtime", TRAIN, "--config", tmp_path / "none.json")
    done = run_process(*command, cwd=ROOT / "train_loop")
    lines = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    loaded = {line.split("|")[-1].strip().split(".")[0] for line in done.stderr.splitlines() if "|" in line}
    assert done.returncode == 2 and len(lines) == 1 and "none.json" in lines[0]
    assert "bigbatch" in loaded and not loaded & {"torch", "ray", "numpy"}
