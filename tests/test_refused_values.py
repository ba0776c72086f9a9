"""An empty value, as of ``--data "$UNSET"``, and a path that is no UTF-8: each command refuses them in one line.

Images and classes of such names are read.
"""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bigbatch import submit
from bigbatch.cluster.host.profiles import InputError
from bigbatch.cluster.job import options
from bigbatch.command import main
from bigbatch.train_loop.config import ConfigError, DataConfig, parse_assignments
from bigbatch.train_loop.data.catalogue import describe_data_set, open_data
from bigbatch.train_loop.data.packing import command as pack_command
from bigbatch.train_loop.data.source import Epoch
from bigbatch.train_loop.errors import ImageError
from bigbatch.train_loop.launch import command as train_command
from bigbatch.train_loop.launch import lr_find
from bigbatch.tune.plan.arguments import tune_parser
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.scaling.arguments import scale_parser

TEXT_OPTIONS = (
    "space", "data", "model", "strategy", "stopping", "stage", "study", "output", "storage", "address", "wandb",
    "time_budget", "on_bad_image",
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
    with pytest.raises(options.UsageError, match="must not be empty"):
        options.parse_job_options(words)


NAME = os.fsdecode(b"bil\xff")


def test_images_and_classes_of_such_names_are_read_and_shown(tmp_path: Path, monkeypatch, capsys) -> None:
    """Also through a link with another name, and where one of them is no image."""
    for part, count in (("train", 4), ("val", 2)):
        for shade, name in enumerate((b"ant", b"caf\xe9")):
            folder = tmp_path / NAME / part / os.fsdecode(name)
            folder.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (8, 8), (200 * shade, number, 0)).save(folder / os.fsdecode(b"\xe9%d.png" % number))
    (tmp_path / NAME / "train" / os.fsdecode(b"x.\xe9")).touch()
    (tmp_path / "link").symlink_to(NAME, target_is_directory=True)
    source = open_data(DataConfig(name=str(tmp_path / "link"), image_size=8))
    ((images, labels),) = source.val_batches(8, 0, 1)
    assert labels.tolist() == [0, 0, 1, 1]
    assert np.unique(source.finish(images)[:, 0].numpy().round(3)).size == 2
    monkeypatch.chdir(tmp_path)
    assert pack_command.main(["link", "packed", "--workers", "1"]) == 0
    assert pack_command.main(["--info", "--verify", "packed"]) == 0
    out = capsys.readouterr().out
    out.encode()
    assert "12 images in 2 shards are as they were packed" in out and r"2: ant, 'caf\udce9'" in out
    assert r"1 file left out: '.\udce9' 1" in out
    bad = tmp_path / NAME / "train" / "ant" / os.fsdecode(b"\xe90.png")
    bad.write_bytes(b"no image")
    with pytest.raises(ConfigError, match="it is no image") as refused:
        describe_data_set(DataConfig(name=str(tmp_path / "link")), open_some=True)
    with pytest.raises(ImageError, match="cannot read image") as unread:
        list(source.read_train([np.arange(8)], Epoch(0, 0)))
    for error in (refused, unread):
        str(error.value).encode()
