"""Users' own spaces: loading, refusals in one line, pinned values, the check before a search."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from bigbatch.search_spaces import BUILT_IN, Workload, check_space, load_space
from bigbatch.search_spaces.trial import StandInTrial
from bigbatch.train_loop.config import ConfigError
from helpers.refusals import refusal

WORKLOAD = Workload("digits", train_size=1437, num_classes=10, image_size=32, model="resnet18", epochs=12)

GOOD = '''"""My space."""


def space(trial, workload):
    """Rate and batch."""
    batch = trial.suggest_int("batch.global_size", 64, 256, step=64)
    return workload.config({"peak_lr": trial.suggest_float("peak_lr", 0.01, 1.0, log=True), "global_size": batch})


def other(trial, workload):
    return workload.config({"momentum": trial.suggest_float("momentum", 0.8, 0.9)})


def one_argument(trial):
    return None
'''


def write(folder: Path, text: str, name: str = "my_space.py") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def load_refusal(text: str) -> str:
    return refusal(lambda: load_space(text))


def check_refusal(path: str, body: str, **changes: object) -> str:
    text = "import math\ndef space(trial, workload):\n" + "".join(f"    {line}\n" for line in body.splitlines())
    Path(path).write_text(text, encoding="utf-8")
    return refusal(lambda: check_space(load_space(path), dataclasses.replace(WORKLOAD, **changes)))  # type: ignore[arg-type]


def test_a_file_and_its_functions_load(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    space = load_space(path)
    assert (space.name, space.source, space.doc) == ("my_space", path, "Rate and batch.")
    ranges = check_space(space, WORKLOAD)
    assert list(ranges) == ["batch.global_size", "peak_lr"]
    assert ranges["peak_lr"].describe() == "0.01 … 1 (log)"
    assert ranges["batch.global_size"].describe() == "64 … 256 by 64"
    other = load_space(path + ":other")
    assert (other.name, other.doc) == ("my_space:other", "My space.")


def test_the_fingerprint_follows_the_text(tmp_path: Path) -> None:
    first = load_space(write(tmp_path, GOOD))
    again = load_space(write(tmp_path, GOOD))
    changed = load_space(write(tmp_path, GOOD.replace("1.0, log", "2.0, log")))  # same length, same second
    assert first.fingerprint == again.fingerprint != changed.fingerprint
    assert len(first.fingerprint) == 64
    assert check_space(changed, WORKLOAD)["peak_lr"].high == 2.0
    assert len({space.fingerprint for space in BUILT_IN.values()}) == len(BUILT_IN)


def test_a_space_that_takes_its_priors_from_us_follows_their_text(tmp_path, monkeypatch):
    own = write(tmp_path, GOOD, "own.py")
    using = write(tmp_path, "from bigbatch.search_spaces.priors import peak_lr_centre\n" + GOOD, "using.py")
    before = [load_space(path).fingerprint for path in (own, using)]
    monkeypatch.setattr("bigbatch.search_spaces.registry._priors_text", lambda: "other")
    after = [load_space(path).fingerprint for path in (own, using)]
    assert (before[0] == after[0], before[1] == after[1]) == (True, False)


def test_unknown_names_are_refused_with_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "got 'large_bacth'. Did you mean 'large_batch'?" in load_refusal("large_bacth")
    assert "large_batch, lr_warmup, smoke" in load_refusal("zzz")
    assert "got 'large_batch:space'" in load_refusal("large_batch:space")
    write(tmp_path, GOOD)
    monkeypatch.chdir(tmp_path)
    assert "Did you mean 'my_space.py'?" in load_refusal("my_space")
    assert "got ''" in load_refusal("")


def test_files_that_are_not_there_are_refused_in_one_line(tmp_path: Path) -> None:
    assert load_refusal(str(tmp_path / "nowhere" / "x.py")).endswith("Check the path.")
    (tmp_path / "folder.py").mkdir()
    assert "must name a Python file that is there" in load_refusal(str(tmp_path / "folder.py"))
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in load_refusal(str(tmp_path / "binary.py"))


def test_files_that_fail_are_refused_in_one_line(tmp_path: Path) -> None:
    assert "SyntaxError" in load_refusal(write(tmp_path, "def space(:\n", "a.py"))
    missing = load_refusal(write(tmp_path, "import nowhere_at_all\n", "b.py"))
    assert "ModuleNotFoundError: No module named 'nowhere_at_all'" in missing
    assert "ValueError: two lines" in load_refusal(write(tmp_path, "raise ValueError('two\\nlines')\n", "c.py"))
    assert "SystemExit: 3" in load_refusal(write(tmp_path, "raise SystemExit(3)\n", "d.py"))
    assert not [name for name in sys.modules if name.startswith("bigbatch_own_c_")]


def test_functions_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    assert "got 'othre'. Did you mean 'other'?" in load_refusal(path + ":othre")
    assert "Functions there: space, other, one_argument" in load_refusal(path + ":qqq")
    assert "a function of (trial, workload)" in load_refusal(path + ":one_argument")
    assert "must name a function" in load_refusal(path + ":__doc__")
    assert "Functions there: none" in load_refusal(write(tmp_path, "", "empty.py"))


def test_spaces_that_go_wrong_are_refused_before_the_search(tmp_path: Path) -> None:
    path = str(tmp_path / "bad.py")
    assert "ZeroDivisionError" in check_refusal(path, "return workload.config({'peak_lr': 1 / 0})")
    assert "a dict, not a TrainConfig" in check_refusal(path, "return {'peak_lr': 0.1}")
    message = check_refusal(path, "return workload.config({'peak_lt': trial.suggest_float('rate', 0.1, 0.2)})")
    assert "Did you mean 'peak_lr'?" in message
    assert "{'rate': 0.1" in message
    message = check_refusal(path, "return workload.config({'validate_every': 5})")
    assert "got validate_every=5. Leave it out: `bigbatch train` alone skips" in message
    assert "batch.global_size=4096 for 1437" in check_refusal(path, "return workload.config({'global_size': 4096})")
    message = check_refusal(path, "return workload.config({'global_size': 100})", workers=3)
    assert "space 'bad': batch.global_size must divide over the workers; got 100 over 3. Use" in message
    assert "asks for 20 epochs of at most 12" in check_refusal(path, "return workload.config({'epochs': 20})")
    other = "from bigbatch.train_loop.config import TrainConfig\nreturn TrainConfig()"
    assert "set data.name='digits' in a study of 'my/images'" in check_refusal(path, other, data="my/images")
    assert "set model.name='resnet50' in a study of 'resnet18'" in check_refusal(path, other)


def test_what_optuna_would_refuse_during_the_search_is_refused_before(tmp_path: Path) -> None:
    path = str(tmp_path / "bad.py")
    end = "\nreturn workload.config({'peak_lr': lr})"
    assert "low must be above 0" in check_refusal(path, "lr = trial.suggest_float('lr', 0, 1, log=True)" + end)
    assert "low <= high" in check_refusal(path, "lr = trial.suggest_float('lr', 2, 1)" + end)
    assert "log and step" in check_refusal(path, "lr = trial.suggest_float('lr', 1, 2, step=0.1, log=True)" + end)
    twice = "lr = trial.suggest_float('lr', 0.1, 1)\ntrial.suggest_categorical('lr', [1, 2])" + end
    assert "suggested twice" in check_refusal(path, twice)
    across = (
        "o = trial.suggest_categorical('optimizer', ['sgd', 'lamb'])\n"
        "lr = trial.suggest_float('lr', 0.001, 0.1, log=(o == 'lamb'))" + end
    )
    assert "suggests 'lr' with different kinds" in check_refusal(path, across)


def test_initial_points_are_checked(tmp_path: Path) -> None:
    point = "\n\ndef initial_points(workload):\n    return [{'peak_lr': 7.0}]\n"
    with pytest.raises(ConfigError, match="'peak_lr' cannot be 7.0: it takes 0.01 … 1 .log. in initial_points"):
        check_space(load_space(write(tmp_path, GOOD + point)), WORKLOAD)
    good = load_space(write(tmp_path, GOOD + point.replace("7.0", "0.5")))
    check_space(good, WORKLOAD)
    assert good.initial_points(WORKLOAD) == [{"peak_lr": 0.5}]


def test_ranges_of_moving_parameters_are_merged(tmp_path: Path) -> None:
    text = (
        "def space(trial, workload):\n    o = trial.suggest_categorical('optimizer', ['sgd', 'lamb', 'lars'])\n"
        "    high = {'sgd': 1.0, 'lamb': 0.1, 'lars': 9.0}[o]\n"
        "    changes = {'optimizer.name': o, 'peak_lr': trial.suggest_float('peak_lr', high / 10, high)}\n"
        "    if o != 'lamb' and trial.suggest_categorical('decay', [False, True]):\n"
        "        changes['weight_decay'] = trial.suggest_float('weight_decay', 0, 1e-3)\n"
        "    return workload.config(changes)\n"
    )
    ranges = check_space(load_space(write(tmp_path, text)), WORKLOAD)
    assert (ranges["peak_lr"].low, ranges["peak_lr"].high) == (pytest.approx(0.01), 9.0)
    assert ranges["decay"].conditions == {"optimizer": ("sgd", "lars")}
    assert not [name for name in ranges if name.startswith("peak_lr[")]


def test_a_pinned_batch_is_not_searched_and_moves_the_rate() -> None:
    space = BUILT_IN["lr_warmup"]
    trial = StandInTrial(None, fixed={"optimizer": "sgd", "lr_multiplier": 1.0})
    config = space(trial, WORKLOAD, {"global_size": 1024, "seed": 5})
    assert "global_batch_size" not in trial.params
    assert (config.batch.global_size, config.optimizer.peak_lr, config.seed) == (1024, pytest.approx(0.4), 5)


def test_pinned_values_reach_parameters_of_other_names() -> None:
    space = BUILT_IN["large_batch"]
    trial = StandInTrial(None, fixed={"lr_multiplier": 1.0, "global_batch_size": 256})
    config = space(trial, WORKLOAD, {"optimizer.name": "sgd", "momentum": 0.95})
    assert not {"optimizer", "one_minus_momentum"} & set(trial.params)
    assert config.optimizer.momentum == 0.95
    assert config.optimizer.peak_lr == pytest.approx(0.05)  # half the rate at half of 1 − momentum
    trial = StandInTrial(None)
    assert space(trial, WORKLOAD, {"peak_lr": 0.123}).optimizer.peak_lr == 0.123
    assert "lr_multiplier" not in trial.params


def test_initial_points_of_a_pinned_optimizer_are_not_repeated() -> None:
    space = BUILT_IN["large_batch"]
    points = space.initial_points(WORKLOAD, {"optimizer.name": "lars", "batch.global_size": 512})
    assert all("optimizer" not in point and "global_batch_size" not in point for point in points)
    assert len(points) == 2  # poly with momentum, and cosine
    check_space(space, WORKLOAD, pinned={"optimizer.name": "lars", "batch.global_size": 512})
    ranges = check_space(space, WORKLOAD, pinned={"optimizer.name": "adamw"})
    assert ranges["one_minus_beta1"].conditions == {}


def test_pinned_values_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="must be at most the 1437 training images; got 4096"):
        check_space(BUILT_IN["large_batch"], WORKLOAD, pinned={"batch.global_size": 4096})
    with pytest.raises(ConfigError, match="at most 12"):
        check_space(BUILT_IN["large_batch"], WORKLOAD, pinned={"epochs": 30})


@pytest.mark.parametrize("name", ["search_spaces", "train_loop"])
def test_a_users_own_package_beside_a_space_is_the_users(name: str, tmp_path: Path) -> None:
    """In a process of its own: names that were once imported stay."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "mine.py").write_text("HIGH = 0.5\n")
    path = write(tmp_path, f"from {name}.mine import HIGH\n{GOOD}", "own.py")
    code = f"from bigbatch.search_spaces import load_space; print(load_space({str(path)!r}).name)"
    done = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True)
    assert done.stdout == "own\n", done.stderr
