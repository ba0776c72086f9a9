"""What may be searched: one file a space, a registry, and the check of a space before anything starts.

Loads neither torch nor Ray nor Optuna, so that a command line can refuse a bad space at once.
"""

import runpy
from pathlib import Path

# By its path: a file of the user's may have taken the name of a package, and must not run.
runpy.run_path(str(Path(__file__).resolve().parent.parent / "cluster" / "own_packages.py"))["check"](__name__)

from search_spaces.check import ParamRange, check_space  # noqa: E402
from search_spaces.registry import BUILT_IN, Space, load_space  # noqa: E402
from search_spaces.trial import Trial  # noqa: E402
from search_spaces.workload import Workload  # noqa: E402

__all__ = ["BUILT_IN", "ParamRange", "Space", "Trial", "Workload", "check_space", "load_space"]
