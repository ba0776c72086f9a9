"""What the terminal, the report and frontier.json say of studies with every kind of end: texts that a person has read.

After a change of words: ``python tests/helpers/answered_studies.py``, and read the difference.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta, binomtest

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.config.given import read_config, unusable_config
from bigbatch.tune.console.answer_words import answer_in_words
from bigbatch.tune.runs.objective import Objective
from bigbatch.tune.runs.reported import Examples, by_choice, clopper_pearson
from bigbatch.tune.storage.frontier_file import FRONTIER_FILE
from helpers.answered_studies import GOLDEN, STUDIES, RunSpec, StudySpec, confirms, said_of, write_study


@pytest.mark.parametrize("name", STUDIES)
def test_what_is_said_of_a_study_is_what_was_read(tmp_path, name):
    assert said_of(write_study(tmp_path / name, STUDIES[name])) == (GOLDEN / f"{name}.txt").read_text()


def test_no_text_is_left_of_a_study_that_is_gone():
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(STUDIES)


def values_of(tmp_path: Path, spec: StudySpec) -> dict[str, Any]:
    return json.loads((write_study(tmp_path / "s", spec) / FRONTIER_FILE).read_text())


@pytest.mark.parametrize(("examples", "usable"), [(60, False), (1000, True)])
def test_more_than_chance_by_more_than_its_uncertainty(tmp_path, examples, usable):
    """15 % of ten classes: Clopper-Pearson's interval of 9 of 60 holds 10 %, that of 150 of 1,000 does not."""
    spec = StudySpec([RunSpec(128, [0.1, 0.15])], {"val_size": examples}, values=(128,))
    assert values_of(tmp_path, spec)["usable"] is usable


def test_a_majority_class_is_no_learning(tmp_path):
    """90 % of the examples are of one class: 91 % on 1,000 of them is within chance, 94 % is not."""
    for end, usable in ((0.91, False), (0.94, True)):
        spec = StudySpec([RunSpec(128, [0.9, end])], {"val_size": 1000, "baseline": {"val_top1": 0.9}}, values=(128,))
        assert values_of(tmp_path / f"{end}", spec)["usable"] is usable, end


def test_a_loss_below_the_baseline_by_less_than_it_changes_is_no_learning(tmp_path):
    about = {"objective": "val_loss:min", "tolerance": "1%", "baseline": {"val_loss": 2.3026}, "num_classes": 10}
    for curve, usable in (([2.35, 2.28, 2.31, 2.29], False), ([2.2, 1.5, 1.2, 1.1], True)):
        spec = StudySpec([RunSpec(128, curve)], about, values=(128,))
        assert values_of(tmp_path / f"{usable}", spec)["usable"] is usable


def test_a_constant_prediction_is_called_better_only_than_the_value_that_is_said(tmp_path):
    """Its value is known on the images that choose; on those held out the run may be a little worse."""
    for end, better in ((0.38, False), (0.37, True)):
        about = {"val_size": 100, "holdout_size": 100, "baseline": {"val_top1": 0.38}}
        values = values_of(tmp_path / f"{end}", StudySpec([RunSpec(128, [0.3, end], 0.35)], about, values=(128,)))
        assert ("which is better" in answer_in_words(values)[0]) is better


def test_the_best_json_of_such_a_study_is_not_trained(tmp_path):
    path = tmp_path / "best.json"
    path.write_text(json.dumps(unusable_config({"epochs": 3}, "nothing_learned")))
    with pytest.raises(ConfigError, match="worth training.*nothing has learned.*Search on.*train it all the same"):
        read_config(path)
    path.write_text(json.dumps(json.loads(path.read_text())["config"]))
    assert read_config(path).epochs == 3


def test_values_are_compared_alike_in_any_unit(tmp_path):
    """The same study in thousandths and in millions: the same answer, the same rows within the tolerance."""
    found = []
    for scale in (1e-9, 1.0, 1e6):
        spec = StudySpec(
            [RunSpec(b, [2.0 * scale, v * scale]) for b, v in ((128, 1.0), (256, 1.005), (512, 1.02))],
            {"objective": "val_loss:min", "tolerance": "1%", "baseline": {"val_loss": 10 * scale}},
            values=(128, 256, 512),
        )
        values = values_of(tmp_path / f"{scale}", spec)
        found.append((values["answer"]["value"], values["usable"], [row["learned"] for row in values["rows"]]))
    assert found == [(256, True, [True, True, True])] * 3


