"""benchmarks/gpu_bundle.py: what goes into the file, what stays out, and when it is refused. Nothing is downloaded."""

import subprocess
import tarfile
import zipfile
from pathlib import Path

import gpu_bundle as bundle
import pytest

from bigbatch.tune.storage.description import git_state


def made(folder: Path, *paths: str) -> Path:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(path)
    return folder


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def write_wheel(folder: Path, name: str, version: str, needs: str) -> None:
    folder.mkdir(exist_ok=True)
    inside = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        wheel.writestr(f"{inside}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        wheel.writestr(f"{inside}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{inside}/RECORD", "")


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


def test_pip_takes_a_stand_in_for_what_the_machine_has_and_nothing_of_it_is_packed(tmp_path, monkeypatch):
    wheels = tmp_path / "wheels"
    write_wheel(wheels, "trains", "1.0", "Requires-Dist: torch>=2.8\nRequires-Dist: scikit-learn!=1.0\n")
    write_wheel(wheels, "torch", "2.11.0+cu130", "Requires-Dist: triton\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    have = {"torch": "2.11.0+cu130", "scikit-learn": "1.6"}
    bundle.install(["trains"], have, "3.12", tmp_path / "packages")
    assert {path.split("/")[0] for path in files(tmp_path / "packages")} == {"trains.py", "trains-1.0.dist-info"}
    with pytest.raises(ValueError, match="pip must find every package"):
        bundle.install(["trains"], {**have, "torch": "2.7"}, "3.12", tmp_path / "refused")


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
