"""One run of Weights & Biases: the epochs of a trial, or of a full run. No torch here.

Offline mode never needs a network: the run is written to a file. ``bigbatch wandb-sync`` sends it later from a machine
that has a network. The value of ``--wandb`` is checked here too, and whether W&B's server can be reached.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bigbatch.base import json_values
from bigbatch.base.command_line import did_you_mean
from bigbatch.cluster.host.allocation import PLANNED_NODES, slurm_job
from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.train_loop.reporter import EpochRecord, Tracker

DISABLED = "disabled"
MODES = (DISABLED, "offline", "online", "auto")
WANDB_MODES = "disabled (default), offline, online, or auto: online if its server answers"
"""The help of ``--wandb``."""
ANSWER_S = 10.0
"""How long the server is waited for, name lookup included."""


def check_wandb_mode(mode: str) -> None:
    """Raise ConfigError for an unknown mode, and if ``online`` has no key: the login would wait for input."""
    if mode not in MODES:
        fix = "Write --wandb disabled, or online to send runs to the server, or offline to send them later."
        raise ConfigError(f"--wandb must be one of {', '.join(MODES)}; got {mode!r}. {did_you_mean(mode, MODES, fix)}")
    if mode == "online" and not has_key():
        raise ConfigError(
            f"--wandb online needs a key for {_host()}; none is set. "
            "Run `wandb login` or set WANDB_API_KEY, or write --wandb offline and send the runs later."
        )


def reachable_mode(mode: str) -> str:
    """``auto`` → ``online`` or ``offline``, with a line that says why; any other mode as it is.

    Raises ConfigError if ``online`` cannot reach the server: each trial would wait for it. A machine that only checks a
    search for a job elsewhere cannot test that job's network.
    """
    if mode not in ("online", "auto") or os.environ.get(PLANNED_NODES):
        return mode
    reason = None if mode == "online" or has_key() else "no key is set"
    reason = reason or _unreachable()
    if mode == "online" and reason:
        raise ConfigError(
            f"--wandb online needs {_host()}, which cannot be reached from here: {reason}. "
            "Write --wandb auto, or offline and send the runs with bigbatch wandb-sync."
        )
    if mode == "auto" and reason:
        print(f"note: --wandb auto works offline, because of {_host()}: {reason}", file=sys.stderr, flush=True)
        return "offline"
    return "online"


def wandb_url() -> str:
    """The server's address: WANDB_BASE_URL, or W&B's own."""
    return os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").rstrip("/")


def _host() -> str:
    return wandb_url().split("//")[-1].split("/")[0]


def has_key() -> bool:
    """Whether there is a key for that server, in WANDB_API_KEY or ~/.netrc."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    import netrc

    try:
        return _host() in netrc.netrc().hosts
    except (OSError, netrc.NetrcParseError):
        return False


def _unreachable() -> str | None:
    """Why the server does not answer; None if it does, whatever it answers. Goes through a proxy where one is set."""
    found: list[str | None] = []
    asking = threading.Thread(target=lambda: found.append(_ask()), daemon=True)  # a name lookup has no time limit
    asking.start()
    asking.join(ANSWER_S)
    return found[0] if found else f"no answer within {ANSWER_S:.0f} s"


def _ask() -> str | None:
    try:
        urllib.request.urlopen(urllib.request.Request(wandb_url(), method="HEAD"), timeout=ANSWER_S).close()
    except urllib.error.HTTPError:
        return None
    except (OSError, ValueError) as error:
        return " ".join(str(getattr(error, "reason", error)).split()) or type(error).__name__
    return None


OFFLINE_RUNS, ENDED = "wandb/offline-run-*", "ended"
"""The folders of offline runs, below a study's or full run's folder; our mark in that of a run that ended normally."""
FLUSH, FLUSH_S = "x_transaction_log_flush_interval", 1.0
"""wandb writes an offline file at least this often. With its default of 15 s a killed search would lose more."""
FINISH, FINISH_RAISES, FINISH_S = "finish_timeout", "finish_timeout_raises", 60.0
"""wandb would wait at the end of a run until a server that is gone answers. After this time nothing more is sent;
``wandb sync`` sends it later."""
REQUIREMENTS = "x_save_requirements"
"""wandb would list all installed packages for each run. One list, that of a search's first run, is enough."""
METRICS = tuple(name for name, column in EpochRecord.columns().items() if column.tracked)


