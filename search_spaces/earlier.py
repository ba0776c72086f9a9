"""Fingerprints of the built-in spaces as earlier commits had them.

A study notes the SHA-256 of its space's text and of the priors' text, and is resumed only with the same space. Where
the text of a space or of the priors changes and what is searched does not (another comment, other names of imports),
the fingerprint from before belongs here, so that studies that began with it can go on. For users' own spaces that
use the priors, the priors' text itself is kept.
"""

from __future__ import annotations

from pathlib import Path

EARLIER: dict[str, tuple[str, ...]] = {
    "large_batch": ("90010046f8844e9e7e328c992f89bb3b2f0d76d7f8056115358c05ad338ca744",),
    "lr_warmup": ("e926b1ab8e44c5493243eedcf46602f95c5b5c86d43e60641ba53ecbe8345e3c",),
    "smoke": ("c372af8405e28331eb5bd45ef9445c37015950c29ed8bed602a7339443b4fa05",),
}
"""By the space's name; these are of commit 6dde4d6."""
PRIORS = ("priors_6dde4d6.txt",)


def earlier_priors_texts() -> list[str]:
    """``priors.py`` as earlier commits had it: the same functions, maybe with other comments."""
    return [Path(__file__).with_name(name).read_text(encoding="utf-8") for name in PRIORS]
