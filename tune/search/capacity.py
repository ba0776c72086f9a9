"""Decide how many trials may run at once, and with which resources, as nodes of a cluster come and go."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from bigbatch.base.waits import JOINED_GRACE_S, WAIT_IN_JOB_S
from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.budget.ledger import owns_cluster
from bigbatch.tune.plan.machine import Machine, Node, Share, devices_held, share_out

LOOK_EVERY_S = 1.0


class Capacity:
    """Says whether another trial fits, and which resources its workers get.

    Args:
        share: the division of the nodes at the start of the search.
        gpus: whether trials train on GPUs, as decided at the start.
        nodes: returns the living nodes by name. None: the nodes never change.
        say: receives a line for each change.
        absent: returns how many nodes the job around this search pays for that are not among the living ones.
        machine: the nodes, if they never change.
    """

    def __init__(
        self,
        share: Share,
        trials: int,
        gpus: bool = False,
        nodes: Callable[[], dict[str, Node]] | None = None,
        say: Callable[[str], None] = lambda line: None,
        absent: Callable[[], int] = lambda: 0,
        machine: Machine = Machine(),  # noqa: B008 - it is frozen
    ) -> None:
        self._share: Share | None = share
        self._workers, self._trials, self._gpus = share.workers, trials, gpus
        self._nodes, self._say, self._ask_absent = nodes, say, absent
        self._absent, self._devices_of_node = 0, 0.0
        self._given_up: set[str] = set()
        self._known: dict[str, Node] = {}
        if nodes is None:
            self._known = {str(place): node for place, node in enumerate(machine.nodes)}
        self._per_gpu = share.per_gpu
        self._last = share
        self._next_look = 0.0
        self._lost_at: float | None = None
        self._why_lost = ""

    @property
    def per_gpu(self) -> int:
        """The trials that share each GPU with one that starts now, with itself."""
        return self._last.per_gpu

    def share_gpus(self, per_gpu: int) -> Share:
        """Let so many trials share each GPU from now on. Those that run keep their part. Returns the new division."""
        self._per_gpu = per_gpu
        if self._known and self._share is not None:  # else it waits for nodes
            self._divide()
        return self._last

    @property
    def bundle(self) -> dict[str, float]:
        """The resources of each worker of a trial that starts now."""
        return dict(self._last.worker_resources)

    def room(self, held: Collection[float]) -> bool:
        """Whether another trial may run beside those that have ``held`` so many devices each. If nodes came or went
        meanwhile, Ray may let it wait."""
        self._look()
        if self._share is None or len(held) >= self._share.concurrency:
            return False
        return not self._gpus or sum(held) + self._share.devices <= self._machine().gpus + 1e-6

    def holds(self, bundle: Mapping[str, float], without: Collection[str] = ()) -> bool:
        """Whether a trial whose workers get ``bundle`` fits on the idle cluster, ``without`` some of its nodes."""
        self._look()
        if self._nodes is None:
            return not without
        left = tuple(node for key, node in self._known.items() if key not in without)
        return Share(1, self._workers, dict(bundle)).fits(Machine(left))

    # What a trial manager asks

    @property
    def count(self) -> int:
        """How many nodes the search has."""
        self._look()
        return len(self._known)

    def can_avoid(self, nodes: Collection[str]) -> bool:
        """Whether a trial fits on the cluster without ``nodes`` (Ray's ids)."""
        return self.holds(self._last.worker_resources, nodes)

    def give_up(self, node: str) -> None:
        """Use a node no more."""
        self._given_up.add(node)

    def devices(self, machine: Machine) -> int | None:
        """The number of devices that the search holds now. None on a cluster that it does not own: it then holds the
        devices of its running trials.

        In a Slurm job a node counts also while its Ray does not run: with the mean number of devices of a node.

        ``machine``: the nodes at the start; the nodes of its own Ray never change.
        """
        if not owns_cluster(local=self._nodes is None):
            return None
        self._look()
        known = self._machine() if self._known else machine
        held, nodes = devices_held(known, self._share), len(known.nodes)
        if held and nodes:
            self._devices_of_node = held / nodes
        return round((held or self._devices_of_node * nodes) + self._devices_of_node * self._absent)

    def lost(self) -> str | None:
        """Why no trial fits on the remaining nodes, if that has lasted for long enough; else None."""
        self._look()
        waited = self._lost_at is not None and time.monotonic() - self._lost_at >= lost_wait_s()
        return self._why_lost if waited else None

    def _machine(self) -> Machine:
        return Machine(tuple(self._known.values()))

    def _look(self) -> None:
        if self._nodes is None or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_EVERY_S
        try:
            living, absent = self._nodes(), self._ask_absent()
        except Exception:  # any error of Ray's transport; the next look may succeed
            return
        now = {key: node for key, node in living.items() if key not in self._given_up}
        self._absent = absent + len(living) - len(now)
        if now != self._known:
            self._known = now
            self._fit()

    def _divide(self) -> None:
        """Divide the living nodes again. Raises ConfigError if no trial fits there."""
        machine = self._machine()
        if self._gpus and not machine.gpus:
            raise ConfigError(f"a trial needs {self._workers} GPU(s); there is none")
        if not self._gpus:  # a search that began without GPUs
            machine = Machine(tuple(Node(node.cpus, 0, node.memory_bytes) for node in machine.nodes))
        self._share = share_out(machine, self._workers, self._trials, self._per_gpu)
        self._last = self._share

    def _fit(self) -> None:
        """Divide the living nodes, which have changed."""
        before = self._last
        try:
            self._divide()
        except ConfigError as error:
            # Only the first time: each later look would begin the wait anew.
            if self._share is not None:
                self._lost_at = time.monotonic()
            self._share = None
            self._why_lost = f"no trial fits on the remaining nodes: {str(error).rstrip('.')}"
            self._say(f"Waiting for nodes, for up to {lost_wait_s():g} s: {self._why_lost}")
            return
        if self._last != before or self._lost_at is not None:
            self._say(f"The nodes have changed: {self._machine().describe()}: {self._last.describe()}")
        self._lost_at = None


def lost_wait_s() -> float:
    """How long a search waits for nodes if no trial fits, in seconds."""
    return WAIT_IN_JOB_S if owns_cluster(local=False) else JOINED_GRACE_S
