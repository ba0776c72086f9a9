"""Soft priors of spaces: quantiles of a log-normal, ranges of the built-in spaces, refusals."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import lognorm

from bigbatch.search_spaces import BUILT_IN, Workload, check_space, load_space
from bigbatch.search_spaces.priors import LogNormal, peak_lr_centre
from bigbatch.train_loop.config import ConfigError

WORKLOAD = Workload("digits", train_size=1437, num_classes=10, image_size=32, model="resnet18", epochs=12)
OWN = """
from bigbatch.search_spaces.priors import LogNormal


def space(trial, workload):
    return workload.config({"peak_lr": trial.suggest_float("lr", 1e-4, 10.0, log=True)})


def soft_priors(workload):
    return PRIORS
"""


def own_space(folder: Path, priors: str) -> str:
    path = folder / "own.py"
    path.write_text(OWN.replace("PRIORS", priors))
    return str(path)


@pytest.mark.parametrize(("centre", "factor", "low", "high"), [(1.0, 4.0, 1 / 16, 16.0), (0.3, 2.0, 0.2, 50.0)])
def test_quantiles_are_those_of_scipys_log_normal_cut_off_at_the_range(centre, factor, low, high):
    ours, theirs = LogNormal(centre, factor), lognorm(s=math.log(factor), scale=centre)
    first, last = theirs.cdf(low), theirs.cdf(high)
    for part in np.linspace(0.001, 0.999, 41):
        value = ours.value(float(part), low, high)
        assert value == pytest.approx(theirs.ppf(first + part * (last - first)), rel=1e-9)
    assert (ours.value(0.0, low, high), ours.value(1.0, low, high)) == (pytest.approx(low), pytest.approx(high))
    assert low <= ours.value(0.0, low, high) and ours.value(1.0, low, high) <= high


@pytest.mark.parametrize(("centre", "factor"), [(0.0, 4.0), (-1.0, 4.0), (1.0, 1.0), (math.inf, 4.0), (1.0, math.nan)])
def test_a_prior_that_cannot_be_is_refused(centre: float, factor: float) -> None:
    with pytest.raises(ConfigError, match="a centre above 0 and a factor above 1"):
        LogNormal(centre, factor)


def test_rates_are_searched_widely_and_mostly_near_their_centre() -> None:
    wide = check_space(BUILT_IN["large_batch"], WORKLOAD)["lr_multiplier"]
    assert (wide.low, wide.high) == (1 / 16, 16.0)
    assert wide.describe() == "0.0625 … 16 (log), mostly 0.25 … 4"
    assert check_space(BUILT_IN["lr_warmup"], WORKLOAD)["lr_multiplier"].describe() == wide.describe()


def test_the_published_rates_of_imagenet_are_where_most_trials_are_drawn() -> None:
    """MLPerf's LARS at 4,096 and 32,768, Goyal's SGD at 8,192, LAMB's own at 32,768: rate over the rule's centre."""
    imagenet = Workload("imagenet", 1_281_167, 1000, 224, "resnet50", epochs=90)
    prior = BUILT_IN["large_batch"].soft_priors(imagenet)["lr_multiplier"]
    published = (("lars", 4096, 10.0), ("lars", 32768, 21.2), ("sgd", 8192, 3.2), ("lamb", 32768, 0.04))
    for optimizer, batch, rate in published:
        ratio = rate / peak_lr_centre(optimizer, batch, 3000)
        low, high = (prior.value(part, 1 / 16, 16.0) for part in (0.15, 0.85))
        assert low < ratio < high, (optimizer, batch)


def test_an_own_space_declares_a_prior_and_the_plan_shows_it(tmp_path: Path) -> None:
    found = check_space(load_space(own_space(tmp_path, "{'lr': LogNormal(0.1, 3)}")), WORKLOAD)["lr"]
    assert found.prior == LogNormal(0.1, 3)
    assert found.describe() == "0.0001 … 10 (log), mostly 0.03333 … 0.3"


@pytest.mark.parametrize(
    ("priors", "scale", "words"),
    [
        ("{'lr': 0.1}", ", log=True", "returns LogNormal priors by parameter"),
        ("[LogNormal()]", ", log=True", "returns LogNormal priors by parameter"),
        ("None", ", log=True", "returns LogNormal priors by parameter"),
        ("{'lr': LogNormal()}", "", "'lr', which is no float with log=True"),
    ],
)
def test_what_is_no_prior_or_of_no_logarithmic_parameter_is_refused_in_one_line(tmp_path, priors, scale, words):
    path = Path(own_space(tmp_path, priors))
    path.write_text(path.read_text().replace(", log=True", scale))
    with pytest.raises(ConfigError, match=words) as caught:
        check_space(load_space(str(path)), WORKLOAD)
    assert "\n" not in str(caught.value)
