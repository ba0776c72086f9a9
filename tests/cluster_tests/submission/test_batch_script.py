"""Batch scripts against golden files, and what is refused before a job is submitted.

``UPDATE_GOLDEN=1 pytest tests/cluster_tests/submission/test_batch_script.py`` writes the golden files anew;
read the difference.
"""

import os
import shlex
import subprocess
from dataclasses import fields, replace
from pathlib import Path

import pytest

from bigbatch.cluster.host.profiles import InputError, find_site
from bigbatch.cluster.submission import batch_script
from bigbatch.cluster.submission.request_checks import Request, RequestFields
from helpers.paths import ROOT
from helpers.processes import program
from helpers.submissions import GIVEN, HOME, script_of

GOLDEN = ROOT / "tests" / "helpers" / "golden"
CONTAINER = ROOT / "cluster" / "in_container.sh"
SCRIPTS = {
    "jean_zay": ("jean_zay", replace(GIVEN, nodes=4, partition="gpu_p6", account="abc", time="20:00:00")),
    "juwels_booster": ("juwels_booster", replace(GIVEN, nodes=16, account="prj", job_options=("--keep-logs",))),
    "generic": ("generic", replace(GIVEN, cpus_per_node=8, name="my search")),
    "command": ("generic", replace(GIVEN, cpus_per_node=8, arguments=("--", "python", "it's mine.py", "$HOME"))),
    "container": ("juwels_booster", replace(GIVEN, account="prj", container="/shared/bigbatch.sif", python=None)),
}


