"""Which images a run sees, from ``data.name`` and ``--data`` to the images themselves.

``describe_data_set`` says what they are. ``open_data`` opens them; only this loads torch.

A *batch* is ``(images, labels)`` on the CPU: float32 ``[N, 3, H, W]``, normalised, and int64 ``[N]``. A data set of the
user's own makes its own batches. ``sampling.py`` decides from seed and epoch alone which images make which batch;
``source.py`` turns that into batches; ``sets/`` and ``packed/`` hold the images.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bigbatch.base.command_line import did_you_mean
from bigbatch.train_loop.config import ConfigError, DataConfig
from bigbatch.train_loop.config.rules import is_own
from bigbatch.train_loop.data.info import PHOTOGRAPH_SIZE, SMALL_IMAGE_SIZE, DataInfo

if TYPE_CHECKING:
    import torch

    from bigbatch.train_loop.data.sets.scan import FolderScan
    from bigbatch.train_loop.data.source import DataSource


_log = logging.getLogger(__name__)
FETCHED = ("cifar10", "imagenette", "imagewoof")
"""Data sets that ``bigbatch fetch`` brings; they lie packed in ``data_home()``."""

PACKED_BY_HAND = "imagenet"
"""Found by name if it is packed in ``data_home()``. Its licence forbids redistribution, so ``fetch`` cannot get it."""

NAMES = ("digits", *FETCHED, PACKED_BY_HAND)
"""Data sets with a name; anything else is the path of an image folder or of a packed one."""

NO_STAGE = "none"
"""The value of ``--stage`` for no copy, even if the resumed study had one."""


def is_packed(path: str) -> bool:
    """Whether a folder holds a packed data set. ``packed/schema.py`` knows the file's name too, but imports pyarrow."""
    return os.path.isfile(os.path.join(path, "index.arrow"))


def data_home() -> Path:
    """The folder of fetched data sets: ``$BIGBATCH_DATA``, else ``~/.cache/bigbatch``."""
    return Path(os.environ.get("BIGBATCH_DATA") or "~/.cache/bigbatch").expanduser().absolute()


def _named_path(name: str) -> str:
    path = str(data_home() / name)
    if is_packed(path):
        return path
    how = how_to_make_imagenet() if name == PACKED_BY_HAND else f"Run, where there is a network: bigbatch fetch {name}"
    raise ConfigError(f"data set {name} must be packed before its first use; got none in {path!r}. {how}")


def how_to_make_imagenet() -> str:
    """A message of one line. The user may mean a folder of that name in the current folder."""
    here = "For the folder of that name here write ./imagenet. " if os.path.isdir("imagenet") else ""
    return (
        f"{here}Put ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and ILSVRC2012_devkit_t12.tar.gz (image-net.org, "
        f"with an account) into a folder and run: bigbatch pack FOLDER {data_home() / PACKED_BY_HAND}"
    )


def folder_path(name: str) -> str:
    """The absolute path that ``data.name`` means. Raises ConfigError if there is no such folder."""
    if name in (*FETCHED, PACKED_BY_HAND):
        return _named_path(name)
    path = os.path.abspath(os.path.expanduser(name))
    if os.path.isdir(path):
        return path
    if os.path.exists(path) or os.sep in name or name.startswith((".", "~")):
        raise ConfigError(f"the data path must exist as a folder; got {name!r}. Write one with train/ and val/.")
    hint = did_you_mean(name, NAMES, "Write one of these names, or the path of an image folder.")
    raise ConfigError(
        f"data.name (--data) must be {', '.join(NAMES)}, or an image folder that exists; there is no {name!r}. {hint}"
    )


@dataclass(frozen=True)
class Looked:
    """A data set that was looked at: its facts and, for an image folder, its list of images."""

    info: DataInfo
    scan: FolderScan | None


def describe_data_set(config: DataConfig, *, open_some: bool = False) -> DataInfo:
    """What a data set is. Arguments and errors are those of ``look``."""
    return look(config, open_some=open_some).info


