"""Images in folders and in tars, also tars in tars and WebDataset's: listed without unpacking, read in place."""

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
from bigbatch.train_loop.data.sets.scan import EXTENSIONS, TRAIN_FOLDERS, VAL_FOLDERS


def visible_entries(folder: str) -> list[os.DirEntry[str]]:
    """The content of a folder without hidden files."""
    with os.scandir(folder) as entries:
        return [entry for entry in entries if not entry.name.startswith(".")]


def folder_entries(folder: str, prefix: str) -> Iterator[SourceEntry]:
    """Every file below a folder, with its path from there after ``prefix``."""
    for entry in visible_entries(folder):
        if entry.is_file():
            yield SourceEntry(prefix + entry.name, entry.path, -1, entry.stat().st_size)
        elif entry.is_dir(follow_symlinks=prefix.count("/") < 2):  # parts and classes may be links, as in subsets
            yield from folder_entries(entry.path, f"{prefix}{entry.name}/")


def tar_entries(file: str, root: str) -> Iterator[SourceEntry]:
    """Members of a tar and of tars in it. Raises ConfigError if it is compressed: its members have no fixed place."""
    if not file.endswith(".tar"):
        raise ConfigError(
            f"a tar must be uncompressed, because images are read directly from it; got {file!r}. "
            f"Write: {'xz' if file.endswith('xz') else 'bzip2' if file.endswith('bz2') else 'gzip'} -dk {file}"
        )
    part = part_of_file(file)
    wordnet_ids = _imagenet_val_classes(os.path.dirname(file)) if "ILSVRC2012_img_val" in file else None
    try:
        with open(file, "rb") as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            for member in _members(archive, stream, 0, ""):
                name = member[0]
                if wordnet_ids:
                    number = int(name.split(".")[0].rsplit("_", 1)[1])
                    name = f"{wordnet_ids[number - 1]}/{name}"
                inside = name.split("/")
                if part and not any(word in TRAIN_FOLDERS + VAL_FOLDERS for word in inside[:-1]):
                    name = f"{part}/{name}"
                yield SourceEntry(name, file, member[1], member[2])
    except tarfile.TarError as error:
        raise ConfigError(
            f"a tar must be whole; got {file!r}: {error}. Copy it again, or write it again with its end."
        ) from None


def _members(archive: tarfile.TarFile, stream: IO[bytes], base: int, prefix: str) -> Iterator[tuple[str, int, int]]:
    """Name, offset in the outermost file, size. A tar inside is read through the file that holds it."""
    for member in archive:
        name = prefix + os.path.normpath(member.name)
        if not member.isfile() or os.path.basename(name).startswith("."):
            continue
        if name.endswith(".tar"):
            within = _Window(stream, base + member.offset_data, member.size)
            with tarfile.open(fileobj=within, mode="r:") as inner:  # type: ignore[call-overload]
                yield from _members(inner, stream, base + member.offset_data, name.removesuffix(".tar") + "/")
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


def webdataset_entries(entries: Sequence[SourceEntry]) -> Labelled:
    """``000017.jpg`` and ``000017.cls``, whose text is the label."""
    labels: dict[tuple[str, str], str] = {}
    classes = (entry for entry in entries if entry.name.endswith(".cls"))
    for file, group in itertools.groupby(classes, key=lambda entry: entry.file):
        with open(file, "rb") as stream:  # once: opening may take as long as the file server's answer
            for entry in group:
                label = os.pread(stream.fileno(), entry.size, entry.offset)
                labels[file, os.path.splitext(entry.name)[0]] = label.decode().strip()
    images = [entry for entry in entries if entry.name.lower().endswith(EXTENSIONS)]
    width = max((len(text) for text in labels.values()), default=1)
    found: Labelled = []
    for entry in images:
        text = labels.get((entry.file, os.path.splitext(entry.name)[0]))
        if text is None or not text.isdigit():
            raise ConfigError(f"each image needs a label in a .cls file; got {text!r} for {entry.name!r}. Add it.")
        named = entry._replace(name=f"{os.path.basename(entry.file)}/{entry.name}")
        found.append((part_of_file(entry.file), text.zfill(width), named))
    return found


def read_bytes(entry: SourceEntry) -> bytes:
    """The bytes of a file, or of a member of a tar."""
    if entry.offset < 0:
        return Path(entry.file).read_bytes()
    with open(entry.file, "rb") as stream:
        return os.pread(stream.fileno(), entry.size, entry.offset)
