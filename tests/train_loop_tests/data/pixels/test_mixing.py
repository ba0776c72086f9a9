"""Random erasing, mixup and cutmix against torchvision's, given the same draws; and what they depend on."""

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from bigbatch.train_loop.config import AugmentConfig, DataConfig, MixConfig
from bigbatch.train_loop.data.pixels import mixing
from helpers.loop_references import run
from helpers.operations import operations_of
from helpers.tiny_training import CONFIG, changed, install, untimed

IMAGES = torch.randn(6, 3, 24, 32, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 3, 1, 0])


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_mixup_is_torchvisions(share: float) -> None:
    reference = v2.MixUp(alpha=1.0, num_classes=4)
    images, labels = mixing.mixup(IMAGES, LABELS, 4, share)
    expected = reference.transform(IMAGES, {"lam": share, "labels": LABELS, "batch_size": 6})
    torch.testing.assert_close(images, expected)
    one_hot = torch.eye(4)[LABELS]
    torch.testing.assert_close(labels, share * one_hot + (1 - share) * one_hot.roll(1, 0))


def test_cutmix_is_torchvisions() -> None:
    reference = v2.CutMix(alpha=1.0, num_classes=4)
    for seed in range(20):
        torch.manual_seed(seed)
        params = reference.make_params([IMAGES])
        left, upper, right, lower = (int(v) for v in params["box"])
        expected = reference.transform(IMAGES, {**params, "labels": LABELS, "batch_size": 6})
        images, labels = mixing.cutmix(IMAGES, LABELS, 4, (upper, left, lower - upper, right - left))
        assert torch.equal(images, expected)
        one_hot, share = torch.eye(4)[LABELS], params["lam_adjusted"]
        torch.testing.assert_close(labels, share * one_hot + (1 - share) * one_hot.roll(1, 0))


def test_cutmix_rectangles_have_the_area_of_torchvisions() -> None:
    draws = np.random.default_rng(0)
    torch.manual_seed(0)
    reference = v2.CutMix(alpha=1.0, num_classes=4)
    theirs = [1 - reference.make_params([IMAGES])["lam_adjusted"] for _ in range(2000)]
    mine = []
    for _ in range(2000):
        centre = int(draws.integers(24)), int(draws.integers(32))
        _, _, height, width = mixing.centred_rectangle(24, 32, float(draws.beta(1, 1)), centre)
        mine.append(height * width / (24 * 32))
    assert np.abs(np.quantile(mine, [0.1, 0.5, 0.9]) - np.quantile(theirs, [0.1, 0.5, 0.9])).max() < 0.04


def test_erased_rectangles_are_distributed_as_torchvisions() -> None:
    image, draws = torch.zeros(3, 64, 64), np.random.default_rng(0)
    torch.manual_seed(0)
    rectangles = [mixing.draw_rectangle(64, 64, draws) for _ in range(2000)]
    theirs = [v2.RandomErasing(p=1).make_params([image]) for _ in range(2000)]
    for mine, name in ((2, "h"), (3, "w"), (0, "i"), (1, "j")):
        expected = np.quantile([p[name] for p in theirs if p["v"] is not None], [0.1, 0.5, 0.9])
        found = np.quantile([r[mine] for r in rectangles if r != mixing.NOWHERE], [0.1, 0.5, 0.9])
        assert np.abs(found - expected).max() <= 4, name  # pixels of 64


def test_a_batch_is_erased_at_once_and_keeps_its_place_in_memory() -> None:
    draws = np.random.default_rng(1)
    images = torch.randn(64, 3, 24, 32).contiguous(memory_format=torch.channels_last)
    drawn = [mixing.draw_rectangle(24, 32, draws) if number % 3 else mixing.NOWHERE for number in range(64)]
    want = images.numpy().copy()
    for image, rectangle in zip(want, drawn, strict=True):
        upper, left, height, width = rectangle
        image[:, upper : upper + height, left : left + width] = 0
    found = mixing.erase(images, drawn)
    assert np.array_equal(found.numpy(), want) and not np.array_equal(images.numpy(), want)
    assert found.is_contiguous(memory_format=torch.channels_last)
    few = operations_of(lambda: mixing.erase(images[:2], drawn[:2]))
    assert operations_of(lambda: mixing.erase(images, drawn)).total() == few.total() - 1  # which sliced


def test_draws_depend_on_the_position_alone() -> None:
    config = DataConfig(augment=AugmentConfig(random_erasing=0.5), mix=MixConfig(mixup_alpha=0.2, cutmix_alpha=1.0))
    first = mixing.mix(IMAGES, LABELS, 4, config, (1, 2, 3, 4))
    torch.manual_seed(5)
    again = mixing.mix(IMAGES, LABELS, 4, config, (1, 2, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], mixing.mix(IMAGES, LABELS, 4, config, (1, 2, 3, 5))[0])
    torch.testing.assert_close(first[1].sum(1), torch.ones(6))


def test_training_with_all_of_them_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = changed(CONFIG, data__augment__random_erasing=0.5, data__mix__mixup_alpha=0.2, data__mix__cutmix_alpha=1.0)
    records = []
    for config in (mixed, mixed, CONFIG):
        install(monkeypatch.setattr)
        records.append(untimed(run(config)))
    assert records[0] == records[1] != records[2]
