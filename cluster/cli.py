"""``bigbatch cluster …``: its commands."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence

from bigbatch.base.command_line import (
    DONE,
    INTERRUPTED,
    WRONG_INPUT,
    Commands,
    OneLineParser,
    no_such_option,
    run_command,
)
from bigbatch.base.streams import reader_may_leave
from bigbatch.base.waits import MARGIN_S
from bigbatch.cluster.doctor.command import doctor_main
from bigbatch.cluster.host import slurm_commands
from bigbatch.cluster.host.profiles import InputError, find_site
from bigbatch.cluster.record import job_record
from bigbatch.cluster.submission import batch_script, queue
from bigbatch.cluster.submission.request_checks import Request

SearchParser = Callable[[str], argparse.ArgumentParser]

# Submit


def _add_resources(p: argparse.ArgumentParser) -> None:
    add = p.add_argument
    add("--site", metavar="NAME|FILE.toml", help="the site's profile (default: chosen by host name and variables)")
    add("-N", "--nodes", type=int, default=1, metavar="N", help="number of nodes (default 1)")
    add("-t", "--time", metavar="D-HH:MM:SS", help="wall time (default: 4 h, or the partition's limit)")
    add("-p", "--partition", metavar="NAME", help="partition (default: the site's)")
    add("-A", "--account", metavar="NAME", help="account (default: SBATCH_ACCOUNT)")
    add("--qos", metavar="NAME", help="QOS (default: the site's usual one)")
    add("--gpus-per-node", type=int, metavar="N", help="GPUs of each node (default: all)")
    add("--cpus-per-gpu", type=int, metavar="N", help="cores for each GPU (default: the site's rule)")
    add("--cpus-per-node", type=int, metavar="N", help="cores of each node, not counted by GPU")
    add("--mem", metavar="SIZE", help="memory of each node, e.g. 120G (default: Slurm's)")
    add("--gres", metavar="gpu:TYPE", help="Slurm's name of the GPUs, e.g. gpu:a100")
    add("--name", default="bigbatch", help="the job's name in the queue (default bigbatch)")
    add("--container", metavar="IMAGE.sif", help="run the nodes' Python in this Apptainer image")
    add("--python", metavar="PATH", help="the interpreter that has Ray (default: the active environment's)")
    add("--prelude", metavar="FILE.sh", help="a shell file that every node reads first")
    signal_help = f"warn the job S seconds before its end ({MARGIN_S})"
    add("--signal", dest="signal_s", type=int, default=MARGIN_S, metavar="S", help=signal_help)
    add("--chain", action="store_true", help="continue in a new job, not by requeueing this one")
    add("--keep-logs", action="store_true", help="keep Ray's logs even if the run goes well")
    add("--max-restarts", type=int, metavar="K", help="give up after K restarts without an epoch or a checkpoint (3)")
    add("--start-timeout", type=int, metavar="S", help="wait S seconds for the nodes to register (300)")
    add(
        "--sbatch",
        dest="options",
        action="append",
        default=[],
        metavar="OPTION",
        help="a further option of sbatch, e.g. --sbatch=--exclude=n7",
    )
    add("--dry-run", action="store_true", help="check everything, print the script and stop")
    add("--quiet", action="store_true", help="print the job's id alone, e.g. for a script")


def _request(args: argparse.Namespace, arguments: Sequence[str]) -> Request:
    flags = {"--chain": args.chain, "--keep-logs": args.keep_logs}
    numbers = {"--max-restarts": args.max_restarts, "--start-timeout": args.start_timeout}
    of_the_job = [flag for flag, on in flags.items() if on]
    of_the_job += [f"{name}={value}" for name, value in numbers.items() if value is not None]
    values = {name: value for name, value in vars(args).items() if name in Request.__dataclass_fields__}
    values["options"] = tuple(args.options)
    return Request(arguments=tuple(arguments), job_options=tuple(of_the_job), **values)


def _submit(argv: Sequence[str], search_parser: SearchParser | None = None) -> int:
    p = OneLineParser(
        prog="bigbatch cluster submit",
        description="Submit a search, or the command after --. Other options than these go to tune/run.py.",
    )
    p.usage = "bigbatch cluster submit [options] [options of bigbatch tune | -- COMMAND …]"
    _add_resources(p)
    p.add_argument("--no-check", action="store_true", help="submit a search without checking it on this machine")
    own, command = _split(argv)
    args, of_the_search = p.parse_known_args(own)
    if command:
        if of_the_search:
            p.error(f"unrecognized arguments: {of_the_search[0]}")
    else:
        _check_search(p, of_the_search, search_parser)
    site, request = find_site(args.site), _request(args, command or of_the_search)
    answer = batch_script.submit_request(request, site, dry_run=args.dry_run, check=not args.no_check)
    if args.dry_run or args.quiet:
        print(answer, end="" if args.dry_run else "\n")
        return DONE
    print(f"Job {answer} is submitted ({site.name}).")
    print(f"    bigbatch cluster queue\n    bigbatch cluster logs {answer} -f")
    return DONE


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments before ``--``; and ``--`` with the command after it."""
    at = list(argv).index("--") if "--" in argv else len(argv)
    return list(argv[:at]), list(argv[at:])


