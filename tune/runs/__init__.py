"""The trials of a study as runs: what they are, what came out, the objectives, the answer."""
