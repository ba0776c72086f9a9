"""One search from its plan to its last line: starts Ray, study, bridge and display, and ends them in order."""
