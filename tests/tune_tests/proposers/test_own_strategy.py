"""A sampler and a pruner of the user's own, driven by the real manager, and what the plan refuses."""

from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.errors import OwnCodeError
from bigbatch.tune.models.study_view import view_of
from bigbatch.tune.proposers.own_strategy import check_own_strategy
from bigbatch.tune.runs.run import is_exhausted
from helpers.conducted import DIMENSIONS, TRIALS, curve_search, in_journal, in_memory, same_after_kills

pytestmark = pytest.mark.without_ray

MINE = '''
import optuna
from optuna.samplers import BaseSampler, RandomSampler

def genetic(seed):
    return optuna.samplers.NSGAIISampler(seed=seed, population_size=4)

def keyword(*, seed):
    return RandomSampler(seed)

class Counting(RandomSampler):
    """Never proposes by what it has seen: made anew, it has seen nothing."""

    def __init__(self, seed=None):
        super().__init__(seed)
        self.seen = 0

    def before_trial(self, study, trial):
        self.seen += 1
        assert self.seen == 1

class Once(RandomSampler):
    def after_trial(self, study, trial, state, values):
        if trial.number == 3:
            study.stop()

def grid():
    return optuna.samplers.GridSampler({"other": [1]})

def patient():
    return optuna.pruners.PatientPruner(optuna.pruners.MedianPruner(n_startup_trials=2), patience=1)

def hyperband():
    return optuna.pruners.HyperbandPruner(min_resource=1, max_resource=4, reduction_factor=2)

class Raises(optuna.pruners.BasePruner):
    def prune(self, study, trial):
        raise KeyError("no such rung")

def fails(seed):
    raise RuntimeError("no licence")

def nothing():
    return None

def two(seed, other):
    return RandomSampler(seed)

async def later():
    return RandomSampler()
'''


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(MINE)
    return str(tmp_path / "mine.py")


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize(
    ("strategy", "stopping"), [("genetic", "patient"), ("Counting", "hyperband"), ("keyword", "look")]
)
def test_an_own_sampler_and_pruner_decide_alike_after_kills(
    mine: str, strategy: str, stopping: str, tmp_path: Path
) -> None:
    """The study is the only memory: nothing of them outlives a trial or a look."""
    names = f"{mine}:{strategy}", stopping if stopping == "look" else f"{mine}:{stopping}"
    trials = same_after_kills(*names, in_journal, tmp_path)
    if stopping == "hyperband":  # the curves rise, so that patience stops none
        assert any(trial.state == TrialState.PRUNED for trial in trials)


def test_a_sampler_that_has_no_other_configuration_ends_the_search_in_order(mine: str, tmp_path: Path) -> None:
    search = curve_search(f"{mine}:Once", "none", in_journal(tmp_path / "s"))
    while not is_exhausted(search.store.study):
        search.step()
    begun = len(search.trials)
    search.run()
    assert len(search.trials) == begun < TRIALS and all(trial.state.is_finished() for trial in search.trials)
    search.kill()
    assert len(search.run().trials) == begun, "resumed, it begins no other"


def test_a_view_hides_trials_also_from_what_asks_the_storage() -> None:
    """Optuna's Hyperband, brute force and grid do so."""
    study = optuna.create_study()
    for value in (1.0, 2.0, 3.0):
        study.add_trial(optuna.trial.create_trial(value=value))
    view = view_of(study, lambda trials: [t for t in trials if t.value != 2.0])
    assert [t.value for t in view._storage.get_all_trials(view._study_id)] == [1.0, 3.0]
    inner = view_of(view, lambda trials: trials[:1])
    assert [t.value for t in inner._storage.get_all_trials(study._study_id, states=(TrialState.COMPLETE,))] == [1.0]


def test_an_error_of_a_pruner_names_the_users_file(mine: str, tmp_path: Path) -> None:
    with pytest.raises(OwnCodeError, match=r"--stopping=.*mine\.py:Raises raised KeyError"):
        curve_search("random", f"{mine}:Raises", in_memory(tmp_path / "s")).run()


@pytest.mark.parametrize(
    ("strategy", "stopping", "error", "said"),
    [
        ("fails", "none", OwnCodeError, r"--strategy=.*mine\.py:fails raised RuntimeError"),
        ("nothing", "none", ConfigError, r"an optuna BaseSampler; got None from mine\.py:nothing\. Return e\.g\."),
        ("patient", "none", ConfigError, "BaseSampler; got a PatientPruner"),
        ("two", "none", ConfigError, r"function of \(seed\); got .*missing a required argument: 'other'"),
        ("later", "none", ConfigError, "async"),
        ("genetics", "none", ConfigError, "must name a function of .*'genetics'. Did you mean"),
        ("grid", "none", OwnCodeError, "not found in the given grid"),
        ("keyword", "nothing", ConfigError, "--stopping must name a function that returns an optuna BasePruner"),
        ("keyword", "genetic", ConfigError, "--stopping must name a function of"),
    ],
)
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_the_plan_refuses_what_makes_none(mine: str, strategy: str, stopping: str, error, said: str) -> None:
    own = stopping if stopping == "none" else f"{mine}:{stopping}"
    with pytest.raises(error, match=said):
        check_own_strategy(f"{mine}:{strategy}", own, DIMENSIONS, ["maximize"])
