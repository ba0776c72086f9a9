"""``bigbatch scale`` as it is typed. Training is stood in for by files that a real one would have written."""

import json
import re
from pathlib import Path

import pytest

from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.commands import scale as command
from bigbatch.tune.commands.scale import scale_main
from bigbatch.tune.scaling import arguments, scale_plan
from bigbatch.tune.scaling.measuring import fixed_keys
from bigbatch.tune.scaling.scale_plan import ScaleMachine
from helpers.refusals import refused_command
from helpers.scaled_sizes import NODES, SCALED, Trainings


def result(output: str) -> dict:
    return json.loads(Path(output, "scaling.json").read_text())


def test_weak_scaling_from_serial_to_many_nodes(best: Path, trainings: Trainings, capsys) -> None:
    words = ["--config", "study", "--workers", "1,2,4,8", "--epochs", "4", "--output", "out"]
    assert scale_main(words) == 0
    out = capsys.readouterr().out
    # 4 epochs of 1.5 s on one worker: 3 s with 2 workers, 1.5 s with 4, 0.75 s with 8.
    assert "left: about 5.25 s of training" in out
    found = result("out")
    sizes = {one["workers"]: one for one in found["sizes"]}
    assert [one["kind"] for one in sizes.values()] == ["serial", "multi-GPU", "multi-GPU", "multi-node"]
    assert [one["global_size"] for one in sizes.values()] == [64, 128, 256, 512]
    # Goyal et al. 2017: the rate of SGD is proportional to the batch.
    assert [one["peak_lr"] for one in sizes.values()] == pytest.approx([0.4, 0.8, 1.6, 3.2])
    # 64 images in 0.1 s, 512 in 0.24 s.
    assert sizes[8]["speed_up"] == pytest.approx(512 / 0.24 / 640) and sizes[8]["efficiency"] == pytest.approx(1 / 2.4)
    assert sizes[8]["communication_share"] == pytest.approx(0.14 / 0.24)
    assert sizes[4]["objective"] == pytest.approx(0.9 - 0.04 + 0.004)
    assert sizes[2]["noise_scale"] == 350.0, "the median of the third and fourth epoch"
    assert sizes[1]["epoch_s"] == pytest.approx(1.5)
    assert "Past 2 workers more is waste" in out
    assert (found["useful"]["workers"], found["useful"]["noise_scale"]) == (2, 350.0)


def test_strong_scaling_changes_nothing_but_the_workers(best: Path, trainings: Trainings) -> None:
    assert scale_main(["--config", str(best), "--workers", "2,4", "--mode", "strong", "--output", "out"]) == 0
    for workers in (2, 4):
        assert TrainConfig.from_json(Path(f"out/sizes/{workers}/config.json").read_text()) == SCALED
    assert "srun" not in " ".join(trainings.started[-1].words)


def test_fewer_epochs_keep_the_shares_of_the_schedule(best: Path, trainings: Trainings) -> None:
    assert scale_main(["--config", str(best), "--workers", "1,2", "--epochs", "2", "--output", "out"]) == 0
    config = TrainConfig.from_json(Path("out/sizes/2/config.json").read_text())
    assert (config.epochs, config.schedule.warmup_epochs) == (2, 1.0)


def test_a_base_size_keeps_the_files_batch(best: Path, trainings: Trainings) -> None:
    words = ["--config", str(best), "--workers", "1,2,4", "--base-workers", "4", "--epochs", "0", "--output", "out"]
    assert scale_main(words) == 0
    assert [one["global_size"] for one in result("out")["sizes"]] == [16, 32, 64]
    assert [one["objective"] for one in result("out")["sizes"]] == [None] * 3
    assert result("out")["useful"]["noise_scale"] is None


