"""study.json, the description of a study, and where a result comes from: commit, versions, host, Slurm job.

Needs no Optuna. Benchmarks state their provenance by the same function.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bigbatch.base.root import ROOT
from bigbatch.cluster.host.allocation import slurm_job
from bigbatch.cluster.host.optuna_journal import JOURNAL_NAME, StoredTrial, read_journal
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
            f"a study is a folder with {STUDY_FILE}; there is none in {str(folder)!r}. "
            "Write --study and --output of the study to continue, or leave --resume out."
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


def resumed_description(folder: Path, storage: str | None) -> Description:
    """As ``read_description``, for a study that a search continues. Also called before a job for it is queued.

    Args:
        storage: the URL of its database; None: its journal is looked at.

    Raises ConfigError also for a journal that does not hold the study, or that Optuna could not read.
    """
    description = read_description(folder)
    # Without a session the driver was killed before the study's first entry: nothing is lost.
    if storage is None and description.get("sessions"):
        try:
            found = read_journal(folder, str(description.get("name")), StoredTrial)
        except OSError as error:
            raise unreadable_journal(folder, str(error.strerror)) from None
        if found is None:
            raise no_trials(folder)
        if found.cut_at is not None:
            raise unreadable_journal(folder, f"line {found.cut_at} is damaged")
    return description


def no_trials(folder: Path) -> ConfigError:
    """The refusal to continue a study whose trials are not there."""
    return ConfigError(
        f"--resume needs the study's trials; got {folder.name!r}, which the storage does not hold. "
        f"Write the --storage with which it began, or restore {JOURNAL_NAME}."
    )


def unreadable_journal(folder: Path, reason: str) -> ConfigError:
    """The refusal of a damaged journal: nothing may be written behind the damage."""
    return ConfigError(
        f"a study's {JOURNAL_NAME} must be readable; got {str(folder / JOURNAL_NAME)!r} ({reason}). "
        "Restore it from a copy. The tables beside it hold what has ended."
    )


PACKAGES = ("bigbatch", "ray", "optuna", "torch", "torchvision", "pyarrow", "wandb", "numpy", "scikit-learn")


def provenance() -> dict[str, object]:
    """Commit, versions, host and job of this process. An unknown value is None."""
    job = slurm_job()
    return {
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": [redact(word).replace(f"{ROOT}/", "") for word in sys.argv],
        "host": platform.node(),
        "pid": os.getpid(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "git": git_state(ROOT),
        "packages": {name: package_version(name) for name in PACKAGES},
        "slurm": asdict(job) if job else None,
    }


def redact(text: str) -> str:
    """``text`` with ``***`` in place of the passwords of URLs."""
    text = re.sub(r"(://[^:/@\s]*):[^@\s]+@", r"\1:***@", text)
    return re.sub(r"([?&](?:ssl)?(?:password|passwd|pwd)=)[^&\s'\"]+", r"\1***", text, flags=re.IGNORECASE)


def package_version(name: str) -> str | None:
    """The version of an installed distribution; None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def git_state(root: Path) -> dict[str, object] | None:
    """The commit, and whether the work tree differs from it; None outside a repository.

    In an archive that git made, the commit is in a file, and nobody knows whether something was changed since.
    """
    archived = root / ".git_archival.txt"
    found = re.search("[0-9a-f]{40}", archived.read_text()) if archived.exists() else None
    if found:
        return {"commit": found[0], "dirty": None, "changed_files": []}
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git(root, "status", "--porcelain")
    return {"commit": commit, "dirty": bool(changes), "changed_files": (changes or "").splitlines()[:50]}


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.rstrip() if done.returncode == 0 else None
