#!/usr/bin/env python3
"""The virtual cluster's command line, for people: python tests/slurm/virtual_command.py --help."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from virtual_cluster import PLACE, PREFIX, VirtualCluster
from virtual_config import USERS


def _running() -> Path:
    """The folder of the newest cluster that ``up`` left running."""
    found = sorted(PLACE.glob(f"{PREFIX}*/by-hand"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise SystemExit("No cluster is up. Start one with: virtual_command.py up")
    return found[-1].parent


def _up(options: argparse.Namespace) -> None:
    if reason := VirtualCluster.available():
        raise SystemExit(reason)
    sizes = {name: getattr(options, name) for name in ("nodes", "cpus", "memory_mb", "gpus")}
    cluster = VirtualCluster(**sizes, readable=options.readable).up(detached=True)
    (cluster.shared / "by-hand").touch()
    print(f"{options.nodes} nodes are idle; shared folder {cluster.shared}")


def _exec(options: argparse.Namespace) -> None:
    line = VirtualCluster.attach(_running()).command(options.node, *options.command, user=options.user)
    os.execvp(line[0], line)


def main() -> None:
    parser = argparse.ArgumentParser(description="A real Slurm with several nodes on one machine.")
    actions = parser.add_subparsers(dest="action", required=True)
    up = actions.add_parser("up", help="start a cluster that stays until `down`")
    for name, default in (("--nodes", 3), ("--cpus", 2), ("--memory-mb", 8000), ("--gpus", 2)):
        up.add_argument(name, type=int, default=default)
    up.add_argument("--readable", nargs="*", default=[], help="paths that ordinary users shall reach on every node")
    run = actions.add_parser("exec", help="run a command on a node")
    run.add_argument("node", help="ctl, n1, n2…")
    run.add_argument("--user", choices=sorted(USERS))
    run.add_argument("command", nargs="+")
    for name in ("poweroff", "poweron", "suspend", "resume"):
        actions.add_parser(name).add_argument("node")
    for name in ("logs", "down"):
        actions.add_parser(name)
    options = parser.parse_args()
    if options.action == "up":
        _up(options)
    elif options.action == "exec":
        _exec(options)
    else:
        arguments = [options.node] if hasattr(options, "node") else []
        answer = getattr(VirtualCluster.attach(_running()), options.action)(*arguments)
        if answer:
            print(answer)


if __name__ == "__main__":
    main()
