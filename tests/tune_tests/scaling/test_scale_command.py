"""``bigbatch scale`` as it is typed. Training is stood in for by the files that a real one would have written."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.commands import scale as command
from bigbatch.tune.commands.scale import scale_main
from bigbatch.tune.scaling import scale_plan, size_process
from bigbatch.tune.scaling.scale_plan import ScaleMachine, find_machine, threads_of
from bigbatch.tune.scaling.scaling_table import SizeResult, progress_efficiencies, read_sizes, useful_text
from bigbatch.tune.scaling.size_process import SizeFailed
from helpers.refusals import refused_command

NODES = ScaleMachine(per_node=4, nodes=2)
CORES = ScaleMachine(8, unit="CPU cores")
SCALED = TrainConfig(epochs=6).replace_keys(
    {"model.name": "resnet18", "data.image_size": 8, "batch.global_size": 64, "optimizer.peak_lr": 0.4,
     "schedule.warmup_epochs": 3}
)  # fmt: skip


class Trainings:
    """Stands in for the processes of a size: a step takes 0.1 s, and 0.02 s more for each worker but the first."""

    def __init__(self) -> None:
        self.started: list[Sequence[str]] = []
        self.fails_at = 0

    def __call__(self, words: Sequence[str], env: Mapping[str, str]) -> None:
        self.started.append(words)
        output = Path(words[words.index("--output") + 1])
        workers = int(output.name)
        if workers == self.fails_at:
            raise SizeFailed("its training ended with exit code 1")
        config = TrainConfig.from_json(Path(words[words.index("--config") + 1]).read_text())
        step_s = 0.1 + 0.02 * (workers - 1)
        history = [
            {
                "epoch": epoch, "val_top1": 0.9 - 0.01 * workers + 0.001 * epoch, "train_s": 10 * step_s, "val_s": 0.5,
                "images_per_s": config.batch.global_size / step_s,
                "noise_scale": None if workers == 1 else 100.0 * epoch,
            }
            for epoch in range(1, config.epochs + 1)
        ]  # fmt: skip
        output.mkdir(parents=True)
        (output / "result.json").write_text(json.dumps({"config": config.to_dict(), "history": history}))


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> Trainings:
    stand_in = Trainings()
    monkeypatch.setattr(command, "find_machine", lambda: NODES)
    monkeypatch.setattr(size_process, "run_child", stand_in)
    return stand_in


@pytest.fixture
def best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "best.json").write_text(SCALED.to_json())
    return tmp_path / "study" / "best.json"


def test_weak_scaling_from_serial_to_many_nodes(best: Path, trainings: Trainings, capsys) -> None:
    assert scale_main(["--config", "study", "--workers", "1,2,4,8", "--epochs", "4", "--output", "out"]) == 0
    sizes = read_sizes(Path("out"))
    assert [one.config.batch.global_size for one in sizes] == [64, 128, 256, 512]
    # Goyal et al. 2017: the rate of SGD is proportional to the batch.
    assert [one.config.optimizer.peak_lr for one in sizes] == pytest.approx([0.4, 0.8, 1.6, 3.2])
    assert [one.noise_scale for one in sizes] == [None, 350.0, 350.0, 350.0], "of the third and fourth epoch"
    # 64 images in 0.1 s, 512 in 0.24 s; four epochs of 2.4 s and 0.5 s of validation on 8 devices.
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "1 1 64 0.4 640 100 % 1.5 s 0.0017 0.894" in rows
    assert "8 2 512 3.2 2,133 42 % 2.9 s 0.026 0.824" in rows
    (last,) = (row for row in rows if "more is waste" in row)
    assert last.startswith("Past 2 workers more is waste: at 4 less than 50 % of the device hours buy progress")
    assert "350 images" in last


def test_strong_scaling_changes_nothing_but_the_workers(best: Path, trainings: Trainings) -> None:
    assert scale_main(["--config", str(best), "--workers", "2,4", "--mode", "strong", "--output", "out"]) == 0
    for workers in (2, 4):
        assert TrainConfig.from_json(Path(f"out/{workers}.json").read_text()) == SCALED
    assert "srun" not in trainings.started[-1] and "--workers 4" in shlex.join(trainings.started[-1])


def test_fewer_epochs_keep_the_shares_of_the_schedule_and_a_base_size_the_files_batch(
    best: Path, trainings: Trainings
) -> None:
    words = ["--config", str(best), "--workers", "1,2,4", "--base-workers", "4", "--epochs", "2", "--output", "out"]
    assert scale_main(words) == 0
    configs = [one.config for one in read_sizes(Path("out"))]
    assert [config.batch.global_size for config in configs] == [16, 32, 64]
    assert {(config.epochs, config.schedule.warmup_epochs) for config in configs} == {(2, 1.0)}


def test_a_failed_size_is_measured_by_the_same_command_and_the_others_are_not(
    best: Path, trainings: Trainings, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--config", str(best), "--workers", "1,2,4", "--output", "out"]
    trainings.fails_at = 2
    assert scale_main(words) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "--workers 2: its training ended with exit code 1" in error
    assert [one.workers for one in read_sizes(Path("out"))] == [1, 4], "the others are measured"
    trainings.fails_at, trainings.started = 0, []
    assert scale_main([*words[:3], "1,2,4,8", *words[4:]]) == 0, "more sizes may come"
    assert [started[-1] for started in trainings.started if "srun" not in started] == ["2"]
    trainings.started = []
    assert scale_main(words) == 0 and not trainings.started


def test_a_size_over_several_nodes_is_a_step_of_the_job(
    best: Path, trainings: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "6")
    assert scale_main(["--config", str(best), "--workers", "8", "--output", "out"]) == 0
    (over,) = trainings.started
    for word in ("srun", "--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--cpus-per-task=6", "--kill-on-bad-exit=1"):
        assert word in over
    assert "--workers" not in over


def test_cpu_workers_have_the_same_threads_at_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale_plan, "usable_cpus", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert threads_of(CORES, 4) == "2" and threads_of(NODES, 4) is None
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads_of(CORES, 4) == "3"


WRONG: list[tuple[list[str], str]] = [
    (["--workers", "2,1"], "with commas between them, the smallest first; got '2,1'"),
    (["--workers", "0,1"], "--workers takes whole numbers from 1 on"),
    (["--workers", "1,x"], "got '1,x'"),
    (["--workers", "1,16"], "--workers must be at most 8, the GPUs of 2 nodes with 4 each; got 16"),
    (["--workers", "1,6"], "must fill them, 4 each, or sizes do not compare; got 6. Write 4 or 8."),
    (["--workers", "1,3", "--mode", "strong"], "--workers 3 (strong scaling): batch.global_size must divide"),
    (["--workers", "1,4", "--set", "batch.global_size=400"], "--workers 4 (weak scaling): batch.global_size"),
    (["--workers", "1,2", "--base-workers", "3"], "batch.global_size must divide over the workers; got 64 over 3"),
    (["--workers", "1,2", "--base-workers", "2", "--mode", "strong"], "--base-workers belongs to weak scaling"),
    (["--workers", "1", "--epochs", "1"], "--epochs must be at least 2: the first one also warms up; got 1"),
    (["--workers", "1", "--set", "epochs=1", "schedule.warmup_epochs=0"], "got 1. Write --epochs 2."),
    (["--workers", "1", "--base-workers", "0"], "--base-workers must be at least 1; got 0"),
    (["--workers", "1", "--epochs", "1", "--set", "epochs=2"], "a key is set once; got --epochs and --set epochs"),
    (["--workers", "1", "--output", "/dev/null/x"], "--output must be a writable folder"),
]


@pytest.mark.parametrize(("words", "said"), WRONG)
def test_wrong_input_is_one_line(
    words: list[str], said: str, best: Path, trainings: Trainings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused_command(capsys, scale_main, ["--config", str(best), *words])
    assert not trainings.started and not Path("runs").exists()


def test_a_study_goes_on_as_it_began(best: Path, trainings: Trainings, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--config", str(best), "--workers", "1,2", "--output", "out"]
    assert scale_main(words) == 0
    capsys.readouterr()
    error = refused_command(capsys, scale_main, [*words, "--mode", "strong"])
    assert "goes on as it began" in error and "batch.global_size 128 → 64" in error
    Path("out/2/result.json").write_text('{"config": {}, "hist')
    assert "Remove its folder" in refused_command(capsys, scale_main, words)


def test_a_dry_run_starts_nothing(best: Path, trainings: Trainings, capsys: pytest.CaptureFixture[str]) -> None:
    assert scale_main(["--config", "study", "--workers", "1,4", "--epochs", "10", "--dry-run"]) == 0
    assert "4 workers, 1 node: batch 256 = 4 × 1 × 64, lr 1.6" in capsys.readouterr().out
    assert not trainings.started and not Path("runs").exists()


def test_scale_is_started_once_not_by_torchrun(
    best: Path, trainings: Trainings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    error = refused_command(capsys, scale_main, ["--config", str(best), "--workers", "1"])
    assert "starts its own workers; got 2 processes of torchrun" in error


def test_a_job_of_several_nodes_is_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale_plan, "local_gpu_count", lambda: 8)
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NUM_NODES"):
        monkeypatch.delenv(name, raising=False)
    assert find_machine() == ScaleMachine(8, 1, "GPUs")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "4")
    assert find_machine() == ScaleMachine(8, 4, "GPUs")


def size(workers: int, batch: int, images_per_s: float, noise_scale: float | None) -> SizeResult:
    config = TrainConfig().replace_keys({"batch.global_size": batch})
    return SizeResult(workers, config, images_per_s, 1.0, 1.0, {}, noise_scale)


def test_the_limit_is_half_of_the_device_hours() -> None:
    """Perfect speed, noise scale 1000, 100 images a worker: (1 + 0.1) / (1 + 0.1 n) is 0.61 at 8 and 0.42 at 16."""
    sizes = [size(n, 100 * n, 50.0 * n, 1000.0) for n in (1, 2, 4, 8, 16, 32)]
    efficiencies = progress_efficiencies(sizes, 1000.0)
    assert efficiencies[8] == pytest.approx(1.1 / 1.8) and efficiencies[16] == pytest.approx(1.1 / 2.6)
    assert useful_text(sizes).startswith("Past 8 workers more is waste: at 16 ")
    assert useful_text(sizes[:4]).startswith("Up to 8 workers, the most measured")


def test_speed_alone_may_be_the_limit() -> None:
    speeds = {2: 100.0, 4: 180.0, 8: 190.0, 16: 2000.0}  # 1, 0.9, 0.475; the last one comes too late
    found = useful_text([size(n, 256, speed, None) for n, speed in speeds.items()])
    assert found.startswith("Past 4 workers more is waste: at 8 ") and "speed alone" in found
