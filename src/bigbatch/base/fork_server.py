"""Ray's processes for work as copies of one that has loaded torch: each starts in a moment, not in seconds.

A raylet starts this file in place of Python's worker. It hands what it was given (words, environment, standard streams,
folder, niceness) to the server, which copies itself, and ends. The server has loaded nothing of Ray, whose core reads
its settings when it is loaded, and has touched no GPU. Where it cannot help, a new interpreter starts, as without this:
where no server answers, where it has threads (a copy would have none of them), where the process is to find its modules
elsewhere, and in another program than a search, which may set what libraries read as they are loaded, such as the
number of threads.

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
"""What a search's processes need, and Ray: all that takes long to load, but for Ray itself. No trial can do without the
last."""
FAILED = ".failed"
"""The end of the name of a file beside the socket: why the last library cannot be loaded."""
LARGEST = 1 << 20
"""Bytes of a request: as many as an environment and a command line may have together on most systems."""
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",  # NumPy's asks for this one first
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""With these the libraries start no threads: one for each core, or as many as a user's shell says."""
OOM_SCORE = "/proc/self/oom_score_adj"
SETS_UP = "setup_worker.py"
"""Ray's program that sets the variables of a process, and becomes Python's default worker."""
WORKERS = "--python_worker_command="
CLIENT = "start"
CONTEXT = "--serialized-runtime-env-context="


def start(path: str, words: list[str]) -> None:
    """Let the server at ``path`` do ``python WORDS`` as this process would; else become that process."""
    answer = b""
    try:  # whatever is not there, such as this folder: a new interpreter can do without
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
    """Import ``modules`` and answer requests at ``path``, until standard input ends: with the process that holds it."""
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
        except Exception as error:  # who needs it imports it again
            if module == modules[-1]:
                with contextlib.suppress(OSError), open(failed, "w") as file:
                    file.write(f"{type(error).__name__}: {error}")
    gc.collect()
    gc.freeze()  # no copy looks at what is there, which would make it copy the memory


def _move(folder: str, niceness: int, leads: bool, oom_score: str) -> None:
    """Take the place of the process that asked: its folder, and what the kernel and Ray know it by."""
    import contextlib

    if leads:  # Ray ends a worker's group with it
        os.setpgrp()
    with contextlib.suppress(OSError):  # it was removed just now
        os.chdir(folder)
    with contextlib.suppress(PermissionError):  # to lower them
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
        with open(OOM_SCORE, "w") as file:  # Ray raises it: a worker is to go before the raylet
            file.write(oom_score)


def _become(words: list[str], environment: dict[str, str]) -> None:
    """Do what ``python WORDS`` does with this environment."""
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
    """What decides where modules are found, without what stands twice."""
    names = sorted(name for name in os.environ if name.startswith(("PYTHON", "LD_")))
    return [(name, list(dict.fromkeys(os.environ[name].split(os.pathsep)))) for name in names]


# Where Ray is started


def launch(path: str, modules: Sequence[str] = LIBRARIES) -> subprocess.Popen[bytes]:
    """Start the server of ``modules``. It ends when its ``stdin`` is closed: at the latest with this process."""
    import subprocess

    # A search's processes have PYTHONSAFEPATH, and on a node no others do: only they are copies.
    environment = {**os.environ, **ONE_THREAD, "PYTHONSAFEPATH": "1"}
    silent = subprocess.DEVNULL
    return subprocess.Popen(
        [sys.executable, __file__, path, *modules],
        stdin=subprocess.PIPE, stdout=silent, stderr=silent, env=environment, process_group=0,
    )  # fmt: skip


def failure(path: str) -> str:
    """Why the server at ``path`` could not load the last of its modules, in one line; empty if it could, or tries."""
    try:
        with open(path + FAILED, errors="replace") as file:
            return " ".join(file.read().split())
    except OSError:
        return ""


def instead_of_python(command: list[str], path: str) -> list[str]:
    """The command line of a raylet, with which it has the server at ``path`` start Python's workers."""
    import subprocess

    client = [sys.executable, "-I", "-S", __file__, CLIENT, path]
    before, after = (f"{WORKERS}{subprocess.list2cmdline(words)} " for words in ([sys.executable], client))
    return [after + word.removeprefix(before) if word.startswith(before) else word for word in command]


if __name__ == "__main__":
    if sys.argv[1] == CLIENT:
        start(sys.argv[2], sys.argv[3:])
    else:
        serve(sys.argv[1], sys.argv[2:])
