"""benchmarks/gpu_bundle.py: what goes into the file, what stays out, and when it is refused. Nothing is downloaded."""

import subprocess
import tarfile
from pathlib import Path

import gpu_bundle as bundle

from bigbatch.tune.storage.description import git_state


def made(folder: Path, *paths: str) -> Path:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(path)
    return folder


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_what_nothing_reads_is_pruned_and_what_searches_need_stays(tmp_path: Path) -> None:
    stays = {
        "ray/dashboard/head.py",
        "ray/core/raylet",
        "pyarrow/libarrow_substrait.so",
        "pyarrow/_fs.so",
        "ray-2.60.0.dist-info/METADATA",
    }
    goes = ("bin/ray", "share/man/a", "ray/jars/a.jar", "ray/dashboard/client/build/index.html", "ray/rllib/a.py",
            "ray/dashboard/client/build/static/a.js", "pyarrow/libarrow_flight.so", "pyarrow/_flight.so",
            "pyarrow/include/a.h", "pyarrow/_s3fs.so", "optuna/__pycache__/a.pyc", "ray-2.60.0.dist-info/RECORD",
            "distlib/t64.exe")  # fmt: skip
    bundle.prune(made(tmp_path, *stays, *goes))
    assert files(tmp_path) == stays | {"ray/dashboard/client/build/index.html"}
    assert (tmp_path / "ray" / "dashboard" / "client" / "build" / "static").is_dir()
    assert not (tmp_path / "ray" / "dashboard" / "client" / "build" / "index.html").read_text()


def test_what_is_required_is_what_pyproject_says_with_some_extras() -> None:
    wanted = bundle.requirements(bundle.ROOT / "pyproject.toml")
    names = {text.partition(">")[0].partition("[")[0] for text in wanted}
    assert {"ray", "torch", "optuna", "nvidia-ml-py", "timm", "pytest", "psutil"} <= names
    assert not {"jax", "optax", "lightning", "pytest-xdist", "wandb", "plotly"} & names


def test_the_file_holds_the_last_commit_without_documentation_and_nobodys_name(tmp_path: Path) -> None:
    repository, folder = tmp_path / "repository", tmp_path / "folder"
    rule, node = ".git_archival.txt export-subst\n", "node: $Format:%H$\n"
    made(repository, "tune/run.py", "docs/a.md", "benchmarks/gpu.py", "benchmarks/results/a.json")
    (repository / ".gitattributes").write_text(rule)
    (repository / ".git_archival.txt").write_text(node)
    git = ["git", "-C", str(repository), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert git_state(repository) == {"commit": commit, "dirty": False, "changed_files": []}
    made(repository, "not_committed.py")
    bundle.add_repository(repository, folder)
    assert files(folder) == {"tune/run.py", "benchmarks/gpu.py", ".gitattributes", ".git_archival.txt"}
    assert git_state(folder) == {"commit": commit, "dirty": None, "changed_files": []}
    bundle.pack(folder, tmp_path / "b.tar.xz")
    with tarfile.open(tmp_path / "b.tar.xz") as tar:
        members = tar.getmembers()
    assert "bigbatch_gpu/tune/run.py" in {member.name for member in members}
    assert {(member.uid, member.uname) for member in members} == {(0, "")}
