"""Hyperparameters with which large-batch training keeps its accuracy, on Slurm supercomputers.

The four packages lie at the repository's top level; here they are symbolic links, so that all of it is one package
to Python: ``bigbatch.tune``, ``bigbatch.search_spaces``, ``bigbatch.train_loop`` and ``bigbatch.cluster``. Importing
it loads nothing else: the names below, for scripts and notebooks, are loaded when they are used.
"""

import importlib
import sys
import warnings
from typing import TYPE_CHECKING

# All commands pass here first. A login node's python3 may be 3.6, so this file keeps to that syntax, as root.py does.
if sys.version_info < (3, 11):  # noqa: UP036
    print(
        f"bigbatch: error: Python must be 3.11 or newer; got {sys.version.split()[0]} ({sys.executable}). Load a "
        "module that brings one, activate your environment, or write its path in place of python3 (for a batch script: "
        "set BIGBATCH_PYTHON).",
        file=sys.stderr,
    )
    sys.exit(2)

if TYPE_CHECKING:
    from bigbatch.cluster.submission.batch_script import submit as submit
    from bigbatch.cluster.submission.queue import cancel as cancel, logs as logs, queue as queue
    from bigbatch.studies import Study as Study, open_study as open_study, search as search
    from bigbatch.train_loop.config import ConfigError as ConfigError, TrainConfig as TrainConfig
    from bigbatch.training import train as train

__version__ = "0.2.0"

# The public names, and where each of them is. docs/api/index.md lists them; docs/decisions/020 says how long they stay.
_PLACES = {
    "ConfigError": "bigbatch.train_loop.config",
    "Study": "bigbatch.studies",
    "TrainConfig": "bigbatch.train_loop.config",
    "cancel": "bigbatch.cluster.submission.queue",
    "logs": "bigbatch.cluster.submission.queue",
    "open_study": "bigbatch.studies",
    "queue": "bigbatch.cluster.submission.queue",
    "search": "bigbatch.studies",
    "submit": "bigbatch.cluster.submission.batch_script",
    "train": "bigbatch.training",
}
__all__ = list(_PLACES)


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'bigbatch' has no attribute {name!r}")
    with warnings.catch_warnings():  # tqdm's, which Optuna loads and we do not use
        warnings.filterwarnings("ignore", message="IProgress not found")
        return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
