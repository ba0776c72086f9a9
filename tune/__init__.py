"""The search: its plan, trials, study and displays. Importing this package loads neither torch nor Ray."""
