"""Allow one writer for each folder. The file ``.lease`` in the folder names it, and says when it was last seen.

This works across hosts and without file locks, which many parallel file systems lack. It needs only that a name can
be made once and that a file is replaced atomically. No decision compares clocks: if a holder cannot be asked, it is
watched and counts as dead only if it gives no sign of life for STALE_S. See docs/decisions/015.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bigbatch.base import atomic_files
from bigbatch.base.json_values import json_object
from bigbatch.base.waits import CLAIM_S, RENEW_S, STALE_S
from bigbatch.cluster.host import slurm_commands
from bigbatch.cluster.host.holder import (
    Holder,
    holder_from_dict,
    is_alive,
    is_driver_of_job,
    job_holder,
    process_holder,
)

FILE = ".lease"
CERTAIN_S = 3600.0
"""A holder that was last seen this long ago is not watched: the clocks of a site never differ by so much."""
LOOK_EVERY_S = 1.0


class StudyHeld(RuntimeError):
    """Another process or job writes the folder. The message is one line that the caller completes."""

    def __init__(self, folder: Path, seen: SeenLease, fix: str) -> None:
        self.who, self.age_s, self.folder, self.fix = seen.holder.words(), seen.age_s, folder, fix
        super().__init__(f"{folder} is held by {self.words()}. {fix}")

    def words(self) -> str:
        """The holder, and when it was last seen."""
        return f"{self.who}, seen {max(0, round(self.age_s))} s ago"


class LeaseLost(RuntimeError):
    """Another process or job has taken the folder over. The message names it."""


class LeaseVerdict(enum.Enum):
    """What to do about a lease: take it, respect it, or watch for a sign of life."""

    TAKE = "take"
    HELD = "held"
    WATCH = "watch"


@dataclass(frozen=True)
class SeenLease:
    """A lease as it was found. ``stamp`` changes with every sign of life of its holder."""

    holder: Holder
    stamp: tuple[bytes, int]
    age_s: float


def seen_lease(folder: Path) -> SeenLease | None:
    """Who holds ``folder``, without taking it. None if nobody does, or the file cannot be read."""
    try:
        return Lease(folder)._look()
    except OSError:
        return None


class Lease:
    """The right to write a folder. Call ``renew`` more often than every STALE_S, and ``release`` at the end.

    Args:
        job_id: set by the first process of a job: the job holds the folder until it ends. Empty for a driver. A driver
            that such a job has started holds the folder in place of its job, and gives it back to the job.
    """

    def __init__(self, folder: Path, job_id: str = "") -> None:
        self._folder, self._path = folder, folder / FILE
        self._me = job_holder(job_id) if job_id else process_holder()
        self._is_job = bool(job_id)
        self._job_before: Holder | None = None
        """The holder whose place a driver has taken."""
        self._next_renewal = 0.0

    def take(
        self,
        is_running: Callable[[str], bool | None] = slurm_commands.is_running,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Take the lease. Raises StudyHeld unless the folder is free, ours, or its holder is gone; OSError if it is
        not writable.

        If only time can show whether the holder lives, this waits for up to STALE_S, and ``say`` reports it.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        while not self._make(self._path):
            seen = self._look()
            if seen is None:  # released in the meantime
                continue
            if seen.holder.token == self._me.token:  # NFS lost its answer and repeated the call
                break
            verdict, fix = judge_takeover(seen, self._me, is_running)
            living: SeenLease | None = seen
            if verdict is LeaseVerdict.WATCH:
                say(f"{self._folder} was held by {seen.holder.words()}: waiting up to {STALE_S:.0f} s for a sign of it")
                living = self._watch(seen)
            if verdict is not LeaseVerdict.TAKE and living is not None:
                raise StudyHeld(self._folder, living, fix)
            if self._replace(seen):
                break
        self._next_renewal = _now() + RENEW_S

    def renew(self) -> None:
        """Give a sign of life if one is due (every RENEW_S). Raises LeaseLost if another one holds the folder."""
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
            if self._is_job:  # its driver renews the lease, and notices if another one has taken it
                return
            raise LeaseLost(f"{seen.holder.words()}, seen {max(0, round(seen.age_s))} s ago")
        self._say_we_live()

    def _say_we_live(self) -> None:
        try:
            self._write(self._me)
        except OSError:  # a full disk must not end the run; a file's time can be changed without room
            with contextlib.suppress(OSError):
                os.utime(self._path)

    def release(self) -> None:
        """Release the lease, or give it back to the job. Does nothing if it is no longer ours."""
        try:
            seen = self._look()
            if seen is None or not self._is_ours(seen.holder):
                return
            if self._job_before is not None:
                self._write(self._job_before)
            else:
                self._path.unlink(missing_ok=True)
        except OSError:
            pass  # the disk is full; the next process will see that ours is gone

    def _is_ours(self, holder: Holder) -> bool:
        return holder.token == self._me.token or (self._is_job and holder.job == self._me.job)

    # The file

    def _look(self) -> SeenLease | None:
        """The current lease; None if there is none."""
        try:
            # Opened, not asked with stat: NFS may answer stat from its cache.
            with self._path.open("rb") as file:
                content, modified_ns = file.read(), os.fstat(file.fileno()).st_mtime_ns
        except FileNotFoundError:
            return None
        values: dict[str, object] = {}
        with contextlib.suppress(ValueError):
            values = json_object(content)
        heartbeat = values.get("heartbeat")
        written = float(heartbeat) if isinstance(heartbeat, (int, float)) else 0.0
        # On a full disk the holder can only renew the file's time, so the later of both counts.
        age_s = time.time() - max(written, modified_ns / 1e9)
        return SeenLease(holder_from_dict(values), (content, modified_ns), age_s)

    def _watch(self, seen: SeenLease) -> SeenLease | None:
        """The lease with its new sign of life, if its holder gives one within STALE_S; else None."""
        ends = time.monotonic() + STALE_S
        while time.monotonic() < ends:
            time.sleep(LOOK_EVERY_S)
            now = self._look()
            # Compared with itself, not with a clock: the clocks of two hosts differ.
            if now is None or now.stamp != seen.stamp:
                return now
        return None

    def _replace(self, seen: SeenLease) -> bool:
        """Replace the seen lease by ours. Returns False if someone else does that, or if the lease has changed.

        A process first claims the lease by making a name that can be made only once.
        """
        # The name has the dead holder's token: of all processes that judge this holder dead, only one can make it.
        claim = self._path.with_name(f"{FILE}.{seen.holder.token or 'old'}.next")
        if not self._make(claim):
            self._await_claimer(claim, seen)
            return False
        try:
            # Between the judgement and the claim the holder may have given a sign of life after all.
            now = self._look()
            if now is None or now.stamp != seen.stamp:
                return False
            if not self._is_job and is_driver_of_job(self._me, seen.holder):
                # As a whole job: if this driver dies, only another driver of the job may take its place.
                self._me = replace(self._me, whole_job=True)
                # Without the process: the job that gets the lease back holds it to its end, whichever process runs.
                self._job_before = replace(seen.holder, pid=0, start_ticks=0, machine="")
            self._write(self._me)
            return True
        finally:
            claim.unlink(missing_ok=True)

    def _await_claimer(self, claim: Path, seen: SeenLease) -> None:
        """Wait while someone else replaces the lease. If that process died, its claim is removed."""
        ends = time.monotonic() + CLAIM_S
        while time.monotonic() < ends:
            now = self._look()
            if now is None or now.stamp != seen.stamp:
                return
            time.sleep(LOOK_EVERY_S / 10)
        # Nobody holds a claim this long: its maker has died, and nobody else would remove it.
        claim.unlink(missing_ok=True)

    def _make(self, path: Path) -> bool:
        """Make the complete file ``path``, with us as its holder. Returns False if it already exists.

        ``atomic_files`` would replace an existing file. Here, one of two competing processes must learn that it lost.
        """
        # Written under another name first: a reader never meets half of it.
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
            # O_EXCL is the next best: it too can make a name only once, but shows an empty file for a moment.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return False
        with os.fdopen(descriptor, "wb") as file:
            file.write(_text(self._me))
        return True

    def _write(self, holder: Holder) -> None:
        atomic_files.write_bytes(self._path, _text(holder))


def judge_takeover(seen: SeenLease, me: Holder, is_running: Callable[[str], bool | None]) -> tuple[LeaseVerdict, str]:
    """Whether ``me`` may take the place of a holder, and what to do if not.

    A process of this machine can be checked directly. Slurm knows about a job. Any other holder is judged only by its
    signs of life.
    """
    holder = seen.holder
    drives = is_driver_of_job(me, holder)
    if me.whole_job and holder.job == me.job:  # the job was requeued, or its own driver holds the folder
        return LeaseVerdict.TAKE, ""
    alive = is_alive(holder)
    if drives and not holder.pid:
        return LeaseVerdict.TAKE, ""
    if alive:
        whole = holder.whole_job and not drives  # to the job, its driver's end would look like a failure
        return LeaseVerdict.HELD, f"Wait for it, or {f'scancel {holder.job}' if whole else f'kill {holder.pid}'}"
    if alive is False and (drives or not holder.whole_job):
        return LeaseVerdict.TAKE, ""
    if holder.job and (holder.job != me.job or (holder.whole_job and not drives)):
        return _of_another_job(seen, is_running)
    if holder.job and holder.restart != me.restart:
        return LeaseVerdict.TAKE, ""  # an earlier start of our job
    if seen.age_s > CERTAIN_S:
        return LeaseVerdict.TAKE, ""
    # A recent time needs no watching. A negative age comes from a clock that runs ahead, and proves nothing.
    if 0 <= seen.age_s <= STALE_S and not holder.job:
        return LeaseVerdict.HELD, f"Wait for it; if it was killed, try again in {STALE_S:.0f} s"
    return LeaseVerdict.WATCH, "Wait for it"


def _of_another_job(seen: SeenLease, is_running: Callable[[str], bool | None]) -> tuple[LeaseVerdict, str]:
    """Judge a holder in another job. A suspended job gives no sign of life, but continues later."""
    job = seen.holder.job
    if seen.age_s <= STALE_S:
        return LeaseVerdict.HELD, f"Wait for it, or scancel {job}"
    running = is_running(job)
    if running is None:
        return LeaseVerdict.HELD, f"Slurm does not say here whether job {job} runs; if it does not, delete {FILE} there"
    return (LeaseVerdict.HELD, f"Wait for it, or scancel {job}") if running else (LeaseVerdict.TAKE, "")


def _text(holder: Holder) -> bytes:
    return json.dumps({**asdict(holder), "heartbeat": time.time()}).encode()


def _now() -> float:
    """Seconds of a clock that also runs while a laptop sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
