"""Which images a run sees: what they are (``describe``, without torch) and the images (``open_data``).

A *batch* is ``(images, labels)`` on the CPU: float32 ``[N, 3, H, W]``, normalised, and int64 ``[N]``.
Which images make which batch is decided in ``sampling.py`` from seed and epoch alone; ``source.py``
turns that into batches; ``digits.py``, ``folder.py`` and ``packed.py`` hold the images.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from train_loop.config import ConfigError, DataConfig

if TYPE_CHECKING:
    from train_loop.data.source import DataSource

_log = logging.getLogger(__name__)

FETCHED = ("cifar10", "imagenette", "imagewoof")
"""Data sets that ``bigbatch fetch`` brings; they lie packed in ``data_home()``."""

PACKED_BY_HAND = "imagenet"
"""Found by name where it was packed into ``data_home()``; nobody may hand it on, so no ``fetch`` brings it."""

NAMES = ("digits", *FETCHED, PACKED_BY_HAND)
"""Data sets with a name; anything else is the path of an image folder or of a packed one."""

NO_STAGE = "none"
"""As ``--stage``: no copy, also where the study that is resumed had one."""

SMALL_IMAGE_SIZE = 64
"""Pixels a side up to which the 7×7/2 stem with max-pool throws away too much."""


@dataclass(frozen=True)
class DataInfo:
    """What a model, a plan or a search space needs to know of a data set; sizes in images and pixels."""

    name: str
    path: str | None
    """The image folder; None where the images come with a package."""
    train_size: int
    val_size: int
    num_classes: int
    image_size: int
    """Pixels a side, as the model sees them; with progressive resizing those of the last epochs, the most."""
    channels: int
    class_names: tuple[str, ...]
    """In the order of the labels."""
    stem: str
    """What ``model.stem=auto`` means here."""
    other_sizes: tuple[int, ...] = ()
    """Pixels a side of validation and of other epochs, where they differ from ``image_size``."""

    def steps_per_epoch(self, global_size: int) -> int:
        """Optimizer steps an epoch of whole global batches; raises ConfigError where there is none."""
        steps = self.train_size // global_size
        if steps < 1:
            power = 1 << (self.train_size.bit_length() - 1)
            raise ConfigError(
                f"batch.global_size must be at most the {self.train_size} training images of {self.name}; "
                f"got {global_size}. Use batch.global_size={power}."
            )
        return steps


def describe(config: DataConfig, *, open_some: bool = False) -> DataInfo:
    """Look at a data set, so that a plan can refuse it early.

    With ``open_some`` a few images are opened too, so that files that are none are met before a run starts, unless the
    run is to go on without them (``data.on_bad_image=skip``); here, because listing a large folder a second time may
    take minutes on a shared file system.

    Raises:
        ConfigError: an unknown name, a path without a complete image folder, a file that is no image.
    """
    from train_loop.data.resizing import other_sizes

    info = _describe_whole(config, open_some)
    info = dataclasses.replace(info, other_sizes=other_sizes(config, info.image_size))
    if config.subset == 1:
        return info
    from train_loop.data.subset import subset_size

    size = subset_size(info.train_size, config.subset)
    if size < info.num_classes:
        least = 100 * info.num_classes / info.train_size
        raise ConfigError(
            f"data.subset must leave an image of each class; got {config.subset:g}, which leaves {size} of "
            f"{info.train_size} for {info.num_classes} classes. Write e.g. --subset {2 * least:.1g}%."
        )
    return dataclasses.replace(info, train_size=size)


def _describe_whole(config: DataConfig, open_some: bool) -> DataInfo:
    if config.name == "digits":
        return _describe_digits(config)
    from train_loop.data.scan import check_images, scan_folder

    path = folder_path(config.name)
    if _is_packed(path):
        if config.loader == "torchvision":
            raise ConfigError(
                f"data.loader=torchvision reads image folders; got the packed set {path!r}. Write data.loader=auto."
            )
        return _describe_packed(config, path, open_some)
    scan = scan_folder(path)
    if open_some and config.on_bad_image == "fail":
        check_images(scan.train)
        check_images(scan.val)
    size = config.image_size or 224
    return DataInfo(
        name=os.path.basename(path),
        path=path,
        train_size=len(scan.train.labels),
        val_size=len(scan.val.labels),
        num_classes=len(scan.class_names),
        image_size=size,
        channels=3,
        class_names=scan.class_names,
        stem="small" if size <= SMALL_IMAGE_SIZE else "imagenet",
    )


def check_stage(folder: str | None, info: DataInfo, *, here: bool = False) -> None:
    """Raise ConfigError where ``--stage`` names no folder or has nothing to copy; of its room each node knows alone.

    Args:
        here: all workers run on this machine, so that a variable which is not set here is set nowhere.
    """
    if folder is None or folder == NO_STAGE:
        return
    if not folder.startswith(("/", "~", "$")):
        raise ConfigError(
            f"--stage must be a folder of each node, so begin with /, ~ or a variable in quotes; got {folder!r}. "
            f"Write e.g. --stage '$TMPDIR', or --stage {NO_STAGE}."
        )
    if info.path is None or not _is_packed(info.path):
        raise ConfigError(
            f"--stage copies packed sets; got {info.path or info.name}. Pack it (bigbatch pack), or leave --stage out."
        )
    if here:
        from train_loop.data.stage import check_here

        check_here(folder)


def open_data(
    config: DataConfig, stage_folder: str | None = None, note: Callable[[str], None] = _log.warning
) -> DataSource:
    """The data set itself; imports torch. Raises ConfigError as ``describe`` does.

    Args:
        stage_folder: where this node keeps a copy of a packed set, see ``stage.py``; a node that cannot reads the
            set itself and says so.
        note: is told so.
    """
    info = describe(config)
    check_stage(stage_folder, info)
    if config.name == "digits":
        from train_loop.data.digits import DigitsSource

        return DigitsSource(config, info)
    if info.path is not None and _is_packed(info.path):
        from train_loop.data.packed import open_packed

        return open_packed(config, info, _staged(info.path, stage_folder, note))
    from train_loop.data.folder import open_folder

    return open_folder(config, info)


def stage_ahead(config: DataConfig, stage_folder: str | None) -> None:
    """Copy what ``open_data`` will ask for. What goes wrong it meets again, and says."""
    with contextlib.suppress(ConfigError):
        info = describe(config)
        if info.path is not None and _is_packed(info.path):
            _staged(info.path, stage_folder, _log.debug)


def _staged(path: str, stage_folder: str | None, note: Callable[[str], None]) -> str:
    """The folder to read: this node's copy of a packed set, or the set itself, which ``note`` is told."""
    if stage_folder is None or stage_folder == NO_STAGE:
        return path
    from train_loop.data.stage import StageError, stage

    try:
        return stage(path, stage_folder)
    except StageError as error:  # of this node alone; where images are read from changes no result
        note(f"{error} Reading {path} itself.")
        return path


