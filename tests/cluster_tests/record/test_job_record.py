"""The folder of jobs is its owner's alone."""

from __future__ import annotations

import os
import pwd

import pytest

from bigbatch.cluster.record import job_record


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
    owner = pwd.getpwuid(home.stat().st_uid).pw_name
    with pytest.raises(PermissionError, match=f"{home} belongs to {owner}; .* own folder, e.g. {home}/") as refusal:
        job_record.make_home({"BIGBATCH_HOME": str(home)})
    assert "\n" not in str(refusal.value)
