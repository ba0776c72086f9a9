"""All private names of Ray that this package uses, and what happens with a Ray that lacks some of them.

Ray renames such names without notice. So nothing else in the package may touch one (a test looks), each use is checked
before the first trial, and each has a fallback: the search then runs with what Ray does by itself, and one note says
what is different. Only what would leave a search unsafe is refused.

``BIGBATCH_RAY_INTERNALS=0`` uses none of them, as with a Ray that lacks all. Importing this file does not load Ray,
whose core reads the variables of its authentication when it is loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

from bigbatch.train_loop.config import ConfigError

SWITCH = "BIGBATCH_RAY_INTERNALS"
TESTED = "2.60"
"""The Ray with which all of this was tested, as in ``pyproject.toml``."""


@dataclass(frozen=True)
class PrivateUse:
    """Private names that one feature needs together."""

    names: tuple[str, ...]
    """``module:Class.name``: an attribute, what ``__init__`` sets, or a parameter of a function."""
    without: str
    """What is different without them, for the note."""


_TRAIN = "ray.train.v2._internal"
_CONTROLLER = f"{_TRAIN}.execution.controller.controller:TrainController"
_GROUP = f"{_TRAIN}.execution.worker_group.worker_group:WorkerGroup"
INLINE_CONTROLLER = PrivateUse(
    (
        "ray.train.torch:TorchTrainer._initialize_and_run_controller",
        "ray.train.torch:TorchTrainer._create_default_callbacks",
        f"{_CONTROLLER}.worker_group_cls",
        f"{_CONTROLLER}._run_control_loop_iteration",
        f"{_CONTROLLER}._worker_group",
        f"{_GROUP}._start_impl",
        f"{_GROUP}._create_placement_group",
        f"{_GROUP}._get_worker_runtime_env",
        f"{_TRAIN}.execution.worker_group.placement_group_handle:DefaultPlacementGroupHandle",
        f"{_TRAIN}.execution.worker_group.worker_group:SynchronizationActor.options",
        f"{_TRAIN}.callbacks.placement_group_callback:PlacementGroupCleanerCallback",
        f"{_TRAIN}.callbacks.datasets:DatasetsCallback",
        f"{_TRAIN}.execution.scaling_policy.scaling_policy:ScalingPolicy._send_resource_request",
        f"{_TRAIN}.execution.scaling_policy.scaling_policy:ScalingPolicy._maybe_send_resource_request",
        f"{_TRAIN}.execution.scaling_policy.scaling_policy:ScalingPolicy._cancel_resource_request",
        "ray.tune.trainable.function_trainable:wrap_function.__mixins__",
    ),
    "each trial starts Ray Train's own processes, which takes some seconds longer",
)
KEPT_WORKERS = PrivateUse(
    (
        f"{_GROUP}._create_workers",
        f"{_GROUP}._assign_worker_ranks",
        f"{_GROUP}._worker_group_context",
        f"{_GROUP}._worker_group_state",
        f"{_TRAIN}.execution.worker_group.worker_group:SynchronizationActor.get_counter",
        f"{_TRAIN}.execution.worker_group.state:WorkerGroupState.shutdown",
        f"{_TRAIN}.execution.worker_group.worker:Worker.execute_async",
        f"{_TRAIN}.execution.worker_group.worker:RayTrainWorker.get_metadata",
        f"{_TRAIN}.execution.worker_group.worker:RayTrainWorker.poll_status",
    ),
    "each trial starts new worker processes, which takes some seconds longer",
)
MEMORY_KILLS = PrivateUse(
    ("ray.air.execution._internal.actor_manager:RayActorManager._actor_task_failed",),
    "a node that runs short of memory ends the search; --resume continues it",
)
STAGED_TRIALS = PrivateUse(
    (
        "ray.tune.execution.tune_controller:TuneController._staged_trials",
        "ray.tune.execution.tune_controller:TuneController._actor_cache",
    ),
    "a trial that does not fit on the nodes that are left waits for other nodes",
)
TUNE_START = PrivateUse(
    (
        "ray.air._internal.usage:tag_callbacks",
        "ray.tune.execution.class_cache:_ActorClassCache.get",
        "ray.tune.execution.class_cache:_ActorClassCache._cache",
    ),
    "the first trials start some seconds later",
)
SESSION = PrivateUse(
    ("ray.train._internal.session:get_session",), "a trial that is stopped may still run while the next one starts"
)
PREEMPTION = PrivateUse(
    (
        f"{_TRAIN}.execution.context:get_train_context",
        f"{_TRAIN}.execution.context:TrainContext.preemption_context",
        f"{_TRAIN}.execution.preemption:PreemptionContext.preemption_info",
    ),
    "no checkpoint is written when a node is announced to go; those by time stay",
)
PROCESS_GROUPS = PrivateUse(
    ("ray._private.services:ConsolePopen",),
    "Ctrl-C in a terminal also reaches Ray's processes, and may end trials before they have saved",
)
OWN_PATH = PrivateUse(
    ("ray.job_config:JobConfig._runtime_env_has_working_dir",),
    "workers look for modules in the current folder first: keep no torch.py and the like there",
)
HEAD = PrivateUse(("ray._raylet:GcsClient",), "the search does not say why a trial waits for its place")
VARIABLES = PrivateUse(
    ("ray._raylet:Config.initialize", "ray._raylet:AuthenticationTokenLoader.instance"),
    "a process that has imported Ray before cannot start a cluster with a token: import Ray within functions",
)
FOR_TRAINING = (PREEMPTION, PROCESS_GROUPS, OWN_PATH, VARIABLES)
FOR_SEARCHES = (
    *FOR_TRAINING, INLINE_CONTROLLER, KEPT_WORKERS, TUNE_START, MEMORY_KILLS, STAGED_TRIALS, SESSION, HEAD,
)  # fmt: skip
PRIVATE_FOLDER = "ray:init._temp_dir"
"""Without it Ray's sockets and logs would lie where all users of the machine see them."""
PRESTART = "--num_prestart_python_workers="
METRICS_PORT = "ray:init._metrics_export_port"


