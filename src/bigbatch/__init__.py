"""Hyperparameters with which large-batch training keeps its accuracy, on Slurm supercomputers.

The four packages lie at the repository's top level; here they are symbolic links, so that all of it is one package
to Python: ``bigbatch.tune``, ``bigbatch.search_spaces``, ``bigbatch.train_loop`` and ``bigbatch.cluster``. Importing
it loads nothing else.
"""

__version__ = "0.1.0"
