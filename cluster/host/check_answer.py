"""Words with which ``cluster/submission/search_check.py`` and ``tune/plan/submission_check.py`` understand each
other."""

ELSEWHERE = "--elsewhere"
"""Tells ``submission_check.py`` that it runs outside the job's environment."""
MARK = "bigbatch submission check: "
"""Begins ``submission_check.py``'s line of JSON, because modules and preludes print lines too."""