class WandbRun:
    """A run that can resume under its id. W&B's steps are epochs.

    W&B accepts no step before its last one: when a run on the server resumes, the epochs that it has are skipped. When
    an offline run resumes, a new file replaces the earlier one: give it all epochs from the first on.

    Args:
        mode: ``offline`` or ``online``.
        folder: gets W&B's folder ``wandb``.
        lists_packages: whether the run has the list of installed packages.
    """

    def __init__(
        self,
        mode: str,
        folder: Path,
        run_id: str,
        config: Mapping[str, object],
        *,
        group: str | None = None,
        job_type: str = "train",
        lists_packages: bool = True,
    ) -> None:
        os.environ.setdefault("WANDB_SILENT", "true")
        os.environ.setdefault("WANDB_CONSOLE", "off")
        import wandb

        # Older versions have fewer settings.
        more = {FLUSH: FLUSH_S, FINISH: FINISH_S, FINISH_RAISES: True}
        more |= {} if lists_packages else {REQUIREMENTS: False}
        job = slurm_job()
        self._run: Any = wandb.init(
            mode=mode,  # type: ignore[arg-type]
            project=os.environ.get("WANDB_PROJECT", "bigbatch"),
            group=group,
            name=run_id,
            id=run_id,
            resume="allow" if mode == "online" else None,
            dir=str(folder),  # W&B adds the folder's own name
            job_type=job_type,
            config={
                **({} if job is None else {"slurm_job_id": job.job_id, "slurm_restart_count": job.restart_count}),
                **config,
            },
            # A search's driver has the runs of several trials at a time.
            reinit="create_new",
            settings=wandb.Settings(
                silent=True, console="off", x_disable_stats=True, disable_git=True, disable_code=True,
                **{name: value for name, value in more.items() if name in wandb.Settings.model_fields},
            ),
        )  # fmt: skip
        self._first = int(self._run.step)

    def epoch(self, record: Mapping[str, object]) -> None:
        """Log the epoch's metrics."""
        epoch = json_values.whole_number(record, "epoch")
        if epoch < self._first:
            return
        values = {"epoch": epoch, **{name: record[name] for name in METRICS if name in record}}
        values |= json_values.mapping(record, "metrics")
        self._run.log(values, step=epoch, commit=True)  # else it is written when the next epoch ends

    def finish(self, summary: Mapping[str, object], *, failed: bool) -> None:
        """Close the run."""
        for name, value in summary.items():
            self._run.summary[name] = value
        folder = Path(self._run.dir).parent
        self._run.finish(exit_code=int(failed))
        (folder / ENDED).touch()


class _FullRun:
    """Reports a full run to W&B. After a first failure it warns and reports nothing more; the run continues."""

    def __init__(self, begin: Callable[[], WandbRun]) -> None:
        self._begin, self._failed = begin, False
        self.run: WandbRun | None = None
        """W&B's run, once it has begun."""

    def epoch(self, record: EpochRecord) -> None:
        """An epoch has ended, of this process or of an earlier one."""
        self.tell(lambda run: run.epoch(record.to_dict()))

    def tell(self, what: Callable[[WandbRun], None]) -> None:
        """Call ``what``, unless an earlier call has failed."""
        if self._failed:
            return
        try:
            self.run = self.run or self._begin()
            what(self.run)
        except Exception as error:  # an unreachable tracker, or a full disk, which training itself will meet
            self._failed = True
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"warning: the run goes on without W&B: {reason}", file=sys.stderr, flush=True)


@contextmanager
def wandb_of_full_run(mode: str, output: Path, config: TrainConfig) -> Iterator[Tracker | None]:
    """Within the block: the function that reports the full run in ``output`` to W&B; None if W&B is ``disabled``."""
    if mode == "disabled":
        yield None
        return
    digest = hashlib.sha256(str(output).encode()).hexdigest()[:8]  # other folders may have this one's name
    run_id = f"{re.sub(r'[^A-Za-z0-9_.-]', '_', output.name)[:100]}-{digest}"
    tracker = _FullRun(lambda: WandbRun(mode, output, run_id, config.to_dict()))
    failed = True
    try:
        yield tracker.epoch
        failed = False
    finally:
        if tracker.run is not None:
            tracker.tell(lambda run: run.finish({}, failed=failed))
        if tracker.run is not None and mode == "offline":
            print(f"To send the W&B run: bigbatch wandb-sync {shlex.quote(str(output))}", flush=True)
