"""Parse the job script's arguments: options of the job, then those of the search, or ``--`` and any command."""

from __future__ import annotations

import os
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bigbatch.base.command_line import check_study_name, empty_value, parse_whole_number
from bigbatch.base.root import ROOT
from bigbatch.base.waits import MARGIN_S, START_TIMEOUT_S
from bigbatch.cluster.host.profiles import InputError
from bigbatch.cluster.node.ray_commands import in_container_if_any, ray_python

TUNE_SCRIPT = ROOT / "tune" / "run.py"
USAGE = "sbatch [-N 4 …] cluster/ray_head_workers.slurm [options of the job] --space NAME … | -- COMMAND …"


@dataclass(frozen=True)
class JobOptions:
    """The parsed arguments of a job.

    Attributes:
        chain: near the time limit, submit a dependent successor; for sites that forbid requeueing.
        max_restarts: give up after this many restarts in a row without an epoch or a checkpoint.
        keep_logs: copy Ray's logs into the job's folder even if the run went well.
        margin_s: seconds before the time limit at which trials save and the driver ends.
        start_timeout_s: seconds that the nodes may take to register; meanwhile Ray's start is tried again.
        arguments: for tune/run.py; empty if there is a command.
        command: what to run in place of tune/run.py.
    """

    chain: bool = False
    max_restarts: int = 3
    keep_logs: bool = False
    margin_s: float = float(MARGIN_S)
    start_timeout_s: float = START_TIMEOUT_S
    arguments: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


FLAGS = {"--chain": "chain", "--keep-logs": "keep_logs"}
NUMBERS = {
    "--max-restarts": ("max_restarts", parse_whole_number),
    "--margin": ("margin_s", parse_whole_number),
    "--start-timeout": ("start_timeout_s", parse_whole_number),
}
"""Option → the field of ``JobOptions``, and how its value is read."""


def parse_job_options(argv: Sequence[str]) -> JobOptions:
    """Split the arguments. Raises InputError."""
    values: dict[str, object] = {}
    rest = list(argv)
    while rest:
        name, equals, text = rest[0].partition("=")
        if name in FLAGS and not equals:
            values[FLAGS[name]] = True
            rest = rest[1:]
        elif name in NUMBERS:
            values[NUMBERS[name][0]] = _number(name, text if equals else "".join(rest[1:2]))
            rest = rest[1 if equals else 2 :]
        else:
            break
    if rest[:1] == ["--"]:
        if not rest[1:]:
            raise InputError("-- must be followed by a command; got nothing. Write e.g. -- python driver.py.")
        if not rest[1].strip():
            raise InputError(empty_value("the command after --", rest[1]))
        return JobOptions(command=tuple(rest[1:]), **values)  # type: ignore[arg-type]
    if "--" in rest:
        got = " ".join(rest[: rest.index("--") + 2])
        raise InputError(f"give the search's options or a command after --, not both; got {got!r}. Write: {USAGE}")
    _refuse_empty(rest)
    if "--resume" not in rest and (study := value_of(rest, "--study")):
        check_study_name(study, InputError)
    return JobOptions(arguments=tuple(rest), **values)  # type: ignore[arg-type]


def _number(name: str, text: str) -> int:
    try:
        return NUMBERS[name][1](text)
    except ArgumentTypeError as error:
        raise InputError(f"{name} {error}") from None


def _refuse_empty(arguments: Sequence[str]) -> None:
    """Raise InputError for an empty value. The job itself reads the study's name and folder, before the search does."""
    before = ""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not argument.strip():
            raise InputError(empty_value(before if before.startswith("--") else "an argument", argument))
        if name.startswith("--") and equals and not value.strip():
            raise InputError(empty_value(name, value))
        before = argument


def value_of(arguments: Sequence[str], name: str) -> str | None:
    """The last value of option ``name``, given as ``--name value`` or ``--name=value``."""
    found = None
    for i, argument in enumerate(arguments):
        if argument == name and i + 1 < len(arguments):
            found = arguments[i + 1]
        elif argument.startswith(f"{name}="):
            found = argument.partition("=")[2]
    return found


def study_folder(options: JobOptions, default_name: str, cwd: Path) -> Path | None:
    """The folder of the search's study; None for a command of the user's own."""
    if options.command:
        return None
    output = value_of(options.arguments, "--output") or "runs"
    study = value_of(options.arguments, "--study") or default_name
    return Path(os.path.abspath(cwd / os.path.expanduser(output) / study))


def data_folder(options: JobOptions, cwd: Path) -> Path | None:
    """The folder of ``--data``; None if that names no path, and for a command of the user's own."""
    data = value_of(options.arguments, "--data") or ""
    path = cwd / os.path.expanduser(data)
    # FILE.py:FUNCTION may have a slash too, and is no folder.
    names_one = os.path.isdir(path) or (os.sep in data and ".py" not in data)
    return Path(os.path.abspath(path)) if data and names_one else None


def driver_command(options: JobOptions, default_name: str, address: str, folder: Path | None, again: bool) -> list[str]:
    """The driver's command line.

    Args:
        default_name: the study's name if the user gave none; the same for every restart of a job.
        again: this is a restart, so an existing study is the job's own.
    """
    if options.command:
        return in_container_if_any(options.command)
    arguments = [word for word in options.arguments if not again or word != "--retry-failed"]  # only in the first start
    named = value_of(arguments, "--study") is not None
    if not named:
        arguments += ["--study", default_name]
    started = folder is not None and os.path.exists(folder / "study.json")
    # In a first start the named study may be another search, and only the user may continue that one.
    if started and (again or not named) and "--resume" not in arguments:
        arguments.append("--resume")
    return [ray_python(), str(TUNE_SCRIPT), *arguments, "--address", address]


def check_workers(options: JobOptions, most: int | None, kind: str, fix: Callable[[int], str]) -> None:
    """Raise InputError if a trial needs more than the allocation has: it would wait for ever.

    ``most``: GPUs or CPUs of the allocation; None: not known. ``fix``: what else to write for so many workers.
    """
    try:
        wanted = parse_whole_number(value_of(options.arguments, "--workers") or "")
    except ArgumentTypeError:  # the search's own command line says so
        return
    if most and wanted > most:
        raise InputError(
            f"--workers must be at most the allocation's {most} {kind}; got {wanted}. "
            f"Write --workers {most}, or {fix(wanted)}."
        )
