"""Read study.json, the description of a study. Needs no Optuna."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bigbatch.train_loop.config import ConfigError

SCHEMA_VERSION = 1
STUDY_FILE = "study.json"
Description = dict[str, Any]
"""The values of study.json by key, as whichever version wrote them."""


def read_description(folder: Path) -> Description:
    """study.json. Raises ConfigError if ``folder`` holds no study of this schema."""
    path = folder / STUDY_FILE
    try:
        description = json.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(
            f"--resume needs a study; there is none in {str(folder)!r}. "
            "Write --study and --output of the run to continue, or leave --resume out."
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{STUDY_FILE} must be readable JSON; got {str(path)!r} ({error}). Restore the file."
        ) from None
    version = description.get("schema_version") if isinstance(description, dict) else None
    if version != SCHEMA_VERSION:
        raise ConfigError(
            f"this version reads study schema {SCHEMA_VERSION}; got {version!r} in {str(path)!r}. "
            "Use the bigbatch that wrote it, or restore the file."
        )
    return dict(description)
