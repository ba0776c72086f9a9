"""Processes as copies of a server: real ones, compared with what an interpreter of their own does."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bigbatch.base import fork_server
from helpers.processes import clean_environment
from helpers.waiting import wait_until

WORKER = """
import json, os, random, signal, sys
import __main__
facts = {
    "argv": sys.argv[1:], "name": __name__, "file": __main__.__file__, "cwd": os.getcwd(),
    "loaded": "colorsys" in sys.modules,
    "variables": {k: v for k, v in os.environ.items() if k.startswith(("OMP", "A_", "PYTHON", "JE_"))},
    "niceness": os.getpriority(os.PRIO_PROCESS, 0), "leads": os.getpgrp() == os.getpid(), "input": sys.stdin.read(),
    "handler": signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL, "pid": os.getpid(), "parent": os.getppid(),
    "random": random.random(), "open": len(os.listdir("/proc/self/fd")),
    "oom_score": open("/proc/self/oom_score_adj").read(),
}
print("to standard error", file=sys.stderr, flush=True)
with open(sys.argv[-1], "w") as file:
    json.dump(facts, file)
os.rename(sys.argv[-1], sys.argv[-1] + ".done")
"""


def in_its_own_place() -> None:
    os.setpgrp()
    os.nice(3)
    Path("/proc/self/oom_score_adj").write_text("700")


class Server:
    """A server of one small module, and processes that it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        own = {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(folder), "A_VARIABLE": "of the client"}
        self.environment = {**clean_environment(), **own}
        self.path = str(folder / "forks")
        self.program = folder / "worker.py"
        self.program.write_text(WORKER)
        self.asked = 0

    def start(self, *modules: str) -> None:
        with pytest.MonkeyPatch.context() as patch:
            others = {name: value for name, value in self.environment.items() if name != "PYTHONSAFEPATH"}
            patch.setattr(os, "environ", {**others, "A_VARIABLE": "of the server"})
            self.process = fork_server.launch(self.path, modules)
        wait_until(lambda: os.path.exists(self.path), "the server listens", 60, 0.02)

    def ask(self, *before: object, **variables: str) -> tuple[dict[str, object], str]:
        """What a process finds that is asked for with words ``before`` its program; and its standard error."""
        self.asked += 1
        out = self.folder / f"facts-{self.asked}.json"
        words = [*map(str, before), str(self.program), "one", "two words", str(out)]
        raylet = fork_server.instead_of_python([f"{fork_server.WORKERS}{sys.executable} x"], self.path)[0]
        command = raylet.removeprefix(fork_server.WORKERS).split(" ")[:-1]
        done = subprocess.run(
            [*command, *words], input="given", capture_output=True, text=True, cwd=self.folder, timeout=60,
            env={**self.environment, **variables}, preexec_fn=in_its_own_place,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        finished = Path(f"{out}.done")
        wait_until(finished.exists, "the process has ended", 60, 0.02)
        facts = json.loads(finished.read_text())
        assert facts["argv"] == ["one", "two words", str(out)]
        return facts, done.stderr


@contextlib.contextmanager
def started(folder: Path, *modules: str) -> Iterator[Server]:
    one = Server(folder)
    one.start("colorsys", *modules)
    yield one
    one.process.kill()
    one.process.communicate()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with started(tmp_path_factory.mktemp("server")) as one:
        yield one


def context(**values: object) -> str:
    return fork_server.CONTEXT + json.dumps({"command_prefix": [], "env_vars": {}, "java_jars": [], **values})


def test_a_copy_finds_what_an_interpreter_of_its_own_would_find(tmp_path: Path) -> None:
    with started(tmp_path) as server:
        copy, said = server.ask()
        assert not fork_server.failure(server.path)
    alone, also = server.ask()  # nobody answers: the same words in an interpreter
    assert (copy.pop("loaded"), alone.pop("loaded")) == (True, False)
    assert copy.pop("parent") == server.process.pid != alone.pop("parent")
    for name in ("argv", "pid", "random"):
        assert copy.pop(name) != alone.pop(name)
    assert copy == alone and copy["variables"]["A_VARIABLE"] == "of the client"  # type: ignore[index]
    assert copy["niceness"] == min(os.getpriority(os.PRIO_PROCESS, 0) + 3, 19)
    assert copy["leads"] and copy["input"] == "given"
    assert copy["oom_score"] == "700\n"
    assert said == also == "to standard error\n"


def test_variables_of_rays_runtime_environment_are_set(server: Server) -> None:
    set_up = server.folder / fork_server.SETS_UP
    facts, _ = server.ask(set_up, context(env_vars={"A_VARIABLE": "of the job", "A_NEW": "1"}), "--language=PYTHON")
    assert facts["loaded"] and facts["variables"]["A_VARIABLE"] == "of the job"  # type: ignore[index]
    assert facts["variables"]["A_NEW"] == "1"  # type: ignore[index]


SET_UP = """
import json, os, sys
values = json.loads(next(w for w in sys.argv if w.startswith("--serialized")).partition("=")[2])
os.environ.update(values["env_vars"])
os.execv(sys.executable, [sys.executable, *(w for w in sys.argv[1:] if not w.startswith("--"))])
"""


@pytest.mark.parametrize(
    "values",
    [
        {"py_executable": "/opt/other/python"},
        {"command_prefix": ["source activate x &&"]},
        {"env_vars": {"A_PATH": "${HOME}/x"}},
        {"env_vars": {"PYTHONPATH": "/opt/other"}},
        {"env_vars": {"LD_LIBRARY_PATH": "/opt/other"}},
    ],
    ids=str,
)
def test_what_only_ray_can_set_up_is_left_to_ray(server: Server, values: dict[str, object]) -> None:
    set_up = server.folder / fork_server.SETS_UP
    set_up.write_text(SET_UP)
    facts, _ = server.ask(set_up, context(**values))
    assert not facts["loaded"] and facts["parent"] == server.process.pid


def test_a_server_that_has_threads_or_does_not_know_the_program_copies_nothing(tmp_path: Path) -> None:
    (tmp_path / "threads_a.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    with started(tmp_path, "threads_a", "no_such_module") as server:
        facts, _ = server.ask()
        assert not facts["loaded"] and facts["parent"] != server.process.pid
        assert fork_server.failure(server.path) == "ModuleNotFoundError: No module named 'no_such_module'"


HOLDER = """
import signal, sys
from bigbatch.base import fork_server
print(fork_server.launch(sys.argv[1], ["colorsys"]).pid, flush=True)
signal.pause()
"""


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "forks")], stdout=subprocess.PIPE, text=True,
        env=clean_environment(),
    )  # fmt: skip
    assert holder.stdout is not None
    server = psutil.Process(int(holder.stdout.readline()))
    holder.kill()
    holder.communicate()
    server.wait(60)


def test_what_it_loads_for_ray_starts_no_thread_and_asks_no_driver_for_gpus() -> None:
    """Nor is it any of Ray, whose core reads its settings when it is loaded."""
    code = """
import importlib, os, sys
from bigbatch.base import fork_server
import torch
asked = []
for owner, name, answer in (
    (torch._C, "_cuda_getDeviceCount", 0), (torch._C, "_cuda_init", 0), (torch.cuda, "_device_count_nvml", -1),
):
    setattr(owner, name, lambda name=name, answer=answer: asked.append(name) or answer)
for module in fork_server.LIBRARIES:
    importlib.import_module(module)
print("ray" in sys.modules, len(os.listdir("/proc/self/task")), asked, torch.cuda.is_initialized())
torch.cuda.device_count()
print(asked)
"""
    variables = {"GOTO_NUM_THREADS": "4", **fork_server.ONE_THREAD}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240,
        env={**clean_environment(), **variables},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["False 1 [] False", "['_device_count_nvml', '_cuda_getDeviceCount']"]
