"""One writer a folder: judged by processes, by Slurm or by signs of life; raced for by real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bigbatch.base import atomic_files
from bigbatch.cluster.host import holder, lease
from bigbatch.cluster.host.holder import Holder
from bigbatch.cluster.host.lease import Lease, LeaseLost, LeaseVerdict, StudyHeld
from helpers.paths import ROOT
from helpers.waiting import wait_until

ELSEWHERE: dict[str, Any] = {"token": "t", "host": "n9", "user": "eve", "machine": "another"}
ELSEWHERE |= {"pid": 1, "start_ticks": 5}
HERE = Holder("me", machine="here", pid=7)


def write(folder: Path, age_s: float = 0.0, **values: object) -> Path:
    """A lease that someone else has left, as this file system and that one's clock show it."""
    path = folder / lease.FILE
    path.write_text(json.dumps({**values, "heartbeat": time.time() - age_s}))
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def token(folder: Path) -> str:
    return json.loads((folder / lease.FILE).read_text())["token"]


@pytest.fixture
def dead() -> Iterator[dict[str, Any]]:
    """A process of this machine that was killed: nobody has waited for it, so its number is still taken."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ticks = holder._start_ticks(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    yield {**ELSEWHERE, "machine": holder.machine_id(), "pid": process.pid, "start_ticks": ticks}
    process.communicate()


def test_a_study_is_leased_to_one_live_job(tmp_path):
    mine = Lease(tmp_path, "5")
    mine.take()
    Lease(tmp_path, "5").take()  # it was put back into the queue
    with pytest.raises(StudyHeld, match=r"held by job 5 of \w+ on \S+, seen \d+ s ago. Wait for it, or scancel 5"):
        Lease(tmp_path, "6").take()
    mine.release()
    other = Lease(tmp_path, "6")
    other.take()
    mine.release()
    assert (tmp_path / lease.FILE).exists(), "not ours any more"


@pytest.mark.parametrize(
    ("job", "age_s", "running", "may"),
    [("5", 9999, True, 0), ("5", 9999, None, 0), ("5", 9999, False, 1), ("5", 10, False, 0), ("6", 1, True, 1)],
)
@pytest.mark.parametrize("of_a_driver", [False, True])
def test_the_lease_of_a_job_is_taken_only_if_stale_and_its_job_is_gone(job, age_s, running, may, of_a_driver):
    their = Holder("t", job, "0", not of_a_driver, machine="another", pid=1 if of_a_driver else 0)
    seen = lease.SeenLease(their, (b"", 0), age_s)
    verdict, fix = lease.judge_takeover(seen, Holder("me", "6", "0", True), lambda _: running)
    assert verdict is (LeaseVerdict.TAKE if may else LeaseVerdict.HELD) and bool(fix) != bool(may)


@pytest.mark.parametrize(
    ("age_s", "verdict"), [(5, "HELD"), (90, "WATCH"), (-500, "WATCH"), (lease.CERTAIN_S + 1, "TAKE")]
)
def test_where_nobody_can_be_asked_only_time_tells(age_s, verdict):
    """-500: its clock is ahead of ours."""
    seen = lease.SeenLease(holder.holder_from_dict(ELSEWHERE), (b"", 0), age_s)
    assert lease.judge_takeover(seen, HERE, lambda _: pytest.fail("it is of no job"))[0] is LeaseVerdict[verdict]


def test_a_job_that_starts_again_elsewhere_takes_its_own_drivers_lease_at_once():
    me = Holder("me", "5", "1", machine="here", pid=7)
    before = Holder("t", "5", "0", machine="another", pid=1)
    asked = lambda _: pytest.fail("of our own job nothing is asked")  # noqa: E731
    assert lease.judge_takeover(lease.SeenLease(before, (b"", 0), 5), me, asked)[0] is LeaseVerdict.TAKE
    # Another node of the same start: a driver there may live.
    beside = Holder("t", "5", "1", machine="another", pid=1)
    assert lease.judge_takeover(lease.SeenLease(beside, (b"", 0), 5), me, asked)[0] is LeaseVerdict.WATCH


def test_a_killed_process_of_this_machine_is_followed_at_once_and_a_living_one_never(tmp_path, dead):
    write(tmp_path, **dead)
    mine = Lease(tmp_path)
    mine.take()
    with pytest.raises(StudyHeld, match=rf"process {os.getpid()} of \w+ on \S+, seen 0 s ago. Wait for it, or kill"):
        Lease(tmp_path).take()
    facts = json.loads((tmp_path / lease.FILE).read_text())
    write(tmp_path, 10 * lease.CERTAIN_S, **facts)  # stopped for long (Ctrl-Z): it will go on
    with pytest.raises(StudyHeld):
        Lease(tmp_path).take()
    # The same number, another process: that of before a restart of this very long uptime.
    write(tmp_path, **{**facts, "start_ticks": facts["start_ticks"] - 1})
    Lease(tmp_path).take()
    assert sorted(p.name for p in tmp_path.iterdir()) == [lease.FILE], "nothing else is left in the folder"


def test_a_holder_on_another_machine_is_watched_and_one_sign_of_life_is_enough(tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "STALE_S", 0.4)
    monkeypatch.setattr(lease, "LOOK_EVERY_S", 0.02)
    said: list[str] = []
    path = write(tmp_path, 90, **ELSEWHERE)
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda s: (sleep(s), os.utime(path, (1, 1))))
    with pytest.raises(StudyHeld, match=r"process 1 of eve on n9, seen (0|\d\d+) s ago. Wait"):
        Lease(tmp_path).take(say=said.append)
    # 0.4 s, rounded.
    assert said == [f"{tmp_path} was held by process 1 of eve on n9: waiting up to 0 s for a sign of it"]
    monkeypatch.setattr(time, "sleep", sleep)
    write(tmp_path, 90, **ELSEWHERE)
    mine = Lease(tmp_path)
    mine.take()
    assert token(tmp_path) != "t"
    mine.release()
    assert not path.exists()


def test_a_lease_that_is_damaged_or_just_let_go_is_judged_by_its_file(tmp_path, monkeypatch):
    held = tmp_path / lease.FILE
    held.write_text('{"job": "5", "heartbeat": "soon", "pid": [1]}')  # of an older version, and edited
    with pytest.raises(StudyHeld, match="held by job 5"):
        Lease(tmp_path, "6").take()
    held.write_text("")
    with pytest.raises(StudyHeld, match=r"held by job \?"):
        Lease(tmp_path, "6").take()
    os.utime(held, (1, 1))
    Lease(tmp_path, "6").take()
    held.unlink()
    held.write_text('{"job": "5"}')
    # The holder lets go between the look whether there is a lease and the look who has it.
    look = Lease._look
    monkeypatch.setattr(Lease, "_look", lambda self: held.unlink() if "5" in held.read_text() else look(self))
    Lease(tmp_path, "7").take()
    assert '"job": "7"' in held.read_text()


def test_a_driver_stands_in_for_its_job_and_gives_the_study_back(tmp_path, monkeypatch):
    job = Lease(tmp_path, "5")
    job.take()
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    with pytest.raises(StudyHeld):  # a second shell in the allocation is not the job's driver
        Lease(tmp_path).take(is_running=lambda _: True)
    monkeypatch.setenv("BIGBATCH_JOB_FOLDER", "/somewhere")
    driver = Lease(tmp_path)
    driver.take()
    its = token(tmp_path)
    monkeypatch.setattr(lease, "_now", lambda: 1e12)
    job.renew()
    driver.renew()
    assert token(tmp_path) == its, "the job leaves it to its driver to say that it lives"
    with pytest.raises(StudyHeld, match=r"held by job 5 of"):
        Lease(tmp_path, "6").take(is_running=lambda _: True)
    with pytest.raises(StudyHeld):
        Lease(tmp_path).take()  # a second driver in the job
    driver.release()
    assert token(tmp_path) == job._me.token, "between its drivers the study is the job's"
    job.release()
    assert not (tmp_path / lease.FILE).exists()


def test_one_who_was_taken_over_learns_of_it_and_leaves_the_lease_alone(tmp_path, monkeypatch):
    mine = Lease(tmp_path)
    mine.take()
    monkeypatch.setattr(lease, "_now", lambda: 1e12)
    (tmp_path / lease.FILE).unlink()
    mine.renew()
    assert token(tmp_path) == mine._me.token, "a file that someone has removed is made again"
    path = write(tmp_path, **ELSEWHERE)
    theirs = path.read_text()
    monkeypatch.setattr(lease, "_now", lambda: 2e12)
    with pytest.raises(LeaseLost, match="process 1 of eve on n9, seen 0 s ago"):
        mine.renew()
    mine.release()
    assert path.read_text() == theirs


def test_on_a_full_disk_the_holder_still_shows_that_it_lives(tmp_path, monkeypatch):
    mine = Lease(tmp_path)
    mine.take()
    path = tmp_path / lease.FILE
    os.utime(path, (1, 1))
    content = path.read_text()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_files, "write_bytes", full)
    monkeypatch.setattr(lease, "_now", lambda: 1e12)
    mine.renew()
    assert path.read_text() == content and path.stat().st_mtime > 1
    mine.release()
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_hard_links_will_do(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    Lease(tmp_path).take()
    with pytest.raises(StudyHeld):
        Lease(tmp_path).take()


def test_a_link_that_was_made_although_the_file_server_denies_it_is_ours(tmp_path, monkeypatch):
    link = os.link

    def twice(*names: Path) -> None:
        link(*names)
        link(*names)

    monkeypatch.setattr(os, "link", twice)
    mine = Lease(tmp_path)
    mine.take()
    assert token(tmp_path) == mine._me.token


def test_a_claim_whose_maker_died_is_removed(tmp_path, monkeypatch, dead):
    monkeypatch.setattr(lease, "CLAIM_S", 0.2)
    write(tmp_path, **dead)
    (tmp_path / f"{lease.FILE}.t.next").write_text("{}")
    Lease(tmp_path).take()
    assert token(tmp_path) != "t" and [p.name for p in tmp_path.iterdir()] == [lease.FILE]


RACER = """
import json, os, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from bigbatch.cluster.host.lease import Lease, StudyHeld
print("ready", flush=True)
for folder in sys.stdin:
    folder, start = folder.rsplit(None, 1)
    while time.time() < float(start): pass
    mine = Lease(Path(folder))
    try: mine.take(); print("won", mine._me.token, flush=True)
    except StudyHeld: print("held", flush=True)