def read_variables_again() -> None:
    """Let Ray's core in this process, if it is loaded already, take its settings and token from the variables as they
    are now. It has read them when a user's file imported Ray."""
    if "ray._raylet" in sys.modules and has(VARIABLES):
        core: Any = importlib.import_module("ray._raylet")
        core.Config.initialize("")
        core.AuthenticationTokenLoader.instance().reset_cache()


def has(use: PrivateUse) -> bool:
    """Whether this Ray has all names of ``use``, and they may be used."""
    return os.environ.get(SWITCH, "1") != "0" and (_is_tested() or not missing_names(use.names))


def _is_tested() -> bool:
    # To look for the names would import torch, which takes the search's own process two seconds before its first trial.
    import ray

    return ray.__version__.startswith(f"{TESTED}.")


def missing_names(names: Iterable[str]) -> list[str]:
    """Those of ``names`` that this Ray lacks."""
    return [name for name in names if not _is_there(name)]


def note_of_missing(uses: Iterable[PrivateUse]) -> str | None:
    """A sentence about the uses for which this Ray lacks a name; None if it has all."""
    lost = [use for use in uses if not has(use)]
    if not lost:
        return None
    effects = "; ".join(use.without for use in lost)
    return f"note: {_why(lost)}. The search works without them, but: {effects}."


def _why(lost: Iterable[PrivateUse]) -> str:
    if os.environ.get(SWITCH, "1") == "0":
        return f"{SWITCH}=0, so no private names of Ray are used"
    import ray

    names = [name.rpartition(":")[2] for use in lost for name in missing_names(use.names)]
    more = f" and {len(names) - 1} more" if names[1:] else ""
    return f"Ray {ray.__version__} lacks names that Ray {TESTED} has ({names[0]}{more})"


