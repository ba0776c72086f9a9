"""``bigbatch fetch NAME``: a public data set, downloaded where there is network, checked, packed, found by name.

Compute nodes seldom have a network: run it once on a login node. The packed set lies in ``data_home()/NAME``, and
``--data NAME`` finds it there.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import shutil
import sys
import tarfile
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from bigbatch.base.atomic_files import replacing
from bigbatch.base.command_line import INTERRUPTED, WRONG_INPUT, OneLineParser, did_you_mean
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.data.catalogue import PACKED_BY_HAND, data_home, how_to_make_imagenet
from bigbatch.train_loop.data.packing.command import PackFailed, pack
from bigbatch.train_loop.data.packing.shards import PackProfile
from bigbatch.train_loop.data.packing.sources import find_source
from bigbatch.train_loop.host.command_line import check_writable

TIMEOUT_S = 30.0
ARCHIVE = "archive"


@dataclass(frozen=True)
class PublicSet:
    """An archive on the network."""

    url: str
    digest: str
    """Name of the hash and its value, as published."""
    bytes: int
    """Approximate size of the archive."""


SETS = {
    # Checksums: torchvision.datasets has the first two, FluxML's DLDatasets the third.
    "cifar10": PublicSet(
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz", "md5:c58f30108f718f92721af3b95e74349a", 170_498_071
    ),
    "imagenette": PublicSet(
        "https://s3.amazonaws.com/fast-ai-imageclas/imagenette2-320.tgz",
        "md5:3df6f0d01a2c9592104656642f5e78a3",
        341_663_724,
    ),
    "imagewoof": PublicSet(
        "https://s3.amazonaws.com/fast-ai-imageclas/imagewoof2-320.tgz",
        "sha256:4e4905ed7643120daaf9bf3b2ef7f3a7e8396d9bdaf254a38c6f01f618b4973d",
        340_000_000,
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 it failed, 2 wrong input, 130 Ctrl-C."""
    p = OneLineParser(prog="bigbatch fetch", description="Download a data set by name and pack it.")
    p.add_argument("name", metavar="NAME", help=", ".join(SETS))
    p.add_argument("--from", dest="archive", type=Path, metavar="FILE", help="use this archive, do not download it")
    args = p.parse_args(argv)
    try:
        return fetch(args.name, args.archive)
    except ConfigError as error:
        print(f"bigbatch fetch: error: {error}", file=sys.stderr)
        return WRONG_INPUT
    except PackFailed as error:
        print(f"bigbatch fetch: failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bigbatch fetch: interrupted", file=sys.stderr)
        return INTERRUPTED


def fetch(name: str, archive: Path | None) -> int:
    """Fetch and pack a set; returns the exit code. Raises ConfigError or PackFailed."""
    if name == PACKED_BY_HAND:
        raise ConfigError(f"NAME must be a data set that anyone may download; got {name!r}. {how_to_make_imagenet()}")
    if name not in SETS:
        fix = did_you_mean(name, SETS, "Write one, or pack your own images.")
        raise ConfigError(f"NAME must be one of {', '.join(SETS)}; got {name!r}. {fix}")
    target = data_home() / name
    if target.exists():
        raise ConfigError(f"{name} is already here; got {str(target)!r}. Use --data {name}, or remove that folder.")
    check_writable("BIGBATCH_DATA", target)
    if archive is not None:
        check_digest(archive, SETS[name])  # before any folder is made
    # After a failure it stays, with the archive: the same command continues from there.
    work = target.with_name(f"{target.name}.fetching")
    work.mkdir(parents=True, exist_ok=True)
    path = archive or download(SETS[name], work / ARCHIVE)
    if archive is None:
        check_digest(path, SETS[name])
        print(f"checked {SETS[name].digest}")
    # Packed unchanged: these images are small, and a second encoding would degrade them for ever.
    source = find_source(str(_unpacked(path, work)))
    status = pack(source, target, PackProfile(), len(os.sched_getaffinity(0)), 512 << 20)
    shutil.rmtree(work)
    print(f"use it with: --data {name}")
    return status


def download(public: PublicSet, target: Path) -> Path:
    """Download to ``target``, unless it is already complete there. Raises PackFailed without a network."""
    if target.exists():
        return target
    try:
        print(f"downloading {public.bytes / 1e6:.0f} MB from {public.url}", flush=True)
        answer = urllib.request.urlopen(public.url, timeout=TIMEOUT_S)
        with answer, replacing(target, one_writer=True) as file:
            shutil.copyfileobj(answer, file, 1 << 20)
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        # URLError wraps the error that says what happened.
        reason = getattr(error, "reason", error)
        raise PackFailed(
            f"cannot download {public.url}: {reason}. Run it where there is a network (a login node), or bring the "
            "file here and write --from FILE."
        ) from None
    except OSError as error:
        raise PackFailed(f"cannot write {target}: {error.strerror}. Free some space or set BIGBATCH_DATA.") from None
    return target


def check_digest(path: Path, public: PublicSet) -> None:
    """Raise PackFailed if the file is not the published one, ConfigError if it does not exist."""
    kind, _, expected = public.digest.partition(":")
    try:
        with open(path, "rb") as file:
            # MD5 as published, only against damage: systems in FIPS mode refuse it without ``usedforsecurity=False``.
            found = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise ConfigError(f"--from must be a file that can be read; got {error}. Write another.") from None
    if found != expected:
        raise PackFailed(f"{path} is not the published file: its {kind} is {found}, not {expected}. Remove it.")


def _unpacked(archive: Path, work: Path) -> Path:
    """The archive as a plain tar, CIFAR's pixels as PNG, which loses nothing: images in a tar need no inodes."""
    plain = work / "images.tar"
    with tarfile.open(archive) as tar:
        cifar = next(iter(tar)).name.startswith("cifar-10-batches-py")
    if cifar:
        _write_cifar(archive, plain)
    else:
        with gzip.open(archive) as source, open(plain, "wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
    times = os.stat(archive)
    os.utime(plain, ns=(times.st_atime_ns, times.st_mtime_ns))  # a pack continues only with a source of the same time
    return plain


def _write_cifar(archive: Path, plain: Path) -> None:
    with tarfile.open(archive) as tar:
        # The authors wrote them with Python 2, whose strings are bytes here.
        content = {
            os.path.basename(member.name): _NumpyOnly(stream, encoding="bytes").load()
            for member in tar
            if "batch" in os.path.basename(member.name) and (stream := tar.extractfile(member))
        }
    names = [name.decode() for name in content.pop("batches.meta")[b"label_names"]]
    with tarfile.open(plain, "w") as out:
        for file, batch in sorted(content.items()):
            part = "train" if file.startswith("data_batch_") else "val"
            for row, label in enumerate(batch[b"labels"]):
                buffer = io.BytesIO()
                Image.fromarray(batch[b"data"][row].reshape(3, 32, 32).transpose(1, 2, 0)).save(buffer, "PNG")
                member = tarfile.TarInfo(f"{part}/{names[label]}/{file}-{row:05d}.png")
                member.size = buffer.tell()
                buffer.seek(0)
                out.addfile(member, buffer)


class _NumpyOnly(pickle.Unpickler):
    """Unpickles only arrays, because the pickles come from the network."""

    def find_class(self, module: str, name: str) -> object:
        # What pickles of arrays need: anything else in a pickle can run code.
        if (module.split(".")[0], name) in (("numpy", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")):
            # NumPy 2 has renamed the module that old pickles name.
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        raise pickle.UnpicklingError(f"a CIFAR pickle holds arrays; got {module}.{name}")
