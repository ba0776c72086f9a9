"""What the plan says of the strategy, what ``auto`` stands for, and what early values have told."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial
from PIL import Image
from scipy.stats import spearmanr

from bigbatch.train_loop.data.info import DataInfo
from bigbatch.tune.commands.tune import tune_main
from bigbatch.tune.console.outcome import look_findings
from bigbatch.tune.console.plan_notes import (
    nothing_to_learn_from,
    nothing_to_search,
    size_of_images,
)
from bigbatch.tune.models.names import resolved
from bigbatch.tune.models.protocol import Dimension, SearchFacts
from bigbatch.tune.runs.run import CONFIRMS_ATTR
from helpers.lone_studies import made


def test_a_search_whose_trials_all_start_at_once_is_told_which_numbers_would_help():
    text = nothing_to_learn_from("curves", trials=16, slots=16, workers=2)
    assert text is not None and "--trials 64" in text and "--workers 8" in text
    assert nothing_to_learn_from("curves", trials=17, slots=16, workers=2) is None
    assert nothing_to_learn_from("random", trials=16, slots=16, workers=2) is None, "it never learns"
    assert nothing_to_learn_from("tpe", trials=1, slots=1, workers=1) is None, "one trial is no search"


def test_trials_that_could_only_be_equal_are_said():
    text = nothing_to_search(parameters=0, trials=12)
    assert text is not None and "all 12 trials" in text and "--trials 1" in text
    assert nothing_to_search(parameters=0, trials=1) is None and nothing_to_search(parameters=1, trials=12) is None


@pytest.mark.parametrize(
    ("largest", "size", "model", "says", "other"),
    [
        (65, 224, "resnet50", "12 times", 65), (111, 224, "my.py:net", "4 times", 111), (112, 224, "resnet50", "", 0),
        (0, 224, "resnet50", "", 0), (32, 32, "resnet18", "", 0), (32, 32, "my.py:net", "", 0),
        (32, 32, "timm/vit_tiny_patch16_224", "49 times", 224), (64, 64, "alexnet", "12 times", 224),
    ],
)  # fmt: skip
def test_images_that_are_enlarged_or_small_are_said_with_what_that_costs(largest, size, model, says, other):
    info = DataInfo("d", None, 100, 10, 2, size, 3, ("a", "b"), "imagenet", largest_side=largest)
    text = size_of_images(info, model)
    assert (text is not None and says in text and f"image_size={other}." in text) if says else text is None


def test_a_plan_looks_how_large_the_images_are(tiny_images, tmp_path, capsys):
    folder = Path(shutil.copytree(tiny_images, tmp_path / "images"))
    arguments = ["--data", str(folder), "--model", "shufflenet_v2_x0_5", "--output", str(tmp_path), "--dry-run"]
    tune_main(arguments)
    said = capsys.readouterr().out
    assert "16 px" in said and "enlarged" not in said, "small images are trained as they are"
    for image in folder.glob("val/*/*"):
        with Image.open(image) as picture:
            picture.resize((65, 50)).save(image)
    tune_main(arguments)
    assert "images of at most 65 px are enlarged to 224 px, which takes about 12 times" in capsys.readouterr().out


def test_auto_looks_early_where_a_third_of_the_trials_is_enough_to_choose_from():
    assert resolved("auto", "auto", 64, 90) == ("curves", "look")
    assert resolved("auto", "auto", 12, 12) == ("curves", "asha")
    assert resolved("auto", "auto", 64, 6) == ("curves", "asha")
    assert resolved("tpe", "none", 64, 90) == ("tpe", "none")


BATCHES = CategoricalDistribution([128, 512])


def facts(frontier: str | None = None) -> SearchFacts:
    dimensions = (Dimension("x", FloatDistribution(0, 1)), Dimension("batch", BATCHES))
    return SearchFacts(dimensions, trials=40, max_epochs=20, frontier=frontier)


def run(early: float, end: float, batch: int = 128, epochs: int = 20, **attrs: object) -> FrozenTrial:
    """A run to its end that had ``early`` at its look, after a tenth."""
    config = {"epochs": epochs, "schedule": {"warmup_epochs": 0.0}}
    names = {"x": FloatDistribution(0, 1), "batch": BATCHES}
    values = {1: 0.1, epochs // 10: early, epochs: end}
    return made({"x": 0.5, "batch": batch}, names, values, config=config, **attrs)


def test_the_correlation_is_spearmans_and_the_advice_follows_from_it() -> None:
    rng = np.random.default_rng(0)
    early = rng.uniform(0.2, 0.4, 12)
    for end, words in ((early + 0.3, "told the ends"), (0.9 - early, "said little of the ends")):
        end = end + rng.normal(0, 0.02, 12)
        (line,) = look_findings("look", facts(), [run(a, b) for a, b in zip(early, end, strict=True)])
        assert words in line and f"{spearmanr(early, end)[0]:+.2f} over 12 finished runs" in line
        assert ("--stopping none" in line) == ("little" in words)


def test_runs_compare_within_their_batch_and_at_the_same_part_of_their_length() -> None:
    """At each batch early values rank the ends; all together, they rank them the wrong way."""
    fine = [(0.30 + i / 100, 0.60 + i / 100) for i in range(6)]
    low = [(0.50 + i / 100, 0.40 + i / 100) for i in range(6)]
    batches = [run(a, b) for a, b in fine] + [run(a, b, batch=512) for a, b in low]
    assert "+1.00 over 12" in look_findings("look", facts("batch"), batches)[0]
    assert "said little" in look_findings("look", facts(), batches)[0]
    lengths = [run(0.3 + i / 100, 0.6 + i / 100, epochs=10 + 10 * i) for i in range(8)]
    assert "+1.00 over 8" in look_findings("look", facts(), lengths)[0], "a search that also chooses the epochs"


@pytest.mark.parametrize("stopping", ["asha", "none"])
def test_it_is_silent_without_a_look_with_few_runs_and_about_confirmations(stopping: str) -> None:
    runs = [run(0.2 + i / 50, 0.5 + i / 50) for i in range(8)]
    assert look_findings("look", facts(), runs) and not look_findings(stopping, facts(), runs)
    assert not look_findings("look", facts(), runs[:-1])
    assert not look_findings("look", facts(), [*runs[:-1], run(0.9, 0.9, **{CONFIRMS_ATTR: 0})])
    assert not look_findings("look", facts(), [run(0.3, 0.5)] * 9), "all alike: there is no order"


def test_with_a_budget_alone_it_says_how_many_are_not_paused() -> None:
    budget_alone = replace(facts(), open_ended=True)
    runs = [run(0.4 - i / 50, 0.5 + i / 50) for i in range(8)]
    (line,) = look_findings("look", budget_alone, runs)
    part = int(re.search(r"-1.00 over 8 finished runs. Of new trials (\d+)% run without a pause", line)[1])
    assert part > 90 and "--stopping none" not in line
    fine = [run(0.2 + i / 50, 0.5 + i / 50) for i in range(8)]
    (line,) = look_findings("look", budget_alone, fine)
    assert "told the ends" in line and int(re.search(r"(\d+)% run without", line)[1]) < 10
    assert "without a pause" not in look_findings("look", facts(), runs)[0]
    rng = np.random.default_rng(0)
    for _ in range(40):  # whatever the correlation, the words and the part that is let go agree
        runs_of_any = [run(*pair) for pair in rng.uniform(0.3, 0.6, (12, 2))]
        (line,) = look_findings("look", budget_alone, runs_of_any)
        assert ("said little" in line) == (int(re.search(r"(\d+)% run without", line)[1]) >= 50)
    assert not look_findings("look", budget_alone, runs[:-1])
