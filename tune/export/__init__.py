"""Copies of a study for other tools: CSV, an Optuna database, TensorBoard's event files, MLflow."""
