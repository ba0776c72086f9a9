"""A driver's W&B observer in a process of its own, which a test drives line by line and may kill.

Lines: ``start NUMBER EPOCHS`` (EPOCHS were trained by earlier attempts), ``epoch NUMBER EPOCH``, ``end NUMBER STATE``.
Each is answered by a line.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bigbatch.cluster.host.optuna_journal import State
from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.export.wandb_log import WandbObserver
from bigbatch.tune.runs.objectives import Objectives
from bigbatch.tune.runs.run import Run
from helpers.paths import ROOT
from helpers.processes import clean_environment
from helpers.recorded_studies import epoch_record, recorded_run

LEARNING_RATE = 0.375


def value_after(epoch: int) -> float:
    """Validation top-1."""
    return epoch / 100


class WandbWriter:
    """Use it with ``with``; what still runs at the end is killed."""

    def __init__(self, folder: Path, **env: str) -> None:
        environment = {**clean_environment(), "PYTHONPATH": str(ROOT / "tests"), **env}
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=folder,
        )  # fmt: skip

    def __enter__(self) -> WandbWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def tell(self, *words: object) -> None:
        """Send a line and wait until it is done."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print(*words, file=self.process.stdin, flush=True)
        assert self.process.stdout.readline() == "done\n"

    def whole_trial(self, number: int, epochs: int, state: str = "COMPLETE") -> None:
        """A trial from its start to its end."""
        self.tell("start", number, 0)
        for epoch in range(1, epochs + 1):
            self.tell("epoch", number, epoch)
        self.tell("end", number, state)

    def close(self) -> None:
        """Let the driver end in order."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(120) == 0

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait(120)


def write(folder: Path) -> None:
    """The process itself."""
    observer = WandbObserver("offline", folder.name, folder, Objectives())
    config = TrainConfig(epochs=9).replace_keys({"optimizer.peak_lr": LEARNING_RATE})
    trials: dict[int, Run] = {}
    for line in sys.stdin:
        what, number, last = line.split()
        if what == "start":
            past = [epoch_record(epoch, value_after(epoch)) for epoch in range(1, int(last) + 1)]
            trials[int(number)] = recorded_run(int(number), config, past, params={"rate": 0.5})
            observer.trial_started(trials[int(number)])
        elif what == "epoch":
            observer.epoch_ended(trials[int(number)], epoch_record(int(last), value_after(int(last))))
        else:
            trials[int(number)].state = State[last]
            observer.trial_ended(trials[int(number)])
        print("done", flush=True)
    observer.close()


if __name__ == "__main__":
    write(Path(sys.argv[1]))
