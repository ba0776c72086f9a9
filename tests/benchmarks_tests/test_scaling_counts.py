"""What ranks cost is counted: the page has the stored counts, and what must not grow with the ranks does not."""

import json
import shutil
from pathlib import Path

import pytest

from bigbatch.train_loop.distributed import QUESTIONS
from bigbatch.train_loop.launch.ray_internals import poll_interval_s
from helpers.paths import ROOT

STORED = json.loads((ROOT / "benchmarks" / "results" / "scaling_counts_2cpu.json").read_text(encoding="utf-8"))
SECTION = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8").partition("## What grows")[2].partition("\n## ")[0]
Counts = dict[str, dict[str, dict[str, int]]]
STEADY = (
    "folders of data listed", "files of data asked for", "keys of ours", "collectives of the start",
    "collectives of a step", "collectives of an epoch", "collectives of a resume",
)  # fmt: skip


def check_growth(counts: Counts) -> None:
    """Of each kind of data, over all numbers of ranks from two on."""
    for kind in {row.split()[0] for row in counts}:
        rows = {int(row.split()[1]): found for row, found in counts.items() if row.split()[0] == kind}
        several = {ranks: found for ranks, found in rows.items() if ranks > 1}
        assert len(several) > 1
        each = 32 if kind == "folder" else 3
        opened = {found["files of data opened"]["all"] - each * ranks for ranks, found in several.items()}
        assert len(opened) == 1, (kind, "beside each rank's own", opened)
        assert all(found["keys of torch"]["rank 0"] == ranks for ranks, found in several.items())
        for name in STEADY:
            here, there = ({found[name][who] for found in several.values()} for who in ("rank 0", "others"))
            assert len(here) == len(there) == 1, (kind, name, here, there)
        for found in several.values():
            assert found["folders of data listed"]["others"] == found["bytes of the checkpoint"]["others"] == 0
            assert found["bytes of the checkpoint"]["rank 0"] > 1e6
            assert found["files of data asked for"]["others"] < 20, "not for each image"


def test_what_must_not_grow_with_the_ranks_does_not() -> None:
    assert STORED["settings"]["ranks"] == [1, 2, 4]
    check_growth(STORED["summary"])


def test_the_page_says_what_was_counted() -> None:
    folder, packed = (STORED["summary"][f"{kind} 4"] for kind in ("folder", "packed"))
    images, ranks = STORED["settings"]["images"], 4

    def says(start: str, rank_0: str, other: str) -> None:
        (line,) = [line for line in SECTION.splitlines() if line.startswith(f"| {start}")]
        cells = [cell.strip() for cell in line.strip("|").split("|")][1:]
        assert cells[0].startswith(rank_0) and cells[1].startswith(other), (line, rank_0, other)

    def both(start: str, name: str, of: dict[str, dict[str, int]] = folder, same: bool = False) -> None:
        says(start, f"{of[name]['rank 0']:,}", "the same" if same else f"{of[name]['others']:,}")
        assert not same or of[name]["rank 0"] == of[name]["others"]

    both("image folder: folders listed", "folders of data listed")
    both("its files asked for", "files of data asked for")
    looks = folder["files of data opened"]["all"] - images - 32 * (ranks - 1)
    says("its files opened", f"{looks}", f"32; one rank of a node all {images} more")
    both("packed set: files opened", "files of data opened", packed)
    both("files of Python", "files of libraries")
    keys = f"{folder['keys of ours']['rank 0']}, and N of torch"
    says("keys of the store", keys, f"asks it 5 times a second, all {QUESTIONS:,}")
    resume = folder["collectives of a resume"]["rank 0"]
    says("collectives of the start", f"{folder['collectives of the start']['rank 0']}, to resume {resume} more", "the")
    both("collectives of a step", "collectives of a step", same=True)
    both("collectives of an epoch", "collectives of an epoch", same=True)
    both("bytes of a checkpoint", "bytes of the checkpoint")
    millions = 1024 * folder["files of libraries"]["others"] / 1e6
    assert f"{millions:.0f} million times by 1,024 ranks" in SECTION
    calls = {workers: workers / poll_interval_s(workers) for workers in (8, 32, 640, 1024)}
    assert calls == pytest.approx({8: 80, 32: 320, 640: 320, 1024: 512})
    says("Ray's calls to workers", "10 N to 32 workers, 320 to 640, then N / 2", "")


@pytest.mark.exhaustive
@pytest.mark.without_ray
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_counted_anew_it_does_not_grow_either(run_command, tmp_path: Path) -> None:
    script, output = ROOT / "benchmarks" / "scaling_counts.py", tmp_path / "counts.json"
    done = run_command(script, "--ranks", 2, 4, "--data", "folder", "--output", output, timeout_s=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    check_growth(json.loads(output.read_text())["summary"])