def refuse_unsafe(with_metrics: bool) -> None:
    """Raise ConfigError for a Ray whose files cannot be kept private, or that cannot show metrics where asked to."""
    import ray

    for name in (PRIVATE_FOLDER, *([METRICS_PORT] if with_metrics else [])):
        if missing_names([name]):
            option = name.rpartition(".")[2]
            fix = " Leave --metrics-port out, or" if name == METRICS_PORT else ""
            raise ConfigError(
                f"a private Ray needs ray.init({option}=…); got Ray {ray.__version__}, which has no such option."
                f"{fix or ' Write'} pip install 'ray[default,train,tune]=={TESTED}.*'."
            )


def _is_there(name: str) -> bool:
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ImportError:
        return False
    *owners, last = path.split(".")
    for owner in owners:
        if not hasattr(found, owner):
            return False
        found = getattr(found, owner)
    return hasattr(found, last) or last in _mentioned(found)


def _mentioned(owner: Any) -> set[str]:
    """The fields of a class, and the names in the code of its ``__init__`` or of a function."""
    function = inspect.unwrap(owner.__init__ if inspect.isclass(owner) else owner)
    code = getattr(function, "__code__", None)
    words = {*code.co_names, *code.co_varnames, *(c for c in code.co_consts if isinstance(c, str))} if code else set()
    return words | set(getattr(owner, "__annotations__", {}))


# Workers and nodes


def is_preempted() -> bool:
    """Whether Ray has told this worker that a node of its run will be removed. False where that is not known.

    Ray tells each rank. Its public call would be a collective.
    """
    if not _has_preemption():
        return False
    from ray.train.v2._internal.execution.context import get_train_context

    return get_train_context().preemption_context.preemption_info is not None


@functools.cache
def _has_preemption() -> bool:
    return has(PREEMPTION)  # the loop asks after each step


@contextlib.contextmanager
def own_process_groups(ready: int | None = None) -> Iterator[None]:
    """Within the block, processes that Ray starts lead their own process groups.

    A terminal's Ctrl-C or hang-up, ``timeout`` and ``kill -- -PGID`` signal the whole group of the driver.
    Ray's processes would die of it before trials have saved. They still end with the driver: the kernel signals them.

    Args:
        ready: how many processes for work Ray is to start at once; None: as many as it does itself, one for each CPU.
    """
    if not has(PROCESS_GROUPS):
        yield
        return
    from ray._private import services

    popen = services.ConsolePopen

    def start(command: list[str], *args: object, **more: object) -> object:
        if ready is not None:
            command = [f"{PRESTART}{ready}" if part.startswith(PRESTART) else part for part in command]
        return popen(command, *args, **more, process_group=0)

    services.ConsolePopen = start
    try:
        yield
    finally:
        services.ConsolePopen = popen


def own_path_only() -> object:
    """A ``JobConfig`` with which workers import only from PYTHONPATH and the installation.

    Ray puts the driver's current folder and its script's folder first on the path of each worker. A ``tune.py`` or
    ``torch.py`` there would replace ours or the library. Ray leaves both folders out if the job has its own working
    folder. A private method answers that question.
    """
    from ray.job_config import JobConfig

    if not has(OWN_PATH):
        return JobConfig()

    class OwnPathOnly(JobConfig):
        def _runtime_env_has_working_dir(self) -> bool:
            return True

    return OwnPathOnly()


def head_client(address: str) -> Any:
    """Ray's own client of its head, whose calls have a timeout; None if it is not there."""
    if not has(HEAD):
        return None
    import ray

    return ray._raylet.GcsClient(address=address)


# Ray Tune


def unstage(controller: Any, trial: Any) -> bool:
    """Take a trial that has no place yet from those for which Tune keeps processes. False if this Ray cannot do that.

    ``TuneController.stop_trial`` does not do it.
    """
    if not has(STAGED_TRIALS):
        return False
    if trial in controller._staged_trials:
        controller._staged_trials.remove(trial)
        controller._actor_cache.decrease_max(trial.placement_group_factory)
    return True


