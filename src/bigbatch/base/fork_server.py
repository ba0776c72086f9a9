"""Ray's worker processes as forks of a server that has loaded torch: each starts in a moment, not in seconds.

A raylet starts this file in place of Python's worker. It passes its words, environment, standard streams, folder and
niceness to the server, and ends. The server forks. It has loaded nothing of Ray, because Ray's core reads its settings
when it is loaded, and has used no GPU. In these cases a new interpreter starts, as without this file: no server
answers; the server has threads (a fork would lose them); the process must find its modules elsewhere; the program is
no search, and may set what libraries read when they are loaded, such as the number of threads.

The first function runs with ``-I -S`` and needs few imports, because it runs for each process.
"""

from __future__ import annotations

import marshal
import os
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

ANSWER_S = 30.0
"""How long a process waits for the libraries. A raylet waits for 60 s until a process has come."""
READY, COPIED = b"ready", b"copied"
OF_RAY = (
    "click", "filelock", "fsspec", "google.protobuf.descriptor_pb2", "jsonschema", "psutil", "pyarrow.dataset",
    "pydantic", "requests", "rich.live", "yaml",
)  # fmt: skip
"""What Ray itself needs."""
LIBRARIES = (*OF_RAY, "pandas", "torchvision", "bigbatch.train_loop.loop.train")
"""Everything slow to load that a search's processes and Ray need, except Ray itself. Every trial needs the last one."""
FAILED = ".failed"
"""Suffix of a file beside the socket. It says why the last library cannot be loaded."""
LARGEST = 1 << 20
"""Bytes of a request: as many as an environment and a command line may have together on most systems."""
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",  # NumPy's asks for this one first
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""With these the libraries start no threads. Otherwise they start one per core, or as many as a user's shell says."""
OOM_SCORE = "/proc/self/oom_score_adj"
SETS_UP = "setup_worker.py"
"""Ray's program that sets the variables of a process, and becomes Python's default worker."""
WORKERS = "--python_worker_command="
CLIENT = "start"
CONTEXT = "--serialized-runtime-env-context="


def start(path: str, words: list[str]) -> None:
    """Let the server at ``path`` run ``python WORDS`` as this process would; if it cannot, become that process."""
    answer = b""
    try:  # if anything is missing, such as this folder, a new interpreter may still start
        with open(OOM_SCORE) as file:
            place = (os.getcwd(), os.getpriority(os.PRIO_PROCESS, 0), os.getpgrp() == os.getpid(), file.read())
        request = marshal.dumps((words, dict(os.environ), place))
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
            server.settimeout(ANSWER_S)
            server.connect(path)
            if server.recv(len(READY)) == READY:
                socket.send_fds(server, [request], [0, 1, 2])
                answer = server.recv(len(COPIED))
    except OSError:
        pass
    if answer != COPIED:
        os.execv(sys.executable, [sys.executable, *words])


def serve(path: str, modules: list[str]) -> None:
    """Import ``modules`` and answer requests at ``path``, until the process that holds our standard input ends."""
    import contextlib
    import select
    import signal

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(64)
        _load(modules, path + FAILED)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a copy
        while True:
            if 0 in select.select([listener.fileno(), 0], [], [])[0]:
                return
            connection, _ = listener.accept()
            streams: list[int] = []
            with connection, contextlib.suppress(OSError, EOFError, ValueError, TypeError):  # gone, or nonsense
                connection.settimeout(ANSWER_S)
                connection.send(READY)
                message, streams, _, _ = socket.recv_fds(connection, LARGEST, 3)
                words, environment, place = marshal.loads(message)
                if len(os.listdir("/proc/self/task")) == 1:
                    if os.fork() == 0:
                        break
                    connection.send(COPIED)
            for stream in streams:
                os.close(stream)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    _move(*place)
    _become(words, environment)


