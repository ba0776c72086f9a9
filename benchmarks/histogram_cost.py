"""What the histograms of a network's gradients and parameters take a worker: called again and again, without a search.

In a search this cost is one of its seconds in a hundred at most, and workers vary by several from run to run.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import torch

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.data.catalogue import describe_data_set
from bigbatch.train_loop.launch.worker_lines import append_histograms
from bigbatch.train_loop.loop.watched_model import GRADIENTS, PARAMETERS, histograms_of
from bigbatch.train_loop.model.networks import build_model

CALLS = 15


def seconds_of_histograms(config: TrainConfig) -> float:
    """Processor seconds of one core to take all histograms of a configuration's network and to write their line.

    The median of ``CALLS`` calls. The gradients are random: what they are does not matter to the time.
    """
    model = build_model(config.model, describe_data_set(config.data))
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    threads, seconds = torch.get_num_threads(), []
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            for epoch in range(CALLS):
                began = time.process_time()
                append_histograms(Path(folder, "h"), epoch, histograms_of(model, (GRADIENTS, PARAMETERS)))
                seconds.append(time.process_time() - began)
    finally:
        torch.set_num_threads(threads)
    return statistics.median(seconds)
