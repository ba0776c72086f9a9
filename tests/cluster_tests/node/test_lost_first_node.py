"""What another node does for a job whose first node, and with it the batch script, is lost."""

from pathlib import Path

import pytest

from bigbatch.base.atomic_files import write_json
from bigbatch.cluster.node import node_process, node_status
from helpers.stand_in_slurm import stand_in

REFUSED = 'echo "Requested operation is presently disabled" >&2; exit 1'


@pytest.mark.parametrize(
    ("what", "requeue", "answer", "calls"),
    [
        ("lost", "exit 0", "", "requeue 7\n"),
        ("lost", REFUSED, "JobState=RUNNING Restarts=0", "requeue 7\nscancel 7\n"),
        ("lost", REFUSED, "JobState=COMPLETING Restarts=1", "requeue 7\n"),  # another node was faster
        ("lost", REFUSED, "JobState=RUNNING Restarts=1", "requeue 7\n"),  # and the job already runs again
        ("its Ray has ended", "exit 0", "", ""),
        ("the file system hangs", "exit 0", "", ""),
        ("lives", "exit 0", "", ""),
    ],
)
def test_a_job_whose_first_node_is_lost_is_put_into_the_queue_once(what, requeue, answer, calls, tmp_path, monkeypatch):
    asked = tmp_path / "calls"
    note = f'case "$*" in *show*) echo "JobId=7 {answer}"; exit;; esac; echo "$*" >> {asked}; {requeue}'
    stand_in(tmp_path, monkeypatch, scontrol=note, scancel=f'echo "scancel $*" >> {asked}')
    now = [1000.0]
    monkeypatch.setattr(node_status.time, "monotonic", lambda: now[0])
    (tmp_path / "nodes").mkdir()
    words = ["--record", str(tmp_path), "--node", "n2", "--job", "7", "--run-id", "7.0", "--first", "n1"]
    node = node_process.NodeProcess(node_process.parse(words))
    for beat in range(2, 44):
        first = beat if what == "lives" else 1
        ours = 1 if what == "the file system hangs" else beat
        state = "failed" if what == "its Ray has ended" else "ready"
        report(tmp_path, "n1", first, state)
        report(tmp_path, "n2", ours)
        if not asked.exists():
            node._requeue_if_first_is_lost()
        now[0] += 5.0
    assert (asked.read_text() if asked.exists() else "") == calls


def report(folder: Path, name: str, beat: int, state: str = "ready") -> None:
    write_json(folder / "nodes" / f"{name}.json", {"run_id": "7.0", "beat": beat, "state": state})


def test_who_stood_still_waits_for_the_others_anew(monkeypatch):
    """After `scontrol suspend` all nodes go on at once; none has hung."""
    now = [0.0]
    monkeypatch.setattr(node_status.time, "monotonic", lambda: now[0])
    heartbeats = node_status.Heartbeats()
    assert heartbeats.hung({"n1": 1, "n2": 1}, 60.0) == []
    now[0] = 3600.0
    assert heartbeats.hung({"n1": 1, "n2": 2}, 60.0) == []
    for beat in range(3, 90):
        now[0] += 1.0
        found = heartbeats.hung({"n1": 1, "n2": beat}, 60.0)
        assert found == (["n1"] if now[0] > 3660.0 else [])
