"""The pages that describe the tree name what is there: every wing, every decision, every import between floors."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

from helpers.paths import ROOT

DOCS = ROOT / "docs"
FLOORS = ("tune", "search_spaces", "train_loop", "cluster", "src/bigbatch/base")


def script(path: Path) -> ModuleType:
    """A script of ``docs/`` as a module, without running it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def files_of_tree() -> set[str]:
    """Every Python file of the four packages, from the root."""
    found = (path for floor in FLOORS for path in (ROOT / floor).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix() for path in found}


def test_the_architecture_page_names_each_wing_once_and_no_other() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| \**`([a-z_/]+)/`\** \|", text, flags=re.MULTILINE)
    wings = {path.rpartition("/")[0] for path in files_of_tree()}
    assert len(named) == len(set(named))
    assert set(named) == wings


def test_the_table_of_what_to_open_names_files_and_what_is_in_them() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    rows = text.split("| to change |")[1].split("\n\n")[0].splitlines()[2:]
    for row in rows:
        file = ""
        for word in re.findall(r"`([\w/.]+)`", row):
            if "/" in word:
                assert (ROOT / word).exists(), row
                file = (ROOT / word).read_text(encoding="utf-8") if word.endswith(".py") else ""
            else:
                assert re.search(rf"\b{word}\b", file), f"{word}: {row}"


def test_the_list_of_decisions_is_what_its_script_writes_today_and_their_numbers_are_unique() -> None:
    maker = script(DOCS / "make_decisions.py")
    assert maker.index() == maker.INDEX.read_text(encoding="utf-8"), "run: make pages"
    numbers = [path.name[:3] for path in (DOCS / "decisions").glob("[0-9]*.md")]
    assert len(set(numbers)) == len(numbers) > 10


def test_the_picture_of_the_floors_is_what_its_script_draws_today() -> None:
    maker = script(DOCS / "pictures" / "make_floors.py")
    drawn = maker.draw(maker.floors(ROOT))
    assert drawn == maker.PICTURE.read_text(encoding="utf-8"), "run: make pages"
