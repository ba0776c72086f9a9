"""Whole searches whose trials meet a full device, die, or share a GPU."""

import json
import os
from pathlib import Path

import pytest
from optuna.trial import TrialState

from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.runs.run import DIVERGED_ATTR, FAILURE_ATTR, HALVINGS_ATTR, TRIALS_PER_GPU_ATTR
from helpers.full_device import small_device
from helpers.paths import TUNE
from helpers.searches import load


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
@pytest.mark.xdist_group("beside")
def test_trials_heal_in_the_same_trial_at_the_same_global_batch(run_command, tmp_path: Path, tiny, workers) -> None:
    """On the last rank more than 4 images are too many. Two workers: all start again, in the same trial."""
    arguments = (*tiny, "--trials", 2, "--max-epochs", 2, "--study", "s", "--workers", workers)
    arguments += ("--strategy", "random", "--stopping", "none")
    env = small_device(tmp_path / "site", 4, rank=workers - 1)
    done = run_command(TUNE, *arguments, timeout_s=500, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    trials = load(tmp_path / "runs" / "s").trials
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 2
    for trial in trials:
        batch = TrainConfig.from_dict(trial.user_attrs["config"]).batch
        split = batch.split(workers)
        assert (split.global_size, split.micro_size) == (16, 4)
        sizes = [one["micro_size"] for one in trial.user_attrs[HALVINGS_ATTR]]
        assert sizes == [8, 4][workers - 1 :] and not {DIVERGED_ATTR, FAILURE_ATTR} & trial.user_attrs.keys()
    assert "The micro-batch is now 4" in done.stdout
    best = json.loads((tmp_path / "runs" / "s" / "best.json").read_text())
    # Trials this small learn nothing, and then the configuration is a part of best.json.
    assert TrainConfig.from_dict(best.get("config", best)).batch.split(workers).micro_size == 4


HOOK = """
import importlib.util, sys

MACHINE, RAYS_DEVICE = "bigbatch.tune.plan.machine", "ray.train.v2.torch.train_loop_utils"
RAYS_GROUP = "ray.train.torch.config"

class Finder:
    def __init__(self):
        self.left = {MACHINE: machine, RAYS_DEVICE: device, RAYS_GROUP: group}

    def find_spec(self, name, path, target=None):
        change = self.left.pop(name, None)
        if change is None:
            return None
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (load(module), change(module))
        return spec

def machine(module):
    real = module.local_machine

    def local_machine():
        (node,) = real().nodes
        return module.Machine((module.Node(node.cpus, 1, node.memory_bytes, 16 * 2**30),))

    module.local_machine = local_machine

def device(module):
    import torch

    module.get_devices = lambda: [torch.device("cpu")]

def group(module):
    real = module._setup_torch_process_group

    def _setup_torch_process_group(backend, **more):
        real(backend="gloo", **more)

    _setup_torch_process_group.__module__ = module.__name__  # so that it is pickled by its name
    module._setup_torch_process_group = _setup_torch_process_group

sys.meta_path.insert(0, Finder())
"""


def pretended_gpu(folder: Path) -> dict[str, str]:
    """The environment of a search on a machine whose one GPU is only a number: trials train on the CPU."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(HOOK)
    return {"PYTHONPATH": str(folder)}


OWN = '''"""Trials 0 and 1 begin together on one GPU. While trial 1 shares the GPU, it lacks memory."""
import os, pathlib
import torch

HERE = pathlib.Path(__file__).parent

def space(trial, workload):
    trial.suggest_float("unused", 0.0, 1.0)
    return {"number": trial.number}

def log(*words):
    with (HERE / "log").open("a") as file:
        print(*words, file=file)

def train(config, report, resume):
    import ray
    number, shared = config["number"], int(os.environ["BIGBATCH_TRIALS_PER_GPU"])
    log(number, shared, ray.get_gpu_ids(), "begins")
    if shared == 2:
        open(HERE / "meeting", "rw"[number]).close()  # a pipe: each waits there for the other
    if number == 1:
        take_memory(shared)
    report(epoch=1, value=0.5)
    log(number, shared, ray.get_gpu_ids(), "ends")

def take_memory(shared):
    if torch.cuda.is_available():
        total = torch.cuda.get_device_properties(0).total_memory
        torch.empty(int(0.6 * total), dtype=torch.uint8, device="cuda")
    elif shared > 1:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.60 GiB")
'''


@pytest.mark.parametrize(
    "gpu", [pytest.param("pretended", marks=pytest.mark.slow), pytest.param("real", marks=pytest.mark.gpu)]
)
@pytest.mark.xdist_group("beside")
def test_two_trials_share_a_gpu_until_one_lacks_memory_which_is_then_repeated_alone(run_command, tmp_path: Path, gpu):
    (tmp_path / "own.py").write_text(OWN)
    os.mkfifo(tmp_path / "meeting")
    env = pretended_gpu(tmp_path / "site") if gpu == "pretended" else {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    own = ("--trainable", "own.py:train", "--space", "own.py", "--objective", "value:max", "--study", "s")
    words = "--strategy random --stopping none --max-epochs 1 --confirm none --trials 2 --trials-per-gpu 2".split()
    done = run_command(TUNE, *own, *words, timeout_s=500, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 trials share each GPU (--trials-per-gpu): each has at most 45 % of its memory" in " ".join(
        done.stdout.split()
    )
    assert "each trial has a GPU of its own from now on: 2 had too little memory" in done.stdout

    log = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert all(line[2] == "[0]" for line in log), "the same GPU"
    begun = [(int(number), int(shared)) for number, shared, *_, what in log if what == "begins"]
    assert sorted(begun[:2]) == [(0, 2), (1, 2)] and begun[2:] == [(1, 1)], begun

    study = tmp_path / "runs" / "s"
    trials = load(study).trials
    assert [t.state for t in trials] == [TrialState.COMPLETE] * 2
    assert [t.user_attrs.get(TRIALS_PER_GPU_ATTR) for t in trials] == [2, 1]
    assert [t.user_attrs["attempts"] for t in trials] == [1, 2]
    (session,) = (json.loads(path.read_text()) for path in (study / "ledger").glob("*.json"))
    used = session["trial_device_s"]
    assert session["devices_held"] == 1 and 0 < sum(used.values()) <= session["held_device_s"]

    again = run_command(TUNE, "--resume", "--study", "s", "--trials", 3, "--dry-run", timeout_s=200, **env)
    assert "1 trial on each GPU: in this study 2 had too little memory" in again.stdout, again.stdout + again.stderr
