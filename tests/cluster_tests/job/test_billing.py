"""What a job costs a study beside its driver: the files that the study's ledger then sums up."""

import time
from pathlib import Path

import pytest

from bigbatch.cluster.job.billing import JobBill
from bigbatch.tune.budget import ledger as ledgers
from bigbatch.tune.budget.ledger import Ledger, OpenBill, open_bill, read_ledger
from helpers.waiting import SetClock

BEGAN = 1_790_000_000.0


@pytest.fixture
def now(monkeypatch) -> SetClock:
    """The wall clock of the job and of its driver."""
    clock = SetClock(BEGAN)
    words = lambda: time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(clock.now))  # noqa: E731
    gmtime = time.gmtime
    monkeypatch.setattr("bigbatch.cluster.job.billing.time.time", clock)
    monkeypatch.setattr("bigbatch.cluster.job.billing.time.gmtime", lambda *given: gmtime(*(given or (clock.now,))))
    monkeypatch.setattr(ledgers, "_now", words)
    return clock


@pytest.fixture
def study(tmp_path) -> Path:
    (tmp_path / "runs" / "s").mkdir(parents=True)
    return tmp_path / "runs" / "s"


def in_job(monkeypatch, job: str, restart: int, began: float) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", job)
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(restart))
    monkeypatch.setenv("SLURM_JOB_START_TIME", f"{began:.0f}")


def driver(study: Path, now: SetClock, devices: float, seconds: float, *, orderly: bool = True) -> None:
    """A driver of this job that holds its devices for so long."""
    folder = study / "ledger"
    bill = open_bill(folder)
    ledger = Ledger(folder, now, OpenBill(bill.job, bill.since, now) if bill else None)
    ledger.hold(0)  # it joins the job's cluster first
    now.now += 5
    ledger.hold(devices)
    now.now += seconds - 5
    if orderly:
        ledger.close()
    else:
        now.now += 10  # the next beat is due
        ledger.beat()


def test_the_bill_begins_and_ends_with_the_job_once(study, now, monkeypatch):
    """8 GPUs: 90 s until the driver begins, 1,000 s of it, 30 s after it; requeued, again 60, 500 and 20 s."""
    total = 0.0
    for restart, (before, during, after) in enumerate([(90, 1000, 30), (60, 500, 20)]):
        in_job(monkeypatch, "7", restart, now.now)
        job = JobBill(study, 8)
        now.now += before
        driver(study, now, 8, during)
        now.now += after
        job.note_end()
        total += 8 * (before + during + after)
        now.now += 9999  # in the queue
    assert read_ledger(study / "ledger").held_s == pytest.approx(total)


def test_a_killed_driver_and_the_next_one_of_the_same_start_leave_no_gap(study, now, monkeypatch):
    in_job(monkeypatch, "7", 0, BEGAN)
    now.now += 100
    driver(study, now, 4, 200, orderly=False)  # killed; last written at 310 s
    now.now += 40
    driver(study, now, 4, 300)
    JobBill(study, 4).note_end()
    assert read_ledger(study / "ledger").held_s == pytest.approx(4 * 650)


def test_a_second_study_in_the_same_allocation_is_billed_from_the_end_of_the_first(study, now, monkeypatch):
    in_job(monkeypatch, "7", 0, BEGAN)
    now.now += 50
    driver(study, now, 2, 100)
    other = study.parent / "other"
    other.mkdir()
    now.now += 30
    driver(other, now, 2, 100)
    assert read_ledger(study / "ledger").held_s == pytest.approx(2 * 150)
    assert read_ledger(other / "ledger").held_s == pytest.approx(2 * 130)


def test_a_job_that_never_had_a_driver_is_billed_by_its_gpus(study, now, monkeypatch):
    (study / "ledger").mkdir()
    in_job(monkeypatch, "7", 3, BEGAN)
    job = JobBill(study, 8)
    now.now += 45  # its head did not start
    job.note_end()
    now.now += 5
    job.note_end()
    assert read_ledger(study / "ledger").held_s == pytest.approx(8 * 50)
    assert [path.name for path in (study / "ledger").iterdir()] == ["job-7.3.json"]


def test_without_a_job_a_study_or_a_ledger_nothing_is_written(study, now, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    JobBill(study, 8).note_end()
    assert JobBill(study, 8).environment() == {} and open_bill(study / "ledger") is None
    in_job(monkeypatch, "7", 0, BEGAN)
    JobBill(study, 8).note_end()
    JobBill(None, 8).note_end()
    assert not (study / "ledger").exists()
    assert JobBill(study, 8).environment() == {"SLURM_JOB_START_TIME": f"{BEGAN:.0f}"}
