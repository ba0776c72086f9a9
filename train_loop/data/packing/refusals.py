"""Refusals of ``bigbatch pack``: options that would change nothing, and sources that are already packed."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.data.catalogue import is_packed
from bigbatch.train_loop.data.packed import schema
from bigbatch.train_loop.data.packing.shards import PackProfile
from bigbatch.train_loop.data.packing.sources import PackSource
from bigbatch.train_loop.data.pixels.jpeg import jpegtran_path


def check_profile(args: argparse.Namespace) -> None:
    """Raise ConfigError for options of the fast profile without it: they would change nothing."""
    if args.profile == "fast":
        return
    for option, value in (("--short-side", args.short_side), ("--quality", args.quality)):
        if value is not None and (option == "--short-side" or args.profile is None):
            whole = " --profile full sets it for images that are no JPEG." if option == "--quality" else ""
            raise ConfigError(
                f"{option} is an option of the fast profile; got {option} {value} without it. "
                f"Write --profile fast {option} {value}, or leave {option} out.{whole}"
            )


def make_profile(args: argparse.Namespace, source: PackSource) -> PackProfile:
    """How images are stored. Raises ConfigError for a quality that no image of the source would have."""
    defaults = PackProfile()
    name = args.profile or defaults.name
    names = (item.entry.name.lower() for items in (source.train, source.val) for item in items)
    if name == "full" and args.quality is not None and all(one.endswith((".jpg", ".jpeg")) for one in names):
        raise ConfigError(
            f"--profile full keeps JPEGs as they are; got --quality {args.quality} for a source of JPEGs alone. "
            "Write --profile fast, or leave --quality out."
        )
    short_side = defaults.short_side if args.short_side is None else args.short_side
    quality = defaults.quality if args.quality is None else args.quality
    # fast encodes each image anew in any case.
    return PackProfile(name, short_side, quality, jpegtran_path() if name == "full" else None)


def refuse_inside(source: PackSource, destination: Path) -> None:
    """Raise ConfigError if the packed set would lie among the images that it is made of, as one class more."""
    if source.kind != "folder" or Path(source.path) not in destination.parents:
        return
    for items in filter(None, (source.train, source.val)):
        common = os.path.commonpath([os.path.dirname(item.entry.file) for item in items])
        if Path(common) in destination.parents:
            raise ConfigError(
                f"the destination must lie beside the images; got {str(destination)!r}, among those of {common!r}, "
                "where a training would take it for a class. Write another."
            )


def refuse_packed(path: str) -> None:
    """Raise ConfigError if the source is a packed set, or a file of one."""
    source = Path(os.path.abspath(os.path.expanduser(path)))
    for folder in (source, source.parent):
        if is_packed(str(folder)) and (folder == source or source.suffix == ".arrow"):
            raise ConfigError(
                f"the source must be images; got {path!r}, which is packed already: {what_is_packed(folder)}. "
                f"Use it as it is (--data {folder}), see it (bigbatch pack --info {folder}), or pack the images "
                "that it was made of."
            )
    if source.suffix == ".packing" and os.path.exists(source / "plan.json"):
        raise ConfigError(
            f"the source must be images; got {path!r}, a pack that has not ended. "
            f"Repeat the command that began it: it continues and makes {source.with_suffix('')}."
        )


def what_is_packed(folder: Path) -> str:
    """In a few words."""
    try:
        info = schema.read_info(str(folder))
    except ConfigError:
        return "a damaged one"
    return (
        f"{info.train_size} training and {info.val_size} validation images of {len(info.class_names)} classes, "
        f"profile {info.profile['name']}, made of {info.source!r}"
    )