def test_a_failed_size_is_measured_by_the_same_command_and_the_others_are_not(
    best: Path, trainings: Trainings, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--config", str(best), "--workers", "1,2,4", "--output", "out"]
    trainings.fails_at = "sizes/2/run"
    assert scale_main(words) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "--workers 2: exit code 1: no memory" in error
    assert [one["workers"] for one in result("out")["sizes"]] == [1, 4], "the others are measured"
    trainings.fails_at, trainings.started = "", []
    assert scale_main(words) == 0
    folders = [started.words[-1].partition("sizes/")[2] for started in trainings.started]
    assert folders == ["2/run"], "the profile of size 2 is kept too"
    trainings.started = []
    assert scale_main(words) == 0 and not trainings.started


def test_a_size_that_diverges_is_a_result(best: Path, trainings: Trainings, capsys: pytest.CaptureFixture[str]) -> None:
    trainings.diverges_at = "sizes/4/run"
    assert scale_main(["--config", str(best), "--workers", "1,2,4", "--output", "out"]) == 0
    last = result("out")["sizes"][-1]
    assert last["diverged"] and last["objective"] is None
    assert last["images_per_s"] == pytest.approx(256 / 0.16), "of the profile"
    assert re.search(r"multi-GPU +4 .* diverged\n", capsys.readouterr().out)


def test_sizes_may_be_measured_by_several_jobs(best: Path, trainings: Trainings) -> None:
    words = ["--config", str(best), "--output", "out", "--base-workers", "1", "--workers"]
    assert scale_main([*words, "4"]) == 0
    assert scale_main([*words, "1,2"]) == 0
    assert [one["global_size"] for one in result("out")["sizes"]] == [64, 128, 256]


def test_a_size_over_several_nodes_is_a_step_of_the_job(
    best: Path, trainings: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "6")
    assert scale_main(["--config", str(best), "--workers", "4,8", "--epochs", "1", "--output", "out"]) == 0
    within, over = trainings.started[1], trainings.started[3]
    assert "--workers 4" in within.typed and within.typed.startswith("bigbatch train")
    for word in ("srun", "--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--cpus-per-task=6", "--kill-on-bad-exit=1"):
        assert word in over.words
    assert "--workers" not in over.words


def test_cpu_workers_have_the_same_threads_at_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale_plan, "usable_cpus", lambda: 8)
    cores = ScaleMachine(8, unit="CPU cores")
    assert scale_plan.threads_of(cores, 4, {}) == "2"
    assert scale_plan.threads_of(cores, 4, {"OMP_NUM_THREADS": "3"}) == "3"
    assert scale_plan.threads_of(NODES, 4, {}) is None


WRONG: list[tuple[list[str], str]] = [
    (["--workers", "2,1"], "--workers names each size once, the smallest first; got '2,1'. Write 1,2."),
    (["--workers", "1,2,2"], "Write 1,2."),
    (["--workers", "0,1"], "--workers needs sizes of at least 1 worker; got '0,1'"),
    (["--workers", "1,x"], "--workers takes whole numbers with commas between them; got '1,x'"),
    (["--workers", "1,16"], "--workers must be at most 8, the GPUs of 2 nodes with 4 each; got 16"),
    (["--workers", "1,6"], "must fill them, 4 each, or sizes do not compare; got 6. Write 4 or 8."),
    (["--workers", "1,3", "--mode", "strong"], "--workers 3 (strong scaling): batch.global_size must divide"),
    (["--workers", "1,4", "--set", "batch.global_size=400"], "--workers 4 (weak scaling): batch.global_size"),
    (["--workers", "1,2", "--base-workers", "3"], "batch.global_size must divide over the workers; got 64 over 3"),
    (["--workers", "1,2", "--base-workers", "2", "--mode", "strong"], "--base-workers belongs to weak scaling"),
    (["--mode", "linear"], "--mode must be one of"),
    (["--workers", "1", "--profile-steps", "0"], "--profile-steps must be at least 1; got 0"),
    (["--workers", "1", "--epochs", "-1"], "--epochs must not be negative; got -1"),
    (["--workers", "1", "--epochs", "1", "--set", "epochs=2"], "a key is set once; got --epochs and --set epochs"),
    (["--workers", "1", "--objective", "top9"], "--objective names a metric"),
    (["--workers", "1", "--retune", "1"], "--retune searches with 2 trials or more; got 1"),
    (["--workers", "1", "--retune", "--epochs", "0"], "--retune trains; got --epochs 0"),
    (["--workers", "1,8", "--retune"], "--retune searches on one node; got a size of 8 workers on 2 nodes"),
    (["--workers", "1", "--output", "/dev/null/x"], "--output must be a writable folder"),
]


