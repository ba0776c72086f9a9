"""What Slurm writes into variables and answers, read in one place: counts, lists, memory, times, generic resources.

Nothing here raises for odd text: sites have plugins and prologs of their own, and a job that Slurm has started must
not end for how a number was written. What cannot be read is None, or empty. Standard library only, Python 3.9.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
NOTHING = (None, "", "(null)", "N/A", "UNLIMITED", "Unknown")
"""What ``scontrol`` writes where there is nothing to say."""
OTHER_TRES = ("null", "cpu", "mem", "node", "billing", "energy", "license", "fs", "vmem", "pages")
"""What is counted beside generic resources (``AllocTRES=cpu=4,mem=8G,node=1,gres/gpu=2``)."""

# Values may hold blanks (Command=/a b/c), so a field ends where the next " Name=" begins.
_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z/:_]*)=(.*?)(?=\s[A-Z][A-Za-z/:_]*=|\s*$)", re.DOTALL)
# A socket list or a repetition may follow: 8(S:0-1), 4(x2); a plus where nodes differ: 64+.
_NUMBER = re.compile(r"(\d+)([KMGTP]?)\+?(?:\([^)]*\))?")


def is_set(value: str | None) -> bool:
    """Whether a field of ``scontrol show job`` says something."""
    return value not in NOTHING


def read_count(text: str | None) -> int | None:
    """``8``, ``8(S:0-1)``, ``64+``, ``2K`` (2048: commands shorten large counts). None for all else."""
    match = _NUMBER.fullmatch((text or "").strip())
    return int(match[1]) * UNITS[match[2]] if match else None


def least_count(text: str | None) -> int | None:
    """The smaller one of a range of counts: ``NumNodes=2-4`` → 2."""
    return read_count((text or "").strip().partition("-")[0])


def largest_count(text: str | None) -> int | None:
    """The larger one: ``1-4`` → 4; None for ``1-infinite``."""
    return read_count((text or "").strip().rpartition("-")[2])


def memory_bytes(text: str | None) -> int | None:
    """Of ``SLURM_MEM_PER_NODE`` and its like: MiB, or with a unit (``64G``). None for 0, which is all of a node."""
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
    """GPUs of ``SLURM_GPUS_ON_NODE`` and its like: ``8``, ``8(S:0-1)``, ``gpu:a100:4(S:0)``, ``a100:3,v100:1``."""
    count = read_count(text)
    if count is not None or not is_set((text or "").strip()):
        return count
    parts = gres_parts(text or "")
    named = [count for name, _, count in parts if name == "gpu"]
    others = [count for name, kind, count in parts if not kind and name not in ("shard", "mps")]  # by their type alone
    return sum(named or others) if parts else None


def granted_gpus_here(env: Mapping[str, str]) -> int | None:
    """GPUs that Slurm has granted on this node, by the first variable that says it; None where none does."""
    count = read_gpu_count(env.get("SLURM_GPUS_ON_NODE"))
    lists = (env.get(name) for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS"))
    return count if count is not None else next((count_listed_devices(one) for one in lists if one), None)


def gres_parts(text: str | None) -> list[tuple[str, str, int]]:
    """Name, type (may be empty) and count of each generic resource.

    Of ``gres/gpu:a100:4``, ``gres:gpu:2``, ``gpu:a100:4(S:0-1)``, ``gpu:(null):3(IDX:0-7)`` or
    ``cpu=4,gres/gpu:a100=2``. Where Slurm counts a resource both by type and in all (``gres/gpu:a100=1,gres/gpu=1``),
    in all means what has no type.
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
    """How many of a resource, of one type or of any."""
    return sum(count for other, its, count in gres_parts(text) if other == name and kind in ("", its))


def per_gpu(text: str | None) -> str | None:
    """What ``CpusPerTres`` or ``MemPerTres`` grants with each GPU, as sbatch takes it: ``gres/gpu:a100:8`` → 8."""
    match = re.search(r"gpu(?::[^:=,]*[^:=,\d][^:=,]*)?[:=](\d+[KMGT]?)", text or "")
    return match[1] if match else None


def seconds_since_epoch(text: str | None) -> float | None:
    """Seconds since the epoch of ``2026-11-22T10:00:00`` in local time, or of a number of seconds; None for Unknown."""
    text = (text or "").strip()
    try:
        return float(text) if text.isdigit() else time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None


def parse_job_fields(text: str) -> list[dict[str, str]]:
    """``scontrol --oneliner show job``: the fields of each component of a job, by name."""
    found = [dict(_FIELD.findall(part.strip())) for part in re.split(r"^(?=JobId=)", text, flags=re.MULTILINE)]
    return [fields for fields in found if fields]


def parse_config(text: str) -> dict[str, str]:
    """``scontrol show config``, by name."""
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def first_host(node_list: str) -> str:
    """``jwb[0021-0024,0101],x1`` → ``jwb0021``, without asking Slurm, which a container may lack. Raises ValueError."""
    match = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\]([^,\[]*))?", node_list)
    if match is None:
        raise ValueError(f"not a node list of Slurm: {node_list!r}")
    return "".join(part or "" for part in match.groups())
