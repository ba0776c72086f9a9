"""Parse the values in Slurm's variables and answers: counts, lists, memory, times, generic resources.

Unknown text raises no error, because sites have their own plugins and prologs, and an odd number must not end a running
job. An unreadable value is None, or empty. Standard library only.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
NOTHING = (None, "", "(null)", "N/A", "UNLIMITED", "Unknown")
"""``scontrol`` writes these for a field without a value."""
OTHER_TRES = ("null", "cpu", "mem", "node", "billing", "energy", "license", "fs", "vmem", "pages")
"""Resources that are counted beside generic ones (``AllocTRES=cpu=4,mem=8G,node=1,gres/gpu=2``)."""

# Values may contain blanks (Command=/a b/c), so a field ends where the next " Name=" begins.
_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z/:_]*)=(.*?)(?=\s[A-Z][A-Za-z/:_]*=|\s*$)", re.DOTALL)
# A socket list or a repetition may follow: 8(S:0-1), 4(x2); or a plus if nodes differ: 64+.
_NUMBER = re.compile(r"(\d+)([KMGTP]?)\+?(?:\([^)]*\))?")


def is_set(value: str | None) -> bool:
    """Whether a field of ``scontrol show job`` has a value."""
    return value not in NOTHING


def read_count(text: str | None) -> int | None:
    """Parse ``8``, ``8(S:0-1)``, ``64+``, ``2K`` (2048: commands shorten large counts). None for any other text."""
    match = _NUMBER.fullmatch((text or "").strip())
    return int(match[1]) * UNITS[match[2]] if match else None


def least_count(text: str | None) -> int | None:
    """The smaller number of a range: ``2-4`` → 2."""
    return read_count((text or "").strip().partition("-")[0])


def largest_count(text: str | None) -> int | None:
    """The larger number of a range: ``1-4`` → 4; None for ``1-infinite``."""
    return read_count((text or "").strip().rpartition("-")[2])


def memory_bytes(text: str | None) -> int | None:
    """Bytes in ``SLURM_MEM_PER_NODE`` and similar variables: MiB, or with a unit (``64G``). None for 0: the whole
    node."""
    match = re.fullmatch(r"(\d+)([KMGTP]?)[Bcn]?", (text or "").strip(), re.IGNORECASE)
    return (int(match[1]) * UNITS[match[2].upper() or "M"] or None) if match else None


def per_node(text: str | None) -> list[int]:
    """Counts for each node: ``4(x2),2`` → 4, 4, 2. Empty if there are none."""
    counts: list[int] = []
    for part in (text or "").split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            return []
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def count_listed_devices(text: str | None) -> int:
    """How many devices a list names: ``0,2-3`` → 3, ``GPU-8f…,GPU-1c…`` → 2, ``NoDevFiles`` → 0."""
    count = 0
    for part in (text or "").split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit() and last.isdigit():
            count += max(0, int(last) - int(first) + 1)
        elif is_set(part.strip()) and part.strip() not in ("NoDevFiles", "-1", "none", "void"):
            count += 1
    return count


def read_gpu_count(text: str | None) -> int | None:
    """GPUs in ``SLURM_GPUS_ON_NODE`` and similar: ``8``, ``8(S:0-1)``, ``gpu:a100:4(S:0)``, ``a100:3,v100:1``."""
    count = read_count(text)
    if count is not None or not is_set((text or "").strip()):
        return count
    parts = gres_parts(text or "")
    named = [count for name, _, count in parts if name == "gpu"]
    others = [count for name, kind, count in parts if not kind and name not in ("shard", "mps")]  # by their type alone
    return sum(named or others) if parts else None


def granted_gpus_here(env: Mapping[str, str]) -> int | None:
    """GPUs that Slurm has granted on this node, from the first variable that is set; None if none is."""
    count = read_gpu_count(env.get("SLURM_GPUS_ON_NODE"))
    lists = (env.get(name) for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS"))
    return count if count is not None else next((count_listed_devices(one) for one in lists if one), None)


def gres_parts(text: str | None) -> list[tuple[str, str, int]]:
    """Name, type (may be empty) and count of each generic resource.

    Reads ``gres/gpu:a100:4``, ``gres:gpu:2``, ``gpu:a100:4(S:0-1)``, ``gpu:(null):3(IDX:0-7)`` and
    ``cpu=4,gres/gpu:a100=2``. Slurm may count a resource both by type and in total (``gres/gpu:a100=1,gres/gpu=1``).
    Then the entry without a type is the rest of the total.
    """
    found: list[tuple[str, str, int]] = []
    in_all: set[tuple[str, int]] = set()
    for part in re.sub(r"\([^)]*\)", "", text or "").split(","):
        is_gres = part.strip().startswith(("gres/", "gres:"))
        name, *rest = re.split("[:=]", re.sub(r"^gres[:/]", "", part.strip()))
        if not name or name.partition("/")[0] in OTHER_TRES or ("=" in part and not is_gres):
            continue
        last = read_count(rest[-1]) if rest else None
        kinds = [word for word in (rest if last is None else rest[:-1]) if word and word != "no_consume"]
        if "=" in part and not kinds:
            in_all.add((name, len(found)))
        found.append((name, kinds[0] if kinds else "", 1 if last is None else last))
    for name, at in in_all:
        typed = sum(count for other, kind, count in found if other == name and kind)
        found[at] = (name, "", max(0, found[at][2] - typed))
    return [part for at, part in enumerate(found) if part[2] or (part[0], at) not in in_all]


def gres_count(text: str, name: str, kind: str = "") -> int:
    """The count of a resource, of one type or of all types."""
    return sum(count for other, its, count in gres_parts(text) if other == name and kind in ("", its))


def per_gpu(text: str | None) -> str | None:
    """The amount for each GPU in ``CpusPerTres`` or ``MemPerTres``, in sbatch's form: ``gres/gpu:a100:8`` → 8."""
    match = re.search(r"gpu(?::[^:=,]*[^:=,\d][^:=,]*)?[:=](\d+[KMGT]?)", text or "")
    return match[1] if match else None


def seconds_since_epoch(text: str | None) -> float | None:
    """Parse ``2026-11-22T10:00:00`` (local time) or a number into seconds since the epoch; None for Unknown."""
    text = (text or "").strip()
    try:
        return float(text) if text.isdigit() else time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None


def parse_job_fields(text: str) -> list[dict[str, str]]:
    """The fields of each component of a job, by name, from ``scontrol --oneliner show job``."""
    found = [dict(_FIELD.findall(part.strip())) for part in re.split(r"^(?=JobId=)", text, flags=re.MULTILINE)]
    return [fields for fields in found if fields]


def parse_config(text: str) -> dict[str, str]:
    """The values of ``scontrol show config``, by name."""
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def first_host(node_list: str) -> str:
    """``jwb[0021-0024,0101],x1`` → ``jwb0021``, ``r[1-2]n[03-04]`` → ``r1n03``.

    Does not need Slurm, which a container may lack. Raises ValueError.
    """
    first = re.sub(r"\[(\d+)[^\]]*\]", r"\1", node_list).partition(",")[0]
    if not first or "[" in first:
        raise ValueError(f"not a node list of Slurm: {node_list!r}")
    return first
