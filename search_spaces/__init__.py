"""Search spaces: one file for each, a registry, and a check of a space before anything starts.

Importing this package loads neither torch nor Ray nor Optuna. A command line can therefore refuse a bad space at once.
"""

from bigbatch.search_spaces.check import ParamRange, check_space
from bigbatch.search_spaces.registry import BUILT_IN, Space, load_space
from bigbatch.search_spaces.trial import Trial
from bigbatch.search_spaces.workload import Workload

__all__ = ["BUILT_IN", "ParamRange", "Space", "Trial", "Workload", "check_space", "load_space"]
