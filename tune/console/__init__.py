"""What a person sees of a search on a terminal: the live table, log lines, findings."""
