"""What lies in ``examples/`` runs as its first lines say, and is short enough to be read."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.loop.train import train
from bigbatch.train_loop.reporter import ListReporter
from bigbatch.tune.storage.store import StudyStore
from helpers import commands
from helpers.invented_studies import invented_study
from helpers.paths import ROOT, TUNE
from helpers.processes import clean_environment

EXAMPLES = ROOT / "examples"


def run(*words: object, cwd: Path, timeout_s: float = 600) -> str:
    """What the command says. It must end well, whoever's clone it is started from."""
    env = {**clean_environment(), "BIGBATCH_HOME": str(cwd / "home")}
    line = [sys.executable, *map(str, words)]
    done = subprocess.run(line, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_each_example_is_short_and_says_how_to_run_it() -> None:
    names = sorted(path.name for path in EXAMPLES.glob("*.py"))
    ours = Path(__file__).read_text()
    for name in names:
        lines = (EXAMPLES / name).read_text().splitlines()
        assert len(lines) <= 60, name
        assert any(f"examples/{name}" in line for line in lines[:8]), f"{name} does not say how to run it"
        assert ours.count(f'"{name}"') > 0, f"no test runs {name}"


def test_lars_in_plain_pytorch_learns_the_digits(tmp_path: Path) -> None:
    said = run(EXAMPLES / "lars_in_plain_pytorch.py", cwd=tmp_path)
    reached = [float(value) for value in re.findall(r"validation top-1 ([\d.]+)", said)]
    assert len(reached) == 4
    assert reached[-1] > 0.95  # chance is 0.1


def test_submit_from_python_prints_scripts_that_the_shell_understands(tmp_path: Path) -> None:
    said = run(EXAMPLES / "submit_from_python.py", cwd=tmp_path)
    scripts = said.split("#!/bin/bash")[1:]
    assert len(scripts) == 4
    for script in scripts:
        assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
        assert "#SBATCH --nodes=2" in script
    assert [re.findall(r"batch\.global_size=(\d+)", script) for script in scripts] == [["256"], ["512"], ["1024"], []]
    assert str(EXAMPLES / "ray_program.py") in scripts[-1]


def test_read_study_shows_the_best_trial_of_a_stored_study(tmp_path: Path) -> None:
    study = invented_study(tmp_path / "finished", 12)
    store = StudyStore.open(study, None)
    store.refresh(force=True)
    store.close()
    said = run(EXAMPLES / "read_study.py", study, cwd=tmp_path)
    rows = pq.read_table(study / "trials.parquet").to_pylist()
    best = max((row for row in rows if row["value"] is not None), key=lambda row: row["value"])
    assert f"\ntrial {best['trial']}:\n" in said
    assert f"{best['value']:.4g}" in said
    assert said.rstrip().splitlines()[-1].split()[0] == str(best["epochs"])


def test_own_space_is_accepted(tmp_path: Path) -> None:
    said = commands.run("--space", EXAMPLES / "own_space.py", "--dry-run", cwd=tmp_path).stdout
    assert re.search(r"optimizer +lars, sgd\n", said)
    assert re.search(r"warmup_fraction +0\.05 … 0\.35\n", said)


OWN_LOOPS = [
    ("lightning_trainable.py", "lightning"),
    pytest.param("huggingface_trainable.py", "transformers", marks=pytest.mark.exhaustive),
]


@pytest.mark.slow
@pytest.mark.xdist_group("beside")
@pytest.mark.parametrize(("name", "library"), OWN_LOOPS)
def test_training_functions_of_other_libraries_are_searched_and_learn(name: str, library: str, tmp_path: Path) -> None:
    pytest.importorskip(library)
    own = ("--trainable", EXAMPLES / name, "--space", EXAMPLES / name, "--objective", "accuracy:max")
    few = ("--trials", 3, "--max-epochs", 4, "--stopping", "none", "--strategy", "random", "--study", "mine")
    run(TUNE, *own, *few, "--output", tmp_path, cwd=tmp_path)
    said = run(EXAMPLES / "read_study.py", tmp_path / "mine", cwd=tmp_path)
    assert "mine: 3 complete" in said
    rows = pq.read_table(tmp_path / "mine" / "trials.parquet").to_pylist()
    assert max(row["value"] for row in rows) > 0.5, "chance is 0.1 and 0.25"
    kept = list((tmp_path / "mine" / "checkpoints").glob("trial-*/epoch-00004/files/*"))
    assert kept, "the best trial's checkpoint, as the library wrote it"


@pytest.mark.slow
@pytest.mark.xdist_group("beside")
def test_ray_program_starts_a_private_ray(tmp_path: Path) -> None:
    said = run(EXAMPLES / "ray_program.py", cwd=tmp_path)
    assert said.startswith("1 nodes, ")
    assert re.findall(r"^(LARS|LAMB): [\d.]+ ms a step$", said, flags=re.MULTILINE) == ["LARS", "LAMB"]


def test_own_sampler_is_accepted(tmp_path: Path) -> None:
    file = EXAMPLES / "own_sampler.py"
    chosen = ("--strategy", f"{file}:sampler", "--stopping", f"{file}:pruner")
    said = commands.run(*chosen, "--dry-run", cwd=tmp_path).stdout
    assert "strategy own_sampler.py:sampler, stopping own_sampler.py:pruner" in said
    assert str(file) in said, "as code of one's own"


@pytest.mark.slow
@pytest.mark.xdist_group("beside")
def test_own_sampler_tries_every_choice_once_and_ends_the_search(tmp_path: Path) -> None:
    (tmp_path / "four.py").write_text(
        "def space(trial, workload):\n"
        "    rate = trial.suggest_categorical('rate', [0.01, 0.1])\n"
        "    m = trial.suggest_categorical('m', [0.5, 0.9])\n"
        "    return workload.config({'lr': rate, 'momentum': m, 'batch': 128})\n"
    )
    small = ("--space", "four.py", "--model", "shufflenet_v2_x0_5", "--set", "image_size=16", "--max-epochs", 1)
    own = ("--strategy", f"{EXAMPLES / 'own_sampler.py'}:every_choice", "--stopping", "none")
    few = ("--trials", 9, "--confirm", "none", "--study", "mine", "--output", tmp_path)
    run(TUNE, *small, *own, *few, cwd=tmp_path)
    rows = pq.read_table(tmp_path / "mine" / "trials.parquet").to_pylist()
    tried = [row["parameters"] for row in rows]
    assert {row["state"] for row in rows} == {"COMPLETE"}
    assert len(rows) <= 5 and len(set(tried)) == 4, "two run at a time, so that one may come twice"


@pytest.mark.exhaustive  # searches of own components: tests/tune_tests/test_own_searches.py
@pytest.mark.xdist_group("beside")
@pytest.mark.parametrize(
    ("name", "words", "reached"),
    [
        ("own_cnn.py", "--model {}:net --loss {}:focal --batch 128 --trials 4 --max-epochs 6", 0.8),
        ("timm_vit.py", "--model timm/vit_tiny_patch16_224 --space {}", 0.45),  # three trials from scratch
    ],
)
def test_networks_that_are_not_ours_are_searched(tmp_path: Path, name: str, words: str, reached: float) -> None:
    path = EXAMPLES / name
    assert words.format(f"examples/{name}", f"examples/{name}") in path.read_text(), "it says another command"
    said = run(TUNE, *words.format(path, path).split(), "--confirm", "none", cwd=tmp_path)
    best = re.search(r"(?:best|answer) is .*: validation top-1 ([\d.]+) ?%", said)
    assert best is not None, said
    assert float(best[1]) / 100 > reached  # chance is 0.1


OWN: dict[str, tuple[dict[str, object], Callable[[Any], float], float]] = {
    "point_clouds.py": ({"optimizer.peak_lr": 0.05}, lambda record: record.val_top1, 0.6),
    "segmentation.py": ({"loss": "dice", "metrics": ["miou"]}, lambda record: record.metrics["val_miou"], 0.5),
}


@pytest.mark.parametrize("name", OWN)
def test_data_and_models_of_ones_own_learn(name: str) -> None:
    """Far better than chance in the best of some epochs: a third of right answers, and a mean IoU of about 0.3."""
    keys, value, least = OWN[name]
    file = EXAMPLES / name
    own: dict[str, object] = {"data.name": f"{file}:data", "model.name": f"{file}:net"}
    own |= {"loss": f"{file}:dice", "metrics": [f"{file}:miou"]} if "loss" in keys else {}
    plain = {key: found for key, found in keys.items() if key not in own}
    few = {"epochs": 6, "batch.global_size": 32, "data.loader.workers": 0}
    config = TrainConfig().replace_keys({**few, **own, **plain})
    reporter = ListReporter()
    train(config, reporter=reporter)
    assert max(value(record) for record in reporter.records) > least
