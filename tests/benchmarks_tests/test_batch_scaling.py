"""What benchmarks/batch_scaling.py trains, repeats and reports; without training."""

import json
from pathlib import Path
from typing import Any

import batch_scaling as bench

from bigbatch.train_loop.config import TrainConfig


def row(config: TrainConfig, top1: float | None) -> dict[str, Any]:
    failed = None if top1 is not None else "loss is nan"
    values = {"key": bench.training_key(config), "batch": config.batch.global_size, "seed": config.seed}
    return values | {"holdout_top1": top1, "failed": failed, "config": config.to_dict()}


def test_what_is_finished_is_not_trained_again_and_a_cut_line_is(tmp_path: Path) -> None:
    o = bench.parse(["--folder", str(tmp_path), "--methods", "sgd_fixed", "sgd_linear", "--seeds", "1"])
    tasks = {bench.training_key(c): c for _, _, c in bench.wanted(o)}
    assert len(tasks) == 7, "both methods share the base batch"
    (done, *_), (cut, *_) = list(tasks.values())[:2], list(tasks.values())[1:]
    text = json.dumps(row(done, 0.9)) + "\n" + json.dumps(row(cut, 0.9))[:-20]
    (tmp_path / "trainings.jsonl").write_text(text)
    assert set(bench.finished(o)) == {bench.training_key(done)}
