"""One writer a folder: the file ``.lease`` in it says which, and when it was last seen.

Works where file locks do not (many parallel file systems), and across hosts: all it needs is that a name is made
only once and that a file is replaced whole. Clocks are not compared where a decision hangs on them: a holder that
cannot be asked is watched, and is taken for dead only if it says nothing for STALE_S. See docs/decisions/016.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bigbatch.cluster.host import atomic_files, slurm_commands
from bigbatch.cluster.host.holder import (
    Holder,
    holder_from_dict,
    is_alive,
    is_driver_of_job,
    job_holder,
    process_holder,
)
from bigbatch.cluster.host.waits import CLAIM_S, RENEW_S, STALE_S

FILE = ".lease"
CERTAIN_S = 3600.0
"""A holder that was last seen so long ago is not watched: no two clocks of a site differ by as much."""
LOOK_EVERY_S = 1.0


class StudyHeld(RuntimeError):
    """Another one writes the folder; the message is one line without its end."""

    def __init__(self, folder: Path, seen: Seen, fix: str) -> None:
        self.who, self.age_s, self.folder, self.fix = seen.holder.words(), seen.age_s, folder, fix
        super().__init__(f"{folder} is held by {self.words()}. {fix}")

    def words(self) -> str:
        return f"{self.who}, seen {max(0, round(self.age_s))} s ago"


class LeaseLost(RuntimeError):
    """Another one has taken the folder over meanwhile; the message names it."""


class LeaseVerdict(enum.Enum):
    TAKE = "take"
    HELD = "held"
    WATCH = "watch"


@dataclass(frozen=True)
class Seen:
    """A lease as it was met. ``stamp`` changes whenever its holder says that it lives."""

    holder: Holder
    stamp: tuple[bytes, int]
    age_s: float


class Lease:
    """The right to write a folder. ``renew`` it more often than every STALE_S, ``release`` it at the end.

    Args:
        job_id: the job of which this is the first process, which holds the folder until the job ends; empty for
            a driver. A driver that such a job has started holds the folder in its job's place, and gives it back.
    """

    def __init__(self, folder: Path, job_id: str = "") -> None:
        self._folder, self._path = folder, folder / FILE
        self._me = job_holder(job_id) if job_id else process_holder()
        self._is_job = bool(job_id)
        self._job_before: Holder | None = None
        """Whose place a driver has taken."""
        self._next_renewal = 0.0

    def take(
        self,
        is_running: Callable[[str], bool | None] = slurm_commands.is_running,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Raises StudyHeld unless the folder is free, ours, or left by one that is gone. OSError: unwritable.

        Where only time can tell it waits for up to STALE_S, and says so.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        while not self._make(self._path):
            seen = self._look()
            if seen is None:  # let go meanwhile
                continue
            if seen.holder.token == self._me.token:  # NFS has lost its answer and asked again
                break
            verdict, fix = judge(seen, self._me, is_running)
            living: Seen | None = seen
            if verdict is LeaseVerdict.WATCH:
                say(f"{self._folder} was held by {seen.holder.words()}: waiting up to {STALE_S:.0f} s for a sign of it")
                living = self._watch(seen)
            if verdict is not LeaseVerdict.TAKE and living is not None:
                raise StudyHeld(self._folder, living, fix)
            if self._replace(seen):
                break
        self._next_renewal = _now() + RENEW_S

    def renew(self) -> None:
        """Say that we live, where that is due (every RENEW_S). Raises LeaseLost once another one holds the folder."""
        if _now() < self._next_renewal:
            return
        self._next_renewal = _now() + RENEW_S
        try:
            seen = self._look()
            if seen is None:
                if self._make(self._path):  # someone has removed the file
                    return
                seen = self._look()
        except OSError:
            return  # the file system does not answer: nobody else can have written there either
        if seen is not None and seen.holder.token not in ("", self._me.token):
            if self._is_job:  # its driver says that it lives; one who took it over is met by the driver
                return
            raise LeaseLost(f"{seen.holder.words()}, seen {max(0, round(seen.age_s))} s ago")
        self._say_we_live()

    def _say_we_live(self) -> None:
        try:
            self._write(self._me)
        except OSError:  # a full disk must not end what runs, and a file's time is changed without room
            with contextlib.suppress(OSError):
                os.utime(self._path)

    def release(self) -> None:
        """Let go, or give it back to the job. Nothing happens where it is not ours any more."""
        try:
            seen = self._look()
            if seen is None or not self._is_ours(seen.holder):
                return
            if self._job_before is not None:
                self._write(self._job_before)
            else:
                self._path.unlink(missing_ok=True)
        except OSError:
            pass  # a full disk: our process will be gone, which the next one sees

    def _is_ours(self, holder: Holder) -> bool:
        return holder.token == self._me.token or (self._is_job and holder.job == self._me.job)

    # The file

    def _look(self) -> Seen | None:
        """The lease as it is; None if there is none."""
        try:
            with self._path.open("rb") as file:
                content, modified_ns = file.read(), os.fstat(file.fileno()).st_mtime_ns
        except FileNotFoundError:
            return None
        values = _parsed(content)
        heartbeat = values.get("heartbeat")
        written = float(heartbeat) if isinstance(heartbeat, (int, float)) else 0.0
        age_s = time.time() - max(written, modified_ns / 1e9)
        return Seen(holder_from_dict(values), (content, modified_ns), age_s)

    def _watch(self, seen: Seen) -> Seen | None:
        """The lease with a sign of life, if its holder gives one within STALE_S."""
        ends = time.monotonic() + STALE_S
        while time.monotonic() < ends:
            time.sleep(LOOK_EVERY_S)
            now = self._look()
            if now is None or now.stamp != seen.stamp:
                return now
        return None

    def _replace(self, seen: Seen) -> bool:
        """Put ours in the place of the one that was seen; False where someone else does, or it has changed.

        Whoever wants it first claims it, by a name that can be made only once.
        """
        claim = self._path.with_name(f"{FILE}.{seen.holder.token or 'old'}.next")
        if not self._make(claim):
            self._await_claimer(claim, seen)
            return False
        try:
            now = self._look()
            if now is None or now.stamp != seen.stamp:
                return False
            if not self._is_job and is_driver_of_job(self._me, seen.holder):
                self._me = replace(self._me, whole_job=True)
                self._job_before = replace(seen.holder, pid=0, start_ticks=0, machine="")
            self._write(self._me)
            return True
        finally:
            claim.unlink(missing_ok=True)

    def _await_claimer(self, claim: Path, seen: Seen) -> None:
        """Someone else is taking its place; one who died in doing so leaves the claim behind."""
        ends = time.monotonic() + CLAIM_S
        while time.monotonic() < ends:
            now = self._look()
            if now is None or now.stamp != seen.stamp:
                return
            time.sleep(LOOK_EVERY_S / 10)
        claim.unlink(missing_ok=True)

    def _make(self, path: Path) -> bool:
        """Make ``path``, whole and with us as its holder; False if it is there already.

        Not by ``atomic_files``, which replaces what is there: of two who make a name, one must learn that it is taken.
        """
        fresh = self._path.with_name(f"{FILE}.{self._me.token}")
        try:
            fresh.write_bytes(_text(self._me))
            try:
                os.link(fresh, path)
                return True
            except FileExistsError:
                return False
            except OSError:  # no hard links here
                return self._make_without_links(path)
        finally:
            fresh.unlink(missing_ok=True)

    def _make_without_links(self, path: Path) -> bool:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return False
        with os.fdopen(descriptor, "wb") as file:
            file.write(_text(self._me))
        return True

    def _write(self, holder: Holder) -> None:
        atomic_files.write_bytes(self._path, _text(holder))


def judge(seen: Seen, me: Holder, is_running: Callable[[str], bool | None]) -> tuple[LeaseVerdict, str]:
    """Whether ``me`` may take the place of a holder, and what to do where not.

    A process of this machine is asked itself; of a job, Slurm; only any other is judged by its signs of life.
    """
    holder = seen.holder
    drives = is_driver_of_job(me, holder)
    if me.whole_job and holder.job == me.job:  # it was put back into the queue, or it comes from its own driver
        return LeaseVerdict.TAKE, ""
    alive = is_alive(holder)
    if drives and not holder.pid:
        return LeaseVerdict.TAKE, ""
    if alive:
        whole = holder.whole_job and not drives  # its driver's end would look to the job like a failure
        return LeaseVerdict.HELD, f"Wait for it, or {f'scancel {holder.job}' if whole else f'kill {holder.pid}'}"
    if alive is False and (drives or not holder.whole_job):
        return LeaseVerdict.TAKE, ""
    if holder.job and (holder.job != me.job or (holder.whole_job and not drives)):
        return _of_another_job(seen, is_running)
    if holder.job and holder.restart != me.restart:
        return LeaseVerdict.TAKE, ""  # an earlier start of our job
    if seen.age_s > CERTAIN_S:
        return LeaseVerdict.TAKE, ""
    if 0 <= seen.age_s <= STALE_S and not holder.job:
        return LeaseVerdict.HELD, f"Wait for it; if it was killed, try again in {STALE_S:.0f} s"
    return LeaseVerdict.WATCH, "Wait for it"


def _of_another_job(seen: Seen, is_running: Callable[[str], bool | None]) -> tuple[LeaseVerdict, str]:
    """A job that is suspended gives no sign of life, and goes on later."""
    job = seen.holder.job
    if seen.age_s <= STALE_S:
        return LeaseVerdict.HELD, f"Wait for it, or scancel {job}"
    running = is_running(job)
    if running is None:
        return LeaseVerdict.HELD, f"Slurm does not say here whether job {job} runs; if it does not, delete {FILE} there"
    return (LeaseVerdict.HELD, f"Wait for it, or scancel {job}") if running else (LeaseVerdict.TAKE, "")


def _text(holder: Holder) -> bytes:
    return json.dumps({**holder.to_dict(), "heartbeat": time.time()}).encode()


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        values = json.loads(content)
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def _now() -> float:
    """A clock that goes on while a laptop sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
