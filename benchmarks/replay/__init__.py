"""Replays of searches over recorded learning curves: the test bench of strategies. It loads neither Ray nor torch."""
