"""``bigbatch cluster doctor``: what would keep a search from running, on a login node or on every node of a job."""
