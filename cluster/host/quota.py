"""Ask a site's quota command how much room is left. A known format is read; any other output is only shown.

``statvfs`` does not see quotas of users and groups, only the room of the whole file system.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bigbatch.cluster.host.profiles import Site

TIMEOUT_S = 15.0
SHOWN_LINES = 12


class NoAnswer(RuntimeError):
    """The quota command did not work. The message says why in a few words."""


@dataclass(frozen=True)
class QuotaLeft:
    """The room left under a quota; None: no limit."""

    bytes: int | None
    inodes: int | None


def run_quota_command(site: Site) -> list[str]:
    """The last lines that the site's quota command prints; empty if the profile has no command. Raises NoAnswer."""
    if not site.quota_command:
        return []
    try:
        words = [os.path.expandvars(word) for word in shlex.split(site.quota_command)]
    except ValueError:
        raise NoAnswer("a quote in quota_command is not closed") from None
    if not words or not shutil.which(words[0]):
        raise NoAnswer(f"{words[0] if words else 'quota_command'} is not on PATH")
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"it did not answer within {TIMEOUT_S:g} s") from None
    except OSError as error:
        raise NoAnswer(error.strerror or type(error).__name__) from None
    # Some commands write their table to standard error.
    lines = (done.stdout or done.stderr).strip().splitlines()[-SHOWN_LINES:]
    if done.returncode:
        raise NoAnswer(" / ".join(lines) or f"it ended with code {done.returncode}")
    return lines


def parse_quota_left(lines: Sequence[str], folder: Path) -> QuotaLeft | None:
    """The room for ``folder`` in the output of Lustre's ``lfs quota``, the least of several; None if it is not there.

    The table (manual page lfs-quota(1); blocks of 1024 bytes, limit 0 = none) has a row for each file system, whose
    name may have its own line. ``*`` marks a value over quota, ``[…]`` a sum in which a server is missing:

        Filesystem  kbytes   quota   limit   grace   files   quota   limit   grace
          /scratch  285181       0 5347737       -  316399  500000 1000000       -
    """
    found: list[QuotaLeft] = []
    row: list[str] = []
    inside = False
    for line in lines:
        words = line.split()
        if words[:4] == ["Filesystem", "kbytes", "quota", "limit"]:
            inside, row = True, []
            continue
        if not inside or not words:
            continue
        row = words if words[0].startswith("/") else row + words
        numbers = [_number(word) for word in row[1:]]
        if len(numbers) >= 7 and _covers(row[0], folder) and None not in (*numbers[0:3:2], *numbers[4:7:2]):
            kbytes, _, limit, _, files, _, file_limit = numbers[:7]
            found.append(QuotaLeft(_rest(kbytes, limit, 1024), _rest(files, file_limit, 1)))
            row = []
    if not found:
        return None
    return QuotaLeft(
        min((each.bytes for each in found if each.bytes is not None), default=None),
        min((each.inodes for each in found if each.inodes is not None), default=None),
    )


def _number(word: str) -> int | None:
    match = re.fullmatch(r"\[?(\d+)\]?\*?", word)
    return int(match.group(1)) if match else None


def _rest(used: int | None, limit: int | None, unit: int) -> int | None:
    return max(limit - (used or 0), 0) * unit if limit else None


def _covers(mount: str, folder: Path) -> bool:
    return mount == "/" or str(folder.absolute()).startswith(mount.rstrip("/") + "/") or str(folder) == mount
