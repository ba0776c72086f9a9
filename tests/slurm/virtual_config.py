"""What the virtual cluster is made of, and the configuration files that say so to Slurm."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

NETWORK = "10.77.0"
"""Exists in the nodes' network namespaces only."""
CONTROLLER = "ctl"
USERS = {"alice": 20001, "bob": 20002}
PATIENT_GRACE_S = 60
"""Of the partition ``patient``: what sites grant whose jobs have something to save."""
FREEZER = Path("/sys/fs/cgroup/freezer")


@dataclass(frozen=True)
class Plan:
    """A cluster. Its folder lies at the same path on the machine and in every node: the shared file system."""

    folder: str
    nodes: int = 3
    cpus: int = 2
    memory_mb: int = 8000
    gpus: int = 2
    readable: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= 200:
            raise ValueError(f"nodes must be 1 to 200, got {self.nodes}.")
        for path in self.readable:
            if Path(self.folder).is_relative_to(path):
                raise ValueError(f"readable must not hold the cluster's own folder {self.folder}, got {path}.")

    @property
    def names(self) -> list[str]:
        return [f"n{number}" for number in range(1, self.nodes + 1)]

    @property
    def path(self) -> Path:
        return Path(self.folder)

    @property
    def conf(self) -> Path:
        return self.path / "etc" / "slurm" / "slurm.conf"

    @property
    def freezer(self) -> Path:
        """The control group below which this cluster's nodes keep theirs, so that two clusters do not meet."""
        return FREEZER / self.path.name

    def address(self, node: str) -> str:
        return f"{NETWORK}.{254 if node == CONTROLLER else node[1:]}"

    def hardware_address(self, node: str) -> str:
        """The same after a power cut: else others send to the old one for the eight seconds in which they forget it."""
        return f"02:00:00:00:00:{int(self.address(node).rpartition('.')[2]):02x}"

    def home(self, user: str) -> Path:
        return self.path / "home" / user

    def write(self) -> None:
        (self.path / "plan.json").write_text(json.dumps(dataclasses.asdict(self)))


def read_plan(folder: str | Path) -> Plan:
    values = json.loads((Path(folder) / "plan.json").read_text())
    return Plan(**{**values, "readable": tuple(values["readable"])})


def freezer_writable() -> bool:
    """Control groups of version 1: without them Slurm loses processes that leave their session."""
    return os.access(FREEZER / "cgroup.procs", os.W_OK)


def write_files(plan: Plan) -> None:
    """Everything below the cluster's folder that has to be there before the first node starts."""
    path = plan.path
    path.chmod(0o755)
    for name in ("state", "log", "munge", "dev", "home", *(f"nodes/{n}" for n in (CONTROLLER, *plan.names))):
        (path / name).mkdir(parents=True)
    (path / "munge.key").write_bytes(os.urandom(1024))
    (path / "munge.key").chmod(0o400)
    for number in range(plan.gpus):
        # Slurm takes character devices only for GPUs. These are /dev/null's.
        device = path / "dev" / f"nvidia{number}"
        os.mknod(device, stat.S_IFCHR, os.makedev(1, 3))
        device.chmod(0o666)
    if freezer_writable():
        plan.freezer.mkdir()
    os.mkfifo(path / "boot", 0o600)
    _write_etc(plan)
    for user, number in USERS.items():
        plan.home(user).mkdir(mode=0o700)
        os.chown(plan.home(user), number, number)


def _write_etc(plan: Plan) -> None:
    """A copy of /etc, which every node mounts over its own: users and hosts that exist inside only."""
    etc = plan.path / "etc"
    shutil.copytree("/etc", etc, symlinks=True, ignore_dangling_symlinks=True, ignore=_not_plain)
    for name in ("hosts", "slurm"):
        _remove(etc / name)
    hosts = ["127.0.0.1 localhost", *(f"{plan.address(n)} {n}" for n in (CONTROLLER, *plan.names))]
    (etc / "hosts").write_text("\n".join(hosts) + "\n")
    for user, number in USERS.items():
        with open(etc / "passwd", "a") as file:
            file.write(f"{user}:x:{number}:{number}::{plan.home(user)}:/bin/bash\n")
        with open(etc / "group", "a") as file:
            file.write(f"{user}:x:{number}:\n")
    (etc / "slurm").mkdir()
    plan.conf.write_text(slurm_conf(plan))
    if plan.gpus:
        (etc / "slurm" / "gres.conf").write_text(f"Name=gpu File={plan.path}/dev/nvidia[0-{plan.gpus - 1}]\n")
    if freezer_writable():
        cgroup = f"CgroupMountpoint={FREEZER.parent}\nCgroupPlugin=cgroup/v1\n"
        (etc / "slurm" / "cgroup.conf").write_text(cgroup)


def _not_plain(folder: str, names: list[str]) -> list[str]:
    """Sockets, pipes and devices cannot be copied."""
    paths = {name: os.path.join(folder, name) for name in names}
    return [n for n, p in paths.items() if not (os.path.islink(p) or os.path.isdir(p) or os.path.isfile(p))]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def slurm_conf(plan: Plan) -> str:
    tracking = "cgroup" if freezer_writable() else "linuxproc"
    gres = f" Gres=gpu:{plan.gpus}" if plan.gpus else ""
    types = "GresTypes=gpu\n" if plan.gpus else ""
    path = plan.path
    return f"""ClusterName=virtual
SlurmctldHost={CONTROLLER}({plan.address(CONTROLLER)})
SlurmUser=root
AuthType=auth/munge
# So long a requeued job waits; Slurm's default.
AuthInfo=socket={path}/munge/socket,cred_expire=120
StateSaveLocation={path}/state
SlurmdSpoolDir=/run/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={path}/log/slurmctld.log
SlurmdLogFile={path}/log/slurmd-%n.log
JobCompType=jobcomp/filetxt
JobCompLoc={path}/log/jobcomp.txt
ProctrackType=proctrack/{tracking}
JobAcctGatherType=jobacct_gather/linux
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU={plan.memory_mb // plan.cpus}
# Nodes have what this file says, whatever the machine below them has.
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
# A node that was cut off is noticed within 25 s; with the usual MessageTimeout of 10 s it can take 35 s.
SlurmdTimeout=10
MessageTimeout=7
InactiveLimit=0
# Slurm's default. Less is too short on a busy machine for jobs that end in order, which the tests look for.
KillWait=30
# Finished jobs stay known for the length of a test session.
MinJobAge=3600
{types}NodeName=n[1-{plan.nodes}] CPUs={plan.cpus} RealMemory={plan.memory_mb}{gres} State=UNKNOWN
{_partitions(plan)}"""


def _partitions(plan: Plan) -> str:
    """The lines of slurm.conf for the partitions, from which each test takes what it needs."""
    return f"""PartitionName=DEFAULT Nodes=ALL MaxTime=INFINITE OverSubscribe=NO State=UP
PartitionName=main Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=8
PartitionName=patient PriorityTier=1 PreemptMode=REQUEUE GraceTime={PATIENT_GRACE_S}
PartitionName=abrupt PriorityTier=1 PreemptMode=REQUEUE GraceTime=0
PartitionName=scrap PriorityTier=1 PreemptMode=CANCEL GraceTime=8
PartitionName=urgent PriorityTier=10 PreemptMode=OFF
"""
