"""What ranks cost is counted: what must not grow with the ranks does not."""

import json
import shutil
from pathlib import Path

import pytest

from helpers.paths import ROOT

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


@pytest.mark.exhaustive
@pytest.mark.without_ray
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_what_must_not_grow_with_the_ranks_does_not(run_command, tmp_path: Path) -> None:
    script, output = ROOT / "benchmarks" / "scaling_counts.py", tmp_path / "counts.json"
    done = run_command(script, "--ranks", 2, 4, "--data", "folder", "--output", output, timeout_s=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    check_growth(json.loads(output.read_text())["summary"])
