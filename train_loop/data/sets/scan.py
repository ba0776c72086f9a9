"""List an image folder ``train/<class>/*.jpg`` and ``val/<class>/*.jpg``, and look at a few images. No torch."""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bigbatch.base.atomic_files import replacing
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.data.sets.layout import (
    EXTENSIONS,
    TRAIN_FOLDERS,
    LeftOut,
    check_same_classes,
    find_layout,
    images_below,
    is_folder,
    is_image,
    left_out_in_words,
    note_left_out,
    printable,
    visible_entries,
)
from bigbatch.train_loop.data.sets.subset import hold_out


@dataclass(frozen=True)
class Listing:
    """The images of one part, in the order of their class and path."""

    folder: str
    paths: npt.NDArray[np.bytes_]
    """Relative to ``folder``. One array, because a list of a million strings would be copied, page by page, into each
    loader process when reference counts change."""
    labels: npt.NDArray[np.int64]

    def path(self, index: int) -> str:
        """The whole path of an image."""
        return os.path.join(self.folder, os.fsdecode(bytes(self.paths[index])))

    def some_paths(self, count: int = 32) -> Iterator[str]:
        """The whole paths of ``count`` images, evenly spread."""
        for index in np.unique(np.linspace(0, len(self.labels) - 1, count).astype(int)):
            yield self.path(int(index))

    def rows(self, chosen: npt.NDArray[np.int64]) -> Listing:
        """Some of the images."""
        return Listing(self.folder, self.paths[chosen], self.labels[chosen])


@dataclass(frozen=True)
class FolderScan:
    """All images of an image folder. It is passed on, because listing a large folder again may take minutes."""

    root: str
    class_names: tuple[str, ...]
    train: Listing
    val: Listing
    val_part: float = 0.0
    """The part of each class's images that is held out as ``val``; 0: ``val`` has a folder of its own."""
    notes: tuple[str, ...] = ()
    """What a reader of a plan must know: which files and folders are left out, and what validates."""
    largest_side: int = 0
    """Pixels of the longer side of the largest image that was opened; 0: none was opened, or none can be."""
    unreadable: str = ""
    """The first file that was opened and is no image, and why; empty: there is none. It is not passed on."""

    def with_some_opened(self) -> FolderScan:
        """A copy with ``largest_side`` and ``unreadable``, from the headers of a few images of each part."""
        from bigbatch.train_loop.data.pixels.crops import opened, why_unreadable  # listing a folder needs no Pillow

        largest, unreadable = 0, ""
        for path in self._some_paths():
            try:
                with opened(path) as image:
                    largest = max(largest, *image.size)
            except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError and others
                unreadable = unreadable or f"{path!r}: {why_unreadable(error)}"
        return replace(self, largest_side=largest, unreadable=unreadable)

    def names_digest(self) -> str:
        """A digest of all images' names and classes, in their order."""
        parts = (array.tobytes() for part in (self.train, self.val) for array in (part.paths, part.labels))
        return hashlib.sha256(b"".join(parts)).hexdigest()[:16]

    def some_bytes(self) -> tuple[int, ...]:
        """The sizes in bytes of a few images of each part. Raises ConfigError for one that is gone."""
        try:
            return tuple(os.stat(path).st_size for path in self._some_paths())
        except OSError as error:
            raise ConfigError(f"the data must be readable; got {error}. Check the file system.") from None

    def _some_paths(self) -> Iterator[str]:
        yield from self.train.some_paths()
        yield from self.val.some_paths()

    def write(self, path: Path) -> None:
        """Write it for processes that start later, on any node that sees ``path``. Raises OSError."""
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
                val_part=self.val_part,
                notes=np.array(self.notes, dtype=np.str_),
                largest_side=self.largest_side,
            )

    @classmethod
    def read(cls, path: Path) -> FolderScan | None:
        """What ``write`` wrote; None where there is no such file, or it cannot be read."""
        try:
            # A pickle could run code of anyone who may write there.
            with np.load(path, allow_pickle=False) as found:
                root, train, val = (os.fsdecode(bytes(folder)) for folder in found["folders"])
                return cls(
                    root,
                    tuple(os.fsdecode(bytes(name)) for name in found["class_names"]),
                    Listing(train, found["train_paths"], found["train_labels"]),
                    Listing(val, found["val_paths"], found["val_labels"]),
                    float(found["val_part"]),
                    tuple(map(str, found["notes"])),
                    int(found["largest_side"]),
                )
        # A file that is cut off fails in any of these ways; then the folder is listed again.
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
            return None


