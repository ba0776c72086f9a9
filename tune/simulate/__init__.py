"""Replays of searches over recorded learning curves. Importing this loads neither Ray nor torch."""

from bigbatch.tune.simulate.curves import CurveTable, RecordedCurve
from bigbatch.tune.simulate.readers import read_curves
from bigbatch.tune.simulate.replay import ReplayedEpoch, simulate

__all__ = ["RecordedCurve", "CurveTable", "ReplayedEpoch", "read_curves", "simulate"]
