"""Fingerprints of the built-in spaces in earlier commits.

A study stores the SHA-256 of its space's text and of the priors' text. It resumes only with the same space. When a
text changes but the search does not (a comment, the name of an import), add the old fingerprint here: then older
studies still resume. Users' own spaces may use the priors; for them the old text of the priors is kept.
"""

from __future__ import annotations

from pathlib import Path

EARLIER: dict[str, tuple[str, ...]] = {
    "large_batch": (
        "90010046f8844e9e7e328c992f89bb3b2f0d76d7f8056115358c05ad338ca744",
        "aa47be2bc9a22b2a48f13dcb48e62c71b54937075830464b0702f6ccbfd7e5b1",
        "8c42c031ea774a208c93cba7bfcec3a5093ec9f599c96a296719023cfe6bfbdc",
    ),
    "lr_warmup": (
        "e926b1ab8e44c5493243eedcf46602f95c5b5c86d43e60641ba53ecbe8345e3c",
        "fe3480ca9abda5d89037c67a05fac5ab3b1bd8c758d0b9b1a77eadd543be5229",
        "c54c0b5064efe408117d05dc4d722f2ea56c4d21606328bf24c510dbe882c8d7",
    ),
    "smoke": (
        "c372af8405e28331eb5bd45ef9445c37015950c29ed8bed602a7339443b4fa05",
        "a50132bf06cc60436bb2ca24e43d43bd19541dca7f0fcd740b01783926fc1a1c",
        "7ae72c88bc7a31bcec21890160184f0c6cb5614d0d5bbaccc9107d2b89f8ffaa",
    ),
}
"""Keys are names of spaces. These fingerprints are of the commits 6dde4d6, 62a0ada and f29f6fc. Studies of the first
two go on with the ranges of then: study.json has no ``lr_spread``, which means 4."""
PRIORS = ("priors_6dde4d6.txt", "priors_62a0ada.txt", "priors_f29f6fc.txt")


def earlier_priors_texts() -> list[str]:
    """The texts of ``priors.py`` in earlier commits: the same functions, with other comments and imports."""
    return [Path(__file__).with_name(name).read_text(encoding="utf-8") for name in PRIORS]
