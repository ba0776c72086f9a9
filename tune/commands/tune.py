"""``bigbatch tune …``, the same as ``python tune/run.py …``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bigbatch.base.command_line import INTERRUPTED, WRONG_INPUT
from bigbatch.base.streams import reader_may_leave
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.errors import OwnCodeError, RayStartError
from bigbatch.train_loop.host.disk_space import describe_full_disk, full_errno
from bigbatch.tune.plan.arguments import parse_options, tune_parser


def tune_main(argv: Sequence[str] | None = None, prog: str = "tune/run.py") -> int:
    """Run a search. Returns the exit code: 0, 1 (failed), 2 (wrong input), 130 (Ctrl-C), 143 (SIGTERM)."""
    with reader_may_leave():
        args = parse_options(tune_parser(prog), argv)
        return _guarded(prog, lambda: _search(args))


def _search(args: dict[str, object]) -> int:
    from bigbatch.tune.plan.checked_plan import make_plan
    from bigbatch.tune.plan.options import SearchOptions
    from bigbatch.tune.storage.storage_url import check_url

    plan = make_plan(SearchOptions(**args))  # type: ignore[arg-type]
    check_url(plan.storage)
    from bigbatch.tune.search.driver import run_search

    return run_search(plan)


def _guarded(prog: str, run: Callable[[], int]) -> int:
    """Report in one line what is no defect of the program: wrong input, a missing package, a full disk, Ctrl-C."""
    try:
        return run()
    except (ConfigError, OwnCodeError) as error:
        print(f"{prog}: error: {error}", file=sys.stderr)
    except ModuleNotFoundError as error:
        # A module of ours that is missing is a defect of the program.
        if error.name is None or error.name.split(".")[0] == "bigbatch":
            raise
        print(
            f"{prog}: error: a package that BigBatch needs is missing; got no {error.name!r}. "
            "Run: pip install -e . (in the repository)",
            file=sys.stderr,
        )
    except OSError as error:
        number = full_errno(error)
        if number is None:
            raise
        folder = Path(error.filename).parent if isinstance(error.filename, str) else Path.cwd()
        print(f"{prog}: failed: {describe_full_disk(number, folder)}. Make room there.", file=sys.stderr)
        return 1
    except RayStartError as error:
        print(f"{prog}: failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{prog}: interrupted before the search started", file=sys.stderr)
        return INTERRUPTED
    return WRONG_INPUT