@contextlib.contextmanager
def memory_kills_as(error_of: Callable[[str], Exception]) -> Iterator[None]:
    """Within the block, Tune hears ``error_of(message)`` where Ray ended a trial's process for lack of memory.

    Without this, Tune (Ray 2.60) would end the whole search.
    """
    if not has(MEMORY_KILLS):
        yield
        return
    from ray.air.execution._internal.actor_manager import RayActorManager
    from ray.exceptions import OutOfMemoryError

    before = RayActorManager._actor_task_failed

    @functools.wraps(before)
    def failed(self: Any, tracked_actor_task: object, exception: Exception) -> None:
        if isinstance(exception, OutOfMemoryError):
            exception = error_of(str(exception))
        before(self, tracked_actor_task=tracked_actor_task, exception=exception)

    RayActorManager._actor_task_failed = failed
    try:
        yield
    finally:
        RayActorManager._actor_task_failed = before


@contextlib.contextmanager
def quick_start_of_trials() -> Iterator[None]:
    """Within the block, Tune starts trials in processes that Ray has ready, and loads only what it uses.

    Tune would give each trial the variables that it finds in the driver's environment, and so a process of its own:
    the job has these variables already. It would load W&B and MLflow to count for Ray's telemetry, which is off, who
    uses them.
    """
    if not has(TUNE_START):
        yield
        return
    import ray
    from ray.air._internal import usage
    from ray.tune.execution.class_cache import _ActorClassCache

    def get(self: Any, trainable_cls: type) -> Any:
        if trainable_cls not in self._cache:
            self._cache[trainable_cls] = ray.remote(trainable_cls)
        return self._cache[trainable_cls]

    with contextlib.ExitStack() as stack:
        for owner, name, new in (
            (usage, "tag_callbacks", lambda _callbacks: False),
            (_ActorClassCache, "get", get),
        ):
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, new)
        yield


def finish_session(timeout_s: float) -> None:
    """Wait until the function of this process's trial has ended."""
    if has(SESSION):
        from ray.train._internal.session import get_session

        get_session().finish(timeout=timeout_s)


# Ray Train's controller in the trial's own process: docs/decisions/002

POLL_INTERVAL = "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"
"""Ray's variable, which a controller reads when it is made and hands on to a controller in a process of its own."""


def poll_interval_s(workers: int) -> float:
    """Seconds between two polls of all workers of a run. A report waits for the next one.

    0.1 s is 320 calls a second with 32 workers. More of them keep this number up to Ray's own interval, 2 s.
    """
    return min(0.1 * max(workers / 32, 1.0), 2.0)


def set_poll_interval(workers: int) -> None:
    """Let the controllers that this process makes from now on poll so many workers at the right interval."""
    os.environ[POLL_INTERVAL] = str(poll_interval_s(workers))


# A process runs one trial at a time, so one flag for each process is enough.
_stop_requested = threading.Event()


def request_stop() -> None:
    """Ask the trial in this process to end. Its controller notices at its next poll."""
    _stop_requested.set()


def is_stop_requested() -> bool:
    """Whether the trial in this process was asked to end."""
    return _stop_requested.is_set()


LIGHT = "BIGBATCH_LIGHT_PROCESS"
"""A variable of processes that need no torch. The actor at which workers meet has it: with the job's own environment it
would take a process that is ready for a worker."""


class _InTrial:
    """Over ``TrainController``: ends when the trial is stopped, and its workers with it."""

    _worker_group: Any

    async def _run_control_loop_iteration(self) -> None:
        if _stop_requested.is_set():
            raise SystemExit(0)
        await super()._run_control_loop_iteration()  # type: ignore[misc]

    def end_workers(self) -> None:
        """End the workers of a run that ended early. Does nothing after a normal end."""
        group = getattr(self, "_worker_group", None)
        if group is not None:
            group.shutdown()
            self._worker_group = None


class _Borrowed:
    """Over ``DefaultPlacementGroupHandle``: who made the group removes it; the workers only use it."""

    def shutdown(self) -> None:
        pass


class _AsksForNothing:
    """Over ``ScalingPolicy``: the workers have their place, so no autoscaler is asked for room for them.

    Ray would start an actor for that, before the first trial.
    """

    def _send_resource_request(self) -> None:
        pass

    _maybe_send_resource_request = _send_resource_request
    _cancel_resource_request = _send_resource_request


