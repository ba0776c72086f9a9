"""The bridge between Ray Tune and Optuna, samplers and pruners, one trial as a ``TorchTrainer``."""