def _load(modules: list[str], failed: str) -> None:
    import contextlib
    import gc
    import importlib

    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # a process that needs it imports it again
            if module == modules[-1]:
                with contextlib.suppress(OSError), open(failed, "w") as file:
                    file.write(f"{type(error).__name__}: {error}")
    gc.collect()
    gc.freeze()  # forks do not collect these objects, so the kernel need not copy their memory


def _move(folder: str, niceness: int, leads: bool, oom_score: str) -> None:
    """Take over from the process that asked: its folder, process group, niceness and out-of-memory score."""
    import contextlib

    if leads:  # Ray ends a worker's group with it
        os.setpgrp()
    with contextlib.suppress(OSError):  # it was removed just now
        os.chdir(folder)
    with contextlib.suppress(PermissionError):  # to lower them
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
        with open(OOM_SCORE, "w") as file:  # Ray raises it, so that the kernel ends a worker before the raylet
            file.write(oom_score)


def _become(words: list[str], environment: dict[str, str]) -> None:
    """Run ``python WORDS`` with this environment."""
    import json
    from types import ModuleType

    loaded_with = _decides_modules()
    os.environ.clear()
    os.environ.update(environment)
    options = dict(word.split("=", 1) for word in words if word.startswith(CONTEXT))
    context = json.loads(options.get(CONTEXT[:-1], "{}"))
    variables = context.pop("env_vars", {})
    python = context.pop("py_executable", sys.executable)
    program = [word for word in words if not word.startswith((CONTEXT, "--language="))]
    if os.path.basename(program[0]) == SETS_UP:
        del program[0]
        os.environ.update(variables)
    is_plain = python == sys.executable and not any(context.values()) and "$" not in "".join(variables.values())
    if not is_plain or not os.path.isfile(program[0]) or _decides_modules() != loaded_with:
        os.environ.clear()
        os.environ.update(environment)
        os.execv(sys.executable, [sys.executable, *words])
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # Python's own does it by itself, torch's always begins with the same
    sys.argv = program
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = program[0]
    with open(program[0], "rb") as file:
        code = compile(file.read(), program[0], "exec")
    exec(code, main.__dict__)


def _decides_modules() -> list[object]:
    """The variables that decide where modules are found, without repeated folders."""
    names = sorted(name for name in os.environ if name.startswith(("PYTHON", "LD_")))
    return [(name, list(dict.fromkeys(os.environ[name].split(os.pathsep)))) for name in names]


# Where Ray is started


def launch(path: str, modules: Sequence[str] = LIBRARIES) -> subprocess.Popen[bytes]:
    """Start the server of ``modules``. It ends when its ``stdin`` is closed: at the latest with this process."""
    import subprocess

    # On a node, only a search's processes have PYTHONSAFEPATH: so only they become forks.
    environment = {**os.environ, **ONE_THREAD, "PYTHONSAFEPATH": "1"}
    silent = subprocess.DEVNULL
    return subprocess.Popen(
        [sys.executable, __file__, path, *modules],
        stdin=subprocess.PIPE, stdout=silent, stderr=silent, env=environment, process_group=0,
    )  # fmt: skip


def failure(path: str) -> str:
    """Why the server at ``path`` could not load its last module, in one line; empty if it could, or still tries."""
    try:
        with open(path + FAILED, errors="replace") as file:
            return " ".join(file.read().split())
    except OSError:
        return ""


def instead_of_python(command: list[str], path: str) -> list[str]:
    """The command line with which a raylet makes the server at ``path`` start Python's workers."""
    import subprocess

    client = [sys.executable, "-I", "-S", __file__, CLIENT, path]
    before, after = (f"{WORKERS}{subprocess.list2cmdline(words)} " for words in ([sys.executable], client))
    return [after + word.removeprefix(before) if word.startswith(before) else word for word in command]


if __name__ == "__main__":
    if sys.argv[1] == CLIENT:
        start(sys.argv[2], sys.argv[3:])
    else:
        serve(sys.argv[1], sys.argv[2:])