class _PlacedHere:
    """Over ``WorkerGroup``: its workers use the placement group of this process, in a trial Tune's."""

    _barrier: _Kept | None = None

    def _start_impl(self, builder: object) -> None:
        from ray.train.v2._internal.execution.worker_group import worker_group

        made_by_ray = worker_group.SynchronizationActor
        light = functools.partial(made_by_ray.options, runtime_env={"env_vars": {LIGHT: "1"}})
        worker_group.SynchronizationActor = self._barrier or SimpleNamespace(options=light)
        try:
            super()._start_impl(builder)  # type: ignore[misc]
        finally:
            worker_group.SynchronizationActor = made_by_ray

    def _create_placement_group(self, *_: object) -> object:
        import ray
        from ray.train.v2._internal.execution.worker_group.placement_group_handle import DefaultPlacementGroupHandle

        handle: Any = type("BorrowedPlacementGroup", (_Borrowed, DefaultPlacementGroupHandle), {})
        return handle(ray.util.get_current_placement_group())

    @staticmethod
    def _get_worker_runtime_env(custom_runtime_env: Mapping[str, object] | None) -> dict[str, object]:
        # Workers inherit the job's environment. With another environment they could not use the worker
        # processes that Ray has already started.
        return dict(custom_runtime_env or {})


@dataclass
class _Kept:
    """Workers of a trial that ended well, and the actor at which they meet, for this process's next trial."""

    kind: object
    """The number of workers and the resources of each."""
    workers: list[Any]
    barrier: Any

    def answers(self) -> bool:
        """Whether all of them are alive."""
        asked = [*(worker.actor.get_metadata.remote() for worker in self.workers), self.barrier.get_counter.remote()]
        return _answers(asked) is not None

    def end(self) -> None:
        import ray

        for actor in (*(worker.actor for worker in self.workers), self.barrier):
            ray.kill(actor)

    # `WorkerGroup` makes the actor by SynchronizationActor.options(…).remote(…): in its place it gets this one.

    def options(self, **_: object) -> _Kept:
        return self

    def remote(self, **_: object) -> Any:
        return self.barrier


ANSWER_S = 10.0
"""How long a worker may take to answer between two trials, and to leave one that Tune has stopped: it looks after a
step, once a second. One that takes longer is ended."""
_kept: _Kept | None = None


def end_kept_workers() -> None:
    """End the workers that wait in this process for a next trial."""
    global _kept
    kept, _kept = _kept, None
    if kept is not None:
        kept.end()


class Reuse(NamedTuple):
    """Whether workers may train a next trial. The last two run on each worker."""

    may_serve_again: Callable[[object], bool]
    """Of the value that a worker's function returned."""
    drop_trial: Callable[[], bool]
    """Lets the process leave its trial soon; whether it may serve again then."""
    between_trials: Callable[[], bool]
    """Leaves nothing of the trial behind; whether the process may serve again."""


