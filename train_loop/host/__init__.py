"""Signals, ranks, disk space, the command line of a run."""
