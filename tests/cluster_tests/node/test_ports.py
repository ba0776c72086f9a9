"""The block of ports of a job."""

from __future__ import annotations

import socket

from bigbatch.cluster.node import ray_commands


def test_blocks_of_ports_do_not_overlap_and_stay_below_the_ephemeral_range():
    head, worker = ray_commands.ports_of("7", 0, head=True), ray_commands.ports_of("7", 0, head=False)
    assert len(set(head.used() + worker.used())) == 8 + 5
    assert (worker.gcs, worker.dashboard, worker.client) == (0, 0, 0)
    neighbours = [set(ray_commands.ports_of(str(job), 0, head=h).used()) for job in range(500) for h in (True, False)]
    assert sum(map(len, neighbours)) == len(set.union(*neighbours)), "500 jobs in a row meet nowhere"
    assert min(map(min, neighbours)) >= 20000 and max(map(max, neighbours)) < 32000
    visited = {ray_commands.ports_of("123456789", attempt, head=True).gcs for attempt in range(ray_commands.ATTEMPTS)}
    assert len(visited) == ray_commands.ATTEMPTS


def test_a_taken_port_moves_the_job_to_another_block():
    job = next(
        str(n) for n in range(31, 500) if not ray_commands.taken_ports(ray_commands.ports_of(str(n), 0, head=True))
    )
    first = ray_commands.ports_of(job, 0, head=True)
    with socket.socket() as neighbour:
        neighbour.bind(("127.0.0.1", first.object_manager))
        neighbour.listen()
        assert ray_commands.taken_ports(first) == [first.object_manager]
        attempt, chosen = ray_commands.free_ports(job, 0, head=True)
        assert attempt > 0 and not ray_commands.taken_ports(chosen)
    assert ray_commands.free_ports(job, 0, head=True) == (0, first)
