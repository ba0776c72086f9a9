"""The processes that hold the virtual cluster: its keeper, and process 1 of each node.

keeper (on the machine)  ends everything and cleans up: on SIGTERM, or when the process that it serves ends
└ process 1 of ctl       controller and login node, with the bridge of the network; its end is everybody's end
  └ process 1 of n1…     a node; killing it is pulling the node's plug

Standard library only: these run with ``python -S``.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from virtual_config import CONTROLLER, FREEZER, Plan, freezer_writable, read_plan, write_files
from virtual_mounts import keep_reachable, mount, tmpfs
from virtual_processes import command, init_of

NAMESPACES = ("unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")


def keeper(folder: str, watched: str) -> None:
    """Start the controller; end it when told so, when ``watched`` (a process id) ends, or with it."""
    plan, stop = read_plan(folder), False
    os.umask(0o022)

    def on_term(*_: object) -> None:
        nonlocal stop
        stop = True

    signal.signal(signal.SIGTERM, on_term)
    controller = None
    try:
        watch = _open_process(int(watched))
        write_files(plan)
        # Should the keeper itself be killed, the cluster ends nevertheless; only files stay.
        controller = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *NAMESPACES, *command(CONTROLLER, folder)])
        while not stop and controller.poll() is None and not select.select([watch], [], [], 0)[0]:
            time.sleep(0.05)
    finally:
        if controller:
            end(controller, folder)
        clean(plan)


def end(controller: subprocess.Popen[bytes], folder: str) -> None:
    """Kill the controller's process 1, not its ``unshare``: that one ends when all processes of all nodes have."""
    init = init_of(folder, CONTROLLER)
    if init:
        os.kill(init, signal.SIGKILL)
    else:
        controller.kill()
    controller.wait()


def clean(plan: Plan) -> None:
    """Remove what a cluster leaves on the machine when its processes are gone."""
    remove_groups(plan.freezer)
    deadline = time.monotonic() + 10
    while plan.path.exists() and time.monotonic() < deadline:
        shutil.rmtree(plan.path, ignore_errors=True)


def _open_process(pid: int) -> int:
    """A descriptor that becomes readable when the process ends, whose number may then be given anew."""
    if pid != os.getppid():
        raise SystemExit("The process to watch has already ended.")
    return os.pidfd_open(pid)


def remove_groups(folder: Path, timeout_s: float = 10) -> None:
    """Remove control groups, whose processes may be about to end."""
    deadline = time.monotonic() + timeout_s
    for path, _, _ in os.walk(folder, topdown=False):
        while True:
            try:
                os.rmdir(path)
                break
            except FileNotFoundError:
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)


def controller(folder: str) -> None:
    plan = read_plan(folder)
    set_up(plan, CONTROLLER)
    _ip("link set lo up")
    # Without an address of its own a bridge takes that of one of its ports, which come and go.
    _ip(f"link add br0 address {plan.hardware_address(CONTROLLER)} type bridge")
    _ip(f"addr add {plan.address(CONTROLLER)}/24 dev br0")
    _ip("link set br0 up")
    start_munge(plan)
    start(plan, "slurmctld", "-D")
    network = os.open("/proc/self/ns/net", os.O_RDONLY)
    for name in plan.names:
        boot(folder, name, network)
    # Opened for writing too, the pipe never comes to its end.
    pipe = os.open(plan.path / "boot", os.O_RDWR)
    while True:
        if select.select([pipe], [], [], 0.1)[0]:
            for name in os.read(pipe, 4096).decode().split():
                boot(folder, name, network)
        while reap():
            pass


def boot(folder: str, name: str, network: int) -> None:
    """Start a node, which takes the controller's network along as a descriptor to plug itself in."""
    subprocess.Popen([*NAMESPACES, *command("node", folder, name, network)], pass_fds=[network])


def node(folder: str, name: str, network: str) -> None:
    plan = read_plan(folder)
    if freezer_writable():
        group = plan.freezer / name
        remove_groups(group)
        group.mkdir()
    set_up(plan, name)
    plug_in(plan, name, int(network))
    start(plan, "slurmd", "-D", "-N", name)
    while True:
        if not reap():
            time.sleep(0.1)


def set_up(plan: Plan, name: str) -> None:
    """What a node has to itself: its name, folders, control group; what it shows: the reachable trees."""
    socket.sethostname(name)
    stage = plan.path / "nodes" / name

    def privatise() -> None:
        for path, mode in (("/tmp", "1777"), ("/run", "0755")):
            tmpfs(path, mode)
        tmpfs("/dev/shm", "1777", size=f"{plan.memory_mb // 2}m")
        mount("--bind", plan.path / "etc", "/etc")
        if name != CONTROLLER and freezer_writable():
            mount("--bind", plan.freezer / name, FREEZER)

    keep_reachable(plan.readable, stage, privatise)


def plug_in(plan: Plan, name: str, network: int) -> None:
    """A cable from this node to the controller's bridge. It goes with the node."""
    names = Path("/run/netns")
    names.mkdir()
    (names / "outside").symlink_to(f"/proc/self/fd/{network}")
    port = f"port-{name}"
    # A node that was cut off a moment ago may still have its end.
    subprocess.run(["ip", "-n", "outside", "link", "del", port], stderr=subprocess.DEVNULL, pass_fds=[network])
    for line in (
        f"link add eth0 address {plan.hardware_address(name)} type veth peer name {port} netns outside",
        f"-n outside link set {port} master br0 up",
        "link set lo up",
        f"addr add {plan.address(name)}/24 dev eth0",
        "link set eth0 up",
    ):
        _ip(line, network)
    os.close(network)
    shutil.rmtree(names)


def start_munge(plan: Plan) -> None:
    folder = plan.path / "munge"
    files = {"socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    options = [f"--{option}={folder / file}" for option, file in files.items()]
    subprocess.Popen(["munged", "--foreground", f"--key-file={plan.path / 'munge.key'}", *options])
    while not (folder / "socket").exists():
        time.sleep(0.02)


def start(plan: Plan, *daemon: str) -> None:
    # Beside its own log, for what it says before it has opened that.
    name = "-".join(word for word in daemon if not word.startswith("-"))
    with open(plan.path / "log" / f"{name}.out", "ab") as log:
        subprocess.Popen([*daemon, "-f", str(plan.conf)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def reap() -> bool:
    """Process 1 inherits every orphan. Whether one was met."""
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


def _ip(line: str, *descriptors: int) -> None:
    subprocess.run(["ip", *line.split()], check=True, pass_fds=descriptors)


if __name__ == "__main__":
    roles: dict[str, Callable[..., None]] = {"keeper": keeper, CONTROLLER: controller, "node": node}
    roles[sys.argv[1]](*sys.argv[2:])
