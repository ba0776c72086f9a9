"""Write a batch script that the site accepts, and submit it.

Everything is checked before submission: a job that would wait for hours and then fail is refused here.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Unpack

from bigbatch.base.atomic_files import write_text
from bigbatch.base.command_line import did_you_mean
from bigbatch.base.root import ROOT
from bigbatch.base.waits import MARGIN_S
from bigbatch.cluster.host import slurm_commands
from bigbatch.cluster.host.allocation import PLANNED_NODES
from bigbatch.cluster.host.profiles import BUILT_IN, NO_LIMIT_S, InputError, Site, find_site, format_time
from bigbatch.cluster.job.allocated_nodes import DEVICE_VARIABLES
from bigbatch.cluster.record import job_record
from bigbatch.cluster.submission import request_checks, search_check
from bigbatch.cluster.submission.request_checks import Request, RequestFields
from bigbatch.cluster.submission.resources import JobResources, job_resources, slurm_partitions

SCRIPT = "ray_head_workers.slurm"


def submit(
    *arguments: str | int | float | os.PathLike[str],
    site: str | None = None,
    dry_run: bool = False,
    check: bool = True,
    env: Mapping[str, str] | None = None,
    **request_options: Unpack[RequestFields],
) -> str:
    """Submit a search; returns the job's id (with ``dry_run`` the script that would be submitted).

    ``arguments`` are those of ``tune/run.py``, or ``"--"`` and a command; ``request_options`` are the other fields of
    ``Request``. With ``check`` the search is checked first, as ``bigbatch tune --dry-run`` does, in the environment of
    the job if that works on this machine (``search_check``). If it could not be checked, a line on stderr says so.

    Raises InputError for resources that the site does not grant and for an impossible search, SlurmError if Slurm is
    missing or refuses.
    """
    env = os.environ if env is None else env
    known = Request.__dataclass_fields__
    for name in request_options:
        if name not in known:
            raise InputError(f"no such field of Request; got {name!r}. {did_you_mean(name, known)}")
    values = {k: os.fspath(v) if isinstance(v, os.PathLike) else v for k, v in request_options.items()}
    request = Request(arguments=tuple(map(str, arguments)), **values)  # type: ignore[arg-type]
    return submit_request(request, find_site(site, env), dry_run=dry_run, check=check, env=env)


def submit_request(
    request: Request,
    site: Site,
    *,
    dry_run: bool = False,
    check: bool = True,
    env: Mapping[str, str] = os.environ,
) -> str:
    """As ``submit``, for a complete request and a known site."""
    if not dry_run and not slurm_commands.is_installed():
        raise slurm_commands.SlurmError(
            "sbatch is not on PATH. Submit on a login node, or write --dry-run to see the script."
        )
    check_files(request)
    needs = job_resources(request, site, env, slurm_partitions())
    script = render_batch_script(request, site, needs, env)
    if check and request.is_search:
        _check_search(request, needs, render_batch_script(request, site, needs, env, check_only=True))
    if dry_run:
        return script
    path = _keep(script, request, env)
    # Also on the command line: variables such as SBATCH_ACCOUNT override the script's own lines.
    directives = _directives(request, site, needs, env)
    return slurm_commands.sbatch(str(path), options=directives, env=_outside_of_jobs(os.environ))


def _check_search(request: Request, needs: JobResources, script: str) -> None:
    """Raise InputError if the job would refuse the search. Prints why it could not be checked, or not in full."""
    cwd = work_folder(request)
    env = _outside_of_jobs(os.environ)
    if not request.nodes_may_differ:
        env[PLANNED_NODES] = f"{needs.nodes}x{needs.cpus_per_node}c{needs.gpus_per_node}g"
    note = search_check.check_search(script, cwd, env)
    if note:
        print(f"bigbatch cluster: {note}", file=sys.stderr)


def _outside_of_jobs(env: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables of a surrounding job (JupyterHub, salloc): the new job would get them."""
    kept = {k: v for k, v in env.items() if not k.startswith(("SLURM_", "SRUN_")) or k == "SLURM_CONF"}
    # An array, and an sbatch that waits for the job's end: no option of sbatch takes these back.
    kept = {k: v for k, v in kept.items() if k not in ("SBATCH_ARRAY_INX", "SBATCH_WAIT")}
    # Outside of a job CUDA_VISIBLE_DEVICES is the user's own choice; within one it was Slurm's.
    return {k: v for k, v in kept.items() if k not in DEVICE_VARIABLES} if env.get("SLURM_JOB_ID") else kept


def _keep(script: str, request: Request, env: Mapping[str, str]) -> Path:
    """Keep the script where its job finds it again: the job may submit its own successor."""
    name = f"{re.sub('[^A-Za-z0-9._-]', '_', request.name)}-{hashlib.sha256(script.encode()).hexdigest()[:12]}.slurm"
    path = job_record.records_home(env) / "scripts" / name
    try:
        home = job_record.make_home(env)
        for folder in ("logs", "scripts"):
            (home / folder).mkdir(exist_ok=True, mode=0o700)
        write_text(path, script)
    except OSError as error:
        raise InputError(
            f"{job_record.HOME_VARIABLE} must be a folder that can be written; "
            f"got {str(job_record.records_home(env))!r} ({error.strerror}). Set it to one that all nodes see."
        ) from None
    return path


def work_folder(request: Request) -> str:
    """The folder in which the job will run."""
    folders = [option.partition("=")[2] for option in request.options if option.startswith("--chdir=")]
    return os.path.abspath(folders[-1]) if folders else os.getcwd()


def check_files(request: Request) -> None:
    """Raise InputError if a file that the job needs is missing."""
    for option, path in (("--container", request.container), ("--prelude", request.prelude)):
        if path and not os.path.isfile(os.path.expanduser(path)):
            raise InputError(f"{option} must be an existing file; got {path!r}. Check the path.")
    python = request.python
    if python and not request.container and not shutil.which(os.path.expanduser(python)):
        raise InputError(f"--python must be an interpreter that can be run; got {python!r}.")


# The script


def render_batch_script(
    request: Request,
    site: Site,
    needs: JobResources,
    env: Mapping[str, str],
    *,
    root: Path = ROOT,
    check_only: bool = False,
) -> str:
    """The whole batch script. Raises InputError for a text with more than one line.

    ``check_only``: it ends where the job would begin, with a check of the search.
    """
    modules = (*site.modules, *(needs.partition.modules if needs.partition else ()))
    arguments = f"{search_check.ARGUMENT} " * check_only + _arguments(request, site)
    unless = f" || echo {shlex.quote(search_check.LACKS_MODULES)} >&2" * check_only
    directives = _directives(request, site, needs, env)
    comment = f"Made by `bigbatch cluster submit` for {site.title or site.name}. {_cost(needs)}"
    for text in (*directives, comment):
        if not text.isprintable():  # a second line would run as a command
            raise InputError(f"names, options of sbatch and a profile's texts must be one line; got {text!r}.")
    lines = [
        # `module` is a function of the login shell's start-up files.
        "#!/bin/bash -l" if modules else "#!/bin/bash",
        *(f"#SBATCH {_quoted(directive)}" for directive in directives),
        "",
        f"# {comment}",
        "trap '' USR1 USR2",  # as in the script below
        *(f"export {name}={shlex.quote(value)}" for name, value in _variables(request, site, env, root).items()),
        *(f"module load {shlex.quote(module)}{unless}" for module in modules),
        *site.commands,
        # exec: the signal that Slurm sends to the batch script must reach the job itself.
        f'exec bash "$BIGBATCH_ROOT/cluster/{SCRIPT}" {arguments}'.rstrip(),
    ]
    return "\n".join(lines) + "\n"


def _cost(needs: JobResources) -> str:
    """The job's highest cost, in the unit of budgets."""
    if needs.time_s >= NO_LIMIT_S:
        return "It has no time limit."
    hours = needs.nodes * (needs.gpus_per_node or needs.cpus_per_node) * needs.time_s / 3600
    return f"At most {hours:g} {'GPU' if needs.gpus_per_node else 'core'} hours a run."