@pytest.mark.parametrize(("words", "said"), WRONG)
def test_wrong_input_is_one_line(
    words: list[str], said: str, best: Path, trainings: Trainings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused_command(capsys, scale_main, ["--config", str(best), *words])
    assert not trainings.started and not Path("runs").exists()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("missing.json", "--config must be a readable file; got 'missing.json'"),
        ("empty", "--config takes a file, or a study's folder with best.json; got 'empty' without one"),
    ],
)
def test_a_configuration_that_is_not_there(source: str, said: str, best: Path, capsys) -> None:
    Path("empty").mkdir()
    assert said in refused_command(capsys, scale_main, ["--config", source, "--workers", "1"])


def test_a_study_goes_on_as_it_began(best: Path, trainings: Trainings, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--config", str(best), "--workers", "1,2", "--output", "out"]
    assert scale_main(words) == 0
    capsys.readouterr()
    error = refused_command(capsys, scale_main, [*words, "--mode", "strong"])
    assert "goes on as it began" in error and "mode 'weak' → 'strong'" in error
    assert scale_main(["--config", str(best), "--workers", "1,2,4", "--output", "out"]) == 0, "more sizes may come"


def test_sizes_with_other_threads_do_not_compare(best: Path, trainings: Trainings, capsys, monkeypatch) -> None:
    words = ["--config", str(best), "--base-workers", "1", "--output", "out"]
    cores = ScaleMachine(8, unit="CPU cores")
    monkeypatch.setattr(command, "find_machine", lambda: cores)
    monkeypatch.setattr(scale_plan, "usable_cpus", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert scale_main([*words, "--workers", "4"]) == 0
    capsys.readouterr()
    assert "OMP_NUM_THREADS '2' → '8'" in refused_command(capsys, scale_main, [*words, "--workers", "1"])
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert scale_main([*words, "--workers", "1"]) == 0


def test_a_damaged_size_says_what_to_remove(best: Path, trainings: Trainings, capsys) -> None:
    words = ["--config", str(best), "--workers", "1,2", "--output", "out"]
    assert scale_main(words) == 0
    Path("out/sizes/2/size.json").write_text('{"schema_version": 1, "work')
    capsys.readouterr()
    assert "Remove the file" in refused_command(capsys, scale_main, words)


def test_a_dry_run_starts_nothing(best: Path, trainings: Trainings, capsys: pytest.CaptureFixture[str]) -> None:
    assert scale_main(["--config", "study", "--workers", "1,4", "--epochs", "10", "--dry-run"]) == 0
    assert "known once the first size is measured" in capsys.readouterr().out
    assert not trainings.started and not Path("runs").exists()


def test_scale_is_started_once_not_by_torchrun(
    best: Path, trainings: Trainings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    error = refused_command(capsys, scale_main, ["--config", str(best), "--workers", "1"])
    assert "starts its own workers; got 2 processes of torchrun" in error


def test_a_job_of_several_nodes_is_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "local_gpu_count", lambda: 8)
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NUM_NODES"):
        monkeypatch.delenv(name, raising=False)
    assert arguments.find_machine() == ScaleMachine(8, 1, "GPUs")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "4")
    assert arguments.find_machine() == ScaleMachine(8, 4, "GPUs")


def test_a_search_at_a_size_leaves_the_last_step_of_an_epoch_as_it_is() -> None:
    """By itself a search of digits at batch 1,024 would make a smaller last step, which the other sizes do not."""
    for drops in (True, False):
        config = TrainConfig().replace_keys({"batch.global_size": 1024, "data.drop_last": drops, "ema_decay": 0.9})
        assert sorted(fixed_keys(config)) == [f"data.drop_last={json.dumps(drops)}", "ema_decay=0.9"]
