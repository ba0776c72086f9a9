"""Configurations with the keys of schema 1, in which ``data`` was flat: as commit 6dde4d6 stored them, and as people
still type them. They mean what they meant, in all places where a configuration is read."""

from __future__ import annotations

import hashlib
import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from bigbatch.search_spaces.registry import load_space
from bigbatch.search_spaces.trial import StandInTrial
from bigbatch.search_spaces.workload import Workload
from bigbatch.train_loop.config import (
    RUNTIME_KEYS,
    ConfigError,
    TrainConfig,
    config_keys,
    differing_keys,
    parse_assignments,
)
from bigbatch.train_loop.config.files import read_config
from bigbatch.train_loop.config.recipes import recipe_path
from bigbatch.train_loop.launch.command import make_run_plan
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.study.store import StudyStore

RENAMED: dict[str, tuple[str, Any]] = {
    "augment": ("data.augment.enabled", False),
    "loader_workers": ("data.loader.workers", 3),
    "loader_slots": ("data.loader.slots", 16),
    "loader": ("data.loader.name", "ring"),
    "prefetch_factor": ("data.loader.prefetch_factor", 4),
    "persistent_workers": ("data.loader.persistent_workers", False),
    "pin_memory": ("data.loader.pin_memory", False),
    "non_blocking": ("data.loader.non_blocking", False),
    "auto_augment": ("data.augment.policy", "rand"),
    "rand_ops": ("data.augment.rand_ops", 3),
    "rand_magnitude": ("data.augment.rand_magnitude", 18),
    "rand_magnitude_std": ("data.augment.rand_magnitude_std", 1.5),
    "rand_probability": ("data.augment.rand_probability", 0.5),
    "augment_repeats": ("data.augment.repeats", 3),
    "random_erasing": ("data.augment.random_erasing", 0.25),
    "mixup_alpha": ("data.mix.mixup_alpha", 0.1),
    "cutmix_alpha": ("data.mix.cutmix_alpha", 1.0),
}
"""By the key's earlier name: its name now, and a value that is not its default."""
KEPT = {
    "image_size": 96, "val_image_size": 112, "progressive_from": 32, "progressive_start": 1, "progressive_end": 4,
    "subset": 0.5, "drop_last": False, "on_bad_image": "skip", "test_flip": True,
}  # fmt: skip
"""Keys of ``data`` that are called as before, with values that are not their defaults."""
HASHES = {
    "cifar10-sgd-128": "0bbd5b4c",
    "goyal-sgd-8k": "2106ad01",
    "imagenette-sgd-64": "9ff95fd3",
    "lamb-32k": "d2d39dbb",
    "mlperf-lars-32k": "6813a715",
    "mlperf-lars-4k": "2581db10",
    "mlperf-lars-8k": "ac842eca",
    "nado-nesterov-32k": "dd9f9030",
    "nus-lars-32k": "b14f4882",
    "nus-lars-4k": "c22ee1f2",
    "nvidia-dle-90": "d6979d34",
    "rsb-a3": "db984100",
}
"""What ``bigbatch train --recipe`` of commit 6dde4d6 put after a recipe's name to name the folder of a run: the first
eight digits of SHA-256 of ``outcome_json``. Computed by that commit's code."""
ALMOST_ALL_CHANGED = "f8091369"
"""The same for the default configuration with the values of RENAMED and KEPT, without ``auto_augment``."""


LATER = {
    "data.holdout": 0.0,
    "data.options": "{}",
    "model.options": "{}",
    "model.pretrained": "",
    "optimizer.options": "{}",
    "optimizer.larc": "off",
    "optimizer.min_trust_ratio": 0.0,
    "optimizer.max_trust_ratio": 0.0,
    "optimizer.nvlamb": False,
    "optimizer.pre_normalise": False,
    "optimizer.bias_correction": True,
    "loss_options": "{}",
    "metrics": [],
    "schedule.base_momentum": 0.85,
    "schedule.max_momentum": 0.95,
    "trainable.name": "",
    "trainable.options": "{}",
}
"""Keys that came after that commit, with what their columns hold for older runs."""


def stored_config(full: Path) -> dict[str, Any]:
    """A whole configuration, as a run of that commit wrote it."""
    values: dict[str, Any] = json.loads((full / "config.json").read_text())
    assert values["schema_version"] == 1 and set(values["data"]) == {"name", *RENAMED, *KEPT}
    return values


