"""Fingerprints of users' components: a study or a run that resumes must have the code that it began with. No torch."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from bigbatch.train_loop.config.own_names import own_name, source_text
from bigbatch.train_loop.config.plug_ins import is_own
from bigbatch.train_loop.config.rules import ConfigError

ACCEPT = "--accept-changed-code"


def code_fingerprint(key: str, word: str) -> str:
    """SHA-256 of the text of the file that ``word`` names, and of the files beside it that it imports, in turn.

    Imports are found by reading, wherever they stand in the file; nothing runs. A file that cannot be parsed counts by
    its text alone. Raises ConfigError if the file is not there.
    """
    name = own_name(key, word)
    texts = {name.path: source_text(key, name)}
    waiting = [name.path]
    while waiting:
        path = waiting.pop()
        for found in _imported_beside(texts[path], name.path.parent):
            if found not in texts:
                # Python itself refuses a file that is not UTF-8; a fingerprint need not.
                texts[found] = found.read_text(encoding="utf-8", errors="replace")
                waiting.append(found)
    digest = hashlib.sha256()
    for path in sorted(texts):
        digest.update(f"{path.relative_to(name.path.parent)}\n{texts[path]}\n".encode())
    return digest.hexdigest()


def code_fingerprints(words: Iterable[str]) -> dict[str, str]:
    """``code_fingerprint`` of each word that names a user's file, by word. Raises ConfigError for one that is gone."""
    return {word: code_fingerprint("a component", word) for word in sorted(set(words)) if is_own(word)}


def check_same_code(before: Mapping[str, str], now: Mapping[str, str], what: str, accept: bool = False) -> None:
    """Raise ConfigError, in one line, if a component of ``before`` has another fingerprint now.

    Components that only one of them has are other values of the configuration, which other checks compare.

    Args:
        what: what resumes: "a study", "a run".
        accept: whether the user goes on with changed code.
    """
    changed = [word for word, digest in before.items() if word in now and now[word] != digest]
    if changed and not accept:
        more = f" and {len(changed) - 1} more" if changed[1:] else ""
        raise ConfigError(
            f"{what} goes on with the code that it began with; '{changed[0]}'{more} has changed, or a file that it "
            f"imports. Restore it, or write {ACCEPT}."
        )


def _imported_beside(source: str, folder: Path) -> list[Path]:
    """The files in ``folder`` that a file there imports: ``import beside``, ``from parts.beside import x``."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        # level 0: a file that is run by its path has no package to import from.
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    found = []
    for name in sorted(names):
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            path = folder.joinpath(*parts[:count])
            found += [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()]
    return found
