"""The embedded digits: their split, their size, how they are moved."""

from collections.abc import Callable

import numpy as np
import torch
from PIL import Image

from bigbatch.train_loop.config import AugmentConfig, BatchSplit, DataConfig
from bigbatch.train_loop.data.catalogue import describe_data_set, open_data
from bigbatch.train_loop.data.sets import digits
from bigbatch.train_loop.data.source import DataSource, Epoch
from helpers.packed_sets import flat


def test_digits_split_is_stratified_and_covers_all() -> None:
    from sklearn.datasets import load_digits

    data, target = load_digits(return_X_y=True)
    pixels, labels = digits.load_scans()
    assert np.array_equal(labels, target) and np.array_equal(pixels.reshape(-1, 64) * 16, data)
    train, val = digits.split_rows(labels)
    assert (len(train), len(val)) == (1437, 360)
    assert sorted([*train.tolist(), *val.tolist()]) == list(range(1797))
    for count, held_out in zip(np.bincount(target), np.bincount(target[val]), strict=True):
        assert abs(held_out - count * 360 / 1797) < 1
    # The split never changes: results of two versions can be compared.
    assert (val[:6].tolist(), int(val.sum())) == ([3, 7, 8, 12, 15, 22], 305267)


def test_digits_info_matches_the_images(digits_source: DataSource) -> None:
    info = describe_data_set(DataConfig())
    assert info == digits_source.info
    labels = torch.cat([labels for _, labels in digits_source.val_batches(100, 0, 1)])
    train = flat(digits_source.train_batches(0, 0, BatchSplit(1, 1, 1437), 0))[0][1]
    assert (len(train), len(labels)) == (info.train_size, info.val_size)
    assert labels.unique().tolist() == [int(name) for name in info.class_names]
    assert (info.image_size, info.stem) == (32, "small_pool")
    assert describe_data_set(DataConfig(image_size=224)).stem == "imagenet"


def test_digits_are_enlarged_as_pillow_does(digits_source: DataSource) -> None:
    pixels, labels = digits.load_scans()
    val = digits.split_rows(labels)[1]
    images = next(digits_source.val_batches(50, 0, 1))[0]
    assert torch.equal(images[:, 0], images[:, 1]) and torch.equal(images[:, 0], images[:, 2])
    for image, row in zip(images, val, strict=False):
        reference = np.asarray(Image.fromarray(pixels[row, 0]).resize((32, 32), Image.Resampling.BILINEAR))
        restored = image[0].numpy() * digits.STD + digits.MEAN
        np.testing.assert_allclose(restored, reference, atol=1e-5)
    everything = pixels.astype(np.float64)
    assert abs(everything.mean() - digits.MEAN) < 1e-3 and abs(everything.std() - digits.STD) < 1e-3


def test_digits_are_moved_but_stay_themselves(digits_source: DataSource) -> None:
    plain = open_data(DataConfig(augment=AugmentConfig(enabled=False)))
    indices = [np.arange(200)]
    still = next(iter(plain.read_train(indices, Epoch(0, 0))))[0]
    assert torch.equal(still, next(iter(plain.read_train(indices, Epoch(0, 9))))[0])
    moved = next(iter(digits_source.read_train(indices, Epoch(0, 0))))[0]
    pairs = torch.stack((still[:, 0].flatten(1), moved[:, 0].flatten(1)), 1)
    likeness = torch.stack([torch.corrcoef(pair)[0, 1] for pair in pairs])
    mirrored = torch.stack((still[:, 0].flip(-1).flatten(1), moved[:, 0].flatten(1)), 1)
    flipped = torch.stack([torch.corrcoef(pair)[0, 1] for pair in mirrored])
    assert 0.6 < likeness.mean() < 0.999
    assert (likeness > flipped).float().mean() > 0.95  # symmetric 0, 1 and 8 may come out close


def draws(**chosen: float) -> torch.Tensor:
    names = ("right", "down", "turn", "grow")
    return torch.tensor([[(chosen.get(name, 0.0) + 1) / 2 for name in names]], dtype=torch.float64)


def test_affine_of_whole_pixels_and_right_angles() -> None:
    image = torch.rand(1, 2, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    bounds = digits.AffineRange(shift=0.25, degrees=90.0, scale=1.0)
    assert_close: Callable[[torch.Tensor, torch.Tensor], None] = torch.testing.assert_close
    assert_close(digits.random_affine(image, draws(), bounds), image)
    shifted = torch.zeros_like(image)
    shifted[..., 2:, 4:] = image[..., :-2, :-4]  # 4 right, 2 down
    assert_close(digits.random_affine(image, draws(right=1, down=0.5), bounds), shifted)
    assert_close(digits.random_affine(image, draws(turn=1), bounds), image.rot90(-1, (-2, -1)))
    doubled = torch.nn.functional.interpolate(image, scale_factor=2, mode="bilinear", align_corners=False)
    assert_close(digits.random_affine(image, draws(grow=1), bounds), doubled[..., 8:24, 8:24])
