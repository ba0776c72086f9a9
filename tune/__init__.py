"""The search: its plan, trials, study and displays. Importing this package loads neither torch nor Ray."""

from bigbatch.base import hidden_libraries

hidden_libraries.refuse_hidden_libraries()
