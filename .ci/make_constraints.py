"""Writes ``constraints-lowest.txt``: each package that users install, at its lower bound in ``pyproject.toml``.

    python .ci/make_constraints.py [--check]

With ``--check`` it writes nothing, and fails if the file says something else.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "constraints-lowest.txt"
FOR_DEVELOPERS = ("test", "docs", "dev")
"""Extras whose packages no user installs: they stay at new versions."""
HEAD = "# Made by .ci/make_constraints.py of the lower bounds in pyproject.toml; `make lowest` installs these.\n"
REQUIREMENT = re.compile(r"([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?>=([0-9][0-9.]*)(?:,<[0-9.]+)?")


def constraints() -> str:
    """The text of the file. Raises ValueError for a requirement without a lower bound."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].items()
    asked = [
        *project["dependencies"],
        *(one for name, all_of in extras if name not in FOR_DEVELOPERS for one in all_of),
    ]
    lines = {}
    for text in asked:
        found = REQUIREMENT.fullmatch(text)
        if found is None:
            raise ValueError(f"a requirement has a lower bound; got {text!r}. Write e.g. 'numpy>=2.1'.")
        lines[found[1]] = f"{found[1]}=={found[2]}\n"
    return HEAD + "".join(lines.values())


def main() -> int:
    """Write or check the file. Returns the exit code."""
    made = constraints()
    if "--check" not in sys.argv:
        FILE.write_text(made, encoding="utf-8")
    elif FILE.read_text(encoding="utf-8") != made:
        print(f"{FILE.name} is not what pyproject.toml says. Run: python .ci/make_constraints.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
