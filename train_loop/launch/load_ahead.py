"""Ray imports this module in each process that it makes for a search, before it gives the process any work.

So the processes that wait for the first trials have torch and Ray Train by the time when the search is ready. Only
those with LOAD_AHEAD in their environment load them: on a job's nodes not those of other programs. Nothing here touches
a GPU: Ray assigns it later.
"""

import contextlib
import os

from bigbatch.train_loop.launch.inline_controller import LOAD_AHEAD

if os.environ.get(LOAD_AHEAD) == "1":
    # Ray says how many cores a process has only when it gives it work; ``use_assigned_cores`` then takes them. Until
    # then libraries would start a thread for each core of the machine.
    threads = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = threads or "1"
    with contextlib.suppress(Exception):  # who needs it imports it again, and says why that fails
        import ray.train.torch
        import ray.tune  # noqa: F401
    if not threads:
        del os.environ["OMP_NUM_THREADS"]  # else Ray would not say it
