"""Spaces of users' own."""

from __future__ import annotations

TINY_SPACE = '''
"""One learning rate, {epochs} epochs of tiny images."""

def space(trial, workload):
    """Learning rate of SGD at batch 16."""
    lr = trial.suggest_float("peak_lr", 1e-3, 0.1, log=True)
    return workload.config({{"batch.global_size": 16, "optimizer": "sgd", "peak_lr": lr, "precise_bn": "on"}})
'''
