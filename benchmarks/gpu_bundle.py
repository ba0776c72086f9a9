"""One file with all that ``make gpu`` needs on a machine that has torch and no network.

    python benchmarks/gpu_bundle.py [--python 3.12] [--have torch==2.11.0 numpy==2.5.2 ...] [--output FILE.tar.xz]

It holds the last commit without docs/ and benchmarks/results/, and what pyproject.toml requires with the extras
nvml and timm, for x86-64 Linux. It leaves out what the machine has (--have), and what neither tests nor benchmarks read
(``UNREAD``, ``PRUNED``). It is refused above 55 MB. There, in any folder:

    tar xf FILE.tar.xz && cd bigbatch_gpu && PYTHONPATH=$PWD/packages python benchmarks/gpu.py

CIFAR-10 is not in it: bring a file of it too, for ``--cifar10`` of gpu.py. Packing takes minutes.

pip chooses the versions. In place of what the machine has, it finds a stand-in: a wheel of that version that holds
nothing and requires nothing. pip judges conditions such as ``python_version < "3.12"`` by the Python that runs it:
where a package is missing there, call this script with that Python. Needs the standard library, pip and git.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import lzma
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAME = "bigbatch_gpu"
MOST_BYTES = 55_000_000
EXTRAS = ("nvml", "timm")
OF_TESTS = ("pytest", "psutil")
"""Of the extra ``test``: the tests marked ``gpu`` need no more."""
HAVE = ("torch", "torchvision", "numpy", "pandas", "scipy", "scikit-learn", "pillow")
LEFT_OUT = ("docs", "benchmarks/results")
UNREAD = ("plotly", "wandb")
"""What is required, but imported by neither: pictures in studies' notebooks, and W&B."""
PRUNED = {
    "bin": "commands, which name the Python of this machine",
    "include": "headers",
    "share": "manual pages and extensions of notebooks",
    "*.dist-info/RECORD": "lists to uninstall by, with digests that do not become smaller",
    "*.dist-info/sboms": "lists of parts",
    "**/__pycache__": "made anew where it is needed",
    "**/*.exe": "programs of Windows",
    "cryptography": "certificates, for sign-ins",
    "hf_xet": "downloads of models",
    "pyarrow/include": "headers",
    "pyarrow/src": "headers",
    "pyarrow/tests": "tests",
    "pyarrow/*azure*": "a cloud's files",
    "pyarrow/*flight*": "a network protocol",
    "pyarrow/*gandiva*": "compiled expressions",
    "pyarrow/*gcs*": "a cloud's files",
    "pyarrow/*s3*": "a cloud's files",
    "ray/cpp": "C++",
    "ray/dashboard/client": "the dashboard's pages; its server wants the folder that keep_running makes",
    "ray/jars": "Java",
    "ray/llm": "language models",
    "ray/rllib": "reinforcement learning",
    "virtualenv/seed/wheels/embed/*.whl": "pip, for environments that Ray makes for others",
}
"""Patterns below packages/, each with what it is."""
STAND_IN = "stands.in"
"""The local part of a stand-in's version: no real wheel has it, so that pip takes no other one."""


def requirements(pyproject: Path) -> list[str]:
    """What the package requires, with ``EXTRAS`` and ``OF_TESTS`` and without ``UNREAD``."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    tests = [text for text in extras["test"] if name_of(text) in OF_TESTS]
    every = [*project["dependencies"], *(text for extra in EXTRAS for text in extras[extra]), *tests]
    return [text for text in every if name_of(text) not in UNREAD]


def name_of(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0]


def versions(have: Sequence[str]) -> dict[str, str]:
    """Name and version of what the machine has; without ``==VERSION`` it is the version that is installed here."""
    found = {}
    for word in have:
        name, _, version = word.partition("==")
        try:
            found[name] = version or importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            raise ValueError(
                f"--have takes NAME==VERSION, or a NAME that is installed here; got {word}. Write its version."
            ) from None
    return found


def write_stand_in(folder: Path, name: str, version: str) -> str:
    """A wheel that holds nothing and requires nothing. Returns the constraint by which pip takes it and no other."""
    name, version = re.sub(r"[-_.]+", "_", name), f"{version.partition('+')[0]}+{STAND_IN}"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        inside = f"{name}-{version}.dist-info"
        wheel.writestr(f"{inside}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{inside}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{inside}/RECORD", "")
    return f"{name}=={version}"


def install(wanted: Sequence[str], have: dict[str, str], python: str, packages: Path) -> None:
    """Install wheels for ``python`` on x86-64 Linux into a folder. Raises ValueError where pip fails."""
    with tempfile.TemporaryDirectory() as name:
        stand_ins = Path(name)
        constraints = stand_ins / "constraints.txt"
        constraints.write_text("\n".join(write_stand_in(stand_ins, *item) for item in have.items()) + "\n")
        kinds = [f"manylinux_2_{number}_x86_64" for number in range(34, 4, -1)] + ["manylinux2014_x86_64"]
        words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--only-binary", ":all:"]
        words += ["--implementation", "cp", "--python-version", python, "--target", str(packages)]
        words += [word for kind in kinds for word in ("--platform", kind)]
        words += ["--find-links", name, "--constraint", str(constraints), *wanted]
        if subprocess.run(words).returncode:
            raise ValueError("pip must find every package as a wheel; it has failed. Its message stands above.")
    for path in packages.glob(f"*+{STAND_IN}.dist-info"):
        shutil.rmtree(path)


def prune(packages: Path) -> None:
    """Remove what ``PRUNED`` names."""
    for pattern in PRUNED:
        for path in list(packages.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    keep_running(packages / "ray" / "dashboard")


def keep_running(dashboard: Path) -> None:
    """The dashboard's server, which searches need, does not start without the folder of its pages."""
    if dashboard.is_dir():
        (dashboard / "client" / "build" / "static").mkdir(parents=True)
        (dashboard / "client" / "build" / "index.html").touch()


