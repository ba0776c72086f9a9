"""Image folders the usual way: torchvision's ``ImageFolder`` and transforms on Pillow, behind torch's DataLoader.

For comparison, and as a fallback (``data.loader.name=torchvision``). The same images make the same batches as with the
ring; crops and flips are drawn by torchvision, so they are others, but a function of (seed, epoch, index) too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms

from bigbatch.train_loop.config import DataConfig
from bigbatch.train_loop.data import sampling
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.train_loop.data.loading.counts import loader_workers
from bigbatch.train_loop.data.loading.loader import stand_in_places
from bigbatch.train_loop.data.pixels import boxes, crops
from bigbatch.train_loop.data.sets.keyed_source import Key, KeyedReader, KeyedSource
from bigbatch.train_loop.data.sets.scan import Listing
from bigbatch.train_loop.data.source import Batch, Epoch
from bigbatch.train_loop.errors import ImageError

Item = tuple[int, torch.Tensor, int] | tuple[int, ImageError]
"""Index, float ``[3, H, W]`` and label; or index and what is wrong."""
Collated = tuple[torch.Tensor | None, torch.Tensor | None, list[tuple[int, str]]]
"""A batch, None where nothing is left, and its bad images: index and what is wrong."""


class TorchvisionSource(KeyedSource[Item, Collated]):
    """Batches are float32 ``[N, 3, H, W]``, normalised in the loader processes."""

    def __init__(self, config: DataConfig, info: DataInfo, train: Listing, val: Listing) -> None:
        workers, size, val_size = loader_workers(config), info.image_size, config.val_image_size or info.image_size
        least, most = config.augment.min_crop_area, config.augment.max_crop_ratio
        crop = transforms.RandomResizedCrop(size, scale=(least, 1.0), ratio=(1 / most, most))
        random = [crop, transforms.RandomHorizontalFlip()]
        central = _central(size, config.val_crop)
        augmented = TorchvisionDataset(train, random if config.augment.enabled else central)
        super().__init__(
            info,
            workers,
            KeyedReader(augmented, _replace, config, workers),
            KeyedReader(TorchvisionDataset(val, _central(val_size, config.val_crop)), _leave_out, config, workers),
        )
        self._config, self._val_labels = config, val.labels

    def read_train(self, batches: Sequence[sampling.Indices], epoch: Epoch) -> Iterator[Batch]:
        """Augmented batches on the CPU: normalised floats ``[N, 3, size, size]``, and labels, int64 ``[N]``.

        Raises ImageError.
        """
        return self._read(False, batches, epoch)

    def read_val(self, batches: Sequence[sampling.Indices]) -> Iterator[Batch]:
        """Central crops on the CPU: normalised floats ``[N, 3, size, size]``, and labels, int64 ``[N]``.

        Raises ImageError.
        """
        return self._read(True, batches, Epoch(0, 0))

    def val_labels(self) -> sampling.Indices:
        """The classes of all validation images, int64 ``[N]``."""
        return self._val_labels

    def _read(self, validation: bool, batches: Sequence[sampling.Indices], epoch: Epoch) -> Iterator[Batch]:
        for images, labels, bad in self.read_collated(validation, batches, epoch):
            for index, message in bad:
                if self._config.on_bad_image == "fail":
                    raise ImageError(message)
                self.note_bad(validation, index, message)
            if images is not None and labels is not None:
                yield images, labels
            elif not validation:
                raise ImageError(f"no image of a batch of {len(bad)} can be read; the first: {bad[0][1]}")


def _central(size: int, part: float) -> list[object]:
    return [transforms.Resize(boxes.short_side(size, part)), transforms.CenterCrop(size)]


class TorchvisionDataset(Dataset[Item]):
    """One part of an image folder: each image cropped, as a normalised tensor ``[3, size, size]``, with its label."""

    def __init__(self, listing: Listing, crop: list[object]) -> None:
        self._listing = listing
        self._transform = transforms.Compose(
            [*crop, transforms.ToTensor(), transforms.Normalize(crops.MEAN, crops.STD)]
        )

    def __len__(self) -> int:
        return len(self._listing.labels)

    def __getitem__(self, key: Key) -> Item:
        try:
            image: Image.Image = crops.decode_rgb(self._listing.path(key[2]))
        except ImageError as error:
            return key[2], error
        with torch.random.fork_rng(devices=()):  # in this process they are the model's
            seed = int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "little")
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would also seed the GPUs, for dropout there
            return key[2], self._transform(image), int(self._listing.labels[key[2]])


def _replace(items: list[Item]) -> Collated:
    return _collate(items, validation=False)


def _leave_out(items: list[Item]) -> Collated:
    return _collate(items, validation=True)


def _collate(items: list[Item], validation: bool) -> Collated:
    bad = [(item[0], str(item[1])) for item in items if isinstance(item[1], ImageError)]
    read: list[tuple[int, torch.Tensor, int] | None] = [item if len(item) == 3 else None for item in items]
    kept = [
        next((found for i in stand_in_places(place, len(items), validation) if (found := read[i]) is not None), None)
        for place in range(len(items))
    ]
    whole = [item for item in kept if item is not None]
    if not whole:
        return None, None, bad
    return torch.stack([item[1] for item in whole]), torch.tensor([item[2] for item in whole]), bad
