"""Reads the options, checks all that can be known before Ray starts, divides the machine among trials."""
