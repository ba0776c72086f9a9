"""Check the value of ``--wandb``, of a search or a full run, and whether W&B's server can be reached."""

from __future__ import annotations

import os
import sys
import threading
import urllib.error
import urllib.request

from bigbatch.base.option_values import nearest_word
from bigbatch.cluster.host.allocation import PLANNED_NODES
from bigbatch.train_loop.config import ConfigError

DISABLED = "disabled"
MODES = (DISABLED, "offline", "online", "auto")
WANDB_MODES = "disabled (default), offline, online, or auto: online if its server answers"
"""The help of ``--wandb``."""
WATCHED = {"gradients": ("gradients",), "parameters": ("parameters",), "all": ("gradients", "parameters"), "none": ()}
"""Values of ``--wandb-watch``: those of ``wandb.watch``, and ``none`` for a resumed study."""
ANSWER_S = 10.0
"""How long the server is waited for, name lookup included."""


def check_wandb_mode(mode: str) -> None:
    """Raise ConfigError for an unknown mode, and if ``online`` has no key: the login would wait for input."""
    if mode not in MODES:
        near = nearest_word(mode, MODES)
        fix = "Write --wandb disabled, or online to send runs to the server, or offline to send them later."
        raise ConfigError(
            f"--wandb must be one of {', '.join(MODES)}; got {mode!r}. {f'Did you mean {near!r}?' if near else fix}"
        )
    if mode == "online" and not has_key():
        raise ConfigError(
            f"--wandb online needs a key for {_host()}; none is set. "
            "Run `wandb login` or set WANDB_API_KEY, or write --wandb offline and send the runs later."
        )


def watched_kinds(choice: str | None) -> tuple[str, ...]:
    """Which histograms of the network the trials take, by a checked value of ``--wandb-watch``."""
    return WATCHED[choice or "none"]


def check_wandb_watch(choice: str | None, mode: str) -> None:
    """Raise ConfigError for an unknown value of ``--wandb-watch``, or if no W&B run shows what is watched."""
    if choice is not None and choice not in WATCHED:
        raise ConfigError(f"--wandb-watch must be one of {', '.join(WATCHED)}; got {choice!r}. Write one of them.")
    if watched_kinds(choice) and mode == "disabled":
        raise ConfigError(
            f"--wandb-watch shows histograms in W&B's runs; got {choice} without --wandb. "
            "Write --wandb offline, or --wandb-watch none."
        )


def reachable_mode(mode: str) -> str:
    """``auto`` → ``online`` or ``offline``, with a line that says why; any other mode as it is.

    Raises ConfigError if ``online`` cannot reach the server: each trial would wait for it. A machine that only checks a
    search for a job elsewhere says nothing about that job's network.
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
