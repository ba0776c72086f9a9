"""A user's file with metrics, and one rank of a run that reports them: ``own_metrics.py FOLDER RANK WORKERS``."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

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


def main(folder: Path, rank: int, workers: int) -> None:
    """Train on this rank, and leave its records."""
    import torch
    import torch.distributed as dist

    from bigbatch.train_loop.config import TrainConfig
    from bigbatch.train_loop.loop import assembly
    from bigbatch.train_loop.loop.train import train
    from bigbatch.train_loop.reporter import ListReporter
    from helpers.point_net import PointNet

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=workers)
    assembly.build_model = lambda *_: PointNet()
    config, reporter = TrainConfig.from_json((folder / "config.json").read_text()), ListReporter()
    train(config, reporter=reporter, device=torch.device("cpu"))
    (folder / f"rank{rank}.json").write_text(json.dumps([record.to_dict() for record in reporter.records]))
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
