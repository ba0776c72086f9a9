"""An empty value, as of ``--data "$UNSET"``, and a path that is no UTF-8: each command refuses them in one line."""

import pytest

from bigbatch import submit
from bigbatch.cluster.host.profiles import InputError
from bigbatch.cluster.job import options
from bigbatch.command import main
from bigbatch.train_loop.config import ConfigError, DataConfig, parse_assignments
from bigbatch.train_loop.data.packing import command as pack_command
from bigbatch.train_loop.launch import command as train_command, lr_find
from bigbatch.tune.plan.arguments import tune_parser
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.scaling.scale_plan import scale_parser

TEXT_OPTIONS = (
    "space", "data", "model", "strategy", "stopping", "stage", "study", "output", "storage", "address", "wandb",
    "time_budget",
)  # fmt: skip
EMPTY = ("", "  ", "\t")


def options_of(parser) -> list[str]:
    """The long names of a parser's options that take a value."""
    return [action.option_strings[-1] for action in parser._actions if action.option_strings and action.nargs != 0]


PARSERS = {
    "tune": tune_parser("tune"),
    "train": train_command.train_parser("train"),
    "lr-find": lr_find.lr_find_parser("lr-find"),
    "pack": pack_command.pack_parser(),
    "scale": scale_parser("scale"),
}
OF_SUBMIT = (
    "--site --nodes --time --partition --account --qos --gpus-per-node --cpus-per-gpu --cpus-per-node --mem --gres "
    "--name --container --python --prelude --signal --max-restarts --start-timeout --sbatch"
).split()
EMPTY_VALUES = {
    **{f"{name} {option}": (name, option, "") for name, p in PARSERS.items() for option in options_of(p)},
    **{f"submit {option}": ("cluster", "submit", "--dry-run", option, "") for option in OF_SUBMIT},
    **{f"submit {option}=": ("cluster", "submit", f"{option}=") for option in options_of(PARSERS["tune"])},
    "a second value of --set": ("tune", "--set", "peak_lr=1", ""),
    "fetch": ("fetch", ""),
    "fetch --from": ("fetch", "cifar10", "--from", ""),
    "pack's source": ("pack", "", "there"),
    "pack's destination": ("pack", "here", " "),
    "the job of logs": ("cluster", "logs", ""),
    "the node of logs": ("cluster", "logs", "1", "--node", ""),
    "one job of cancel": ("cluster", "cancel", "1", ""),
    "the job of tunnel": ("cluster", "tunnel", ""),
    "the doctor's folder": ("cluster", "doctor", "--shared", ""),
    "a command of one's own": ("cluster", "submit", "--", ""),
}


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    try:
        code = main(words)
    except SystemExit as end:
        code = int(end.code or 0)
    out, error = capsys.readouterr()
    assert code == 2 and out == "" and len(error.splitlines()) == 1, (code, out, error)
    error.encode()  # it can be written to any terminal and log
    return error


@pytest.mark.parametrize("name", EMPTY_VALUES)
def test_a_command_refuses_an_empty_value_in_one_line_that_names_the_option(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = EMPTY_VALUES[name]
    error = said([*arguments], capsys)
    assert "must not be empty; got '" in error and "variable" in error
    option = next((word.rstrip("=") for word in reversed(arguments) if word.startswith("--")), "")
    assert option in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", EMPTY)
@pytest.mark.parametrize("name", [*TEXT_OPTIONS, "set", "enqueue", "warm_start"])
def test_so_do_options_from_python(name, value):
    given = (value,) if name in ("set", "enqueue", "warm_start") else value
    with pytest.raises(ConfigError, match=f"^--{name.replace('_', '-')} must not be empty"):
        SearchOptions(**{name: given})  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["model.name=", "peak_lr= ", "schedule.name=\t"])
def test_a_key_without_a_value_is_refused(text):
    with pytest.raises(ConfigError, match="must not be empty") as caught:
        parse_assignments([text])
    assert text.partition("=")[0] in str(caught.value)
    with pytest.raises(ConfigError, match="data.name"):
        DataConfig(name=" ")


@pytest.mark.parametrize("wishes", [{name: ""} for name in ("site", "python", "mem", "account", "name", "time")])
def test_a_submission_from_python_refuses_empty_wishes(wishes):
    with pytest.raises(InputError, match=f"--{next(iter(wishes))} must not be empty"):
        submit("--space", "smoke", **{"cpus_per_node": 1, "python": "python", "dry_run": True, **wishes})


@pytest.mark.parametrize("words", [["--study", ""], ["--output="], ["--space", "smoke", " "], ["--", ""]])
def test_a_job_refuses_them_before_it_takes_a_study(words):
    """As ``sbatch cluster/ray_head_workers.slurm --study "$UNSET"`` would have taken the lease of all of ``runs``."""
    with pytest.raises(InputError, match="must not be empty"):
        options.parse_job_options(words)
