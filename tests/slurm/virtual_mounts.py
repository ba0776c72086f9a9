"""Mounts of one node: private folders, and chosen trees made reachable for ordinary users.

Runs inside a node's own mount namespace. Nothing here is seen outside of it, so a home with mode 0700
stays as it is on the machine while the Python below it can be executed inside the nodes.
"""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

SEARCH, READ_AND_SEARCH = stat.S_IXOTH, stat.S_IROTH | stat.S_IXOTH


def mount(*arguments: object) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True)


def tmpfs(path: str | Path, mode: str, size: str = "50%") -> None:
    mount("-t", "tmpfs", "-o", f"mode={mode},size={size}", "tmpfs", path)


def with_targets(paths: Iterable[str | Path]) -> list[Path]:
    """The paths and what they are links to, parents first, each once."""
    found = {Path(os.path.abspath(path)) for path in paths}
    found |= {path.resolve() for path in found}
    return sorted(found, key=lambda path: (len(path.parts), path))


def keep_reachable(paths: Iterable[str | Path], stage: Path, privatise: Callable[[], None]) -> None:
    """Run ``privatise``, which may hide folders; then every path is reachable and read-only for all users.

    The trees are first bound below ``stage``, an empty folder that ``privatise`` leaves alone. A folder above
    a path that others may not search is covered with an empty one, and the path is bound back into that.
    """
    staged: dict[Path, Path] = {}
    for number, path in enumerate(with_targets(paths)):
        staged[path] = stage / str(number)
        make_like(path, staged[path])
        mount("--rbind", path, staged[path])
    privatise()
    for path, place in staged.items():
        expose(place, path)
    for place in staged.values():
        subprocess.run(["umount", "--recursive", "--lazy", place], check=True)


def expose(place: Path, path: Path) -> None:
    """Bind ``place`` to ``path`` where every user reaches it."""
    for ancestor in reversed(path.parents):
        if ancestor.is_dir() and not ancestor.stat().st_mode & SEARCH:
            tmpfs(ancestor, "0755")
    if not path.exists():
        make_like(place, path)
    if place.is_dir() and place.stat().st_mode & READ_AND_SEARCH != READ_AND_SEARCH:
        expose_entries(place, path)
    else:
        bind_read_only(place, path)


def expose_entries(place: Path, path: Path) -> None:
    """A bind mount keeps the folder's own mode, so one that is closed itself is replaced by an open one."""
    tmpfs(path, "0755")
    for entry in place.iterdir():
        if entry.is_symlink():
            (path / entry.name).symlink_to(os.readlink(entry))
        elif entry.is_dir() or entry.is_file():
            make_like(entry, path / entry.name)
            bind_read_only(entry, path / entry.name)


def bind_read_only(place: Path, path: Path) -> None:
    mount("--rbind", place, path)
    mount("-o", "remount,bind,ro", path)


def make_like(model: Path, path: Path) -> None:
    """An empty folder or file to mount ``model`` on."""
    if model.is_dir():
        path.mkdir(parents=True, exist_ok=True)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
