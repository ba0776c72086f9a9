"""The process of a batch script, ``python -m bigbatch.cluster.job``: it reads its options and runs the job."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from bigbatch.base.command_line import WRONG_INPUT
from bigbatch.cluster.host.profiles import InputError
from bigbatch.cluster.job import options
from bigbatch.cluster.job.state_machine import Job


def main(argv: Sequence[str] | None = None) -> int:
    """The batch script's process. Returns the job's exit code."""
    # Token, orders and logs of the job are for its user alone, whatever umask the user has.
    os.umask(0o077)
    for stream in (sys.stdout, sys.stderr):  # a locale without → must not end the job
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        chosen = options.parse_job_options(arguments)
    except InputError as error:
        print(f"ray_head_workers.slurm: error: {error}", file=sys.stderr)
        return WRONG_INPUT
    # The batch script has left the user's folder for one in which Python finds this package.
    cwd = Path(os.environ.get("BIGBATCH_CWD") or os.getcwd())
    return Job(chosen, cwd).run()


if __name__ == "__main__":
    sys.exit(main())
