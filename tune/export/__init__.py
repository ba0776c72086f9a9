"""What a search writes for other programs while it runs: Weights and Biases."""
