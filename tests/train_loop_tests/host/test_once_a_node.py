"""A folder that one process of a node makes for all: who asks while it is made gets it."""

import fcntl
import multiprocessing
from pathlib import Path

from bigbatch.train_loop.host.once_a_node import OnceANode
from helpers.waiting import wait_until


def hold(target: Path) -> None:
    is_whole, make = (lambda folder: (folder / "whole").exists()), (lambda folder: (folder / "whole").touch())
    OnceANode(target, target.name, is_whole, make, "makes").hold(keep=True)


def test_who_waits_to_make_it_reads_it_once_another_process_has_made_it(tmp_path, capfd):
    """Two ranks that begin at the same moment both find no folder, and both hold the lock shared: one of them makes the
    folder and holds it shared until it ends. The other one must not wait for that end."""
    target = tmp_path / "set"
    context = multiprocessing.get_context("fork")
    with Path(f"{target}.lock").open("a+") as maker:
        fcntl.flock(maker, fcntl.LOCK_SH)
        waiting = context.Process(target=hold, args=(target,), daemon=True)
        waiting.start()
        heard: list[str] = []

        def waits() -> bool:
            heard.append(capfd.readouterr().err)
            return "waiting for the process" in "".join(heard)

        wait_until(waits, "it does not wait")
        target.mkdir()
        (target / "whole").touch()
        waiting.join(60)
        assert waiting.exitcode == 0, "it waits for the end of the process that made the folder"
