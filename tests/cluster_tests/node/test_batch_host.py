"""Whether a node hangs, by its heartbeats; whether the job's first one is lost, by its answer and Slurm's word too."""

import socket
from pathlib import Path

import pytest

from bigbatch.base.atomic_files import write_json
from bigbatch.cluster.node import batch_host, node_status
from helpers.stand_in_slurm import stand_in


class Node:
    """Node ``name`` of job 7, whose first node is n1, with a clock of the test's own."""

    def __init__(self, folder: Path, name: str, now: list[float], port: int) -> None:
        self.folder, self.now, self.port = folder, now, port
        self.host = batch_host.BatchHost("7", "n1", folder / "n1.json", folder / f"{name}.json")

    def report(self, name: str, beat: int, state: str = "ready", run_id: str = "7.0") -> None:
        ports = {"node_manager": self.port}
        values = {"run_id": run_id, "beat": beat, "state": state, "ip": "127.0.0.1", "ports": ports}
        write_json(self.folder / f"{name}.json", values)

    def lost_after(self, seconds: float, **last: object) -> bool:
        """Whether n1, with ``last`` as its last report, is lost when it has been silent for so long."""
        for beat in range(round(seconds) + 1):
            self.report("n1", 1, **last)  # type: ignore[arg-type]
            self.report("n2", beat + 1)
            self.report("n3", beat + 1)
            if self.host.is_lost():
                return True
            self.now[0] += 1.0
        return False


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def node(tmp_path, monkeypatch, listener):
    now = [1000.0]
    monkeypatch.setattr(node_status.time, "monotonic", lambda: now[0])

    def make(name: str = "n2", *, node_list: str = "n[1-3]", answers: bool = False) -> Node:
        names = "echo n1; echo n2; echo n3" if "1" in node_list else "echo n2; echo n3"
        fields = f"echo 'JobId=7 JobState=RUNNING NodeList={node_list}'"
        stand_in(tmp_path, monkeypatch, scontrol=f'case "$*" in *hostnames*) {names};; *) {fields};; esac')
        if not answers:  # a machine without power refuses nothing: no answer comes
            monkeypatch.setattr(batch_host.socket, "create_connection", _no_answer)
        return Node(tmp_path, name, now, listener.getsockname()[1])

    return make


def _no_answer(*_: object) -> None:
    raise TimeoutError


def test_a_silent_host_that_does_not_answer_is_lost_within_a_minute(node):
    assert not node().lost_after(40)
    assert node().lost_after(60)


def test_the_nodes_act_one_after_the_other(node):
    assert not node("n3").lost_after(50) and node("n2").lost_after(50) and node("n3").lost_after(55)


def test_a_host_that_answers_is_not_lost_whatever_its_file_system_does(node, listener):
    job = node(answers=True)
    assert not job.lost_after(200)
    listener.close()  # now it refuses
    assert not job.lost_after(200)


def test_a_host_that_hangs_is_lost_when_slurm_has_taken_it_out_of_the_job(node):
    assert node(answers=True, node_list="n[2-3]").lost_after(60)


def test_a_host_that_never_reported_is_lost_when_slurm_has_taken_it_out_of_the_job(node):
    for node_list, lost in (("n[1-3]", False), ("n[2-3]", True)):
        job = node(node_list=node_list)
        looks = []
        for beat in range(100):
            job.report("n2", beat + 1, "starting")
            looks.append(job.host.is_lost())
            job.now[0] += 1.0
        assert any(looks) is lost and not any(looks[:40])


def test_a_host_that_has_ended_in_order_or_belongs_to_another_start_is_not_lost(node):
    for last in ({"state": "ended"}, {"state": "failed"}, {"run_id": "7.1"}):
        assert not node().lost_after(200, **last)


def test_where_no_node_can_report_the_host_is_not_lost(node):
    """A full quota, or a file system that does not answer."""
    job = node()
    for name in ("n1", "n2"):
        job.report(name, 5)
    for _ in range(200):
        assert not job.host.is_lost()
        job.now[0] += 1.0


def test_a_stalled_file_system_is_no_hung_node(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(node_status.time, "monotonic", lambda: now[0])
    beats = {"n1": 1, "n2": 1, "n3": 0}
    watch = node_status.Heartbeats()
    assert watch.hung(beats) == []
    for _ in range(30):
        now[0] += 10.0
        assert watch.hung(beats) == [], "all stand still"
    beats["n1"] = 2
    assert watch.hung(beats) == ["n2"], "one goes on, so the other hangs; the third has not begun"
    beats["n2"] = 2
    assert watch.hung(beats) == [], "it only was slow"


def test_after_it_stood_still_itself_it_waits_for_the_others_anew(monkeypatch):
    """As when a suspended job is resumed: one node writes its next heartbeat before the other."""
    now = [100.0]
    monkeypatch.setattr(node_status.time, "monotonic", lambda: now[0])
    watch = node_status.Heartbeats()
    assert watch.hung({"n1": 1, "n2": 1}, 60.0) == []
    now[0] += 3600.0
    assert watch.hung({"n1": 2, "n2": 1}, 60.0) == []
    for beat in range(3, 15):
        now[0] += 5.0
        assert watch.hung({"n1": beat, "n2": 1}, 60.0) == []
    now[0] += 1.0
    assert watch.hung({"n1": 15, "n2": 1}, 60.0) == ["n2"]