def look(config: DataConfig, *, open_some: bool = False, scan: FolderScan | None = None) -> Looked:
    """Look at a data set, so that a plan can refuse it early.

    With ``open_some`` a few images are opened, too, so that files that are no images are found before a run starts.
    This happens here, because listing a large folder a second time may take minutes on a shared file system.

    Args:
        scan: the list of this folder's images, if it exists already. A list of another folder or division is ignored.

    Raises:
        ConfigError: an unknown name, a path without a complete image folder, a file that is no image; a function of
            the user's that returns no data sets, or sets whose items make no batch.
        OwnCodeError: the user's code raised an exception.
    """
    looked = _look_at_whole(config, open_some, scan)
    info = looked.info
    info = dataclasses.replace(info, val_image_size=config.val_image_size).with_holdout(config.holdout)
    if config.subset == 1:
        return Looked(info, looked.scan)
    from bigbatch.train_loop.data.sets.subset import subset_size

    size = subset_size(info.train_size, config.subset)
    if size < info.num_classes:
        least = 100 * info.num_classes / info.train_size
        raise ConfigError(
            f"data.subset must leave an image of each class; got {config.subset:g}, which leaves {size} of "
            f"{info.train_size} for {info.num_classes} classes. Write e.g. --subset {2 * least:.1g}%."
        )
    return Looked(dataclasses.replace(info, train_size=size), looked.scan)


def list_folder(config: DataConfig, scan: FolderScan | None = None) -> FolderScan | None:
    """The images of an image folder, listed unless ``scan`` is of this folder; None for a data set of another kind.

    Raises ConfigError as ``look`` does.
    """
    if config.name == "digits" or is_own(config.name):
        return None
    path = folder_path(config.name)
    if is_packed(path):
        return None
    if scan is not None and (scan.root, scan.val_part) == (path, config.val_part):
        return scan
    from bigbatch.train_loop.data.sets.scan import scan_folder

    scan = scan_folder(path, config.val_part)
    _check_classes(scan.class_names, path)
    return scan.with_some_opened()


def _look_at_whole(config: DataConfig, open_some: bool, scan: FolderScan | None) -> Looked:
    from bigbatch.train_loop.data.sets.layout import HELD

    if config.val_part and (config.name == "digits" or is_own(config.name) or is_packed(folder_path(config.name))):
        raise ConfigError(
            f"{HELD}; got {config.val_part:g} for {config.name!r}, which has some. "
            "Leave --val-part out, or write --set data.val_part=0."
        )
    if config.name == "digits":
        return Looked(_describe_digits(config), None)
    if is_own(config.name):
        from bigbatch.train_loop.data.sets.own_sets import describe_own

        return Looked(describe_own(config, open_some), None)
    path = folder_path(config.name)
    if is_packed(path):
        return Looked(_describe_packed(config, path, open_some), None)
    scan = list_folder(config, scan)
    assert scan is not None
    if open_some and scan.unreadable:
        raise ConfigError(
            f"the data must be images that can be read; got {scan.unreadable}. Remove or replace the file, "
            "or use what `bigbatch pack` makes: it omits damaged images."
        )
    sizes = len(scan.train.labels), len(scan.val.labels), scan.largest_side
    info = _info_of_images(config, path, scan.class_names, *sizes, content=scan.names_digest())
    return Looked(dataclasses.replace(info, some_bytes=scan.some_bytes() if open_some else (), notes=scan.notes), scan)


def _info_of_images(
    config: DataConfig, path: str, names: tuple[str, ...], train: int, val: int, largest_side: int, content: str
) -> DataInfo:
    # To enlarge small images costs time and adds nothing.
    own = max(largest_side, 8) if 0 < largest_side <= SMALL_IMAGE_SIZE else PHOTOGRAPH_SIZE
    size = config.image_size or own
    stem = "small" if size <= SMALL_IMAGE_SIZE else "imagenet"
    info = DataInfo(os.path.basename(path), path, train, val, len(names), size, 3, names, stem)
    return dataclasses.replace(info, largest_side=largest_side, content=content)


def check_stage(folder: str | None, info: DataInfo) -> None:
    """Raise ConfigError if ``--stage`` names no folder or has nothing to copy. Only each node can check its room."""
    if folder is None or folder == NO_STAGE:
        return
    if not folder.startswith(("/", "~", "$")):
        raise ConfigError(
            f"--stage must be a folder of each node, so begin with /, ~ or a variable in quotes; got {folder!r}. "
            f"Write e.g. --stage '$TMPDIR', or --stage {NO_STAGE}."
        )
    if info.path is None or not is_packed(info.path):
        fix = "Leave" if is_own(info.path or "digits") else "Pack it (bigbatch pack), or leave"
        raise ConfigError(f"--stage copies packed sets; got {info.path or info.name}. {fix} --stage out.")