def rendered(name: str) -> str:
    site, request = SCRIPTS[name]
    return script_of(request, find_site(site, HOME), root=Path("/home/me/bigbatch"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_is_the_golden_one(name):
    path, script = GOLDEN / f"{name}.slurm", rendered(name)
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(script)
    assert script == path.read_text()


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_is_bash_that_hands_every_argument_over_as_it_was(name, tmp_path):
    """Run for real, with the job's script replaced by one that shows what it got."""
    cluster = tmp_path / "cluster"
    cluster.mkdir()
    (cluster / batch_script.SCRIPT).write_text('printf "%s\\n" "$0" "$@"; env >&2\n')
    text = rendered(name).replace("/home/me/bigbatch", str(tmp_path)).replace("#!/bin/bash -l", "#!/bin/bash")
    done = subprocess.run(["bash", "-c", "module() { echo module $* >&2; }; " + text], capture_output=True, text=True)
    site, request = SCRIPTS[name]
    assert done.returncode == 0, done.stderr
    got = done.stdout.splitlines()
    assert got[0].endswith(batch_script.SCRIPT)
    assert got[1:] == [*request.job_options, *request.arguments]
    variables = dict(line.split("=", 1) for line in done.stderr.splitlines() if "=" in line)
    assert variables["BIGBATCH_HOME"] == "/home/me/.bigbatch"
    assert variables.get("BIGBATCH_HOST_SUFFIX") == ("i" if site == "juwels_booster" else None)
    assert ("module load arch/h100" in done.stderr) == (name == "jean_zay")


def test_a_second_line_in_a_name_would_run_as_a_command_and_is_refused(tmp_path):
    profile = tmp_path / "two.toml"
    partition = "[partitions.a]\ncores_per_node = 4\n"
    lines = {
        "name": ("generic", HOME, {"name": "a\nrm -r b"}),
        "SBATCH_ACCOUNT": ("generic", {**HOME, "SBATCH_ACCOUNT": "a\nrm -r b"}, {}),
        "title": (f'name = "x"\ntitle = "a\\nrm -r b"\ndefault_partition = "a"\n{partition}', HOME, {}),
        "option": (f'name = "x"\ndefault_partition = "a"\n{partition}options = ["-a\\nrm -r b"]', HOME, {}),
    }
    for what, (site, env, changes) in lines.items():
        profile.write_text(site)
        found = find_site(site if site == "generic" else str(profile), env)
        with pytest.raises(InputError, match="must be one line; got"):
            raise AssertionError(
                what + script_of(replace(GIVEN, cpus_per_node=2, **changes), found, env=env)  # type: ignore[arg-type]
            )


def test_folders_with_blanks_in_their_names_reach_slurm_and_the_job_whole(tmp_path):
    root, home = tmp_path / "check out", tmp_path / "my records"
    (root / "cluster").mkdir(parents=True)
    show = 'printf "%s\\n" "$0" "$@" "$BIGBATCH_HOME" "$BIGBATCH_PYTHON"\n'
    (root / "cluster" / batch_script.SCRIPT).write_text(show)
    (tmp_path / "my prelude.sh").touch()
    runs, python, prelude = (f"{tmp_path}/my {name}" for name in ("runs", "env/bin/python", "prelude.sh"))
    request = Request(arguments=("--output", runs), cpus_per_node=8, python=python, prelude=prelude)
    env = {**HOME, "BIGBATCH_HOME": str(home)}
    text = script_of(request, find_site("generic", HOME), env=env, root=root)
    words = [line[len("#SBATCH ") :] for line in text.splitlines() if line.startswith("#SBATCH ")]
    assert [f"--output={home}/logs/%j.log"] in [shlex.split(word) for word in words]
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True)
    script = str(root / "cluster" / batch_script.SCRIPT)
    given = [script, *request.arguments, str(home), str(request.python)]
    assert done.stdout.splitlines() == given, done.stderr


def test_sbatch_gets_the_kept_script_and_options_that_no_variable_can_overrule(tmp_path, monkeypatch):
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    program(bin_folder / "sbatch", f'printf "%s\\n" "$@" > {tmp_path}/got; env > {tmp_path}/env; echo "77;cluster"')
    program(bin_folder / "sinfo", "exit 1")
    monkeypatch.setenv("PATH", str(bin_folder), prepend=os.pathsep)
    unwanted = {"SLURM_MEM_PER_NODE": "4000", "SBATCH_ARRAY_INX": "0-3", "SBATCH_WAIT": "1"}  # the first: of a notebook
    for name, value in unwanted.items():
        monkeypatch.setenv(name, value)
    env = {"BIGBATCH_HOME": str(tmp_path / "home"), "SBATCH_ACCOUNT": "abc"}
    search = ("--space", "large_batch", "--trials", "64")
    job = batch_script.submit(*search, site="jean_zay", nodes=2, python="bash", env=env)
    reached = (tmp_path / "env").read_text()
    assert job == "77" and not [name for name in unwanted if name in reached]
    got = (tmp_path / "got").read_text().splitlines()
    assert "--account=abc@v100" in got and "--nodes=2" in got
    kept = Path(got[-1])
    assert kept.parent == tmp_path / "home" / "scripts" and "--trials 64" in kept.read_text()
    assert (tmp_path / "home" / "logs").is_dir(), "Slurm does not make the log's folder"
    assert (tmp_path / "home" / "scripts").stat().st_mode & 0o077 == 0


def test_a_site_that_forbids_requeueing_gets_a_chain_of_jobs(tmp_path, monkeypatch):
    """Its profile is exported with its whole path: the job and ``bigbatch logs`` may read it in another folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "strict.toml").write_text('name = "strict"\nrequeue = false\n[storage]\nnode_tmp = "/local"\n')
    request = replace(GIVEN, cpus_per_node=4)
    script = script_of(request, find_site("strict.toml", HOME))
    assert "#SBATCH --no-requeue" in script and 'ray_head_workers.slurm" --chain --space' in script
    for variable in (f"BIGBATCH_SITE={tmp_path}/strict.toml", "BIGBATCH_NODE_TMP=/local"):
        assert f"export {variable}\n" in script


def test_the_active_environments_python_is_the_nodes():
    site = find_site("generic", HOME)
    request = Request(cpus_per_node=1)
    for variables, expected in (
        ({"VIRTUAL_ENV": "/env"}, "/env/bin/python"),
        ({"CONDA_PREFIX": "/conda"}, "/conda/bin/python"),
        ({"BIGBATCH_PYTHON": "/b/python", "VIRTUAL_ENV": "/env"}, "/b/python"),
    ):
        script = script_of(request, site, env={**HOME, **variables})
        assert f"export BIGBATCH_PYTHON={expected}\n" in script


def test_keywords_of_submit_are_the_fields_of_a_request() -> None:
    names = {field.name for field in fields(Request)}
    assert set(RequestFields.__annotations__) == names - {"arguments"}
