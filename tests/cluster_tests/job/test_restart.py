"""A restart, or a successor, resumes the study."""

from bigbatch.cluster.job import options, restart
from helpers.stand_in_slurm import stand_in


def test_a_restart_resumes_the_study_of_the_first_start(tmp_path):
    chosen = options.parse_job_options(["--space", "smoke", "--output", "out"])
    folder = options.study_folder(chosen, "bigbatch-5", tmp_path)
    assert folder == tmp_path / "out" / "bigbatch-5"
    first = options.driver_command(chosen, "bigbatch-5", "1.2.3.4:5", folder, again=False)
    assert first[2:] == ["--space", "smoke", "--output", "out", "--study", "bigbatch-5", "--address", "1.2.3.4:5"]
    folder.mkdir(parents=True)
    (folder / "study.json").touch()
    assert "--resume" in options.driver_command(chosen, "bigbatch-5", "a", folder, again=True)
    named = options.parse_job_options(["--study=mine", "--output", str(tmp_path / "out")])
    folder.rename(folder.with_name("mine"))
    folder = options.study_folder(named, "bigbatch-5", tmp_path)
    assert folder == tmp_path / "out" / "mine"
    assert "--resume" not in options.driver_command(named, "bigbatch-5", "a", folder, again=False), "the user decides"
    assert "--resume" in options.driver_command(named, "bigbatch-5", "a", folder, again=True)


def test_a_search_in_a_database_goes_on_with_its_storage(tmp_path):
    (tmp_path / "study.json").touch()
    assert restart.resume_options(tmp_path).endswith("--resume, and its --storage if it had one")
    (tmp_path / "optuna.journal").touch()
    assert restart.resume_options(tmp_path).endswith("--resume")


# The job that goes on when this one has ended


def test_a_successor_is_given_gpus_however_they_were_asked_for():
    job = {"NumNodes": "2", "NumTasks": "2", "CPUs/Task": "4", "MinMemoryNode": "0"}

    def given(**fields: str) -> set[str]:
        return set(restart.sbatch_options({**job, **fields})) - {"--nodes=2"}

    rest = {"--cpus-per-task=4", "--mem=0"}
    assert given(TresPerJob="gres/gpu:8") == given(TresPerJob="gres:gpu:8") == {*rest, "--gpus=8"}
    assert given(TresPerJob="gres/gpu:a100:4,gres/gpu:v100:2") == {*rest, "--gpus=a100:4,v100:2"}
    assert given(TresPerTask="cpu=4,gres/gpu:a100=2") == {*rest, "--gres=gpu:a100:2"}
    assert given(TresPerTask="cpu=4") == rest
    assert given(TresPerJob="gres/gpu:a100:8,gres/shard:2") == {*rest, "--gpus=a100:8"}
    shares = {"CpusPerTres": "gres/gpu:8", "MemPerTres": "gres/gpu:a100:16G"}
    assert given(TresPerJob="gres/gpu:8", **shares) == {"--gpus=8", "--cpus-per-gpu=8", "--mem-per-gpu=16G"}
    assert given(TresPerNode="gres:gpu:4") == {*rest, "--gres=gpu:4"}
    assert given(OverSubscribe="NO") == {*rest, "--exclusive"} and given(OverSubscribe="OK") == rest


def test_a_successor_inherits_no_device_and_no_allocation():
    env = {"CUDA_VISIBLE_DEVICES": "3", "ROCR_VISIBLE_DEVICES": "0", "SLURM_JOB_ID": "7", "RAY_ADDRESS": "a"}
    kept = {"SLURM_CONF": "/etc/s.conf", "HOME": "/home/me", "BIGBATCH_HOME": "/b"}
    assert restart.environment_for_successor({**env, **kept}) == kept


def test_a_successor_asks_for_what_its_predecessor_had(tmp_path, monkeypatch):
    """Answers as Slurm 22.05 gives them."""
    fields = "JobId=8 JobName=bb NumNodes=2 NumTasks=2 CPUs/Task=1 Account=(null) Partition=gpu QOS=normal"
    fields += " TimeLimit=02:00:00 MinMemoryNode=64G Comment=mine bigbatch-after-7 ExcNodeList=n9 Command=/a/b.slurm x"
    answer = f"case \"$*\" in *hostnames*) echo n9;; *) printf '{fields}';; esac"
    said = f'echo "$*" >> {tmp_path}/got; echo 10'
    stand_in(tmp_path, monkeypatch, scontrol=answer, sbatch=said)
    assert restart.submit_successor("8", "s") == "10"
    assert (
        (tmp_path / "got")
        .read_text()
        .startswith(
            "--parsable --export=ALL --dependency=afterany:8 --job-name=bb --partition=gpu --qos=normal "
            "--time=02:00:00 --cpus-per-task=1 --mem=64G --exclude=n9 --nodes=2 "
            "--comment=mine bigbatch-after-8 /a/b.slurm"
        )
    )
    stand_in(tmp_path, monkeypatch, squeue="printf '8|x\n10|mine bigbatch-after-8\n'")
    assert restart.find_successor("8") == "10"
