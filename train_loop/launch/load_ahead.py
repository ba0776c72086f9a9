"""Ray imports this module in each process that it makes for a private cluster, before it gives the process any work.

So the processes that wait for the first trials have torch and Ray Train by the time when the search is ready. The actor
at which workers meet needs neither, and says so in its environment. Nothing here touches a GPU: Ray assigns it later.
"""

import contextlib
import os

from bigbatch.train_loop.launch.inline_controller import LIGHT

if LIGHT not in os.environ:
    with contextlib.suppress(Exception):  # who needs it imports it again, and says why that fails
        import ray.train.torch
        import ray.tune  # noqa: F401
