"""Ask a site's quota command how much room is left. Lustre's format is read; any other output is only shown.

``statvfs`` does not see quotas of users and groups, only the room of the whole file system.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bigbatch.cluster.host.profiles import Site

TIMEOUT_S = 15.0
SHOWN_LINES = 12
# A name may have its own line. "*" marks a value over quota, "[…]" a sum in which a server is missing.
_NUMBER = r"\s+\[?(\d+)\]?\*?"
_ROW = re.compile(rf"^[ \t]*(/\S*){_NUMBER}\s+\S+{_NUMBER}\s+\S+{_NUMBER}\s+\S+{_NUMBER}", re.MULTILINE)


@dataclass(frozen=True)
class QuotaLeft:
    """The room left under a quota; None: no limit."""

    bytes: int | None
    inodes: int | None


def run_quota_command(site: Site) -> list[str]:
    """The last lines that the site's quota command prints; empty if the profile has none, or it does not work."""
    try:
        words = [os.path.expandvars(word) for word in shlex.split(site.quota_command or "")]
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=True)
    except (ValueError, IndexError, OSError, subprocess.SubprocessError):
        return []
    # Some commands write their table to standard error.
    return (done.stdout or done.stderr).strip().splitlines()[-SHOWN_LINES:]


def parse_quota_left(lines: Sequence[str], folder: Path) -> QuotaLeft | None:
    """The room for ``folder`` in the output of Lustre's ``lfs quota``, the least of several; None if it is not there.

    The table (manual page lfs-quota(1); blocks of 1024 bytes, limit 0 = none):

        Filesystem  kbytes   quota   limit   grace   files   quota   limit   grace
          /scratch  285181       0 5347737       -  316399  500000 1000000       -
    """
    found = []
    for mount, *numbers in _ROW.findall("\n".join(lines)):
        if str(folder.absolute()).startswith(mount.rstrip("/") + "/") or str(folder) == mount:
            kbytes, limit, files, file_limit = map(int, numbers)
            found.append(
                (max(limit - kbytes, 0) * 1024 if limit else None, max(file_limit - files, 0) if file_limit else None)
            )
    if not found:
        return None
    left = [min((value for value in column if value is not None), default=None) for column in zip(*found, strict=True)]
    return QuotaLeft(*left)
