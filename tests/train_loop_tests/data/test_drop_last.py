"""``data.drop_last=false``: the images that fill no global batch make a smaller last step."""

from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from bigbatch.train_loop.config import BatchSplit
from bigbatch.train_loop.data import sampling
from bigbatch.train_loop.loop.train import TrainingStopped
from helpers.loop_references import run
from helpers.tiny_training import CONFIG, TRAIN_SIZE, StopsAt, TinySource, changed, install, plain_model, untimed

PLAIN = changed(CONFIG, drop_last=False, epochs=2, schedule__name="constant", momentum=0.0, nesterov=False,
                weight_decay=0.0, label_smoothing=0.0, precise_bn="off")  # fmt: skip


@pytest.mark.parametrize(
    ("size", "workers", "accumulation", "micro", "last"),
    [
        (1437, 2, 4, 16, 3),  # 29 images are left, in 8 micro-batches: 3 each, 5 left out
        (1437, 1, 1, 256, 157),
        (70, 1, 2, 8, 3),
        (1440, 3, 2, 16, 0),  # nothing is left
        (67, 1, 2, 8, 0),  # 3 images in 2 micro-batches: BatchNorm needs 2
    ],
)
@pytest.mark.parametrize("repeats", [1, 3])
def test_the_rest_of_an_epoch_is_a_step_of_equal_micro_batches(
    size: int, workers: int, accumulation: int, micro: int, last: int, repeats: int
) -> None:
    split = BatchSplit(workers, accumulation, micro)
    steps_of = partial(sampling.train_micro_batches, size, 7, 3, repeats=repeats)
    ranks = [list(steps_of(split, rank, drop_last=False)) for rank in range(workers)]
    whole = size // split.global_size
    assert {len(rank) for rank in ranks} == {whole + (last > 0)}
    for number, rank in enumerate(ranks):
        dropped = list(steps_of(split, number))
        assert np.array_equal(np.array(rank[:whole]), np.array(dropped))
        assert [len(indices) for step in rank[whole:] for indices in step] == [last] * (accumulation if last else 0)
    seen = Counter(int(i) for rank in ranks for step in rank for indices in step for i in indices)
    assert set(seen.values()) == {1}
    left_out = size - sum(seen.values())
    assert left_out == size - whole * split.global_size - last * workers * accumulation
    assert left_out < workers * accumulation or not last
    # The same images however the step is cut over ranks.
    whole_split = BatchSplit(1, workers * accumulation, micro)
    for step, micros in enumerate(steps_of(whole_split, 0, drop_last=False)):
        merged = [ranks[j % workers][step][j // workers] for j in range(workers * accumulation)]
        assert all(np.array_equal(a, b) for a, b in zip(micros, merged, strict=True))


def test_training_is_sgd_over_batches_of_both_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against steps on whole batches at once, in float64: 4 of 16 images and one of 6."""
    torch.manual_seed(PLAIN.seed)
    model = plain_model().double()
    images, labels = TinySource().train
    for epoch in range(PLAIN.epochs):
        order = torch.from_numpy(sampling.train_order(TRAIN_SIZE, PLAIN.seed, epoch))
        for rows in order.split(16):
            loss = torch.nn.functional.cross_entropy(model(images[rows].double()), labels[rows])
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                    parameter.sub_(PLAIN.optimizer.peak_lr * gradient)
    built = install(monkeypatch.setattr, plain_model)
    records = run(PLAIN)
    for mine, reference in zip(built.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine.detach().double(), reference.detach(), rtol=1e-3, atol=1e-5)
    assert [record.optimizer_steps for record in records] == [5, 10]


def test_a_resume_in_the_smaller_step_ends_alike(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = changed(CONFIG, drop_last=False)
    install(monkeypatch.setattr)
    whole = run(config)
    for stop in (4, 5):
        install(monkeypatch.setattr)
        with pytest.raises(TrainingStopped):
            run(config, reporter=StopsAt(stop), checkpoint_dir=tmp_path / str(stop))
        rest = run(config, checkpoint_dir=tmp_path / str(stop))
        assert untimed(rest) == untimed(whole)[-len(rest) :] and rest
