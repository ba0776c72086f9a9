"""Run a Ray cluster inside a Slurm allocation, from its start to the last removed file.

``cluster/ray_head_workers.slurm`` runs this as the batch script's process:

    allocation → credentials → head → workers → registered → driver → draining → (requeueing →) ended

Each state is one method, which returns the next state. All waiting uses ``bigbatch.cluster.job.watch``, which notices
signals, the time limit and dying nodes. ``bigbatch.cluster.job.policy`` decides what happens at the end.
"""

from __future__ import annotations

import enum
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bigbatch.base import private_folder, processes
from bigbatch.base.command_line import WRONG_INPUT
from bigbatch.base.waits import CANCELLED_NODES_S, KILL_WAIT_S, NODES_END_S
from bigbatch.cluster.host import slurm_commands
from bigbatch.cluster.host.lease import Lease
from bigbatch.cluster.host.profiles import InputError
from bigbatch.cluster.job import billing, checks, options, restart
from bigbatch.cluster.job.allocated_nodes import Allocation, NoAllocation, await_allocation
from bigbatch.cluster.job.driver import Driver, GcsWatch, driver_environment
from bigbatch.cluster.job.node_steps import NodeSteps
from bigbatch.cluster.job.policy import KILLED, Action, Cause, Decision, Situation, decide
from bigbatch.cluster.job.watch import POLL_S, WARNINGS, JobWatch, StartUp, TimeLeft, end_driver
from bigbatch.cluster.node import ray_commands
from bigbatch.cluster.record import job_record

LOOK_AGAIN_S = 30.0
LONG_ENOUGH_S = 600.0
"""A start with a user's own command counts as useful if it ran for this long."""


class State(enum.Enum):
    """The states of a job; ``job.json`` names the current one."""

    ALLOCATION = "allocation"
    CREDENTIALS = "credentials"
    HEAD = "head"
    WORKERS = "workers"
    REGISTERED = "registered"
    DRIVER = "driver"
    DRAINING = "draining"
    REQUEUEING = "requeueing"
    ENDED = "ended"


