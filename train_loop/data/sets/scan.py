"""List an image folder ``train/<class>/*.jpg`` and ``val/<class>/*.jpg``. No torch; opens no image."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bigbatch.cluster.host.atomic_files import replacing
from bigbatch.train_loop.config import ConfigError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
TRAIN_FOLDERS = ("train",)
VAL_FOLDERS = ("val", "validation", "valid", "test")


@dataclass(frozen=True)
class Listing:
    """The images of one part, in the order of their class and path."""

    folder: str
    paths: npt.NDArray[np.bytes_]
    """Relative to ``folder``. One array, as a list of a million strings would be copied, page by
    page, into every loader process when their reference counts change."""
    labels: npt.NDArray[np.int64]

    def path(self, index: int) -> str:
        """The whole path of an image."""
        return os.path.join(self.folder, os.fsdecode(bytes(self.paths[index])))


@dataclass(frozen=True)
class FolderScan:
    """All images of an image folder. It is handed on, because to list a large folder again may take minutes."""

    root: str
    class_names: tuple[str, ...]
    train: Listing
    val: Listing

    def write(self, path: Path) -> None:
        """For processes that are started later, on any node that sees ``path``. Raises OSError."""
        names = np.array([os.fsencode(name) for name in self.class_names])
        with replacing(path) as file:
            np.savez_compressed(
                file,
                folders=np.array([os.fsencode(f) for f in (self.root, self.train.folder, self.val.folder)]),
                class_names=names,
                train_paths=self.train.paths,
                train_labels=self.train.labels,
                val_paths=self.val.paths,
                val_labels=self.val.labels,
            )

    @classmethod
    def read(cls, path: Path) -> FolderScan | None:
        """What ``write`` wrote; None where there is no such file, or it cannot be read."""
        try:
            with np.load(path, allow_pickle=False) as found:
                root, train, val = (os.fsdecode(bytes(folder)) for folder in found["folders"])
                return cls(
                    root,
                    tuple(os.fsdecode(bytes(name)) for name in found["class_names"]),
                    Listing(train, found["train_paths"], found["train_labels"]),
                    Listing(val, found["val_paths"], found["val_labels"]),
                )
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
            return None


def scan_folder(root: str) -> FolderScan:
    """List an image folder. Raises ConfigError for content that would break or mislead a training run."""
    train = _part(root, TRAIN_FOLDERS)
    val = _part(root, VAL_FOLDERS)
    class_names = _class_names(train)
    val_names = _class_names(val)
    for missing, folder in (
        (sorted(set(class_names) - set(val_names)), val),
        (sorted(set(val_names) - set(class_names)), train),
    ):
        if missing:
            raise ConfigError(
                f"training and validation need the same classes; got no {missing[0]!r} in {folder} "
                f"({len(missing)} missing). Add {'it' if len(missing) == 1 else 'them'} or remove the other half."
            )
    if len(class_names) < 2:
        raise ConfigError(
            f"an image folder needs at least 2 classes; got {len(class_names)} in {train}. "
            "Put each class into its own folder: train/<class>/*.jpg."
        )
    return FolderScan(root, class_names, _list_part(train, class_names), _list_part(val, class_names))


def check_images(listing: Listing, count: int = 32) -> int:
    """Open the headers of ``count`` images, evenly spread. Raises ConfigError naming one that is no image.

    Returns the longest side among them, in pixels.
    """
    from PIL import Image, UnidentifiedImageError  # listing a folder needs none

    longest = 0
    for index in np.unique(np.linspace(0, len(listing.labels) - 1, count).astype(int)):
        path = listing.path(int(index))
        try:
            with Image.open(path) as image:
                longest = max(longest, *image.size)
        except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError and others
            reason = "it is no image" if isinstance(error, UnidentifiedImageError) else str(error)
            raise ConfigError(
                f"the data must be images that can be read; got {path}: {reason}. Remove or replace the file."
            ) from None
    return longest


def _part(root: str, names: tuple[str, ...]) -> str:
    for name in names:
        if os.path.isdir(os.path.join(root, name)):
            return os.path.join(root, name)
    found = sorted(entry.name + "/" * entry.is_dir() for entry in _entries(root))
    some = ", ".join(found[:5]) + (", …" if len(found) > 5 else "") if found else "an empty folder"
    raise ConfigError(
        f"an image folder needs {' or '.join(name + '/' for name in names)}; got {some} in {root}. "
        f"Make {names[0]}/<class>/*.jpg there or give another path."
    )


def _class_names(folder: str) -> tuple[str, ...]:
    return tuple(sorted(entry.name for entry in _entries(folder) if entry.is_dir()))


def _list_part(folder: str, class_names: tuple[str, ...]) -> Listing:
    paths: list[bytes] = []
    counts: list[int] = []
    for name in class_names:
        images = sorted(_images(os.path.join(folder, name), os.fsencode(name)))
        if not images:
            raise ConfigError(
                f"each class needs at least one image; got none in {os.path.join(folder, name)}. "
                f"Add images ({' '.join(EXTENSIONS)}) or remove the folder from both parts."
            )
        paths += images
        counts.append(len(images))
    return Listing(folder, np.array(paths), np.repeat(np.arange(len(class_names), dtype=np.int64), counts))


def _images(folder: str, relative: bytes) -> Iterator[bytes]:
    """Also in folders below: Tiny ImageNet keeps its images in ``<class>/images``."""
    for entry in _entries(folder):
        path = os.path.join(relative, os.fsencode(entry.name))
        if entry.name.lower().endswith(EXTENSIONS) and entry.is_file():
            yield path
        elif entry.is_dir(follow_symlinks=False):  # a link may lead back up
            yield from _images(entry.path, path)


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    """A folder's entries without hidden ones, such as ``.ipynb_checkpoints`` or ``._photo.jpg``."""
    try:
        with os.scandir(folder) as entries:
            yield from (entry for entry in entries if not entry.name.startswith("."))
    except OSError as error:
        raise ConfigError(f"the data must be readable; got {error}. Check the folder's permissions.") from None
