"""Copies of a study for other tools: CSV, an Optuna database and TensorBoard's event files."""
