"""Check ``--join``: several drivers on one study."""

from __future__ import annotations

from bigbatch.cluster.host.mounts import is_shared
from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.study.storage_url import sqlite_file


def check_join(options: SearchOptions) -> None:
    """Raise ConfigError if the options cannot join a study."""
    if not options.join:
        return
    if options.storage is None or options.study is None:
        missing = "--storage" if options.storage is None else "--study"
        raise ConfigError(
            f"--join works on a study in a database; got no {missing}. "
            "Write --storage postgresql+psycopg://USER@HOST/DB --study NAME."
        )
    if options.find_lr:
        raise ConfigError(
            "--join goes without --find-lr, because all drivers search around the same rates; got both. "
            "Write --prior-from with the files of one range test."
        )
    path = sqlite_file(options.storage)
    if path is not None and is_shared(path):
        raise ConfigError(
            f"--join needs a database that several hosts can write; got the SQLite file {str(path)!r} on a shared file "
            "system. Write a --storage in PostgreSQL."
        )
