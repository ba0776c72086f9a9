"""Images in tars, also tars in tars and WebDataset's: listed without unpacking, read in place."""

from __future__ import annotations

import itertools
import os
import tarfile
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import IO

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.data.packing.entry import Labelled, SourceEntry, part_of_file
from bigbatch.train_loop.data.sets.layout import PARTS
from bigbatch.train_loop.data.sets.walk import LeftOut, is_image, note_left_out


def tar_entries(file: str, left_out: LeftOut) -> Iterator[SourceEntry]:
    """Members of a tar and of tars in it; the name of a folder ends with a slash.

    Args:
        left_out: is told of links, which have no bytes of their own.

    Raises ConfigError if it is compressed: its members have no fixed place.
    """
    if not file.endswith(".tar"):
        raise ConfigError(
            f"a tar must be uncompressed, because images are read directly from it; got {file!r}. "
            f"Write: {'xz' if file.endswith('xz') else 'bzip2' if file.endswith('bz2') else 'gzip'} -dk {file}"
        )
    part = part_of_file(file)
    wordnet_ids = _imagenet_val_classes(os.path.dirname(file)) if "ILSVRC2012_img_val" in file else None
    try:
        with open(file, "rb") as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            for member in _members(archive, stream, 0, "", left_out):
                name = member[0]
                if wordnet_ids and is_image(name):
                    number = int(name.split(".")[0].rsplit("_", 1)[1])
                    name = f"{wordnet_ids[number - 1]}/{name}"
                inside = name.split("/")
                if part and not any(word in PARTS for word in inside[:-1]):
                    name = f"{part}/{name}"
                yield SourceEntry(name, file, member[1], member[2])
    except tarfile.TarError as error:
        raise ConfigError(
            f"a tar must be whole; got {file!r}: {error}. Copy it again, or write it again with its end."
        ) from None


def _members(
    archive: tarfile.TarFile, stream: IO[bytes], base: int, prefix: str, left_out: LeftOut
) -> Iterator[tuple[str, int, int]]:
    """Name, offset in the outermost file, size. A tar inside is read through the file that holds it."""
    for member in archive:
        name = prefix + os.path.normpath(member.name)
        if any(word.startswith(".") and word != ".." for word in name.split("/")):  # hidden, or the top folder itself
            continue
        if member.isdir():
            yield name + "/", base + member.offset_data, 0
        elif not member.isfile():
            left_out["link" if member.issym() or member.islnk() else "no file"] += 1
        elif name.endswith(".tar"):
            within = _Window(stream, base + member.offset_data, member.size)
            with tarfile.open(fileobj=within, mode="r:") as inner:  # type: ignore[call-overload]
                folder = name.removesuffix(".tar") + "/"
                yield from _members(inner, stream, base + member.offset_data, folder, left_out)
        else:
            yield name, base + member.offset_data, member.size
    archive.fileobj.seek(archive.offset)
    end = archive.fileobj.read(tarfile.BLOCKSIZE)
    if end != bytes(tarfile.BLOCKSIZE):  # tarfile takes one that is cut at a header for whole
        raise tarfile.ReadError("unexpected end of data")


class _Window:
    """A part of a file that can be read like a file."""

    def __init__(self, stream: IO[bytes], start: int, size: int) -> None:
        self._descriptor, self._start, self._size, self._at = stream.fileno(), start, size, 0

    def read(self, count: int = -1) -> bytes:
        left = self._size - self._at
        # At a place of its own: the outer tar goes on reading the same file where it was.
        data = os.pread(self._descriptor, left if count < 0 else min(count, left), self._start + self._at)
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at


def _imagenet_val_classes(folder: str) -> list[str]:
    """ImageNet's validation images carry no class in their names: the development kit beside the tar has it."""
    from scipy.io import loadmat  # 70 ms, for this alone

    kit = os.path.join(folder, "ILSVRC2012_devkit_t12.tar.gz")
    if not os.path.exists(kit):
        raise ConfigError(f"ImageNet's validation tar needs its development kit; got no {kit!r}. Put it there.")
    with tarfile.open(kit) as archive:
        data = {
            os.path.basename(member.name): archive.extractfile(member)
            for member in archive
            if member.name.endswith(("meta.mat", "validation_ground_truth.txt"))
        }
        meta, truth = data["meta.mat"], data["ILSVRC2012_validation_ground_truth.txt"]
        assert meta is not None  # both are regular files
        assert truth is not None
        synsets = loadmat(BytesIO(meta.read()), squeeze_me=True)["synsets"]
        wordnet = {int(synset[0]): str(synset[1]) for synset in synsets}
        return [wordnet[int(line)] for line in truth.read().split()]


def webdataset_entries(entries: Sequence[SourceEntry], left_out: LeftOut) -> Labelled:
    """``000017.jpg`` and ``000017.cls``, whose text is the label. ``left_out`` is told of all other files."""
    labels: dict[tuple[str, str], str] = {}
    classes = (entry for entry in entries if entry.name.endswith(".cls"))
    for file, group in itertools.groupby(classes, key=lambda entry: entry.file):
        with open(file, "rb") as stream:  # once: opening may take as long as the file server's answer
            for entry in group:
                label = os.pread(stream.fileno(), entry.size, entry.offset)
                labels[file, os.path.splitext(entry.name)[0]] = label.decode().strip()
    images = [entry for entry in entries if is_image(entry.name)]
    for entry in entries:
        if not (is_image(entry.name) or entry.name.endswith((".cls", "/"))):
            note_left_out(left_out, entry.name)
    width = max((len(text) for text in labels.values()), default=1)
    found: Labelled = []
    for entry in images:
        text = labels.get((entry.file, os.path.splitext(entry.name)[0]))
        if text is None or not text.isdigit():
            raise ConfigError(f"each image needs a label in a .cls file; got {text!r} for {entry.name!r}. Add it.")
        # Members of several tars may have the same names.
        named = entry._replace(name=f"{os.path.basename(entry.file)}/{entry.name}")
        # Classes are sorted as words: without leading zeros 10 would come before 2.
        found.append((part_of_file(entry.file), text.zfill(width), named))
    return found


def read_bytes(entry: SourceEntry) -> bytes:
    """The bytes of a file, or of a member of a tar."""
    if entry.offset < 0:
        return Path(entry.file).read_bytes()
    with open(entry.file, "rb") as stream:
        return os.pread(stream.fileno(), entry.size, entry.offset)
