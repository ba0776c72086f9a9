"""A real PostgreSQL server with one database, for tests that use one."""

import getpass
import os
import shutil
import signal
import subprocess
from pathlib import Path

from helpers.waiting import wait_until

PASSWORD = "s3cret-word"


def server_programs() -> Path | None:
    """The folder of initdb and postgres; Debian keeps them off PATH."""
    found = [Path(p) for p in (shutil.which("initdb"),) if p]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


class Server:
    """PostgreSQL with one database, which can be stopped and started."""

    def __init__(self, folder: str, programs: Path, as_user: list[str], port: int) -> None:
        self.data, self.port = f"{folder}/data", port
        options = ["-F", "-D", self.data, "-h", "127.0.0.1", "-p", str(port), "-k", folder]
        self._command = [*as_user, str(programs / "postgres"), *options]
        self._process: subprocess.Popen | None = None
        self.url = f"postgresql+psycopg://bb:{PASSWORD}@127.0.0.1:{port}/postgres"

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL, cwd="/")
        wait_until_it_answers(self.url, self._process)

    def stop(self, signum: int = signal.SIGINT) -> None:
        """SIGINT ends its connections, SIGQUIT ends it as a crash does."""
        if self._process is not None and self._process.poll() is None:  # else it did not start, which was said
            pid = Path(self.data, "postmaster.pid").read_text().split()[0]  # runuser does not pass signals on
            os.kill(int(pid), signum)
        if self._process is not None:
            self._process.wait(120)


def wait_until_it_answers(url: str, server: subprocess.Popen) -> None:
    """An open port is not enough: after a crash the server first recovers, and refuses connections meanwhile."""
    import psycopg

    def answers() -> bool:
        assert server.poll() is None, f"PostgreSQL of {getpass.getuser()} has ended"
        try:
            psycopg.connect(url.replace("+psycopg", ""), connect_timeout=5).close()
        except psycopg.OperationalError as error:
            return not any(text in str(error) for text in ("refused", "starting up", "recovery", "timeout"))
        return True

    wait_until(answers, f"PostgreSQL of {getpass.getuser()} does not start")
