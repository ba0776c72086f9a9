"""Optimizers for large batches: LARS and LAMB, and how a configuration becomes an optimizer."""

from train_loop.optim.build import build_optimizer, parameter_groups, set_learning_rate
from train_loop.optim.lamb import LAMB
from train_loop.optim.lars import LARS

__all__ = ["LAMB", "LARS", "build_optimizer", "parameter_groups", "set_learning_rate"]
