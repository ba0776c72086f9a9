"""One training run: configuration, data, models, optimizers, loop. Importing it loads neither torch nor Ray."""
