"""Run searches as Slurm jobs, each with its own Ray cluster. Standard library only: login nodes lack torch and Ray."""
