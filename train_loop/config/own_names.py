"""``FILE.py:FUNCTION``: a function in a Python file of the user's, as options and configurations name it. No torch.

This file also loads that file, which may import the files beside it, and makes the fingerprints that show whether a
resumed study or run still has the code with which it began.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import io
import os
import sys
import threading
import tokenize
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bigbatch.base.command_line import did_you_mean
from bigbatch.train_loop.config.rules import ConfigError, is_own
from bigbatch.train_loop.config.train_config import TrainConfig

_beside: dict[str, Path] = {}
"""Modules that users' files have imported from their own folder: name → folder."""


@contextmanager
def folder_first(folder: Path) -> Iterator[None]:
    """Within the block Python finds the files in ``folder`` first, even if another folder's file has the same name.

    Use it while a file loads. Afterwards the files beside it could hide libraries of the same name.
    """
    for name in [name for name, other in _beside.items() if other != folder and _is_there(folder, name)]:
        for loaded in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
            del sys.modules[loaded]
        del _beside[name]
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        # The user's file may have changed the path itself.
        if str(folder) in sys.path:
            sys.path.remove(str(folder))
        new = {name.partition(".")[0] for name in set(sys.modules) - before}
        _beside.update({name: folder for name in new if _is_there(folder, name)})


def _is_there(folder: Path, name: str) -> bool:
    return os.path.isfile(folder / f"{name}.py") or os.path.isdir(folder / name)


OwnFunction = Callable[..., object]


@dataclass(frozen=True)
class OwnName:
    """A function in a file."""

    path: Path
    """Absolute."""
    function: str

    def __str__(self) -> str:
        return f"{self.path}:{self.function}"


def own_words(config: TrainConfig) -> dict[str, str]:
    """The configuration's users' files, ``FILE.py:FUNCTION``, by key: ``model.name``, ``loss``, ``metrics``, …"""
    words = {
        "model.name": config.model.name,
        "data.name": config.data.name,
        "loss": config.loss,
        "optimizer.name": config.optimizer.name,
        "trainable.name": config.trainable.name,
        **{f"metrics[{number}]": word for number, word in enumerate(config.metrics)},
    }
    return {key: word for key, word in words.items() if is_own(word)}


def with_absolute_words(config: TrainConfig, folder: Path | None = None) -> TrainConfig:
    """The configuration with absolute paths of the user's files. Raises ConfigError for one that is not there.

    ``folder``: relative paths are relative to it if the file is there, else to the current folder.
    """
    words = own_words(config)
    if folder is not None:
        words = {key: _within(folder, word) for key, word in words.items()}
    words = {key: absolute(key.partition("[")[0], word) for key, word in words.items()}
    changes: dict[str, object] = {key: word for key, word in words.items() if not key.startswith("metrics[")}
    if len(changes) < len(words):
        changes["metrics"] = [words.get(f"metrics[{number}]", word) for number, word in enumerate(config.metrics)]
    if config.model.pretrained and os.path.exists(os.path.expanduser(config.model.pretrained)):
        changes["model.pretrained"] = os.path.abspath(os.path.expanduser(config.model.pretrained))
    return config.replace_keys(changes) if changes else config


def _within(folder: Path, word: str) -> str:
    path, _, function = word.rpartition(":")
    return f"{folder / path}:{function}" if os.path.isfile(folder / path) else word


def own_name(key: str, word: str) -> OwnName:
    """What ``word`` names; a relative path is relative to the current folder.

    Args:
        key: the option or the configuration key that holds it, for messages.

    Raises ConfigError for a file without a function's name and for a file that is not there.
    """
    path, colon, function = word.rpartition(":")
    if not colon or not path.endswith(".py") or not function.isidentifier():
        path = path if colon and path.endswith(".py") else word
        raise ConfigError(f"{key} must name a function of the file; got {word!r}. Write {path}:FUNCTION.")
    found = Path(os.path.abspath(os.path.expanduser(path)))
    if not os.path.isfile(found):  # False also for one in a folder that may not be entered
        raise ConfigError(f"{key} must name a Python file that is there; got {word!r}. Check the path.")
    return OwnName(found, function)


def absolute(key: str, word: str) -> str:
    """``word`` with an absolute path if it names a function of a file; any other word as it is.

    A run's processes have other current folders. Raises ConfigError as ``own_name``.
    """
    return str(own_name(key, word)) if is_own(word) else word


def source_text(key: str, name: OwnName) -> str:
    """The text of the file. Raises ConfigError if it cannot be read."""
    try:
        return name.path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(
            f"{key} must name a Python file that can be read; got '{name.path}' ({reason}). Check the file."
        ) from None


# A file that loads may name another one: a plain lock would wait for itself.
_loading = threading.RLock()


def load_module(name: OwnName, source: str) -> types.ModuleType:
    """The module of the file: that of an earlier call, or the one that runs now. Raises what the file raises.

    It is compiled from the text, not through import's cache: that can miss the second of two edits within a second.
    """
    digest = hashlib.sha256(f"{name.path}\n{source}".encode()).hexdigest()[:12]
    title = f"bigbatch_own_{name.path.stem}_{digest}"
    with _loading:
        if title in sys.modules:
            return sys.modules[title]
        module = types.ModuleType(title)
        module.__file__ = str(name.path)
        sys.modules[title] = module  # dataclasses and pickle look their module up
        try:
            with folder_first(name.path.parent):
                exec(compile(source, str(name.path), "exec"), module.__dict__)
        # Ctrl-C, too: half a module must not be found the next time.
        except BaseException:
            del sys.modules[title]
            raise
        if str(name.path.parent) not in sys.path:
            sys.path.append(str(name.path.parent))
    return module


def function_of(key: str, name: OwnName, module: types.ModuleType) -> OwnFunction:
    """The function in the module of its file. Raises ConfigError, with the nearest name, if there is none."""
    found = getattr(module, name.function, None)
    if found is None:
        present = [n for n, v in vars(module).items() if _is_from(v, module) and not n.startswith("_")]
        fix = did_you_mean(name.function, present, f"Functions there: {', '.join(present) or 'none'}.")
        raise ConfigError(f"{key} must name a function of {name.path}; got {name.function!r}. {fix}")
    if not callable(found):
        raise ConfigError(f"{key} must name a function; {name} is {type(found).__name__}. Write `def {name.function}`.")
    return found


def _is_from(value: object, module: types.ModuleType) -> bool:
    is_code = inspect.isfunction(value) or inspect.isclass(value)
    return is_code and getattr(value, "__module__", None) == module.__name__


ACCEPT = "--accept-changed-code"


def code_fingerprint(key: str, word: str) -> str:
    """SHA-256 of the file that ``word`` names, and of the files beside it that it imports, in turn, without comments.

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
        digest.update(f"{path.relative_to(name.path.parent)}\n{without_comments(texts[path])}\n".encode())
    return digest.hexdigest()


def without_comments(source: str) -> str:
    """The text without Python's comments; unchanged if it cannot be read as Python.

    It uses the tokenizer, because the output of ``ast`` differs between versions of Python.
    """
    written = [*io.StringIO(source)]
    lines = list(written)
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            row, column = token.start
            # After a backslash even an empty line would end the statement elsewhere.
            if token.type == tokenize.COMMENT and not (row > 1 and written[row - 2].endswith("\\\n")):
                code, end = lines[row - 1][:column].rstrip(), "\n" if lines[row - 1].endswith("\n") else ""
                lines[row - 1] = code + end if code else ""
    except (tokenize.TokenError, SyntaxError):
        return source
    return "".join(lines)


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