def scan_folder(root: str, val_part: float = 0.0) -> FolderScan:
    """List an image folder.

    Args:
        val_part: 0 to 1: the part of each class to hold out for validation, where the folder has no images for it.

    Raises ConfigError for content that would break or mislead a training run.
    """
    layout = find_layout(root, val_part)
    if layout is None:
        raise _no_layout(root)
    train_folder, val_folder, notes = layout
    left_out: LeftOut = Counter()
    class_names = _class_names(root, train_folder, left_out)
    if not class_names:
        raise ConfigError(f"an image folder needs classes; got none in {train_folder!r}. Make <class>/*.jpg there.")
    if val_folder is not None:
        check_same_classes(train_folder, class_names, val_folder, _class_names(root, val_folder, left_out))
    train = _list_part(train_folder, class_names, left_out)
    if val_folder is not None:
        val = _list_part(val_folder, class_names, left_out)
    else:
        # With the part's name, as in a packed set of this folder: so both hold out the same images.
        folder = b"" if train_folder == root else os.fsencode(os.path.basename(train_folder)) + b"/"
        rows = hold_out([folder + bytes(path) for path in train.paths], train.labels, val_part)
        train, val = train.rows(rows[0]), train.rows(rows[1])
    words = left_out_in_words(left_out)
    return FolderScan(root, class_names, train, val, val_part, (*notes, *([words] if words else [])))


def _no_layout(root: str) -> ConfigError:
    found = sorted(printable(entry.name) + "/" * is_folder(entry) for entry in visible_entries(root))
    some = ", ".join(found[:5]) + (", …" if len(found) > 5 else "") if found else "an empty folder"
    return ConfigError(
        f"an image folder needs {TRAIN_FOLDERS[0]}/; got {some} in {root!r}. "
        f"Make {TRAIN_FOLDERS[0]}/<class>/*.jpg there or give another path."
    )


def _class_names(root: str, part: str, left_out: LeftOut) -> tuple[str, ...]:
    """The folders in a part, which also may hold files that are no images."""
    names = []
    for entry in visible_entries(part):
        if is_folder(entry):
            names.append(entry.name)
        elif is_image(entry.name):
            raise ConfigError(
                f"each image needs a class folder; got {os.path.relpath(entry.path, root)!r} in {root!r}. "
                "Move it into the folder of its class: train/<class>/*.jpg."
            )
        else:
            note_left_out(left_out, entry.name)
    return tuple(sorted(names))


def _list_part(folder: str, class_names: tuple[str, ...], left_out: LeftOut) -> Listing:
    paths: list[bytes] = []
    counts: list[int] = []
    for name in class_names:
        unread: LeftOut = Counter()
        found = images_below(os.path.join(folder, name), unread, f"{name}/")
        # By bytes: the order of text would depend on how names that are no UTF-8 are read.
        images = sorted(os.fsencode(path) for path, _ in found)
        if not images:
            but = f" ({words})" if (words := left_out_in_words(unread)) else ""
            raise ConfigError(
                f"each class needs at least one image; got none in {os.path.join(folder, name)!r}{but}. "
                f"Add images ({' '.join(EXTENSIONS)}) or remove the folder from both parts."
            )
        paths += images
        counts.append(len(images))
        left_out.update(unread)
    return Listing(folder, np.array(paths), np.repeat(np.arange(len(class_names), dtype=np.int64), counts))
