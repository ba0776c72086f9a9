"""The live table, log lines, findings, W&B, Ctrl-C, and the watch that says why a search waits."""
