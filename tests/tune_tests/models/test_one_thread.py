"""The curve model's linear algebra runs on one thread, and leaves other work in the process as it was."""

from __future__ import annotations

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from bigbatch.tune.models import curve_model
from bigbatch.tune.models.curve_model import CurveModel, CurvePoints


def threads() -> set[int]:
    """Of the libraries of linear algebra."""
    return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}


def test_the_model_computes_on_one_thread_and_the_limit_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[set[int]] = []
    factorised, solved = curve_model.cholesky, curve_model.solve_triangular

    def noted(function):
        return lambda *args, **kwargs: (met.append(threads()), function(*args, **kwargs))[1]

    monkeypatch.setattr(curve_model, "cholesky", noted(factorised))
    monkeypatch.setattr(curve_model, "solve_triangular", noted(solved))
    points = CurvePoints(np.linspace(0, 1, 12)[:, None], np.ones(12), np.arange(12))
    with threadpool_limits(3, user_api="blas"):
        if threads() == {1}:
            pytest.skip("the libraries of linear algebra here have one thread")
        before = threads()
        model = CurveModel.fit(points, np.linspace(0, 1, 12) ** 2)
        fitted = len(met)
        model.predict(points)
        with pytest.raises(IndexError):
            model.predict(CurvePoints(np.zeros(3), np.ones(3), np.arange(3)))
        assert threads() == before, "also after an error"
    assert len(met) > fitted > 0 and set().union(*met) == {1}
