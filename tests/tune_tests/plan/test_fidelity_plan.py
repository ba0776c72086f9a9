"""``--fidelity``: how the trials are divided, what the plan prints, and what cannot work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.plan.search_plan import SearchPlan
from bigbatch.tune.search.running import facts_of
from bigbatch.tune.study.store import StudyStore
from bigbatch.tune.watch.findings import print_plan


def plan_of(folder: Path, **options: Any) -> SearchPlan:
    return make_plan(SearchOptions(**{"output": str(folder), "model": "resnet18", "max_epochs": 12, **options}))


@pytest.mark.parametrize(
    ("fidelity", "cheap", "full", "images"),
    [
        ("epochs", 4, 12, 1437),
        ("epochs=6", 6, 12, 1437),
        ("subset=75%", 0.75, 1.0, 1080),
        ("image_size", 16, 32, 1437),
        ("image_size=24", 24, 32, 1437),
    ],
)
def test_cheap_runs_differ_in_one_thing(tmp_path: Path, fidelity: str, cheap: float, full: float, images: int) -> None:
    plan = plan_of(tmp_path, fidelity=fidelity, trials=16)
    assert plan.fidelity is not None
    runs = plan.fidelity.runs
    assert (runs.cheap, runs.full) == (cheap, full)
    assert runs.cheap_images == pytest.approx(images, abs=10) and runs.full_images == 1437
    assert (plan.fidelity.first, plan.fidelity.trials) == (12, 4)


def test_each_batch_has_a_finalist(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, fidelity="epochs", trials=12)
    assert plan.fidelity is not None and plan.fidelity.trials == 4 == len(plan.frontier.values if plan.frontier else ())
    one = plan_of(tmp_path, fidelity="epochs", trials=12, batch="256")
    assert one.fidelity is not None and one.fidelity.trials == 3


def test_the_strategy_plans_for_the_cheap_runs(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, fidelity="epochs", trials=20)
    facts = facts_of(plan)
    assert (facts.trials, facts.max_epochs) == (15, 4)
    assert plan.stopping == "asha", "a look comes too early in runs of four epochs"


def test_the_plan_prints_both_fidelities_and_what_they_cost(tmp_path: Path) -> None:
    console = Console(width=300, record=True, file=Path(tmp_path / "out").open("w"))
    print_plan(plan_of(tmp_path / "runs", fidelity="epochs", trials=16), console)
    text = console.export_text()
    assert "12 cheap runs, 4 epochs; then the best 4 in full, 12 epochs" in text
    epochs = 12 * 4 + 4 * 12
    assert f"{epochs} epochs = {epochs * 1437:,} training images" in text


def test_the_cost_says_how_much_of_it_is_small_images(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, fidelity="image_size", trials=16)
    assert plan.fidelity is not None
    words = plan.fidelity.cost_in_words(12)
    assert words == f"{16 * 12} epochs = {16 * 12 * 1437:,} training images (144 epochs at 16 px)"


def test_a_resumed_study_keeps_its_fidelity(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, study="cheap", fidelity="epochs=5", trials=16)
    StudyStore.create(plan.folder, plan.study, plan.to_dict(), None).close()
    assert plan_of(tmp_path, study="cheap", resume=True).fidelity == plan.fidelity
    with pytest.raises(ConfigError, match="--fidelity was 'epochs=5'"):
        plan_of(tmp_path, study="cheap", resume=True, fidelity="epochs=6")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fidelity": "steps"}, "takes epochs, subset or image_size.*'steps'"),
        ({"fidelity": "epochs="}, "takes epochs"),
        ({"fidelity": "epochs=2.5"}, "takes epochs"),
        ({"fidelity": "subset=some"}, "takes epochs"),
        ({"fidelity": "epochs=1"}, "cheap runs of 2 epochs or more, and fewer than the 12 .* got epochs=1"),
        ({"fidelity": "epochs=12"}, "got epochs=12"),
        ({"fidelity": "epochs", "max_epochs": 3}, "got epochs=1"),
        ({"fidelity": "subset=100%"}, "above 0 and below 1; got subset=1"),
        ({"fidelity": "subset=0"}, "got subset=0"),
        ({"fidelity": "subset=50%", "subset": 0.4}, "below 0.4; got subset=0.5"),
        ({"fidelity": "subset=0.1%"}, "a part that can be trained on; got subset=0.001"),
        ({"fidelity": "subset"}, "as many images as the largest batch; .* batch 1,024"),
        ({"fidelity": "image_size=4"}, "8 pixels a side or more, and fewer than 32; got image_size=4"),
        ({"fidelity": "image_size=32"}, "got image_size=32"),
        ({"fidelity": "epochs", "trials": 8}, "4 full ones or more here; got --trials 8. Write --trials 9"),
        ({"fidelity": "epochs", "transfer_to": "1k"}, "--transfer-to"),
        ({"fidelity": "epochs", "target": "val_top1=0.9"}, "a search for one metric; got val_top1=0.9"),
        ({"fidelity": "epochs", "objective": "images_per_s"}, "cost less anyhow"),
    ],
)
def test_what_cannot_work_meets_one_line(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        plan_of(tmp_path, **options)
    assert "\n" not in str(caught.value) and "--fidelity" in str(caught.value)


def test_the_named_part_is_enough(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(tmp_path, fidelity="subset")
    part = str(caught.value).partition("subset=0.25")[2].partition("--fidelity ")[2].split()[0]
    assert plan_of(tmp_path, fidelity=part).fidelity is not None


def test_a_network_that_cannot_take_small_images_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a size that data and network take; got image_size=8 .*densenet121"):
        plan_of(tmp_path, model="densenet121", fidelity="image_size=8", set=("image_size=64",))
