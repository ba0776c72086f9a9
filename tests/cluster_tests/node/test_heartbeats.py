"""Signs of life of nodes."""

from __future__ import annotations

from bigbatch.cluster.node import node_status


def test_a_stalled_file_system_is_no_hung_node(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(node_status.time, "monotonic", lambda: now[0])
    beats = {"n1": 1, "n2": 1, "n3": 0}
    watch = node_status.Heartbeats()
    assert watch.hung(beats) == []
    now[0] += 300.0
    assert watch.hung(beats) == [], "all stand still"
    beats["n1"] = 2
    assert watch.hung(beats) == ["n2"], "one goes on, so the other hangs; the third has not begun"
    beats["n2"] = 2
    assert watch.hung(beats) == [], "it only was slow"
