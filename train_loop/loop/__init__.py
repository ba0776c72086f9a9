"""The training loop in plain PyTorch, checkpoints, the memory probe."""
