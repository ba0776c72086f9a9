"""The manager of the trials, the bridge to Ray Tune, one trial as a ``TorchTrainer``."""
