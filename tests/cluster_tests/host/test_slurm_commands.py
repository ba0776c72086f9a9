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


@pytest.mark.parametrize(
    "said",
    [
        "77",
        "77;fast",
        "*** Welcome to the cluster: 4096 nodes ***\n\nYour project has 120 hours left.\n77",
        "77\nPlease cite us.",
        "Submitted batch job 77",
        "Charging project 12\nSubmitted batch job 77 on cluster fast\n",
    ],
)
def test_the_id_of_a_job_is_found_beside_what_a_wrapper_of_sbatch_says(said, tmp_path, monkeypatch):
    stand_in(tmp_path, monkeypatch, sbatch=f"cat <<'END'\n{said}\nEND")
    assert slurm_commands.sbatch("job.slurm") == "77"


def test_a_wrapper_of_sbatch_that_names_no_job_is_refused_in_one_line(tmp_path, monkeypatch):
    stand_in(tmp_path, monkeypatch, sbatch="echo 'Hello'; echo 'job is queued'")
    with pytest.raises(slurm_commands.SlurmError, match="must print the job's id; got 'job is queued'"):
        slurm_commands.sbatch("job.slurm")
    refuses = "echo 'sbatch: error: invalid account' >&2; echo 'See https://help for accounts' >&2; exit 1"
    stand_in(tmp_path, monkeypatch, sbatch=refuses)
    with pytest.raises(slurm_commands.SlurmError, match="sbatch failed: sbatch: error: invalid account$"):
        slurm_commands.sbatch("job.slurm")
