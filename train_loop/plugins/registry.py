"""Calls the user's functions, ``FILE.py:FUNCTION``, and tells errors of their code from errors of ours.

No torch here.
"""

from __future__ import annotations

import functools
import inspect
import sysconfig
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bigbatch.train_loop.config.own_names import OwnFunction, function_of, load_module, own_name, source_text
from bigbatch.train_loop.config.rules import ConfigError
from bigbatch.train_loop.errors import OwnCodeError, is_lost_peer


def loaded(key: str, word: str, given: tuple[str, ...], options: Mapping[str, object]) -> OwnFunction:
    """The function, which takes the positional arguments ``given`` (their names) and ``options``.

    Raises ConfigError if there is none, or it takes others; OwnCodeError as ``load_function``.
    """
    function = load_function(key, word)
    check_call(key, word, function, given, options)
    return function


def made(key: str, word: str, given: Mapping[str, object], options: Mapping[str, object]) -> object:
    """What the function returns for the arguments ``given`` (name → value) and ``options``.

    Raises as ``loaded``; what the function raises becomes an OwnCodeError.
    """
    function = loaded(key, word, tuple(given), options)
    with users_code(key, word):
        return function(*given.values(), **options)


def load_function(key: str, word: str) -> OwnFunction:
    """The function that ``FILE.py:FUNCTION`` names. A file runs once in a process, until its text changes.

    While it loads, Python finds the files beside it first. Afterwards it finds them last, where they hide no library:
    for functions that import when they are called.

    Args:
        key: the option or the configuration key that holds ``word``, for messages.

    Raises:
        ConfigError: there is no such file or function, or it is no function.
        OwnCodeError: the file raised an exception. The message is that exception's traceback in the user's files.
    """
    name = own_name(key, word)
    source = source_text(key, name)
    with users_code(key, str(name)):
        module = load_module(name, source)
    return function_of(key, name, module)


def check_call(key: str, word: str, function: OwnFunction, given: Sequence[str], options: Mapping[str, object]) -> None:
    """Raise ConfigError unless ``function`` takes the positional arguments ``given`` (their names) and ``options``."""
    unplain = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
    if any(one(function) for one in unplain):  # a call of it runs none of it
        raise ConfigError(
            f"{key} must name a function without async and yield; got {word!r}. Write `def` and `return`."
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # callables of C have none: the call itself shows what they take
    try:
        signature.bind(*given, **options)
    except TypeError as error:
        wanted = ", ".join([*given, *options])
        raise ConfigError(
            f"{key} must name a function of ({wanted}); got {word!r}, which is a function of "
            f"{signature}: {error}. Change the function or the options."
        ) from None


@contextmanager
def users_code(key: str, word: str) -> Iterator[None]:
    """Within the block, an exception of the user's code becomes an OwnCodeError with the traceback in the user's files.

    So does ``sys.exit``, which argparse calls, too: it would end our process without telling where. ConfigError,
    OwnCodeError, the loss of another rank, and exceptions that are no ``Exception`` pass unchanged.
    """
    try:
        yield
    except (ConfigError, OwnCodeError):
        raise
    except (Exception, SystemExit) as error:
        if is_lost_peer(error):
            raise
        # `contextmanager` passes on a StopIteration that is a RuntimeError's cause, and it would end a loop of ours.
        raise OwnCodeError(_told(key, word, error)) from None if isinstance(error, StopIteration) else error


@contextmanager
def whose_error(words: Mapping[str, str]) -> Iterator[None]:
    """An error that passed through a user's file becomes an OwnCodeError, unless its type is one of this package's.

    So does ``sys.exit``. The loss of another rank passes unchanged.

    It is for code that calls users' code all the time, such as training: it costs nothing until an error is raised.

    Args:
        words: the users' files by key (``names.own_words``).
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        mine = type(error).__module__.startswith("bigbatch.") or isinstance(error, MemoryError) or is_lost_peer(error)
        found = None if mine else _passed(error, words)
        if found is None:
            raise
        raise OwnCodeError(_told(*found, error)) from None if isinstance(error, StopIteration) else error


def _passed(error: BaseException, words: Mapping[str, str]) -> tuple[str, str] | None:
    """Key and word of the user's code in the error's traceback; None if there is none.

    The named function comes first, then its file, then a file beside it.
    """
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    theirs = [(Path(code.co_filename), code.co_name) for code in codes if not _is_installed(Path(code.co_filename))]

    def distance(word: str) -> int:
        file, _, function = word.rpartition(":")
        met = [
            2 - (path == Path(file)) - ((path, name) == (Path(file), function))
            for path, name in theirs
            if path.is_relative_to(Path(file).parent)
        ]
        return min(met, default=3)

    found = min(words.items(), key=lambda item: distance(item[1]), default=None)
    return found if found and distance(found[1]) < 3 else None


def _is_installed(path: Path) -> bool:
    # Python's import machinery has names such as <frozen importlib._bootstrap>.
    library = path.is_relative_to(sysconfig.get_path("stdlib")) or str(path).startswith("<frozen")
    return library or "site-packages" in path.parts or _is_ours(str(path))


def _told(key: str, word: str, error: BaseException) -> str:
    """Key, file, and the traceback in the user's files: without frames of this package and of libraries."""
    if isinstance(error, SystemExit):
        ended = RuntimeError(f"the code ends the process: SystemExit({error.code})")
        error = ended.with_traceback(error.__traceback__)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
    begins = next((i for i, frame in enumerate(frames) if frame.filename == word.rpartition(":")[0]), 0)
    theirs = [frame for frame in frames[begins:] if not _is_installed(Path(frame.filename))] or frames[begins:]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(theirs)]
    lines += traceback.format_exception_only(error)
    return f"the code of {key}={word} raised {type(error).__name__}.\n{''.join(lines).rstrip()}"


@functools.cache
def _is_ours(filename: str) -> bool:
    """Whether a file belongs to this package (its folders lie in a clone's root, or in ``site-packages``)."""
    try:
        parts = Path(filename).resolve().relative_to(Path(__file__).resolve().parents[2]).parts
    except ValueError:
        return False
    return parts[0] in ("train_loop", "tune", "cluster", "search_spaces", "src")
