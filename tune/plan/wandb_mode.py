"""Check the value of ``--wandb``."""

from __future__ import annotations

import os

from bigbatch.train_loop.config import ConfigError

MODES = ("disabled", "offline", "online")


def check_wandb_key(mode: str) -> None:
    """Raise ConfigError if ``online`` has no key: the login would wait for input."""
    if mode != "online" or os.environ.get("WANDB_API_KEY"):
        return
    import netrc

    try:
        known = netrc.netrc().hosts
    except (OSError, netrc.NetrcParseError):
        known = {}
    host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").split("//")[-1].split("/")[0]
    if host not in known:
        raise ConfigError(
            f"--wandb online needs a key for {host}; none is set. "
            "Run `wandb login` or set WANDB_API_KEY, or write --wandb offline and send the runs later."
        )