def value_at(config: TrainConfig, key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def test_every_key_of_then_has_one_of_now() -> None:
    now = [key for key in config_keys() if key.startswith("data.") and key not in LATER]
    assert sorted(now) == sorted(["data.name", *(new for new, _ in RENAMED.values()), *(f"data.{k}" for k in KEPT)])


@pytest.mark.parametrize("old", RENAMED)
def test_an_earlier_key_means_what_it_meant(copy_of: Callable[[str], Path], old: str) -> None:
    new, value = RENAMED[old]
    stored = stored_config(copy_of("full/sgd-within-epoch"))
    before = TrainConfig.from_dict(stored)
    stored["data"][old] = value
    config = TrainConfig.from_dict(stored)
    assert value_at(config, new) == value != value_at(before, new)
    assert config.replace_keys({new: value_at(before, new)}) == before, "and nothing else has changed"

    text = value if isinstance(value, str) else json.dumps(value)
    for typed in (old, f"data.{old}", new):
        assert parse_assignments([f"{typed}={text}"]) == {new: value}
        assert before.replace_keys({typed: value}) == config
    for twice in ([f"{old}={text}", f"{new}={text}"], [f"data.{old}={text}", f"{old}={text}"]):
        with pytest.raises(ConfigError, match=f"a key is set once; got '?{new}'? twice"):
            parse_assignments(twice)

    again = json.loads(config.to_json())
    assert again["schema_version"] == 2 and TrainConfig.from_dict(again) == config
    assert old not in again["data"] or isinstance(again["data"][old], dict)
    changes = differing_keys(before.to_dict(), config.to_dict())
    assert [change.split()[0] for change in changes] == [new] * (new not in RUNTIME_KEYS)


def test_a_file_without_a_version_may_have_both_kinds_of_keys_but_none_twice() -> None:
    values: dict[str, Any] = {"data": {"loader_workers": 2, "loader": {"slots": 8}, "augment": False}}
    data = TrainConfig.from_dict(values).data
    assert (data.loader.workers, data.loader.slots, data.augment.enabled) == (2, 8, False)
    assert values["data"]["loader"] == {"slots": 8}, "what was read is not changed"
    values["data"]["loader"] = {"workers": 2}
    with pytest.raises(ConfigError, match=r"a key is set once; got 'data.loader_workers', its earlier name, and"):
        TrainConfig.from_dict(values)
    for version in (0, 3, "1", None):
        with pytest.raises(ConfigError, match="this version reads TrainConfig schema 1 and 2; got"):
            TrainConfig.from_dict({"schema_version": version})


@pytest.mark.parametrize("recipe", HASHES)
def test_the_hash_that_names_a_runs_folder_is_as_it_was(recipe: str) -> None:
    text = read_config(recipe_path(recipe)).outcome_json()
    assert hashlib.sha256(text.encode()).hexdigest()[:8] == HASHES[recipe]


def test_the_same_command_finds_the_run_that_the_earlier_version_began(
    copy_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = KEPT | {old: value for old, (_, value) in RENAMED.items() if old != "auto_augment"}  # not for digits
    data = stored_config(copy_of("full/sgd-within-epoch"))["data"] | {"image_size": 0}
    default = {**TrainConfig().to_dict(), "schema_version": 1, "data": data}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "best.json").write_text(json.dumps(default))
    folder = tmp_path / "runs" / "train" / f"best-{ALMOST_ALL_CHANGED}"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**default, "data": data | changes}))
    typed = [f"data.{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in changes.items()]
    assert make_run_plan(["--config", "best.json", "--set", *typed], "run.py", None).output == folder
    other = ["--set", *typed, "--output", str(folder)]
    other[other.index("data.rand_ops=3")] = "data.rand_ops=4"
    with pytest.raises(ConfigError, match=r"holds one with other values: data.augment.rand_ops 3 → 4\."):
        make_run_plan(["--config", "best.json", *other], "run.py", None)


NEW_COLUMNS = (
    "values",
    "gpu_energy_j",
    "cpu_energy_j",
    "infeasible",
    "paused_in_epoch",
    "continues",
    "confirms",
    "fidelity",
    "diverged",
    "failure_kind",
)
"""Of trials.parquet, besides those of configurations."""


def test_tables_of_old_trials_have_the_columns_of_today(copy_of: Callable[[str], Path]) -> None:
    """An old trial and a new one of a study stand in one column."""
    folder = copy_of("runs") / "finished"
    before = pq.read_table(folder / "trials.parquet")
    store = StudyStore.open(folder, None)
    try:
        store.refresh(force=True)
    finally:
        store.close()
    after = pq.read_table(folder / "trials.parquet")
    names = {f"data.{old}": new for old, (new, _) in RENAMED.items()}
    for column in before.column_names:
        if column.startswith("config."):
            key = column.removeprefix("config.")
            assert after[f"config.{names.get(key, key)}"].to_pylist() == before[column].to_pylist()
    assert set(before.column_names) - set(after.column_names) <= {f"config.{name}" for name in names}
    assert len(after.column_names) == len(before.column_names) + len(LATER) + len(NEW_COLUMNS)
    for key, value in LATER.items():
        assert all(found in (None, value) for found in after[f"config.{key}"].to_pylist()), key
    best = json.loads((folder / "best.json").read_text())
    assert best["schema_version"] == 2 and best["data"]["loader"]["workers"] == -1
    assert TrainConfig.from_dict(best) == read_config(folder / "best.json")


def test_a_study_that_was_planned_with_earlier_keys_is_resumed(
    copy_of: Callable[[str], Path], tiny_network: Path
) -> None:
    runpy.run_path(str(tiny_network / "tiny_network.py"))["register"]()
    folder = copy_of("runs") / "interrupted"
    description = json.loads((folder / "study.json").read_text())
    description["overrides"] = {"data.mixup_alpha": 0.1, "data.augment": True, "data.loader_workers": 1}
    description["options"]["set"] = ["data.mixup_alpha=0.1", "augment=true", "loader_workers=1"]
    (folder / "study.json").write_text(json.dumps(description))
    resume: dict[str, Any] = {"study": "interrupted", "output": str(folder.parent), "resume": True}
    wanted = {"data.mix.mixup_alpha": 0.1, "data.augment.enabled": True, "data.loader.workers": 1}
    assert make_plan(SearchOptions(**resume)).overrides == wanted
    again = make_plan(SearchOptions(**resume, set=("data.mix.mixup_alpha=0.1", "data.loader_workers=2")))
    assert again.overrides == {**wanted, "data.loader.workers": 2}
    with pytest.raises(ConfigError, match=r"--set data.mix.mixup_alpha was 0.1; got 0.3"):
        make_plan(SearchOptions(**resume, set=("mixup_alpha=0.3",)))


def test_a_users_space_may_use_the_earlier_names(tmp_path: Path) -> None:
    """For what it searches, for what it sets, and for a parameter that decides a key."""
    path = tmp_path / "own.py"
    path.write_text(
        "PARAMETER_KEYS = {'erased': ('data.random_erasing', lambda part: part)}\n"
        "def space(trial, workload):\n"
        "    alpha = trial.suggest_float('data.mixup_alpha', 0.0, 0.4)\n"
        "    erased = trial.suggest_float('erased', 0.0, 0.5)\n"
        "    config = workload.config({'data.mixup_alpha': alpha, 'random_erasing': erased, 'auto_augment': 'rand'})\n"
        "    return config.replace_keys({'data.rand_ops': 3})\n"
    )
    space, workload = load_space(str(path)), Workload("digits", 1437, 10, 32, "resnet18", 3)
    trial = StandInTrial(None)
    config = space(trial, workload)
    assert trial.params == {"data.mixup_alpha": 0.2, "erased": 0.25}
    assert (config.data.mix.mixup_alpha, config.data.augment.random_erasing) == (0.2, 0.25)
    assert (config.data.augment.policy, config.data.augment.rand_ops) == ("rand", 3)
    fixed = parse_assignments(["data.mix.mixup_alpha=0.3", "data.augment.random_erasing=0.1"])
    trial = StandInTrial(None)
    config = space(trial, workload, fixed)
    assert trial.params == {}, "what --set fixes by its present name is not searched"
    assert (config.data.mix.mixup_alpha, config.data.augment.random_erasing) == (0.3, 0.1)