def _check_search(p: OneLineParser, arguments: Sequence[str], search_parser: SearchParser | None) -> None:
    """Refuse the options that ``tune/run.py`` would refuse in the job. The files they name are not opened."""
    if search_parser is None:
        return
    tune = search_parser(p.prog)
    known = [name for one in (p, tune) for action in one._actions for name in action.option_strings]
    for word in arguments:
        if word.startswith("--") and word.split("=")[0] not in known:
            p.error(no_such_option(word, known))
    tune.parse_args(arguments)


# Existing jobs


def _queue(argv: Sequence[str]) -> int:
    p = OneLineParser(prog="bigbatch cluster queue", description="List your jobs and the progress of their studies.")
    p.add_argument("-a", "--all", action="store_true", help="also list jobs that have ended")
    found = queue.queue(ended=p.parse_args(argv).all)
    print(queue.jobs_table(found) if found else "No jobs.")
    return DONE


def _logs(argv: Sequence[str]) -> int:
    p = OneLineParser(prog="bigbatch cluster logs", description="Print a job's log. With -f, follow it with tail -F.")
    p.add_argument("job", metavar="JOBID")
    p.add_argument("-f", "--follow", action="store_true", help="follow until Ctrl-C")
    p.add_argument("--node", metavar="NAME", help="only the log of this node")
    args = p.parse_args(argv)
    if not args.follow:
        print(queue.logs(args.job, node=args.node), end="")
        return DONE
    path = queue.log_path(args.job, args.node, waits=True)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and ``tail`` would inherit that
    return os.execvp("tail", ["tail", "-n", "+1", "-F", str(path)])  # tail polls if it has to, and waits


def _cancel(argv: Sequence[str]) -> int:
    p = OneLineParser(prog="bigbatch cluster cancel", description="Cancel jobs. Their studies can be resumed.")
    p.add_argument("job", metavar="JOBID", nargs="+")
    code = DONE
    for job_id in p.parse_args(argv).job:
        try:
            print(f"Cancelled: {', '.join(queue.cancel(job_id))}")
        except slurm_commands.SlurmError as error:  # the other jobs must not run on
            print(f"bigbatch cluster: error: {error}", file=sys.stderr)
            code = WRONG_INPUT
    return code


def _tunnel(argv: Sequence[str]) -> int:
    p = OneLineParser(
        prog="bigbatch cluster tunnel", description="Explain how to open a job's dashboard from your own machine."
    )
    p.add_argument("job", metavar="JOBID")
    p.add_argument("--site", metavar="NAME|FILE.toml")
    p.add_argument("--port", type=int, default=8265, metavar="PORT", help="port on your own machine (default 8265)")
    args = p.parse_args(argv)
    print(queue.tunnel(args.job, find_site(args.site), local_port=args.port))
    return DONE


COMMANDS: Commands = {
    "submit": (_submit, "submit a search, or any command, in a Ray cluster"),
    "queue": (_queue, "list your jobs and the progress of their studies"),
    "logs": (_logs, "print a job's log"),
    "cancel": (_cancel, "cancel jobs"),
    "doctor": (doctor_main, "check this machine, or the nodes of this allocation"),
    "tunnel": (_tunnel, "explain how to open a job's dashboard"),
}


def cluster_main(argv: Sequence[str] | None = None, search_parser: SearchParser | None = None) -> int:
    """``bigbatch cluster``. Returns the exit code: 0, 1 (the doctor found a fault), 2 (wrong input), 130 (Ctrl-C).

    Args:
        search_parser: makes the parser with which ``submit`` checks a search's options. None: the job checks them.
    """
    submit = (lambda words: _submit(words, search_parser), COMMANDS["submit"][1])
    try:
        with reader_may_leave(ends=True):  # nobody reads `logs -f | head` any more
            return run_command(
                "bigbatch cluster", {**COMMANDS, "submit": submit}, sys.argv[1:] if argv is None else argv
            )
    except (InputError, slurm_commands.SlurmError) as error:
        print(f"bigbatch cluster: error: {error}", file=sys.stderr)
        return WRONG_INPUT
    except PermissionError as error:  # of another user's records, or after `su` without `-`
        why = f"a job's files must be your own; got {error.filename!r} ({error.strerror})"
        fix = f"Set {job_record.HOME_VARIABLE}, or HOME, to a folder of your own."
        print(f"bigbatch cluster: error: {why}. {fix}", file=sys.stderr)
        return WRONG_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED
