"""Read a site's profile, a TOML file with its partitions, modules, network and storage.

Built-in profiles are in ``cluster/sites``. A user's own are in ``~/.config/bigbatch/sites``, or given by path. Only the
key ``name`` is required. Slurm or the user supplies what a profile leaves out; it is never guessed.
"""

from __future__ import annotations

import fnmatch
import os
import re
import socket
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bigbatch.base.command_line import did_you_mean, empty_value
from bigbatch.base.root import ROOT

BUILT_IN = ROOT / "cluster" / "sites"
GENERIC = "generic"
SITE_VARIABLE = "BIGBATCH_SITE"
NO_LIMIT_S = 10**9
"""A wall time without an end, as a number that can be compared."""


class InputError(ValueError):
    """The user's input is wrong. The message is one line: the rule, the value met, what to write instead."""


@dataclass(frozen=True)
class Partition:
    """A partition of a site. None and 0: not known."""

    name: str
    gpus_per_node: int | None = None
    cores_per_node: int | None = None
    cores_per_gpu: int | None = None
    max_nodes: int | None = None
    max_time_s: int | None = None
    gres: str = "gpu"
    """A GPU's name for ``--gres``, without the number."""
    account_suffix: str = ""
    """The required end of an account's name, e.g. ``@h100``."""
    modules: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    """Further options of sbatch that jobs here need."""
    default_qos: str | None = None
    is_default: bool = False
    """Whether Slurm chooses this partition if none is named."""


@dataclass(frozen=True)
class Site:
    """A site's profile. None: not known."""

    name: str
    path: Path
    title: str = ""
    source: str = ""
    login_host: str | None = None
    port_forwarding: bool = True
    account_required: bool = False
    requeue: bool = True
    """Whether a job may requeue itself. If not, it submits a successor."""
    internet: bool | None = None
    """Whether compute nodes reach the internet."""
    default_partition: str | None = None
    hosts: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    """Lines of shell that set up the environment, after the modules."""
    interface: str | None = None
    host_suffix: str | None = None
    node_tmp: str | None = None
    quota_command: str | None = None
    partitions: Mapping[str, Partition] = field(default_factory=dict)


# The profile's tables: key → type. Keys are the fields of the dataclasses, except a partition's max_time.
TEXT, WHOLE, FLAG, TEXTS, DURATION = "a string", "a whole number", "true or false", "a list of strings", "a time"
GRES = "NAME or NAME:TYPE"
_ROOT = {
    **dict.fromkeys(("name", "title", "source", "login_host", "default_partition"), TEXT),
    **dict.fromkeys(("port_forwarding", "account_required", "requeue", "internet"), FLAG),
}
_TABLES = {
    "detect": {"hosts": TEXTS, "variables": TEXTS},
    "environment": {"modules": TEXTS, "commands": TEXTS},
    "network": {"interface": TEXT, "host_suffix": TEXT},
    "storage": {"node_tmp": TEXT, "quota_command": TEXT},
}
FOR_PEOPLE = ("source", "gpu")
_PARTITION = {
    **dict.fromkeys((*FOR_PEOPLE, "account_suffix", "default_qos"), TEXT),
    **dict.fromkeys(("gpus_per_node", "cores_per_node", "cores_per_gpu", "max_nodes"), WHOLE),
    **dict.fromkeys(("modules", "options"), TEXTS),
    "max_time": DURATION,
    "gres": GRES,
}


def parse_time(text: str) -> int:
    """Seconds of a time in Slurm's forms: ``MM``, ``MM:SS``, ``HH:MM:SS``, ``D-HH``, ``D-HH:MM``, ``D-HH:MM:SS``.

    ``20h``, ``90m`` and ``2d`` work too. ``UNLIMITED`` and ``INFINITE``, which Slurm also accepts, give NO_LIMIT_S.
    Raises InputError for any other text.
    """
    if text.strip().upper() in ("UNLIMITED", "INFINITE"):
        return NO_LIMIT_S
    short = re.fullmatch(r"(\d+)([dhm])", text.strip())
    if short:
        return int(short[1]) * {"d": 86400, "h": 3600, "m": 60}[short[2]]
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if not found:
        raise InputError(f"a time must be D-HH:MM:SS or shorter; got {text!r}. Write e.g. 20:00:00 or 20h.")
    days, *clock = (int(part or 0) for part in found.groups())
    if found[1] is None and found[4] is None:  # minutes, seconds
        clock = [0, *clock[:2]]
    return days * 86400 + clock[0] * 3600 + clock[1] * 60 + clock[2]


def format_time(seconds: int) -> str:
    """A time in Slurm's form: ``20:00:00``, ``4-04:00:00``, ``UNLIMITED``."""
    if seconds >= NO_LIMIT_S:
        return "UNLIMITED"
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


def profile_paths(env: Mapping[str, str] = os.environ) -> dict[str, Path]:
    """Name → path of every profile. A user's profile replaces a built-in one of the same name."""
    found = {path.stem: path for path in sorted(BUILT_IN.glob("*.toml"))}
    folder = Path(env.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")) / "bigbatch" / "sites"
    try:
        own = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    except OSError:  # a home that this process may not enter, e.g. in a job without its Kerberos ticket
        own = {}
    # A user's own come first: of several that match this machine the first one is taken.
    return own | {name: path for name, path in found.items() if name not in own}


def find_site(site: str | None = None, env: Mapping[str, str] = os.environ, hosts: Iterable[str] | None = None) -> Site:
    """The profile with this name or path. None: the one in BIGBATCH_SITE, else the one that matches this machine.

    Raises InputError for an unknown name and for a wrong profile.
    """
    if site is not None and not site.strip():
        raise InputError(empty_value("--site", site))
    site = site or env.get(SITE_VARIABLE)
    if site and (site.endswith(".toml") or "/" in site):
        return load_site(Path(site).expanduser())
    known = profile_paths(env)
    if not site:
        # Sites' patterns may be written for the short or for the full name.
        names = list(hosts) if hosts is not None else [socket.gethostname(), socket.getfqdn()]
        sites = (load_site(path) for name, path in known.items() if name != GENERIC)
        return next((one for one in sites if _matches(one, env, names)), None) or load_site(known[GENERIC])
    if site not in known:
        raise InputError(f"--site must be a profile's name or path; got {site!r}. {did_you_mean(site, known)}")
    return load_site(known[site])


def _matches(site: Site, env: Mapping[str, str], hosts: Iterable[str]) -> bool:
    """Whether one host pattern matches, or all variables are set (``NAME`` or ``NAME=value``)."""
    if any(fnmatch.fnmatchcase(host, pattern) for host in hosts for pattern in site.hosts):
        return True
    wanted = [variable.partition("=") for variable in site.variables]
    are_set = (env.get(name) == value if equals else env.get(name) for name, equals, value in wanted)
    return bool(wanted) and all(are_set)


def load_site(path: Path) -> Site:
    """Read and check a profile. Raises InputError with one line that names the file."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise InputError(f"--site must be a readable file; got {str(path)!r} ({reason}).") from None
    except ValueError as error:
        raise InputError(f"a site profile must be TOML; {path} is no TOML: {error}.") from None
    try:
        return _site(document, path)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _site(document: Mapping[str, Any], path: Path) -> Site:
    tables = {key: value for key, value in document.items() if isinstance(value, dict)}
    plain = {key: value for key, value in document.items() if key not in tables}
    _known(tables, (*_TABLES, "partitions"), "table")
    values = _fields(plain, _ROOT, "the profile")
    for name, keys in _TABLES.items():
        values.update(_fields(tables.get(name, {}), keys, f"[{name}]"))
    if not values.get("name"):
        raise InputError('a profile needs a name. Write name = "my_cluster" at its top.')
    partitions = {name: _partition(name, table) for name, table in tables.get("partitions", {}).items()}
    default = values.get("default_partition")
    if default is not None and partitions and default not in partitions:
        raise InputError(f"default_partition must be one of the partitions; got {default!r}.")
    return Site(path=path, partitions=partitions, **values)


def _partition(name: str, table: Any) -> Partition:
    if not isinstance(table, dict):
        raise InputError(f"a partition must be a table; got {name!r}. Write [partitions.{name}] on its own line.")
    values = _fields(table, _PARTITION, f"[partitions.{name}]")
    limit = values.pop("max_time", None)
    return Partition(name, max_time_s=limit, **{key: values[key] for key in values if key not in FOR_PEOPLE})


def _fields(table: Mapping[str, Any], keys: Mapping[str, str], where: str) -> dict[str, Any]:
    """The checked values of a table. Raises InputError for an unknown key or a wrong type."""
    _known(table, keys, f"key of {where}")
    return {key: _checked(value, keys[key], f"{key} in {where}") for key, value in table.items()}


def _checked(value: Any, kind: str, what: str) -> Any:
    if kind == DURATION and isinstance(value, str):
        return parse_time(value)
    if kind == GRES and isinstance(value, str) and re.fullmatch(r"\w+(:(?!\d+$)[\w.-]+)?", value):
        return value
    if kind == TEXTS and isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        return tuple(value)
    # To Python, true is a whole number too.
    if kind == WHOLE and isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    if (kind == TEXT and isinstance(value, str)) or (kind == FLAG and isinstance(value, bool)):
        return value
    example = {DURATION: ", e.g. 20:00:00", WHOLE: " above 0", GRES: ", e.g. gpu:a100"}.get(kind, "")
    raise InputError(f"{what} must be {kind}{example}; got {value!r}.")


def _known(names: Iterable[str], known: Iterable[str], what: str) -> None:
    known = list(known)
    for name in names:
        if name not in known:
            raise InputError(f"no such {what}; got {name!r}. {did_you_mean(name, known)}")