def _directives(request: Request, site: Site, needs: JobResources, env: Mapping[str, str]) -> list[str]:
    # In --output a % begins a pattern of Slurm's.
    log = str(job_record.records_home(env) / "logs").replace("%", "%%") + "/%j.log"
    gpus = [f"{needs.gres}:{needs.gpus_per_node}"] if needs.gpus_per_node else []
    others = request_checks.other_resources(request)  # Slurm uses the last of several --gres
    optional = {
        "--partition": needs.partition.name if needs.partition else None,
        "--account": needs.account,
        "--qos": needs.qos,
        "--mem": request.mem,
        "--gres": ",".join([*gpus, *others]),
    }
    return [
        f"--job-name={request.name}",
        *(f"{option}={value}" for option, value in optional.items() if value),
        f"--nodes={needs.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={needs.cpus_per_node}",
        f"--time={format_time(needs.time_s)}",
        # B: by default Slurm signals the job's steps and not its batch script (sbatch(1)).
        f"--signal=B:USR1@{request.signal_s}",
        # Always write one of the two: the site's default (JobRequeue) may be the other one.
        "--requeue" if site.requeue else "--no-requeue",
        "--no-kill",  # a dying node ends its trials, not the search
        # Otherwise a requeued job would overwrite its log at most sites (JobFileAppend), and lose the requeue's reason.
        "--open-mode=append",
        f"--output={log}",
        *(needs.partition.options if needs.partition else ()),
        *(option for option in request.options if option not in [f"--gres={other}" for other in others]),
    ]


def _variables(request: Request, site: Site, env: Mapping[str, str], root: Path) -> dict[str, str]:
    """The variables that the job reads from its environment."""
    values = {
        "BIGBATCH_ROOT": str(root),
        "BIGBATCH_HOME": str(job_record.records_home(env)),
        "BIGBATCH_SITE": _absolute(str(site.path)) if site.path.parent != BUILT_IN else site.name,
        "BIGBATCH_PYTHON": _interpreter(request, env, root),
        "BIGBATCH_CONTAINER": _absolute(request.container) if request.container else None,
        "BIGBATCH_CONTAINER_PYTHON": request.python if request.container else None,
        "BIGBATCH_PRELUDE": _absolute(request.prelude) if request.prelude else None,
        "BIGBATCH_INTERFACE": site.interface,
        "BIGBATCH_HOST_SUFFIX": site.host_suffix,
        "BIGBATCH_NODE_TMP": site.node_tmp,
    }
    return {name: value for name, value in values.items() if value}


def _interpreter(request: Request, env: Mapping[str, str], root: Path) -> str:
    """The nodes' Python: the requested one, the active environment's, or this one if it has Ray."""
    if request.container:
        return str(root / "cluster" / "in_container.sh")
    if request.python:
        return _absolute(request.python) if "/" in request.python else request.python
    if env.get("BIGBATCH_PYTHON"):
        return env["BIGBATCH_PYTHON"]
    for active in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if env.get(active):
            return f"{env[active]}/bin/python"
    if find_spec("ray") is not None:
        return sys.executable
    raise InputError(
        f"the job needs a Python that has Ray; {sys.executable} has none. "
        "Write --python /path/to/environment/bin/python, or activate the environment first."
    )


def _arguments(request: Request, site: Site) -> str:
    chain = [] if site.requeue or "--chain" in request.job_options else ["--chain"]
    # The job must save when Slurm signals, and also if that signal does not come.
    margin = [] if request.signal_s == MARGIN_S else ["--margin", str(request.signal_s)]
    return shlex.join([*chain, *margin, *request.job_options, *request.arguments])


def _quoted(directive: str) -> str:
    """Quote a directive: Slurm reads quotes in a script's directives as a shell does."""
    if re.fullmatch(r"[\w@%+=:,./\[\]-]+", directive):
        return directive
    return '"' + directive.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))
