"""A user's file with metrics, and one rank of a run that reports them (``tiny_training.two_ranks``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.loop import assembly
from helpers.loop_references import run
from helpers.point_net import PointNet
from helpers.tiny_training import be_a_rank

METRICS = '''
import torch
import torchmetrics


class Balanced(torchmetrics.Metric):
    """The mean over classes of the part of right answers: no mean over examples."""

    def __init__(self):
        super().__init__()
        self.add_state("right", torch.zeros(2), dist_reduce_fx="sum")
        self.add_state("seen", torch.zeros(2), dist_reduce_fx="sum")

    def update(self, outputs, targets):
        for k in range(2):
            self.right[k] += (outputs.argmax(1)[targets == k] == k).sum()
            self.seen[k] += (targets == k).sum()

    def compute(self):
        return {"recall": (self.right / self.seen).mean(), "count": self.seen.sum()}


def margin(outputs, targets):
    return (outputs[:, 1] - outputs[:, 0]).abs()


def mean_margin(outputs, targets):
    return margin(outputs, targets).mean()


class Plain:
    def __init__(self):
        self.reset()

    def reset(self):
        self.count = 0

    def update(self, outputs, targets):
        self.count += len(targets)

    def compute(self):
        return self.count / 0.0 if self.count > 1000 else float("nan")


def wrong(outputs, targets):
    return torch.zeros(3, 3)


def several(outputs, targets):
    return {"one": 1.0, "other": 2.0}


def failing(outputs, targets):
    raise ValueError("no metric today")


def fussy(outputs, targets):
    """Does not take a constant: on one rank of one, and on the last rank of several."""
    last = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 1
    if last and (outputs == outputs[0]).all():
        raise ValueError("constant")
    return outputs[:, 0]
'''


def write_metrics(folder: Path) -> str:
    """Write the file; its path."""
    file = folder / "own_metrics_file.py"
    file.write_text(METRICS)
    return str(file)


def case_own_metrics(folder: Path, rank: int) -> dict[str, Any]:
    """Train on this rank; its records."""
    assembly.build_model = lambda *_: PointNet()
    config = TrainConfig.from_json((folder / "config.json").read_text())
    return {"records": [record.to_dict() for record in run(config)]}


if __name__ == "__main__":
    be_a_rank({"own_metrics": case_own_metrics})
