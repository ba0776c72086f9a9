"""What ``data.name`` and ``--data`` mean: data sets with a name, and folders. No torch here."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.config.plug_ins import DATA, is_own, is_plug_in

FETCHED = ("cifar10", "imagenette", "imagewoof")
"""Data sets that ``bigbatch fetch`` brings; they lie packed in ``data_home()``."""

PACKED_BY_HAND = "imagenet"
"""Found by name if it is packed in ``data_home()``. Its licence forbids redistribution, so ``fetch`` cannot get it."""

NAMES = ("digits", *FETCHED, PACKED_BY_HAND)
"""Data sets with a name; anything else is the path of an image folder or of a packed one."""

NO_STAGE = "none"
"""The value of ``--stage`` for no copy, even if the resumed study had one."""


def is_users(name: str) -> bool:
    """Whether a function of the user's, or of a package that registers one, makes the data sets."""
    if is_own(name) or name in NAMES or os.sep in name or os.path.exists(name):
        return is_own(name)
    return is_plug_in(DATA, name)


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
    if name == PACKED_BY_HAND:
        raise ConfigError(
            f"data set imagenet must be packed before its first use; got none in {path!r}. {how_to_make_imagenet()}"
        )
    raise ConfigError(
        f"data set {name} must be fetched before its first use; got none in {path!r}. "
        f"Run, where there is a network: bigbatch fetch {name}"
    )


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
    if os.path.exists(path):
        raise ConfigError(f"data.name must be a folder; got the file {name!r}. Write the folder with train/ and val/.")
    if os.sep in name or name.startswith((".", "~")):
        raise ConfigError(f"the data path must exist; got {name!r}. Write the path of a folder with train/ and val/.")
    near = difflib.get_close_matches(name.lower(), NAMES, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else "Write one of these names, or the path of an image folder."
    raise ConfigError(
        f"data.name (--data) must be {', '.join(NAMES)}, or an image folder that exists; there is no {name!r}. {hint}"
    )
