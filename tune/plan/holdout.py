"""``--holdout``: the validation images that report, and do not choose among trials."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from bigbatch.base import json_values
from bigbatch.base.command_line import parse_fraction
from bigbatch.train_loop.data.info import DataInfo

KEY = "data.holdout"
DEFAULT_PART = 0.5
LEAST_IMAGES = 200
"""Fewer validation images are not divided by default: a half of 100 images measures an accuracy of 90 % to ± 6 points
(two standard errors), too coarse to choose by."""
LEAST_OF_A_CLASS = 4
"""Fewer validation images than this for each class are not divided either."""


def parse_holdout(text: str) -> float:
    """``half of the images``: 0.5 or 50%; ``none``: 0."""
    if text.strip() == "none":
        return 0.0
    try:
        return parse_fraction(text)
    except argparse.ArgumentTypeError as error:
        if text.strip().startswith("-"):
            raise
        raise argparse.ArgumentTypeError(
            f"must be a part of the validation images, or none; got {text!r}. Write e.g. 50%."
        ) from error


def divide_validation(
    data: DataInfo, overrides: Mapping[str, object], given: float | None
) -> tuple[DataInfo, dict[str, object]]:
    """The data and the overrides of a search: without a given holdout, half of enough validation images report.

    Args:
        given: ``--holdout``; 0 for none. ``data`` is then divided already, and ``overrides`` name the part.
    """
    few = data.val_size < max(LEAST_IMAGES, LEAST_OF_A_CLASS * data.num_classes)
    if given is not None or KEY in overrides or few:
        return data, dict(overrides)
    return data.with_holdout(DEFAULT_PART), {**overrides, KEY: DEFAULT_PART}


def stored_holdout(stored: Mapping[str, object]) -> float:
    """The holdout of the study whose study.json is ``stored``; 0: none."""
    return json_values.number(json_values.mapping(stored, "overrides"), KEY)


def kinds_in_words(data: DataInfo) -> str:
    """``, 10 classes, 32 px``, as far as a data set has them."""
    classes = f", {data.num_classes} classes" if data.num_classes else ""
    size = f", {data.image_size} px" if data.image_size else ""
    shape = f", items {' × '.join(map(str, data.input_shape))}" if data.input_shape and not size else ""
    return classes + size + shape


def images_in_words(data: DataInfo) -> str:
    """How many images, or items, train, choose and report."""
    train, images = f"{data.train_size:,} training", "images" if data.image_size else "items"
    if not data.holdout_size:
        return f"{train} and {data.val_size:,} validation {images}"
    return (
        f"{train} {images}; {data.val_size:,} validation {images} choose, {data.holdout_size:,} others report (holdout)"
    )
