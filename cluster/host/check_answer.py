"""What ``cluster/submission/search_check.py`` and ``tune/plan/submission_check.py`` say to each other."""

ELSEWHERE = "--elsewhere"
"""Tells ``submission_check.py`` that it runs outside of the job's environment."""
MARK = "bigbatch submission check: "
"""Begins the line of JSON with which ``submission_check.py`` answers; modules and preludes print lines, too."""
