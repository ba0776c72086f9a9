"""``constraints-lowest.txt`` has the lower bounds of ``pyproject.toml``, and what is installed keeps to them."""

import re
import subprocess
import sys
import tomllib

from packaging.requirements import Requirement

from helpers.paths import ROOT

SCRIPT = ROOT / ".ci" / "make_constraints.py"


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints-lowest.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_each_requirement_of_a_user_is_pinned_to_its_lower_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {k: v for k, v in project["optional-dependencies"].items() if k not in ("test", "docs", "dev")}
    asked = [Requirement(text) for text in [*project["dependencies"], *sum(extras.values(), [])]]
    lowest = {one.name: part.version for one in asked for part in one.specifier if part.operator == ">="}
    assert pins() == lowest and lowest.keys() == {one.name for one in asked}
    for one in asked:
        assert one.specifier.contains(pins()[one.name])
    check = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, timeout=30)
    assert (check.returncode, check.stderr) == (0, "")


def test_the_chosen_tests_are_there() -> None:
    """pytest fails for a file that is not there, but only in CI's last minutes."""
    chosen = re.search(r'^CHOSEN="(.+?)"$', (ROOT / ".ci" / "lowest").read_text(), flags=re.MULTILINE | re.DOTALL)
    assert chosen is not None
    assert [name for name in chosen[1].split() if not (ROOT / "tests" / f"{name}.py").is_file()] == []