@pytest.mark.parametrize(
    ("values", "answer"),
    [
        ({128: (0.950, 0.960), 256: (0.951, 0.900)}, 128),  # 6 points worse where both had no part in the choice
        ({128: (0.950, 0.952), 256: (0.951, 0.940)}, 256),  # 1.2 points, within chance on 2,000 images
        ({128: (0.900, 0.960), 256: (0.951, 0.900)}, 128),  # also where it alone is within the tolerance
    ],
)
def test_a_value_that_held_out_images_refute_is_no_answer(tmp_path, values, answer):
    runs = [RunSpec(batch, [0.1, chosen], held) for batch, (chosen, held) in values.items()]
    found = values_of(tmp_path, StudySpec(runs, {"val_size": 2000, "holdout_size": 2000}, values=(128, 256)))
    assert found["answer"]["value"] == answer
    assert [row["value"] for row in found["rows"] if row["refuted"]] == ([256] if answer == 128 else [])


def test_what_did_not_choose_is_reported_with_an_interval_of_its_own(tmp_path):
    """Clopper-Pearson of 1,860 of 2,000, without an allowance: the held-out images had no part in the choice."""
    runs = [RunSpec(256, [0.1, 0.90], 0.96), RunSpec(256, [0.1, 0.95], 0.93)]
    found = values_of(tmp_path, StudySpec(runs, {"val_size": 2000, "holdout_size": 2000}, values=(256,)))
    (row,) = found["rows"]
    assert (row["trial"], row["objective"], row["chosen_at"]) == (1, 0.95, 0.95), "what reports does not choose"
    assert (row["reported"], row["reported_by"], row["values"]) == (0.93, "held_out", [0.93])
    interval = beta.ppf(0.025, 1860, 141), beta.ppf(0.975, 1861, 140)
    assert (row["low"], row["high"]) == pytest.approx(interval)


def confirmed_study(ends: list[float], held: list[float]) -> StudySpec:
    """Ten trials, of which the best one reaches 30 %, and its runs with fresh seeds."""
    runs = [RunSpec(128, [0.1, 0.1 + 0.01 * n]) for n in range(9)] + [RunSpec(128, [0.1, 0.3], 0.29 if held else None)]
    return StudySpec([*runs, *confirms(9, 128, ends, held)], {"val_size": 100, "holdout_size": 100}, values=(128,))


@pytest.mark.parametrize(
    ("ends", "held", "usable"),
    [
        ([0.28, 0.29, 0.31], [], True), ([0.1, 0.09, 0.11], [], False), ([0.3, 0.3, 0.3], [0.1, 0.09, 0.11], False),
        ([0.62, 0.75], [], True), ([0.72, 0.74], [0.62, 0.75], True),
    ],
)  # fmt: skip
def test_what_did_not_choose_must_agree_that_something_was_learned(tmp_path, ends, held, usable):
    """30 % of 100 images is far from chance, but fresh seeds, or images that did not choose, say that it was luck.

    How much two seeds differ says nothing of that, although Student's interval of their mean includes chance.
    """
    assert values_of(tmp_path, confirmed_study(ends, held))["usable"] is usable


def test_the_range_of_a_chosen_best_holds_in_95_percent_of_studies():
    """Against the truth of the chosen one; scipy's interval is the reference for one alone."""
    rng, studies, missed = np.random.default_rng(2), 1500, 0
    truth = np.array([0.90, 0.905, 0.91, 0.91, 0.91, 0.91])
    for _ in range(studies):
        drawn = rng.binomial(360, truth)
        best = int(np.argmax(drawn))
        found = by_choice(drawn[best] / 360, None, len(truth), Examples(360), Objective(worst=0.1))
        missed += not found.low <= truth[best] <= found.high
    assert missed / studies < 0.05
    reference = binomtest(355, 360).proportion_ci(0.95, method="exact")
    assert clopper_pearson(355, 360, 0.05) == pytest.approx((reference.low, reference.high))
    assert clopper_pearson(360, 360, 0.05)[1] == 1.0 and clopper_pearson(0, 360, 0.05)[0] == 0.0
