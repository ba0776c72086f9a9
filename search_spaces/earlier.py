"""Fingerprints of the built-in spaces in earlier commits.

A study stores the SHA-256 of its space's text and of the priors' text. It resumes only with the same space. When a
text changes but the search does not (a comment, the name of an import), add the old fingerprint here: then older
studies still resume. Users' own spaces may use the priors; for them the old text of the priors is kept.
"""

from __future__ import annotations

from pathlib import Path

EARLIER: dict[str, tuple[str, ...]] = {
    "large_batch": ("90010046f8844e9e7e328c992f89bb3b2f0d76d7f8056115358c05ad338ca744",),
    "lr_warmup": ("e926b1ab8e44c5493243eedcf46602f95c5b5c86d43e60641ba53ecbe8345e3c",),
    "smoke": ("c372af8405e28331eb5bd45ef9445c37015950c29ed8bed602a7339443b4fa05",),
}
"""Keys are names of spaces. These fingerprints are of commit 6dde4d6."""
PRIORS = ("priors_6dde4d6.txt",)


def earlier_priors_texts() -> list[str]:
    """The texts of ``priors.py`` in earlier commits: the same functions, with other comments and imports."""
    return [Path(__file__).with_name(name).read_text(encoding="utf-8") for name in PRIORS]
