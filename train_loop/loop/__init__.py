"""The training loop in plain PyTorch, checkpoints."""
