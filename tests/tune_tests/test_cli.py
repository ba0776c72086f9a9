"""The command line as a user meets it: ways to call it, and wrong input refused before Ray starts."""

import json
import os
import shutil
import sys

import pytest
from PIL import Image

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.data.packing.command import main as pack_main
from bigbatch.tune.plan.checked_plan import make_plan
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.storage.store import StudyStore
from helpers.commands import run, run_process
from helpers.paths import ROOT, TUNE

GOOD = ("--space", "smoke")


WRONG_SPACES = {
    "wrong_defaults.py": "DEFAULTS = {'trials': '8'}\ndef space(trial, workload):\n    return workload.config()\n",
    "exits.py": "import sys\ndef space(trial, workload):\n    sys.exit(3)\n",
    "resizes.py": "def space(trial, workload):\n    return workload.config({'image_size': 8})\n",
}
BAD_INPUT = {  # more in plan/test_odd_command_lines.py
    "space file missing": (("--space", "nowhere.py"), "nowhere.py"),
    "wandb online without a key": ((*GOOD, "--wandb", "online"), "WANDB_API_KEY"),
    "data folder without images": ((*GOOD, "--data", "bare"), "folder"),
    "output with too long a name": ((*GOOD, "--output", "x" * 300), "--output"),
    "output below a file": ((*GOOD, "--output", "exits.py/below"), "--output"),
    "address without a port": ((*GOOD, "--address", "somewhere"), "HOST:PORT"),
    "address where nobody listens": ((*GOOD, "--address", "127.0.0.1:1"), "127.0.0.1:1"),
    "more workers than there are": ((*GOOD, "--workers", "4096"), "the number of CPU cores"),
    "resume without a name": ((*GOOD, "--resume"), "--study"),
    "resume without a study": ((*GOOD, "--resume", "--study", "no-such-study"), "runs/no-such-study"),
    "defaults of a space": (("--space", "wrong_defaults.py"), "DEFAULTS"),
    "a space that ends the program": (("--space", "exits.py"), "SystemExit"),
    "a space with another image size": (("--space", "resizes.py"), "image_size"),
    "storage that does not open": ((*GOOD, "--storage", "nosuchdb://x/y"), "--storage"),
    "storage in memory": ((*GOOD, "--storage", "sqlite://"), "--storage must be a database that outlives the search"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_wrong_input_is_one_line_and_exit_code_2_before_anything_starts(name, tmp_path):
    arguments, expected = BAD_INPUT[name]
    for file, text in WRONG_SPACES.items():
        (tmp_path / file).write_text(text)
    for folder in ("bare/train/a", "bare/val/a"):
        (tmp_path / folder).mkdir(parents=True)
    done = run(*arguments, cwd=tmp_path)
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 2, done.stderr
    assert len(lines) == 1, done.stderr
    assert expected in lines[0]
    assert "Starting Ray" not in done.stdout
    # nothing is left behind that a corrected command would trip over
    assert not [p for p in (tmp_path / "runs").rglob("*") if p.is_file()]


@pytest.mark.parametrize(
    "text",
    ["[]", "3", "{", '{"schema_version": 99}', ""],
)
def test_a_study_whose_description_is_broken_is_refused_in_one_line(tmp_path, text):
    folder = tmp_path / "runs" / "s"
    folder.mkdir(parents=True)
    (folder / "study.json").write_text(text)
    done = run("--resume", "--study", "s", cwd=tmp_path)
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1
    assert "study.json" in done.stderr and (folder / "study.json").read_text() == text


def test_a_changed_space_is_refused_on_resume(tmp_path, tiny_space):
    plan = make_plan(SearchOptions(space=str(tiny_space), study="s", output=str(tmp_path / "runs")))
    StudyStore.create(plan.folder, "s", plan.to_dict(), None).close()
    tiny_space.write_text(tiny_space.read_text() + "\n# another\n")
    done = run("--resume", "--study", "s", cwd=tmp_path)
    assert done.returncode == 2 and "space" in done.stderr and "changed" in done.stderr


def test_data_that_has_changed_is_refused_on_resume(tmp_path, tiny_images):
    images = tmp_path / "images"
    shutil.copytree(tiny_images, images)
    options = SearchOptions(
        space="smoke", data=str(images), set=("global_size=16",), study="s", output=str(tmp_path / "runs")
    )
    plan = make_plan(options)
    StudyStore.create(plan.folder, "s", plan.to_dict(), None).close()
    assert run("--resume", "--study", "s", "--dry-run", cwd=tmp_path).returncode == 0
    image = images / "train" / "dark" / "000.png"
    image.rename(tmp_path / "kept.png")
    done = run("--resume", "--study", "s", "--dry-run", cwd=tmp_path)
    assert done.returncode == 2 and "train_size was 64; got 63" in done.stderr
    again = SearchOptions(study="s", output=str(tmp_path / "runs"), resume=True)
    shutil.copy(images / "train" / "light" / "000.png", images / "train" / "dark" / "other.png")
    with pytest.raises(ConfigError, match="images were others, by their names"):
        make_plan(again)
    (images / "train" / "dark" / "other.png").unlink()
    (tmp_path / "kept.png").rename(image)
    make_plan(again)
    for path in images.glob("train/dark/*.png"):
        Image.new("RGB", (16, 16)).save(path)
    with pytest.raises(ConfigError, match="replaced by others of the same names"):
        make_plan(again)


def test_a_set_that_was_packed_anew_from_other_images_is_refused_on_resume(tmp_path, tiny_images):
    images, packed = tmp_path / "images", tmp_path / "packed"
    shutil.copytree(tiny_images, images)
    assert pack_main([str(images), str(packed), "--workers", "1"]) == 0
    options = SearchOptions(
        space="smoke", data=str(packed), set=("global_size=16",), study="s", output=str(tmp_path / "runs"),
        stage=str(tmp_path),
    )  # fmt: skip
    plan = make_plan(options)
    StudyStore.create(plan.folder, "s", plan.to_dict(), None).close()
    again = SearchOptions(study="s", output=str(tmp_path / "runs"), resume=True)
    shutil.rmtree(packed)
    assert pack_main([str(images), str(packed), "--workers", "1"]) == 0
    make_plan(again)
    Image.new("RGB", (16, 16)).save(images / "val" / "dark" / "000.png")
    shutil.rmtree(packed)
    assert pack_main([str(images), str(packed), "--workers", "1"]) == 0
    with pytest.raises(ConfigError, match="a packed set's checksums"):
        make_plan(again)


def test_a_closed_stdout_is_no_error(tmp_path):
    done = run_process("sh", "-c", f"{sys.executable} {TUNE} --space smoke --dry-run 2>&- >&-", cwd=tmp_path)
    assert done.returncode == 0


WAYS = {
    "as a file from another folder": lambda tmp: ((sys.executable, os.path.relpath(TUNE, tmp)), tmp),
    "from inside tune/": lambda tmp: ((sys.executable, "run.py"), ROOT / "tune"),
}


@pytest.mark.parametrize("way", WAYS)
def test_it_can_be_called_in_every_usual_way_also_from_a_terminal_that_lacks_letters(way, tmp_path):
    command, cwd = WAYS[way](tmp_path)
    words = (*command, *GOOD, "--dry-run", "--output", tmp_path / "out")
    done = run_process(*words, cwd=cwd, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "resnet18 (auto; --model resnet50 works too)" in " ".join(done.stdout.split())
    assert not (tmp_path / "out").exists(), "a dry run writes nothing"


def test_the_console_command_equals_the_script(tmp_path):
    bigbatch = shutil.which("bigbatch", path=os.path.dirname(sys.executable))
    code = "import sys; from bigbatch.command import main; sys.exit(main(sys.argv[1:]))"
    command = (bigbatch,) if bigbatch else (sys.executable, "-c", code)
    env = {} if bigbatch else {"PYTHONPATH": str(ROOT / "src")}
    done = run_process(*command, "tune", *GOOD, "--dry-run", "--study", "x", cwd=tmp_path, **env)
    script = run(*GOOD, "--dry-run", "--study", "x", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (script.returncode, script.stdout)


def test_wrong_input_is_refused_without_loading_torch_or_ray(tmp_path):
    code = (
        "import sys\nfrom bigbatch.tune.commands.tune import tune_main\n"
        "code = tune_main(['--space', 'smoke', '--set', 'peek_lr=1'])\n"
        "print(code, 'torch' in sys.modules, 'ray' in sys.modules)"
    )
    done = run_process(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(ROOT / "src"))
    assert done.stdout.split() == ["2", "False", "False"]


def test_a_password_in_the_storage_url_is_never_kept_or_shown(tmp_path):
    url = "postgresql+psycopg2://me:secret@localhost:1/none"
    done = run(*GOOD, "--study", "s", "--storage", url, cwd=tmp_path)
    assert done.returncode == 2 and "secret" not in done.stderr + done.stdout
    for path in (tmp_path / "runs").rglob("*.json"):
        assert "secret" not in json.dumps(path.read_text())
