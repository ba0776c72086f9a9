"""Networks, losses, precise BatchNorm, the average of the weights."""