def strip(packages: Path) -> None:
    """Remove what only debuggers and linkers read from programs and libraries."""
    if shutil.which("strip") is None:
        print("strip is not here (package binutils): the file becomes larger")
        return
    for path in packages.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.open("rb").read(4) == b"\x7fELF":
            subprocess.run(["strip", "--strip-unneeded", str(path)], capture_output=True)  # else it stays as it is


def add_repository(root: Path, folder: Path) -> None:
    """The last commit's files without ``LEFT_OUT``."""
    words = ["git", "archive", "--format=tar", "HEAD", "--", ".", *(f":(exclude){path}" for path in LEFT_OUT)]
    archive = subprocess.run(words, cwd=root, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")


def pack(folder: Path, output: Path) -> None:
    """As .tar.xz, as small as xz makes it, without this machine's names of users."""
    filters = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}]

    def nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with lzma.open(output, "wb", filters=filters) as file, tarfile.open(fileobj=file, mode="w|") as tar:
        tar.add(folder, NAME, filter=nobodys)


def sizes(folder: Path) -> dict[str, int]:
    """Bytes of each file and folder that lies directly in one, the largest first."""
    files = {path: [path] if path.is_file() else list(path.rglob("*")) for path in folder.iterdir()}
    found = {path.name: sum(p.stat().st_size for p in inner if p.is_file()) for path, inner in files.items()}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def refuse_large(output: Path, packages: Path, most: int = MOST_BYTES) -> None:
    """Remove a file of more than ``most`` bytes, and raise ValueError with the packages that are largest."""
    size = output.stat().st_size
    if size > most:
        output.unlink()
        largest = ", ".join(f"{name} {count / 1e6:.1f}" for name, count in list(sizes(packages).items())[:8])
        raise ValueError(
            f"the bundle must be at most {most / 1e6:g} MB; got {size / 1e6:.1f} MB. Name in --have what the "
            f"machine has; the largest packages, in MB before packing: {largest}."
        )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    parser.add_argument("--python", default=here, metavar="X.Y", help=f"of that machine (default: {here}, as here)")
    parser.add_argument(
        "--have", nargs="+", default=HAVE, metavar="NAME[==VERSION]", help=f"it has (default: {' '.join(HAVE)})"
    )
    parser.add_argument("--output", type=Path, default=Path(f"{NAME}.tar.xz"))
    o = parser.parse_args(argv)
    try:
        make(o)
    except ValueError as error:
        parser.exit(2, f"error: {error}\n")


def make(o: argparse.Namespace) -> None:
    if subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True).stdout:
        print("The last commit is packed; changes that are not committed are left out.")
    have = versions(o.have)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        packages = folder / "packages"
        add_repository(ROOT, folder)
        install(requirements(ROOT / "pyproject.toml"), have, o.python, packages)
        prune(packages)
        strip(packages)
        print("packing ...", flush=True)
        pack(folder, o.output)
        refuse_large(o.output, packages)
    print(f"{o.output}: {o.output.stat().st_size / 1e6:.1f} MB. On a machine with Python {o.python}:")
    print(f"tar xf {o.output.name} && cd {NAME} && PYTHONPATH=$PWD/packages python benchmarks/gpu.py")


if __name__ == "__main__":
    main()
