"""Slurm's commands that fail or do not answer."""

from __future__ import annotations

import pytest

from bigbatch.cluster.host import slurm_commands
from helpers.stand_in_slurm import stand_in


def test_a_controller_that_does_not_answer_has_refused_nothing(tmp_path, monkeypatch):
    lost = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
    stand_in(tmp_path, monkeypatch, scontrol=lost, squeue="exec sleep 5")
    with pytest.raises(slurm_commands.SlurmSilent, match="Unable to contact"):
        slurm_commands.job_fields("7")
    with pytest.raises(slurm_commands.SlurmSilent, match="did not answer within 0.2 s"):
        slurm_commands.run("squeue", timeout_s=0.2)
    stand_in(tmp_path, monkeypatch, scontrol="echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    with pytest.raises(slurm_commands.SlurmError) as refusal:
        slurm_commands.job_fields("7")
    assert not isinstance(refusal.value, slurm_commands.SlurmSilent)
