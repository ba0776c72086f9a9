"""The search: plan, Ray session, Ray↔Optuna bridge, study store. Importing it loads nothing heavy."""
