"""What was used: sums over sessions that end in any way, never recounted."""

import random
import threading

import pytest

from bigbatch.base import atomic_files
from bigbatch.tune.budget.ledger import WRITE_S, Ledger, owns_cluster, read_ledger
from helpers.waiting import SetClock

HOUR = 3600.0


@pytest.fixture
def clock() -> SetClock:
    return SetClock(1e6)


def lives(ledger: Ledger, clock: SetClock, seconds: float) -> None:
    """So much time, with the beats of the driver's thread; of a long time only the last ones."""
    ends = clock.now + seconds
    clock.now = max(clock.now, ends - 60)
    ledger.beat()
    while clock.now < ends:
        clock.now = min(clock.now + 2.0, ends)
        ledger.beat()


def test_hours_of_kills_and_of_orderly_ends_add_up_whatever_the_workers(tmp_path, clock):
    """The cases that were found in use: 20 GPU hours were counted as 0, and 8 + 8 as 8."""
    for _ in range(5):  # killed before the first epoch's end: nothing is told any more
        session = Ledger(tmp_path, clock)
        session.hold(4)
        session.begin(0, 4)
        lives(session, clock, HOUR)
    assert Ledger(tmp_path, clock).held_s == pytest.approx(20 * HOUR, abs=5 * 4 * WRITE_S)
    assert Ledger(tmp_path, clock).trial_s(0) == pytest.approx(20 * HOUR, abs=5 * 4 * WRITE_S)
    orderly = Ledger(tmp_path, clock)
    orderly.hold(2)  # --resume --workers 2
    orderly.begin(0, 2)
    lives(orderly, clock, 4 * HOUR + 1)
    orderly.end(0)
    lives(orderly, clock, 0.5 * HOUR)  # between trials and until Ray's end devices are held too
    orderly.close()
    again = Ledger(tmp_path, clock)
    assert again.held_s == pytest.approx(20 * HOUR + 2 * (4.5 * HOUR + 1), abs=200)
    assert again.trial_s(0) == pytest.approx(20 * HOUR + 2 * (4 * HOUR + 1), abs=200)


def test_devices_that_come_and_go_are_integrated(tmp_path, clock):
    ledger = Ledger(tmp_path, clock)
    for devices, seconds in ((8, 100.0), (4, 50.0), (0, 1000.0), (12, 10.0)):
        ledger.hold(devices)
        lives(ledger, clock, seconds)
    assert ledger.held_s == pytest.approx(8 * 100 + 4 * 50 + 12 * 10)
    ledger.close()
    clock.now += 1e5
    assert ledger.held_s == read_ledger(tmp_path).held_s == pytest.approx(1120)


def test_of_a_cluster_of_others_what_trials_take_is_held(tmp_path, clock, monkeypatch):
    ledger = Ledger(tmp_path, clock)
    ledger.hold(None)
    lives(ledger, clock, 100)
    ledger.begin(0, 3)
    ledger.begin(1, 2)
    ledger.begin(0, 3)  # said twice
    lives(ledger, clock, 10)
    ledger.end(1)
    lives(ledger, clock, 10)
    ledger.end(7)
    assert ledger.held_s == pytest.approx(3 * 20 + 2 * 10) and ledger.trial_s(1) == pytest.approx(20)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert owns_cluster(local=True) and not owns_cluster(local=False)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert owns_cluster(local=False), "a job's nodes are charged, busy or not"


def test_sums_never_fall_and_a_kill_loses_seconds(tmp_path, clock):
    rng = random.Random(0)
    counted, true = 0.0, 0.0
    for _ in range(60):
        ledger = Ledger(tmp_path, clock)
        assert ledger.held_s >= counted - 1e-2, "what was written stays, but for the rounding to milliseconds"
        for _ in range(rng.randrange(6)):
            devices, seconds = rng.randrange(9), rng.uniform(0, 300)
            ledger.hold(devices)
            ledger.begin(rng.randrange(4), 1)
            lives(ledger, clock, seconds)
            true += devices * seconds
            assert ledger.held_s >= counted
            counted = ledger.held_s
            if rng.random() < 0.5:
                ledger.end(rng.randrange(4))
        if rng.random() < 0.3:
            ledger.close()
            assert read_ledger(tmp_path).held_s == pytest.approx(counted, abs=0.1)
        counted = read_ledger(tmp_path).held_s
    assert true - 60 * 8 * (WRITE_S + 2) <= counted <= true + 0.1


def test_a_full_disk_ends_nothing_and_the_next_beat_makes_up_for_it(tmp_path, clock, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    ledger = Ledger(tmp_path / "ledger", clock)
    with monkeypatch.context() as patch:
        patch.setattr(atomic_files, "write_bytes", full)
        ledger.hold(4)
        ledger.begin(0, 4)
        clock.now += 160
        with pytest.raises(OSError, match=r"counted in memory only.*No space"):  # the thread that calls says it once
            ledger.beat()
    used = 4 * 160
    assert ledger.held_s == pytest.approx(used)
    clock.now += WRITE_S
    ledger.beat()
    assert read_ledger(tmp_path / "ledger").held_s == pytest.approx(used + 4 * WRITE_S)
    with monkeypatch.context() as patch:
        patch.setattr(atomic_files, "write_bytes", full)
        ledger.close()


def test_a_file_that_is_damaged_is_named_and_the_others_count(tmp_path, clock, capsys):
    for _ in range(3):
        session = Ledger(tmp_path, clock)
        session.hold(1)
        lives(session, clock, 100)
        session.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0001.json", "0002.json", "0003.json"]
    (tmp_path / "0002.json").write_text('{"held_device_s": "much"}')
    assert Ledger(tmp_path, clock).held_s == pytest.approx(200)
    assert "0002.json is damaged; its hours are not counted" in capsys.readouterr().err
    (tmp_path / "0003.json").unlink()
    session = Ledger(tmp_path, clock)
    session.hold(1)
    assert (tmp_path / "0003.json").exists() and "0002" in capsys.readouterr().err


def test_a_file_system_that_hangs_does_not_hold_up_the_search(tmp_path, clock, monkeypatch):
    hangs, goes_on = threading.Event(), threading.Event()
    ledger = Ledger(tmp_path, clock)
    ledger.hold(2)
    clock.now += 100
    write = atomic_files.write_bytes
    monkeypatch.setattr(
        atomic_files, "write_bytes", lambda *args, **how: (hangs.set(), goes_on.wait(60), write(*args, **how))
    )
    thread = threading.Thread(target=ledger.beat)
    thread.start()
    assert hangs.wait(60)
    ledger.hold(4)
    ledger.begin(0, 4)
    clock.now += 10
    assert ledger.held_s == pytest.approx(240) and ledger.trial_s(0) == pytest.approx(40)
    goes_on.set()
    thread.join(60)
    assert read_ledger(tmp_path).held_s == pytest.approx(200)
    ledger.close()
    assert read_ledger(tmp_path).held_s == pytest.approx(240), "the last word is the end's"
