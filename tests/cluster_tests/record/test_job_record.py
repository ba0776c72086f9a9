"""The folder of jobs is its owner's alone. A job, its nodes and the login node understand records of other versions."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from bigbatch.base.atomic_files import write_json
from bigbatch.cluster.node.node_status import NodeOrders, NodeStatus
from bigbatch.cluster.node.ray_commands import NodePorts
from bigbatch.cluster.record import job_record
from bigbatch.cluster.record.job_record import JobRecord


def test_a_folder_of_jobs_that_others_can_write_is_refused(tmp_path):
    env = {"BIGBATCH_HOME": str(tmp_path / "home")}
    job = job_record.JobRecord("7", "head")
    job.write(env)
    (tmp_path / "home" / "jobs").chmod(0o775)
    with pytest.raises(PermissionError, match="nobody else"):
        job.write(env)
    (tmp_path / "home" / "jobs").chmod(0o700)
    job.write(env)
    (tmp_path / "home").chmod(0o770)
    with pytest.raises(PermissionError, match="nobody else: chmod go-w .*/home"):
        job.write(env)


def test_the_folder_of_jobs_may_be_a_link_to_an_own_one(tmp_path):
    (tmp_path / "roomy").mkdir(mode=0o700)
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "home" / "jobs").symlink_to(tmp_path / "roomy")
    env = {"BIGBATCH_HOME": str(tmp_path / "home")}
    job_record.JobRecord("7", "head").write(env)
    assert job_record.read_record("7", env).state == "head" and (tmp_path / "roomy" / "7").is_dir()
    (tmp_path / "roomy").chmod(0o777)
    with pytest.raises(PermissionError, match="chmod go-w .*/roomy"):
        job_record.JobRecord("7", "head").write(env)


def test_a_folder_of_jobs_is_made_private_whatever_the_umask_is(tmp_path):
    before = os.umask(0o002)
    try:
        job_record.JobRecord("7", "head").write({"BIGBATCH_HOME": str(tmp_path / "a" / "home")})
    finally:
        os.umask(before)
    assert (tmp_path / "a" / "home" / "jobs" / "7").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a" / "home").stat().st_mode & 0o777 == 0o700


def test_a_folder_of_jobs_of_another_user_is_refused_with_the_one_to_take(tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setattr(os, "getuid", lambda: home.stat().st_uid + 1)
    owner = f"user {home.stat().st_uid}"
    with pytest.raises(PermissionError, match=f"{home} belongs to {owner}; .* own folder, e.g. {home}/") as refusal:
        job_record.make_home({"BIGBATCH_HOME": str(home)})
    assert "\n" not in str(refusal.value)


STATUS = NodeStatus(
    run_id="7.0", state="ready", beat=4, time=12.5, ip="10.0.0.3", cpus=8, gpus=2,
    ports=NodePorts(1, 2, 3, 4, 5, 6, 7, 8),
    folder="/tmp/bb-7", signalled=True, reason="Ray ended",
)  # fmt: skip
ORDERS = NodeOrders(run_id="7.0", stop=True, hold=True, keep_logs=True, address="10.0.0.3:1")
RECORD = JobRecord(
    job_id="7", state="driver", nodes=["n1", "n2"], head="n1",
    address="10.0.0.3:1", dashboard_port=2, token_path="/home/u/token",
    study_folder="/scratch/study", log="/home/u/7.log", end_time=99.5,
    restarts=3, fruitless_restarts=1,
    successor="8", reason="the time limit is near",
)  # fmt: skip
RECORDS = {"status": STATUS, "orders": ORDERS}


@pytest.mark.parametrize("value", RECORDS.values(), ids=RECORDS)
def test_a_record_survives_the_way_through_json_and_over_versions(value: Any, tmp_path: Path) -> None:
    """Fields of a later version are passed over, and those that an earlier one lacks have a default."""

    def read_back(values: dict[str, object]) -> object:
        write_json(tmp_path / "stored.json", values)
        return type(value).read(tmp_path / "stored.json")

    stored = dataclasses.asdict(value)
    assert read_back(stored) == value
    assert read_back({**stored, "of_a_later_version": {"more": 1}}) == value
    for field in dataclasses.fields(value):
        if field.default is dataclasses.MISSING:
            continue
        earlier = {name: item for name, item in stored.items() if name != field.name}
        assert read_back(earlier) == dataclasses.replace(value, **{field.name: field.default})


def test_a_jobs_record_survives_and_is_read_over_versions(tmp_path: Path) -> None:
    env = {"BIGBATCH_HOME": str(tmp_path / "home")}
    path = RECORD.write(env)
    assert job_record.read_record("7", env) == RECORD
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({**stored, "of_a_later_version": 1}))
    assert job_record.read_record("7", env) == RECORD, "a login node of an earlier version still lists the job"
    del stored["restarts"]
    path.write_text(json.dumps(stored))
    known = job_record.read_record("7", env)
    assert known == dataclasses.replace(RECORD, restarts=0)
    path.write_text(json.dumps({**stored, "schema_version": 2}))
    assert job_record.read_record("7", env) is None, "another schema is another meaning"
