"""The search: its plan, trials, study and displays. Importing this package loads neither torch nor Ray."""

from bigbatch.base import hidden_libraries

# Before anything else is imported: a torch.py in the current folder would hide the library.
hidden_libraries.refuse_hidden_libraries()
