"""``bigbatch watch STUDY …``: the report of studies that run, in a browser, through an SSH tunnel. Only reads."""

from __future__ import annotations

import argparse
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from bigbatch.base.command_line import INTERRUPTED, OneLineParser
from bigbatch.cluster.host.holder import user_name
from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.console.wrapped import said_in_one_line
from bigbatch.tune.storage.summary import find_study

EVERY_S = 15.0
MOST_EVERY_S = 86400.0


def watch_parser() -> argparse.ArgumentParser:
    """The options of ``bigbatch watch``."""
    p = OneLineParser(
        prog="bigbatch watch",
        description="Serve the report of studies on this machine's loopback, and write it again when they change.",
    )
    add = p.add_argument
    add("study", metavar="STUDY|PATH", nargs="+", help="a study's name in --output, or its folder")
    add("--port", type=int, default=0, metavar="N", help="the port (default: a free one)")
    add("--every", type=float, default=EVERY_S, metavar="S", help=f"seconds between looks at the study ({EVERY_S:g})")
    add("--output", metavar="DIR", default="runs", help="the folder of studies (default: runs)")
    return p


def watch_main(argv: Sequence[str]) -> int:
    """Serve until Ctrl-C. Returns the exit code: 130 then, 2 for wrong input."""
    args = watch_parser().parse_args(argv)
    try:
        return said_in_one_line("bigbatch watch", lambda: _watch(args)) or INTERRUPTED
    except KeyboardInterrupt:
        print("\nbigbatch watch: ended", file=sys.stderr)
    return INTERRUPTED


def _watch(args: argparse.Namespace) -> None:
    folders = [find_study(name, Path(args.output)) for name in args.study]
    if not 0 < args.every <= MOST_EVERY_S:
        raise ConfigError(
            f"--every must be more than 0 and at most {MOST_EVERY_S:g}; got {args.every:g}. Write e.g. {EVERY_S:g}."
        )
    if not 0 <= args.port <= 65535:
        raise ConfigError(f"--port must be from 1 to 65535; got {args.port}. Leave it out for a free one.")
    from bigbatch.tune.report.live_report import LiveReport, WatchServer

    live = LiveReport(folders, _page, args.every)
    try:
        server = WatchServer(live, args.port)
    except OSError as error:
        raise ConfigError(
            f"--port must be a port that nobody uses; got {args.port} ({error.strerror}). Leave it out for a free one."
        ) from None
    with server:
        print(_lines(server.url, server.port, [folder.name for folder in folders]), flush=True)
        live.start()
        server.serve_forever()


def _page(folders: Sequence[Path]) -> bytes:
    from bigbatch.tune.report.page import report_page
    from bigbatch.tune.report.recorded_study import open_recorded

    return report_page([open_recorded(folder) for folder in folders]).encode("utf-8", "replace")


def _lines(url: str, port: int, names: Sequence[str]) -> str:
    name = socket.getfqdn()
    # Some machines call themselves localhost.localdomain, where no tunnel leads.
    host = socket.gethostname() if name.startswith("localhost") else name
    tunnel = f"ssh -N -L {port}:127.0.0.1:{port} {user_name()}@{host}"
    return (
        f"The report of {', '.join(names)}:\n  {url}\n"
        f"On another machine, first open a tunnel:\n  {tunnel}\n"
        "The address holds a token: whoever knows it may read the report. Ctrl-C ends this."
    )
