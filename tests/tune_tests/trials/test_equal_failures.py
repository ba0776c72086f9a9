"""When a search ends because its trials all fail alike, or all diverge."""

from __future__ import annotations

from optuna.trial import TrialState

from bigbatch.tune.runs.run import DIVERGED_ATTR
from bigbatch.tune.runs.verdict import Verdict
from bigbatch.tune.trials.live_trials import MOST_DIVERGED, EqualFailures

BAD_IMAGE = Verdict(TrialState.FAIL, "image x.jpg cannot be read")
DIVERGED = Verdict(TrialState.FAIL, "validation was not finite in epoch 1")
DONE = Verdict(TrialState.COMPLETE, "ran to its end")
ATTRS = {DIVERGED_ATTR: True}


def reasons(ends: list[Verdict]) -> list[str | None]:
    """What is said after each end of a search whose trials end so, in this order."""
    failures = EqualFailures()
    return [failures.after(end, ATTRS if end is DIVERGED else {}, n + 1) for n, end in enumerate(ends)]


def test_four_equal_failures_end_a_search_at_its_beginning_alone() -> None:
    assert [text is None for text in reasons([BAD_IMAGE] * 4)] == [True, True, True, False]
    assert "the first 4 trials all failed for the same reason: image x.jpg" in str(reasons([BAD_IMAGE] * 4)[-1])
    assert set(reasons([DONE, *[BAD_IMAGE] * 8])) == {None}
    other = Verdict(TrialState.FAIL, "another reason")
    assert set(reasons([BAD_IMAGE, BAD_IMAGE, other, BAD_IMAGE, BAD_IMAGE])) == {None}


def test_diverged_trials_neither_end_it_nor_hide_equal_failures() -> None:
    assert set(reasons([DIVERGED] * (MOST_DIVERGED - 1))) == {None}
    assert reasons([DIVERGED, BAD_IMAGE, DIVERGED, *[BAD_IMAGE] * 3])[-1] is not None
    assert set(reasons([DIVERGED] * 6 + [DONE] + [DIVERGED] * MOST_DIVERGED)) == {None}


def test_nothing_but_divergence_for_long_ends_it() -> None:
    (*before, last) = reasons([DIVERGED] * MOST_DIVERGED)
    assert set(before) == {None} and "the first 20 trials have all diverged" in str(last)
    assert "validation was not finite in epoch 1" in str(last)


def test_a_trial_that_has_paused_proves_that_not_all_diverge_also_once_others_took_its_place() -> None:
    """A continuation counts in the place of the paused trial, so that fewer trials have ended than before."""
    failures, paused = EqualFailures(), Verdict(TrialState.PRUNED, "paused after 2 of 20 epochs")
    assert failures.after(paused, {}, 1) is None
    assert {failures.after(DIVERGED, ATTRS, ended) for ended in range(1, 2 * MOST_DIVERGED)} == {None}
    assert {EqualFailures(works=True).after(BAD_IMAGE, {}, ended) for ended in range(1, 9)} == {None}