class Job:
    """One start of a job. Call ``run``."""

    def __init__(self, chosen: options.JobOptions, cwd: Path) -> None:
        self._options, self._cwd = chosen, cwd
        self._started = time.monotonic()
        self._steps: dict[State, Callable[[], State]] = {
            State.ALLOCATION: self._read_allocation,
            State.CREDENTIALS: self._make_credentials,
            State.HEAD: self._start_head,
            State.WORKERS: self._start_workers,
            State.REGISTERED: self._wait_registered,
            State.DRIVER: self._run_driver,
            State.DRAINING: self._drain,
            State.REQUEUEING: self._start_again,
        }
        self._signals: list[int] = []
        self._clean_up = ExitStack()
        self._driver: Driver | None = None
        self._gcs_watch: GcsWatch | None = None
        self._lease: Lease | None = None
        self._bill: billing.JobBill
        self._study: Path | None = None
        self._decision = Decision(Action.END, 1, "the job itself failed")
        self._allocation: Allocation
        self._record: job_record.JobRecord
        self._nodes: NodeSteps
        self._job_watch: JobWatch
        self._left: TimeLeft
        self._before: restart.SavedWork | None
        self._next_look = 0.0

    def run(self) -> int:
        """Run all states. Returns the exit code: the driver's, 2 for wrong input, 1 if the cluster failed, 143 if the
        job was interrupted."""
        self._take_signals()
        state = State.ALLOCATION
        try:
            while state is not State.ENDED:
                state = self._steps[state]()
                if state is not State.ENDED:
                    self._enter(state)
        except InputError as error:
            print(f"ray_head_workers.slurm: error: {error}", file=sys.stderr, flush=True)
            self._decision = Decision(Action.END, WRONG_INPUT, str(error))
        finally:
            self._end()
        return self._decision.exit_code

    # States

    def _read_allocation(self) -> State:
        try:
            self._allocation = allocation = await_allocation(self._signals, self._say)
            processes.check_limits(processes.HEAD_THREADS)
        except (NoAllocation, slurm_commands.SlurmError, OSError) as error:
            raise InputError(str(error)) from None
        before = (
            job_record.read_record(allocation.job_id) if allocation.restart_count else restart.record_of_predecessor()
        )
        if allocation.restart_count and before:  # if this start is refused, the last one's reason is no longer true
            self._record, self._folder, before.reason = before, job_record.job_folder(before.job_id), None
        checks.check_commands()
        most, kind = (allocation.gpus, "GPUs") if allocation.gpus else (allocation.cpus, "CPUs")
        options.check_workers(self._options, most, kind, lambda _: "ask Slurm for more")
        checks.check_time(self._options, allocation)
        # Ask now: later the controller may be too busy.
        kill_wait_s = slurm_commands.configured_s("KillWait", KILL_WAIT_S, timeout_s=5)
        self._left = TimeLeft(allocation.end_time, self._options.margin_s, kill_wait_s)
        self._again = before is not None or allocation.restart_count > 0
        self._default_study = restart.default_study_name(allocation.job_id)
        self._study = options.study_folder(self._options, self._default_study, self._cwd)
        checks.check_places(self._study, self._cwd, allocation)
        self._record = restart.first_record(allocation, self._options, self._study, before)
        self._folder = job_record.job_folder(allocation.job_id)
        checks.write_first_record(self._record)
        if (fruitless := self._record.fruitless_restarts - 1) > self._options.max_restarts:
            # Slurm or another node requeued the job each time, without asking for our decision.
            most = self._options.max_restarts
            reason = f"no epoch or checkpoint came of {fruitless} starts in a row (--max-restarts {most})"
            self._decision = Decision(Action.END, 1, reason)
            return State.ENDED
        self._lease = checks.take_lease(self._study, allocation.job_id) if self._study else None
        self._bill = billing.JobBill(self._study, allocation.gpus)
        self._before = restart.saved_work(self._study)
        self._next_look = time.monotonic() + LOOK_AGAIN_S
        names = ",".join(node.name for node in allocation.nodes)
        left = f", {allocation.end_time - time.time():.0f} s left" if allocation.end_time else ""
        self._say(
            f"job {allocation.job_id} on {names}{left}; start {self._record.restarts + 1}; files in {self._folder}"
        )
        return State.CREDENTIALS

    def _make_credentials(self) -> State:
        try:
            self._token = ray_commands.make_token(self._folder)
            # The driver's temporary files are removed with the job.
            self._tmp = self._clean_up.enter_context(private_folder.temporary_folder(self._allocation.job_id))
            allocation = self._allocation
            self._nodes = NodeSteps(
                allocation.job_id,
                allocation.start_id,
                self._folder,
                checks.places(self._options, self._study, self._cwd),
                self._options.start_timeout_s,
            )
            self._nodes.prepare()
        except OSError as error:
            raise InputError(str(error)) from None
        self._record.token_path = str(self._token)
        see = partial(checks.check_nodes_see, self._nodes.blind, self._allocation)
        chores: list[Callable[[], None]] = [see, self._note_progress, *([self._lease.renew] if self._lease else [])]
        self._job_watch = JobWatch(
            record=self._record,
            nodes=self._nodes,
            head=self._allocation.head.name,
            left=self._left,
            restart_count=self._allocation.restart_count,
            signals=self._signals,
            chores=chores,
            say=self._say,
        )
        self._start_up = StartUp(self._nodes, self._job_watch, self._options.start_timeout_s, self._say)
        return State.HEAD

    def _start_head(self) -> State:
        head = self._allocation.head
        for node in self._allocation.nodes:
            self._nodes.start(node)
        status = self._start_up.await_head(head.name)
        if status is None or status.ports is None:
            return State.DRAINING
        self._record.address = f"{status.ip}:{status.ports.gcs}"
        self._record.dashboard_port = status.ports.dashboard
        self._env = self._job_watch.env = ray_commands.ray_environment(self._record.address, self._token)
        self._say(
            f"head {head.name} at {self._record.address}, dashboard on its loopback {self._record.dashboard_port}"
        )
        return State.WORKERS

    def _start_workers(self) -> State:
        assert self._record.address is not None
        self._nodes.join(self._record.address)
        self._gcs_watch = GcsWatch(self._env, self._folder / "gcs.log")
        return State.REGISTERED

    def _wait_registered(self) -> State:
        assert self._gcs_watch is not None
        all_in = self._start_up.await_registered(self._gcs_watch, self._allocation.head.name)
        return State.DRIVER if all_in else State.DRAINING

    def _run_driver(self) -> State:
        assert self._gcs_watch is not None
        assert self._record.address is not None
        self._gcs_watch.close()  # from now on the search itself asks Ray about its nodes
        command = options.driver_command(
            self._options, self._default_study, self._record.address, self._study, self._again
        )
        try:
            env = driver_environment(self._env, self._folder, self._tmp) | self._bill.environment()
            self._driver = Driver(command, self._cwd, env | self._left.environment())
        except OSError as error:
            raise InputError(f"the command must be a program; got {command[0]!r} ({error.strerror}).") from None
        while self._driver.exit_code() is None:
            if self._job_watch.interruption():
                return State.DRAINING
            time.sleep(POLL_S)
        # Slurm may also signal the driver, which then ends first: ask why before calling it a failure.
        if self._signals and self._job_watch.interruption():
            return State.DRAINING
        self._job_watch.stop_because(Cause.DRIVER_ENDED, f"driver ended with exit code {self._driver.exit_code()}")
        return State.DRAINING

    def _drain(self) -> State:
        assert self._job_watch.cause is not None
        code = None
        if self._driver is not None:
            code = end_driver(self._driver, self._job_watch, self._nodes, self._signals, self._left, self._say)
        self._clean_up.close()  # before waiting for the nodes: after scancel there may be no time
        self._job_watch.explain()
        if self._job_watch.cause is Cause.REQUEUED:
            restart.start_soon(self._record.job_id, self._say)  # first: Slurm may kill this process soon
        failed = self._job_watch.cause in (Cause.START_FAILED, Cause.HEAD_DIED) or (
            self._job_watch.cause is Cause.DRIVER_ENDED and code != 0
        )
        self._stop_nodes(keep_logs=failed)
        self._bill.note_end()  # a requeue ends this process
        # The decision depends on the cause. Everything is saved now, so the job may wait for a silent controller.
        self._job_watch.explain(self._left.patience_s())
        self._decision = self._decide(code)
        self._record.reason = self._decision.reason
        return State.ENDED if self._decision.action is Action.END else State.REQUEUEING

    def _start_again(self) -> State:
        self._say(f"{self._decision.action.value}: {self._decision.reason}")
        self._save()
        ends = time.monotonic() + self._left.patience_s()
        again = False
        while True:
            if signal.SIGTERM in self._signals and self._cancelled_meanwhile():
                return State.ENDED
            try:
                if not restart.start_again(
                    self._decision.action, self._record, self._default_study, self._say, again=again
                ):
                    self._note_scancel()
            except slurm_commands.SlurmSilent as error:
                again = True
                if time.monotonic() < ends:
                    time.sleep(1.0)
                    continue
                self._give_up(error)
            except slurm_commands.SlurmError as error:
                self._give_up(error)
            return State.ENDED

    def _cancelled_meanwhile(self) -> bool:
        """Whether a SIGTERM after the driver was told to save was a scancel. If so, sets the decision."""
        self._signals.clear()
        self._job_watch.classify("SIGTERM while draining")
        self._job_watch.explain(self._left.patience_s())
        if self._job_watch.cause is Cause.REQUEUED:  # e.g. preempted without, or at the end of, a grace time
            self._decision = Decision(Action.LEAVE_TO_SLURM, 143, self._decision.reason)
        if self._job_watch.cause is not Cause.CANCELLED:
            return False
        self._note_scancel()
        return True

    def _note_scancel(self) -> None:
        self._decision = Decision(Action.END, 143, Cause.CANCELLED.value)
        self._record.reason = self._decision.reason

    def _give_up(self, error: slurm_commands.SlurmError) -> None:
        self._say(f"cannot start again: {error}")
        self._decision = Decision(Action.END, 1, f"{self._decision.reason}; {error}")
        self._record.reason = self._decision.reason

    # Parts

    def _note_progress(self) -> None:
        """Note that this start is useful as soon as this is known: the job may be killed at any moment."""
        if self._record.fruitless_restarts and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK_AGAIN_S
            if self._is_useful():
                self._record.fruitless_restarts = 0
                self._save()

    def _is_useful(self) -> bool:
        """Whether this start has added something to its study; for a user's own command, whether it has run long."""
        after = restart.saved_work(self._study)
        if self._before is None or after is None:
            return time.monotonic() - self._started >= LONG_ENOUGH_S
        return (
            after.epochs > self._before.epochs or after.ended > self._before.ended or after.saved > self._before.saved
        )

    def _decide(self, code: int | None) -> Decision:
        """Decide what follows from this start; ``code``: the driver's exit code."""
        assert self._job_watch.cause is not None
        progress = any(self._before or ()) or self._record.fruitless_restarts <= self._record.restarts
        if self._is_useful():
            self._record.fruitless_restarts = 0
        return decide(
            Situation(
                cause=self._job_watch.cause,
                exit_code=code,
                fruitless=self._record.fruitless_restarts,
                max_restarts=self._options.max_restarts,
                chain=self._options.chain,
                progress=progress,
            )
        )

    def _stop_nodes(self, *, keep_logs: bool) -> None:
        ended = self._job_watch.killed_soon
        patience = CANCELLED_NODES_S if ended else NODES_END_S
        late = self._nodes.stop(keep_logs=keep_logs or self._options.keep_logs, timeout_s=patience, signalled=ended)
        if late:
            self._say(f"nodes that did not end in time, and were killed: {', '.join(late)}")

    def _enter(self, state: State) -> None:
        self._say(f"→ {state.value}")
        self._record.state = state.value
        self._save()

    def _save(self) -> None:
        try:
            self._record.write()
        except OSError as error:  # a full quota must not end a running search
            self._say(f"cannot write the job's record: {error}")

    def _end(self) -> None:
        """End everything that still runs in the job, and write into its record how it ended."""
        if self._driver is not None:
            self._driver.kill()
        if self._gcs_watch is not None:
            self._gcs_watch.close()
        if hasattr(self, "_nodes") and self._nodes.living():  # an early error leaves these unset
            self._stop_nodes(keep_logs=False)
        self._clean_up.close()
        if hasattr(self, "_bill"):
            self._bill.note_end()
        if self._lease:  # after driver and nodes: their trials may write into the study until then
            self._lease.release()
        if hasattr(self, "_record"):
            self._record.reason = self._record.reason or self._decision.reason
            (self._folder / ray_commands.TOKEN_FILE).unlink(missing_ok=True)  # the next start makes its own
            if self._decision.action is Action.END:
                self._record.state = State.ENDED.value
                self._say_how_to_go_on()
            self._say(f"→ {self._record.state} ({self._decision.exit_code}): {self._record.reason}")
            self._save()

    def _say_how_to_go_on(self) -> None:
        code = self._decision.exit_code
        has_said = code != KILLED and hasattr(self, "_job_watch") and self._job_watch.cause is Cause.DRIVER_ENDED
        if code not in (0, WRONG_INPUT) and not has_said and (words := restart.resume_options(self._study)):
            self._say(f"to continue, submit the job again with these options instead of the search's: {words}")

    def _say(self, text: str) -> None:
        print(f"bigbatch {time.strftime('%H:%M:%S')} +{time.monotonic() - self._started:.1f}s {text}", flush=True)

    def _take_signals(self) -> None:
        for number in WARNINGS | {signal.SIGTERM, signal.SIGINT}:
            signal.signal(number, lambda signum, frame: self._signals.append(signum))
