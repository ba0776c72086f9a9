"""A package ``ray`` that starts in a moment, and Slurm's commands for one node: for tests of what is around them."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from helpers.paths import ROOT
from helpers.processes import clean_environment, program
from helpers.waiting import wait_until

RAY_START = '''
"""Takes `ray start`'s options, says that it runs, and does until it is ended."""
import glob, json, os, signal, subprocess, sys, threading
tries = os.path.join(os.environ["STAND_IN_STATE"], "tries")
with open(tries, "a") as file:
    file.write("x")
if os.path.getsize(tries) <= int(os.environ.get("STAND_IN_FAILS", "0")):
    threading.Event().wait(float(os.environ["STAND_IN_FAILS_AFTER_S"]))
    sys.exit("Exception: The current node timed out during startup.")
options = dict(a[2:].split("=", 1) for a in sys.argv[1:] if a.startswith("--") and "=" in a)
path = os.path.join(os.environ["STAND_IN_STATE"], options["node-ip-address"] + ".json")
def remove(path):
    try:
        os.unlink(path)
    except FileNotFoundError:  # another node's process that ends, or the head that starts, was first
        pass
def end(*_):
    remove(path)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
if "--head" in sys.argv:  # a new cluster knows nothing of an earlier one's nodes
    [remove(old) for old in glob.glob(os.environ["STAND_IN_STATE"] + "/*.json")]
labels = dict(pair.split("=") for pair in options["labels"].split(","))
with open(path, "w") as file:
    node = {"ip": options["node-ip-address"], "cpus": options["num-cpus"], "gpus": options["num-gpus"]}
    json.dump({**node, "labels": labels}, file)
os.makedirs(options["temp-dir"] + "/session_2/logs")
open(options["temp-dir"] + "/session_2/logs/raylet.out", "w").write("a line")
if "STAND_IN_LACKS" in os.environ:
    open(os.path.dirname(options["temp-dir"]) + "/ray-forks.failed", "w").write(os.environ["STAND_IN_LACKS"])
subprocess.Popen(["sleep", "997"], start_new_session=True)
print("Ray runtime started.", flush=True)
while True:
    signal.pause()
'''
RAYLET = """
import glob, json, os, types
class GcsClient:
    def __init__(self, address): pass
    def get_all_node_info(self, timeout):
        found = {}
        for path in glob.glob(os.environ["STAND_IN_STATE"] + "/*.json"):
            node = json.load(open(path))
            found[node["ip"].encode()] = types.SimpleNamespace(state=0, node_manager_address=node["ip"],
                resources_total={"CPU": float(node["cpus"]), "GPU": float(node["gpus"])}, labels=node["labels"])
        return found
    def drain_node(self, *arguments):
        with open(os.environ["STAND_IN_STATE"] + "/drained", "a") as file:
            print(*arguments, file=file)
"""


def install(folder: Path) -> None:
    """Write the package below ``folder``, which is to be on PYTHONPATH; its processes meet in $STAND_IN_STATE."""
    files = {
        "ray/__init__.py": "from ray import _raylet",
        "ray/_raylet.py": RAYLET,
        "ray/scripts/__init__.py": "",
        "ray/scripts/scripts.py": RAY_START,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


COMMANDS = {
    "srun": 'while [ "$1" != "$STAND_IN_PYTHON" ]; do shift; done; exec "$@"',
    "squeue": "echo PENDING",
    "scancel": "true",
    "sbatch": 'echo "$*" >> "{folder}/calls"; echo 6',
    # While the file "down" is there the controller does not answer; names of nodes need none.
    "scontrol": """case "$*" in *hostnames*) echo n1; exit;; esac
[ -e "{folder}/down" ] && {{ echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1; }}
case "$*" in
*config*) echo "KillWait = ${{KILL_WAIT:-30}}";;
*"show job"*) cat "{folder}/answer";;
*) echo "$*" >> "{folder}/calls";;
esac""",
}


class StandInJob:
    """``python -m bigbatch.cluster.job ARGUMENTS`` on one node of job ``job_id``, without Slurm and Ray.

    ``STAND_IN_FAILS``: how many starts of Ray fail, each after ``STAND_IN_FAILS_AFTER_S``. ``STAND_IN_LACKS``: why the
    node cannot load what trials need.
    ``answer``: the fields of ``scontrol show job``. ``without``: one of Slurm's commands, which is missing.
    ``command``: what is run in place of the module. ``KILL_WAIT``: a variable, what the configuration has.
    """

    def __init__(
        self,
        folder: Path,
        job_id: str,
        *arguments: str,
        answer: str = "JobState=RUNNING",
        without: str = "",
        command: Sequence[object] = (),
        **env: str,
    ):
        self.folder, self.home = folder, {"BIGBATCH_HOME": str(folder / "home")}
        for name in ("bin", "state", "package"):
            (folder / name).mkdir()
        for name, script in COMMANDS.items():
            program(folder / "bin" / name, script.format(folder=folder))
        (folder / "bin" / without).unlink() if without else None
        self.says(answer)
        install(folder / "package")
        values = {
            "PATH": f"{folder}/bin:{os.environ['PATH']}", "PYTHONPATH": str(folder / "package"),
            "STAND_IN_STATE": str(folder / "state"), "STAND_IN_PYTHON": sys.executable,
            "BIGBATCH_INTERFACE": "lo", "BIGBATCH_CWD": str(folder),
            "SLURM_JOB_ID": job_id, "SLURM_JOB_NODELIST": "n1", "SLURM_CPUS_PER_TASK": "1",
            "SLURM_TASKS_PER_NODE": "1", "SLURM_JOB_END_TIME": str(int(time.time() + 600)),
        }  # fmt: skip
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                [*map(str, command or (sys.executable, "-m", "bigbatch.cluster.job")), *arguments],
                cwd=ROOT if command else ROOT / "src", stdout=log, stderr=subprocess.STDOUT,
                env={**clean_environment(), **self.home, **values, **env},
            )  # fmt: skip

    def says(self, answer: str) -> None:
        (self.folder / "answer").write_text(f"JobId=7 Command=/ray_head_workers.slurm NumNodes=1 {answer}\n")

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")  # a line may be half written

    @property
    def calls(self) -> str:
        """What Slurm was told to do."""
        path = self.folder / "calls"
        return path.read_text() if path.exists() else ""

    def wait(self, condition: Callable[[], bool], timeout_s: float = 240) -> None:
        wait_until(condition, lambda: self.log, timeout_s)

    def wait_log(self, text: str, timeout_s: float = 240) -> None:
        self.wait(lambda: text in self.log, timeout_s)

    def end(self) -> int:
        self.wait(lambda: self.process.poll() is not None)
        return self.process.returncode


SEARCH = """\
case "$1" in */tune/run.py) ;; *) exec "{python}" "$@";; esac
trap '{saves}; echo SAVED; exit 143' TERM
echo RUNNING
while :; do sleep 0.1; done
"""


def start_search(folder: Path, saves: str, *options: str, **env: str) -> StandInJob:
    """Job 7 with a stand-in for ``tune/run.py`` that does ``saves`` when it is told to end."""
    python = program(folder / "python", SEARCH.format(python=sys.executable, saves=saves))
    env |= {"BIGBATCH_NODE_PYTHON": str(python)}
    job = StandInJob(folder, "7", *options, "--study", "s", "--space", "smoke", **env)
    job.wait_log("RUNNING")
    return job


def record_of(folder: Path) -> dict[str, Any]:
    """What the record of job 7 says."""
    values: dict[str, Any] = json.loads((folder / "home" / "jobs" / "7" / "job.json").read_text())
    return values
