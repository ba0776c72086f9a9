"""All private names of Ray that this package uses, and what happens with a Ray that lacks some of them.

Ray renames such names without notice. So only this file and ``inline_controller.py`` may touch one (a test looks), each
use is checked before the first trial, and each has a fallback: the search then runs with what Ray does by itself, and
one note says what is different. Only what would leave a search unsafe is refused.

``BIGBATCH_RAY_INTERNALS=0`` uses none of them, as with a Ray that lacks all. Importing this file does not load Ray,
whose core reads the variables of its authentication when it is loaded.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from bigbatch.base import fork_server
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
        f"{_GROUP}._create_workers",
        f"{_TRAIN}.execution.worker_group.worker:ActorMetadata.hostname",
        f"{_TRAIN}.execution.worker_group.worker:ActorMetadata.node_id",
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
    ("ray._private.services:ConsolePopen", "ray._private.utils:set_sigterm_handler"),
    "Ctrl-C in a terminal, and a SIGTERM while Ray starts, also reach Ray, and may end trials before they have saved",
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
    return f"note: {_why(lost)}. BigBatch works without them, but: {effects}."


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
def own_process_groups(forks: str = "") -> Iterator[None]:
    """Within the block, processes that Ray starts lead their own process groups, and SIGTERM keeps its handler.

    A terminal's Ctrl-C or hang-up, ``timeout`` and ``kill -- -PGID`` signal the whole group of the driver.
    Ray's processes would die of it before trials have saved. They still end with the driver: the kernel signals them.
    Ray's own handler would end the driver while Ray starts, which can take half a minute, as one that has crashed.

    Args:
        forks: the socket of the server that starts them (``base/fork_server.py``); empty: Ray starts interpreters.
    """
    if not has(PROCESS_GROUPS):
        yield
        return
    from ray._private import services, utils

    popen, replace_handler = services.ConsolePopen, utils.set_sigterm_handler

    def start(command: list[str], *args: object, **more: object) -> object:
        if forks:
            command = fork_server.instead_of_python(command, forks)
        return popen(command, *args, **more, process_group=0)

    services.ConsolePopen, utils.set_sigterm_handler = start, lambda _handler: None
    try:
        yield
    finally:
        services.ConsolePopen, utils.set_sigterm_handler = popen, replace_handler


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
    """Within the block, Tune starts trials in the environment of the job, and loads only what it uses.

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


# Ray Train

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
