"""A Ray program of your own that runs as a script on a laptop and as a job on a cluster.

    python examples/ray_program.py                                          # starts a private Ray here
    bigbatch cluster submit -N 2 -- python examples/ray_program.py          # on the Ray cluster of a Slurm job

In a job BigBatch has started Ray on all nodes and sets `RAY_ADDRESS`. Here the program compares the step times of two
optimizers, each in a task of its own.
"""

import os
import time

import ray
import torch

from bigbatch.train_loop.optim import LAMB, LARS, parameter_groups

STEPS = 20


@ray.remote(num_cpus=1)
def milliseconds_per_step(name: str) -> tuple[str, float]:
    """Mean time of one optimizer step on a network of 1.6 million parameters, in milliseconds."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(400, 400) for _ in range(10)))
    groups = parameter_groups(model, weight_decay=1e-4)
    optimizer = LARS(groups, lr=1.0) if name == "LARS" else LAMB(groups, lr=0.01)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()  # the first step makes the buffers
    began = time.perf_counter()
    for _ in range(STEPS):
        optimizer.step()
    return name, 1000 * (time.perf_counter() - began) / STEPS


# "local" never joins another Ray that happens to run on this machine.
ray.init(address=os.environ.get("RAY_ADDRESS", "local"), log_to_driver=False)
print(f"{len(ray.nodes())} nodes, {ray.cluster_resources().get('CPU', 0):.0f} CPUs")
for name, time_ms in ray.get([milliseconds_per_step.remote(name) for name in ("LARS", "LAMB")]):
    print(f"{name}: {time_ms:.2f} ms a step")
ray.shutdown()
