"""An image folder is listed once a run, by one process, however many ranks and trials train on it."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bigbatch.train_loop.config import DataConfig
from bigbatch.train_loop.data.catalogue import open_data
from bigbatch.train_loop.data.sets.scan import FolderScan, scan_folder
from helpers.paths import ROOT, TUNE
from helpers.processes import clean_environment
from helpers.ranks import start_ranks, without_gloo, write_config

Command = Callable[..., subprocess.CompletedProcess[str]]

SPY = """
import os, sys
def hook(event, arguments):
    if event == "os.scandir" and str(arguments[0]).startswith(os.environ["LISTED_FOLDER"] + "/"):
        with open(os.environ["LISTINGS"], "a") as file:
            file.write(f"{os.getpid()} {arguments[0]}\\n")
sys.addaudithook(hook)
"""
OPEN = """
import hashlib, os, sys
import numpy as np, torch
import torch.distributed as dist
from bigbatch.train_loop.config import DataConfig, TrainConfig
from bigbatch.train_loop.data.source import Epoch
from bigbatch.train_loop.distributed import World
from bigbatch.train_loop.loop.assembly import _open
from bigbatch.train_loop.reporter import ListReporter
dist.init_process_group("gloo")
config = TrainConfig(data=DataConfig(name=sys.argv[1], image_size=16))
source = _open(config, None, World.current(torch.device("cpu")), ListReporter(), None)
digest = hashlib.sha256()
for images, labels in source.read_train([np.arange(64)], Epoch(1, 0)):
    digest.update(source.finish(images).numpy().tobytes() + labels.numpy().tobytes())
for images, labels in source.read_val([np.arange(16)]):
    digest.update(source.finish(images).numpy().tobytes() + labels.numpy().tobytes())
print(digest.hexdigest())
dist.destroy_process_group()
"""


@pytest.fixture
def spied(tmp_path: Path, tiny_images: Path) -> dict[str, str]:
    """Environment in which each Python process notes the folders of images that it lists."""
    (tmp_path / "spy").mkdir()
    (tmp_path / "spy" / "sitecustomize.py").write_text(SPY)
    path = os.pathsep.join((str(tmp_path / "spy"), str(ROOT / "src")))
    return {"PYTHONPATH": path, "LISTED_FOLDER": str(tiny_images), "LISTINGS": str(tmp_path / "listings.txt")}


@pytest.fixture
def best(tmp_path: Path, tiny_images: Path) -> Path:
    return write_config(
        tmp_path, tiny_images, epochs=1, model__name="squeezenet1_1", data__image_size=32, batch__global_size=32
    )


def listings(spied: dict[str, str]) -> tuple[Counter[str], set[str]]:
    """How often each folder of images was listed, and by which processes."""
    lines = [line.split(" ", 1) for line in Path(spied["LISTINGS"]).read_text().splitlines()]
    return Counter(path for _, path in lines), {pid for pid, _ in lines}


def assert_listed_once(spied: dict[str, str], images: Path) -> None:
    counts, processes = listings(spied)
    assert counts == {str(images / part / name): 1 for part in ("train", "val") for name in ("", "dark", "light")}
    assert len(processes) == 1


def end(ranks: list[subprocess.Popen]) -> list[tuple[int, str, str]]:
    said = [rank.communicate(timeout=240) for rank in ranks]
    return [(rank.returncode, *texts) for rank, texts in zip(ranks, said, strict=True)]


def test_what_rank_0_finds_wrong_all_ranks_refuse_in_one_line(best: Path, tmp_path: Path) -> None:
    (tmp_path / "half" / "train" / "a").mkdir(parents=True)
    ended = end(start_ranks(best, "--data", str(tmp_path / "half")))
    for code, _, errors in ended:
        assert code == 2
        assert "Traceback" not in errors
    assert "an image folder needs val/" in ended[0][2]
    assert ended[1][2] == "", "one speaks for all"


def test_ranks_see_the_images_in_one_order(tiny_images: Path, spied: dict[str, str]) -> None:
    env = {**clean_environment(), **spied, "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
    env["MASTER_PORT"] = str(15000 + os.getpid() % 5000)
    command, pipe = [sys.executable, "-c", OPEN, str(tiny_images)], subprocess.PIPE
    env |= {"OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(command, env={**env, "RANK": str(rank)}, stdout=pipe, stderr=pipe, text=True)
        for rank in range(2)
    ]
    (code, first, errors), (other_code, second, other_errors) = end(ranks)
    assert (code, other_code) == (0, 0), errors + other_errors
    assert len(without_gloo(first).strip()) == 64
    assert without_gloo(first) == without_gloo(second)
    assert_listed_once(spied, tiny_images)


@pytest.mark.slow
@pytest.mark.xdist_group("beside")
def test_all_trials_of_a_search_share_one_listing(tmp_path, tiny_images, spied, run_command):
    words = ("--space", "smoke", "--data", tiny_images, "--model", "shufflenet_v2_x0_5", "--set", "image_size=16")
    done = run_command(TUNE, *words, "--trials", 2, "--max-epochs", 1, "--study", "s", "--workers", 2, **spied)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_listed_once(spied, tiny_images)
    assert not list((tmp_path / "runs").rglob("images.npz")), "it ends with the search"


def test_a_listing_is_read_as_it_was_written_and_what_is_damaged_is_passed_over(tmp_path: Path) -> None:
    root, file = tmp_path / "bilder \udcff ü", tmp_path / "images.npz"
    for part in ("train", "val"):
        for name in ("b", "ä \udcfe"):
            (root / part / name / "more").mkdir(parents=True)
            for image in ("1.png", "more/2 \udcfd.png"):
                (root / part / name / image).touch()
    scan = scan_folder(str(root))
    scan.write(file)
    read = FolderScan.read(file)
    assert read is not None
    assert (read.root, read.class_names) == (scan.root, scan.class_names)
    for mine, theirs in ((read.train, scan.train), (read.val, scan.val)):
        assert mine.folder == theirs.folder
        assert np.array_equal(mine.paths, theirs.paths)
        assert np.array_equal(mine.labels, theirs.labels)
        assert all(os.path.exists(mine.path(number)) for number in range(4))
    file.write_bytes(file.read_bytes()[:-40])
    assert FolderScan.read(file) is None
    assert FolderScan.read(tmp_path / "none") is None


def test_a_listing_of_another_folder_is_not_used(tmp_path: Path, tiny_images: Path) -> None:
    for part in ("train", "val"):
        for name in ("x", "y", "z"):
            (tmp_path / part / name).mkdir(parents=True)
            (tmp_path / part / name / "1.png").touch()
    source = open_data(DataConfig(name=str(tmp_path)), scan=scan_folder(str(tiny_images)))
    assert source.info.class_names == ("x", "y", "z")
    assert source.info.train_size == 3
