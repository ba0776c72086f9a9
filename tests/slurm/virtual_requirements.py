"""What a virtual cluster needs of the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from virtual_init import NAMESPACES

PACKAGES = "slurmctld slurmd slurm-client munge iproute2"
INSTALL = f"apt-get install -y --no-install-recommends {PACKAGES}"
PROGRAMS = "slurmctld slurmd sbatch srun squeue scancel scontrol sinfo munged ip mount umount unshare nsenter setpriv"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PROBE = "mount -t tmpfs tmpfs /tmp && ip link add br0 type bridge && ip link add v0 type veth peer name v1"


def missing() -> str | None:
    """None where a cluster can run, else why not and what helps."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return "A virtual Slurm needs Linux 5.3 or newer."
    absent = [name for name in PROGRAMS.split() if shutil.which(name, path=PATH) is None]
    install = f"{', '.join(absent)} not installed. Run as root: apt-get update && {INSTALL}" if absent else ""
    if os.geteuid() != 0:
        return f"A virtual Slurm needs root, for namespaces: run the tests as root in a container. {install}".rstrip()
    if absent:
        return install
    probe = subprocess.run([*NAMESPACES, "sh", "-c", PROBE], capture_output=True, text=True, timeout=30)
    if probe.returncode:
        reason = (probe.stderr.strip().splitlines() or ["no reason given"])[-1]
        return f"Namespaces are refused here ({reason}). In Docker: docker run --privileged."
    return None
