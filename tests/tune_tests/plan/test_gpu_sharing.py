"""``--trials-per-gpu``: what is refused, what the plan says, and how nodes are cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.plan import checked_plan
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.fitting import plan_for_cluster
from bigbatch.tune.plan.machine import AT_MOST, Machine, Node, share_out
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.search_plan import SearchPlan

GIB = 2**30
ONE_GPU = Machine((Node(16, 1, 64 * GIB, 80 * GIB),))


@pytest.fixture
def plan_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def plan(machine: Machine = ONE_GPU, **options: object) -> SearchPlan:
        monkeypatch.setattr(checked_plan, "local_machine", lambda: machine)
        given = {"space": "smoke", "output": str(tmp_path), "trials": 16, **options}
        return make_plan(SearchOptions(**given))  # type: ignore[arg-type]

    return plan


def words(plan: SearchPlan) -> str:
    return plan.sharing.words(plan.machine, plan.share)


@pytest.mark.parametrize("text", ["0", "5", "-1", "1.5", "two", "2 2", "²"])
def test_another_number_is_refused_with_the_rule_and_a_fix(plan_of, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        plan_of(trials_per_gpu=text)
    rule = f"--trials-per-gpu must be auto or a number from 1 to 4; got {text!r}. Write --trials-per-gpu 2."
    assert str(refused.value) == rule


def test_a_trial_of_several_workers_shares_no_gpu_and_the_reason_is_said(plan_of) -> None:
    two = Machine((Node(16, 2, 64 * GIB, 80 * GIB),))
    with pytest.raises(ConfigError, match=r"\A[^\n]*NCCL wants each worker .* got --workers 2\. Leave one[^\n]*\Z"):
        plan_of(two, trials_per_gpu="2", workers=2)
    auto = plan_of(two, trials_per_gpu="auto", workers=2)
    assert words(auto) == "1 trial on each GPU: the 2 workers of a trial need one GPU each"
    assert plan_of(two, trials_per_gpu="1", workers=2).share.devices == 2


def test_the_plan_says_how_many_and_why(plan_of) -> None:
    three = plan_of(trials_per_gpu="3")
    assert three.share.describe() == "3 trials at a time, each with 1 worker of 5 CPU + 0.3333 GPU"
    assert three.share.devices == pytest.approx(1 / 3)
    assert words(three).startswith("3 trials share each GPU (--trials-per-gpu): each has at most 30 % of its memory")
    auto = plan_of(trials_per_gpu="auto")
    assert auto.share.concurrency == 1 and "1 trial on each GPU at first, later up to 4" in words(auto)
    assert words(plan_of()) == "" and plan_of().share.concurrency == 1


def test_without_a_gpu_auto_says_nothing_and_a_number_that_it_changes_nothing(plan_of) -> None:
    cores = Machine((Node(16, 0, 64 * GIB),))
    alone = plan_of(cores)
    auto, two = plan_of(cores, trials_per_gpu="auto"), plan_of(cores, trials_per_gpu="2")
    assert alone.share == auto.share == two.share
    assert words(auto) == "" and words(two) == "there is no GPU to share: --trials-per-gpu 2 changes nothing"


def test_a_resume_never_goes_above_the_number_at_which_memory_was_too_little(plan_of, monkeypatch) -> None:
    """A job that Slurm starts again repeats its command line."""
    first = plan_of(trials_per_gpu="3", study="s")
    stored = {**first.to_dict(), AT_MOST: first.sharing.without(3).at_most}
    monkeypatch.setattr(checked_plan, "read_description", lambda folder: stored)
    again = plan_of(trials_per_gpu="3", study="s", resume=True)
    assert again.share.per_gpu == plan_of(study="s", resume=True).share.per_gpu == 2
    assert words(again) == "2 trials on each GPU: in this study 3 had too little memory"
    assert again.to_dict()[AT_MOST] == 2
    assert plan_of(trials_per_gpu="auto", study="s", resume=True).share.per_gpu == 1


def test_the_nodes_of_a_joined_cluster_are_shared_too(plan_of) -> None:
    before = plan_of(address="auto", trials_per_gpu="2", trials=100)
    nodes = Machine((Node(64), Node(8, 2, 64 * GIB, 40 * GIB), Node(8, 2, 64 * GIB, 80 * GIB)))
    after = plan_for_cluster(before, nodes)
    assert (after.share.concurrency, after.share.worker_resources) == (8, {"CPU": 2.0, "GPU": 0.5})
    assert "2 trials share each GPU" in words(after)


@pytest.mark.parametrize("per_gpu", [1, 2, 3, 4])
@pytest.mark.parametrize(("cpus", "gpus"), [(16, 1), (7, 3), (2, 4), (128, 8)])
def test_what_runs_on_a_node_is_never_more_than_it_has_in_rays_units(per_gpu: int, cpus: int, gpus: int) -> None:
    share = share_out(Machine((Node(cpus, gpus, 64 * GIB),)), 1, 1000, per_gpu)
    assert share.concurrency == gpus * per_gpu
    for kind, have in (("CPU", cpus), ("GPU", gpus)):
        each = round(1e4 * share.worker_resources[kind])
        assert each / 1e4 == share.worker_resources[kind], "whole ten-thousandths"
        assert 0 < each * share.concurrency <= 1e4 * have