def open_data(
    config: DataConfig,
    stage_folder: str | None = None,
    note: Callable[[str], None] = _log.warning,
    scan: FolderScan | None = None,
    device: torch.device | None = None,
) -> DataSource:
    """The data set itself; imports torch. Raises ConfigError as ``describe_data_set`` does.

    Args:
        stage_folder: where this node keeps a copy of a packed set, see ``stage.py``. A node that cannot keep one reads
            the set itself.
        note: gets the reasons why there is no copy, or why decoded images are not kept on the device.
        scan: see ``look``.
        device: where the model is, so that images may be kept there (``device_source.py``); None: nothing trains.
    """
    looked = look(config, scan=scan)
    info = looked.info
    check_stage(stage_folder, info)
    if config.name == "digits":
        from bigbatch.train_loop.data.sets.digits import DigitsSource

        return DigitsSource(config, info)
    if is_own(config.name):
        from bigbatch.train_loop.data.sets.own_sets import OwnSource

        return OwnSource(config, info)
    if looked.scan is not None:
        from bigbatch.train_loop.data.sets.folder import open_folder

        return open_folder(config, info, looked.scan)
    from bigbatch.train_loop.data.packed.device_source import with_whole_images
    from bigbatch.train_loop.data.packed.images import open_packed

    assert info.path is not None
    return with_whole_images(open_packed(config, info, _staged(info.path, stage_folder, note)), device, note)


def stage_ahead(config: DataConfig, stage_folder: str | None) -> None:
    """Copy the data that ``open_data`` will need. Errors are ignored here, because ``open_data`` reports them."""
    with contextlib.suppress(ConfigError):
        path = None if config.name == "digits" or is_own(config.name) else folder_path(config.name)
        if path is not None and is_packed(path):
            _staged(path, stage_folder, _log.debug)


def _staged(path: str, stage_folder: str | None, note: Callable[[str], None]) -> str:
    """The folder to read: this node's copy of a packed set, or, with a ``note``, the set itself."""
    if stage_folder is None or stage_folder == NO_STAGE:
        return path
    from bigbatch.train_loop.data.packed.stage import StageError, stage_packed_set

    try:
        return stage_packed_set(path, stage_folder)
    except StageError as error:  # only on this node, and the place of the images changes no result
        note(f"{error} Reading {path} itself.")
        return path


def _describe_digits(config: DataConfig) -> DataInfo:
    """Constants, because the images would cost an import of seconds; a test compares them."""
    if config.augment.policy != "none":
        raise ConfigError(
            f"digits has its own augmentation; got data.augment.policy={config.augment.policy}. Write none."
        )
    _refuse_crop_keys(config, "digits are enlarged as a whole")
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


def _refuse_crop_keys(config: DataConfig, what_is_done: str) -> None:
    """Raise ConfigError for a key about crops that is not at its default, as it would do nothing."""
    usual = DataConfig()
    for key, value, default in (
        ("data.augment.min_crop_area", config.augment.min_crop_area, usual.augment.min_crop_area),
        ("data.augment.max_crop_ratio", config.augment.max_crop_ratio, usual.augment.max_crop_ratio),
        ("data.val_crop", config.val_crop, usual.val_crop),
    ):
        if value != default:
            raise ConfigError(f"{what_is_done}, not cropped; got {key}={value:g}. Leave {key} out.")


def _check_classes(names: Sequence[str], path: str) -> None:
    """Raise ConfigError for images of a single class: they may be packed, but training needs two classes."""
    if len(names) < 2:
        raise ConfigError(
            f"training needs at least 2 classes; got {len(names)} in {path!r}. "
            "Put each class into its own folder: train/<class>/*.jpg."
        )


def _describe_packed(config: DataConfig, path: str, open_some: bool) -> DataInfo:
    from bigbatch.train_loop.data.packed import schema

    packed = schema.read_info(path)
    _check_classes(packed.class_names, path)
    if open_some:
        schema.check_index(path)
        schema.PackedFiles(path).check_records()
    if packed.largest_side <= SMALL_IMAGE_SIZE:
        _refuse_crop_keys(config, f"packed images of at most {SMALL_IMAGE_SIZE} px are shifted")
    sizes = packed.train_size, packed.val_size, packed.largest_side
    return _info_of_images(config, path, packed.class_names, *sizes, content=packed.content_digest())
