"""TrivialAugment and RandAugment against torchvision's, operation by operation; and what they depend on."""

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from bigbatch.train_loop.config import AugmentConfig, BatchSplit, DataConfig, LoaderConfig
from bigbatch.train_loop.data.catalogue import open_data
from bigbatch.train_loop.data.pixels import auto_augment
from helpers.packed_sets import same, write_images

PIXELS = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8))


class Recorder:
    """Which operations torchvision applies, at which magnitudes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, float]] = []
        for kind in (v2.TrivialAugmentWide, v2.RandAugment):
            real = kind._apply_image_or_video_transform

            def apply(this, image, name, magnitude, *, real=real, **keywords):
                self.seen.append((name, magnitude))
                return real(this, image, name, magnitude, **keywords)

            monkeypatch.setattr(kind, "_apply_image_or_video_transform", apply)


def applied(config: AugmentConfig, key: object) -> torch.Tensor:
    out = PIXELS.clone()
    auto_augment.augment(out, random.Random(f"{key}"), config)
    return out


@pytest.mark.parametrize(
    ("policy", "reference"),
    [
        (AugmentConfig(policy="trivial"), lambda: v2.TrivialAugmentWide()),
        (AugmentConfig(policy="rand", rand_ops=2, rand_magnitude=9), lambda: v2.RandAugment(num_ops=2, magnitude=9)),
        (AugmentConfig(policy="rand", rand_ops=3, rand_magnitude=30), lambda: v2.RandAugment(num_ops=3, magnitude=30)),
    ],
)
def test_an_image_is_torchvisions_given_the_same_draws(policy: AugmentConfig, reference: Callable[[], object]) -> None:
    theirs, changed = reference(), 0
    for key in range(60):
        torch.manual_seed(random.Random(f"{key}").getrandbits(63))
        expected = np.array(theirs(Image.fromarray(PIXELS.numpy())))  # type: ignore[operator]
        assert np.array_equal(applied(policy, key).numpy(), expected)
        changed += not np.array_equal(expected, PIXELS.numpy())
    assert changed > 45


@pytest.mark.parametrize(("magnitude", "std"), [(6, 0.5), (7, 0.5), (10, 1.0)])
def test_magnitudes_are_distributed_as_timms(magnitude: int, std: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rand-m6-mstd0.5, rand-m7-mstd0.5 and at the upper bound, where both cut off."""
    timm = pytest.importorskip("timm.data.auto_augment")
    theirs: list[float] = []
    random.seed(0)
    operation = timm.AugmentOp("Brightness", prob=1.0, magnitude=magnitude, hparams={"magnitude_std": std})
    operation.level_fn = lambda level, hparams: theirs.append(level) or ()
    operation.aug_fn = lambda image, **keywords: image
    for _ in range(2000):
        operation(None)
    recorder = Recorder(monkeypatch)
    for key in range(1500):
        applied(AugmentConfig(policy="rand", rand_magnitude=3 * magnitude, rand_magnitude_std=3 * std), key)
    of_10 = dict.fromkeys(("Brightness", "Color", "Contrast", "Sharpness"), 0.09)
    of_10 |= {"Rotate": 3.0, "ShearX": 0.03, "ShearY": 0.03}
    mine = [abs(m) / of_10[name] for name, m in recorder.seen if name in of_10]
    error = std * (1 / len(mine) + 1 / len(theirs)) ** 0.5
    assert abs(np.mean(mine) - np.mean(theirs)) < 4 * error
    # Rounding to thirds adds a variance of 1/108.
    assert np.std(mine) == pytest.approx((np.var(theirs) + 1 / 108) ** 0.5, rel=0.08)
    assert max(mine) <= 10 + 1e-6 and len(set(np.round(mine, 3))) > 5
    if magnitude == 10:
        assert np.mean(np.isclose(mine, 10)) == pytest.approx(np.mean(np.array(theirs) > 10 - 1 / 6), abs=0.05)


def test_torchs_generator_stays_and_does_not_matter() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    for key in range(20):
        torch.manual_seed(1)
        first = applied(AugmentConfig(policy="trivial"), key)
        assert torch.equal(torch.rand(3), expected)
        torch.manual_seed(key + 5)
        assert torch.equal(first, applied(AugmentConfig(policy="trivial"), key))


@pytest.mark.parametrize("name", ["trivial", "rand"])
def test_training_images_have_it_whatever_the_processes(tmp_path: Path, name: str) -> None:
    """Through the loader: a policy on top of the crop that the image has without one."""
    images = write_images(tmp_path / "images")
    plain = DataConfig(name=str(images), image_size=16)
    config = dataclasses.replace(plain, augment=AugmentConfig(policy=name))
    split = BatchSplit(1, 1, 3)

    def batches(config: DataConfig) -> list[torch.Tensor]:
        return [step[0][0] for step in open_data(config).train_batches(3, 1, split, 0)]

    found = batches(config)
    for workers in (1, 2):
        assert same(found, batches(dataclasses.replace(config, loader=LoaderConfig(workers=workers))))
    assert not same(found, batches(plain))
    off = dataclasses.replace(config, augment=AugmentConfig(enabled=False, policy=name))
    plain_off = dataclasses.replace(plain, augment=AugmentConfig(enabled=False))
    assert same(batches(off), batches(plain_off))
    val = [next(open_data(c).val_batches(3, 0, 1))[0] for c in (plain, config)]
    assert torch.equal(*val)