class _KeepsWorkers(_PlacedHere):
    """Over ``WorkerGroup``: workers of a trial that ended well train the next one in the same processes.

    So a next trial has Python, torch, CUDA's context and the placement at once. A process that failed or does not leave
    a stopped trial soon is ended, with all of its group.
    """

    _worker_group_context: Any
    _worker_group_state: Any
    _assign_worker_ranks: Callable[..., list[Any]]
    _taken: _Kept | None
    reuse: Reuse

    def _start_impl(self, builder: object) -> None:
        global _kept
        context = self._worker_group_context
        kept, _kept = _kept, None
        kind = (context.num_workers, dict(context.resources_per_worker))
        if kept is not None and not (kept.kind == kind and kept.answers()):
            kept.end()
            kept = None
        self._taken = self._barrier = kept
        try:
            super()._start_impl(builder)
        finally:
            if self._taken is not None:  # the start failed before it used them
                self._taken.end()

    def _create_workers(self, *args: object, **more: Any) -> list[Any]:
        taken, self._taken = self._taken, None
        if taken is None:
            made: list[Any] = super()._create_workers(*args, **more)  # type: ignore[misc]
            return made
        return self._assign_worker_ranks(taken.workers, 0, None, more.get("replica_group_size"))

    def shutdown(self) -> None:
        global _kept
        state = self._worker_group_state
        if state is None or not self._ended_well(state.workers):
            super().shutdown()  # type: ignore[misc]
            return
        from ray.train.v2._internal.execution.worker_group.state import WorkerGroupState

        class NotEnded(WorkerGroupState):
            def shutdown(self) -> None:
                self.placement_group_handle.shutdown()

        self._worker_group_state = NotEnded(**vars(state))
        super().shutdown()  # type: ignore[misc]
        context = self._worker_group_context
        kept = _Kept((context.num_workers, dict(context.resources_per_worker)), state.workers, state.sync_actor)
        if self._all(state.workers, self.reuse.between_trials):
            _kept = kept
        else:
            kept.end()

    def _all(self, workers: list[Any], function: Callable[[], bool]) -> bool:
        """Whether ``function`` returned True on all of them."""
        return all(_answers([worker.execute_async(function) for worker in workers]) or [False])

    def _ended_well(self, workers: list[Any]) -> bool:
        """Whether all returned in order, those of a trial that Tune has stopped after they were told to.

        It asks the workers, not the group: the group's callbacks would report to Tune for a trial that has ended, which
        waits for ever.
        """
        until = time.monotonic() + ANSWER_S
        if not self._all(workers, self.reuse.drop_trial):
            return False
        while (found := _answers([worker.actor.poll_status.remote() for worker in workers])) is not None:
            if any(one.error or one.preemption_info for one in found):
                return False
            if not any(one.running for one in found):
                return all(self.reuse.may_serve_again(one.return_value) for one in found)
            if time.monotonic() > until:
                return False
            time.sleep(poll_interval_s(len(workers)) / 5)
        return False


def _answers(asked: list[Any]) -> list[Any] | None:
    """What the actors answered; None if one of them has died, raised an error or takes too long."""
    import ray

    try:
        answers: list[Any] = ray.get(asked, timeout=ANSWER_S)
    except ray.exceptions.RayError:
        return None
    return answers


class _WithoutActors:
    """Over ``TorchTrainer``: its controller runs in the calling process."""

    over_worker_group: tuple[type, ...] = (_PlacedHere,)
    of_worker_group: Mapping[str, object] = {}

    def _create_default_callbacks(self) -> list[object]:
        from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
        from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback

        # Each of these two would start an actor. The cleaner has nothing to clean, and there are no Ray data sets.
        unneeded = (PlacementGroupCleanerCallback, DatasetsCallback)
        made = super()._create_default_callbacks()  # type: ignore[misc]
        return [callback for callback in made if not isinstance(callback, unneeded)]

    def _initialize_and_run_controller(self, **controller_kwargs: object) -> object:
        from ray.train.v2._internal.execution.controller.controller import TrainController
        from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup

        group = type("TrialWorkerGroup", (*self.over_worker_group, WorkerGroup), dict(self.of_worker_group))
        controller_of: Any = type("TrialController", (_InTrial, TrainController), {"worker_group_cls": group})
        policy: Any = controller_kwargs["scaling_policy"]
        policy_of = type("TrialScalingPolicy", (_AsksForNothing, type(policy)), {})
        controller_kwargs["scaling_policy"] = policy_of(policy.scaling_config)

        async def run() -> object:
            controller = controller_of(**controller_kwargs)
            try:
                await controller.run()
                return controller.get_result()
            finally:
                controller.end_workers()

        _stop_requested.clear()
        return asyncio.run(run())


def trainer_in_process(reuse: Reuse) -> Any:
    """``TorchTrainer`` with its controller in the calling process: a Tune trial. Only if ``has(INLINE_CONTROLLER)``.

    Where ``has(KEPT_WORKERS)``, its workers train the next trial too if ``reuse`` allows it.
    """
    from ray.train.torch import TorchTrainer

    keeps: dict[str, object] = {}
    if has(KEPT_WORKERS):
        keeps = {"over_worker_group": (_KeepsWorkers,), "of_worker_group": {"reuse": reuse}}
    return type("InlineTorchTrainer", (_WithoutActors, TorchTrainer), keeps)