"""


def test_of_processes_that_want_it_at_one_moment_exactly_one_gets_it(tmp_path, dead):
    """Free, and left behind by a killed process; four racers, forty times each."""
    command = [sys.executable, "-c", RACER, str(ROOT / "src")]
    racers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    try:
        assert [r.stdout.readline() for r in racers] == ["ready\n"] * 4
        for turn in range(80):
            folder = tmp_path / str(turn)
            folder.mkdir()
            if turn % 2:
                write(folder, **dead)
            start = time.time() + 0.01
            for racer in racers:
                racer.stdin.write(f"{folder} {start}\n")
                racer.stdin.flush()
            answers = [r.stdout.readline().split() for r in racers]
            won = [answer[1] for answer in answers if answer[0] == "won"]
            assert len(won) == 1 and token(folder) == won[0], answers
    finally:
        for racer in racers:
            racer.stdin.close()
            racer.wait(60)


HOLDS = """
import signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from bigbatch.train_loop.host import folder_hold; from bigbatch.cluster.host import lease
lease.RENEW_S = folder_hold.TICK_S = 0.05
from bigbatch.train_loop.host.folder_hold import hold_folder
hold = hold_folder(Path(sys.argv[2]), "a study's folder", "write --study OTHER")
print("held", flush=True)
signal.pause()
"""


def test_a_process_that_is_taken_over_ends_with_one_line_and_writes_nothing_more(tmp_path):
    """Its own thread says that it lives, and whether it still may, while its first thread waits."""
    command = [sys.executable, "-c", HOLDS, str(ROOT / "src"), str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    first = (tmp_path / lease.FILE).read_text()
    wait_until(lambda: (tmp_path / lease.FILE).read_text() != first, "it does not say that it lives")
    process.send_signal(signal.SIGSTOP)  # as a laptop that sleeps
    write(tmp_path, **ELSEWHERE)
    process.send_signal(signal.SIGCONT)

    def ended() -> bool:
        write(tmp_path, **ELSEWHERE)  # again: it may have been stopped while it wrote
        return process.poll() is not None

    wait_until(ended, "it goes on")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and errors.count("\n") == 1
    assert errors.startswith(f"error: {tmp_path} was taken over by process 1 of eve on n9, seen ")
    assert token(tmp_path) == "t"