def _describe_digits(config: DataConfig) -> DataInfo:
    """Constants, because the images would cost an import of seconds; a test compares them."""
    if config.auto_augment != "none":
        raise ConfigError(
            f"digits has an augmentation of its own; got data.auto_augment={config.auto_augment}. Write none."
        )
    if config.loader == "torchvision":
        raise ConfigError(
            "data.loader=torchvision reads image folders; got digits, which are in memory. Write data.loader=auto."
        )
    size = config.image_size or 32
    return DataInfo(
        name="digits",
        path=None,
        train_size=1437,
        val_size=360,
        num_classes=10,
        image_size=size,
        channels=3,
        class_names=tuple(str(digit) for digit in range(10)),
        stem="small_pool" if size <= SMALL_IMAGE_SIZE else "imagenet",  # 8×8 scans enlarged: little is lost
    )


def _is_packed(path: str) -> bool:
    """Without pyarrow, which ``packed_format`` imports."""
    return os.path.isfile(os.path.join(path, "index.arrow"))


def _describe_packed(config: DataConfig, path: str, open_some: bool) -> DataInfo:
    from train_loop.data import packed_format

    packed = packed_format.read_info(path)
    if open_some:
        from train_loop.data.packed_files import PackedFiles

        PackedFiles(path).check_records(32 if config.on_bad_image == "fail" else 0)
    size = config.image_size or (224 if packed.largest_side > SMALL_IMAGE_SIZE else max(packed.largest_side, 8))
    return DataInfo(
        name=os.path.basename(path),
        path=path,
        train_size=packed.train_size,
        val_size=packed.val_size,
        num_classes=len(packed.class_names),
        image_size=size,
        channels=3,
        class_names=packed.class_names,
        stem="small" if size <= SMALL_IMAGE_SIZE else "imagenet",
    )


def data_home() -> Path:
    """Where fetched data sets lie: ``$BIGBATCH_DATA``, else ``~/.cache/bigbatch``."""
    return Path(os.environ.get("BIGBATCH_DATA") or "~/.cache/bigbatch").expanduser().absolute()


def _named_path(name: str) -> str:
    path = str(data_home() / name)
    if _is_packed(path):
        return path
    if name == PACKED_BY_HAND:
        raise ConfigError(
            f"data set imagenet must be packed before its first use; got none in {path!r}. {how_to_make_imagenet()}"
        )
    raise ConfigError(
        f"data set {name} must be fetched before its first use; got none in {path!r}. "
        f"Run, where there is a network: bigbatch fetch {name}"
    )


def how_to_make_imagenet() -> str:
    """One line. A folder of that name beside the user may be what was meant."""
    here = "For the folder of that name here write ./imagenet. " if os.path.isdir("imagenet") else ""
    return (
        f"{here}Put ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and ILSVRC2012_devkit_t12.tar.gz (image-net.org, "
        f"with an account) into a folder and run: bigbatch pack FOLDER {data_home() / PACKED_BY_HAND}"
    )


def folder_path(name: str) -> str:
    """The absolute path that ``data.name`` stands for; raises ConfigError where there is no folder."""
    if name in (*FETCHED, PACKED_BY_HAND):
        return _named_path(name)
    path = os.path.abspath(os.path.expanduser(name))
    if os.path.isdir(path):
        return path
    if os.path.exists(path):
        raise ConfigError(f"data.name must be a folder; got the file {name!r}. Write the folder with train/ and val/.")
    if os.sep in name or name.startswith((".", "~")):
        raise ConfigError(f"the data path must exist; got {name!r}. Write the path of a folder with train/ and val/.")
    near = difflib.get_close_matches(name.lower(), NAMES, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Write {' or '.join(NAMES)} or the path of an image folder."
    raise ConfigError(f"data.name must be one of {', '.join(NAMES)} or an image folder; got {name!r}. {hint}")
