"""Two corrections that the site needs and a repository's web page does not.

**Links to files outside ``docs/``.** On a repository's web page such a link is right as it is. mkdocs
knows only the files in ``docs/``. So the hook copies each linked file to ``repository/`` in the site and
points the link there. A link to a file that does not exist stays as it is, and
``mkdocs build --strict`` refuses it.

**Signs of other formats.** A bar within a table cell is written ``\\|``, and docstrings end the line before an example
with ``::``. The site would show both as they are written.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(\]\()(\.\./[^)#\s]*)((?:#[^)]*)?\))")
"""``](../benchmarks/results/x.json)``."""


def outside_docs(page: str, target: str) -> Path | None:
    """The repository's file that ``target``, a link of the page ``docs/<page>``, means; None for a page of ours."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
    found = ROOT / path
    return None if path.startswith(("docs/", "../")) or not found.is_file() else found


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Called by mkdocs with the text of each page."""
    name = page.file.src_uri

    def point_into_site(match: re.Match[str]) -> str:
        found = outside_docs(name, match[2])
        if found is None:
            return match[0]
        copy = f"repository/{found.relative_to(ROOT).as_posix()}"
        if found.suffix == ".md":  # mkdocs would take it for a page of the site
            copy += ".txt"
        if files.get_file_from_path(copy) is None:
            files.append(File.generated(config, copy, abs_src_path=str(found)))
        return f"{match[1]}{posixpath.relpath(copy, posixpath.dirname(name) or '.')}{match[3]}"

    return LINK.sub(point_into_site, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Called by mkdocs with the HTML of each page."""
    html = re.sub(r"<td>.*?</td>", lambda cell: cell[0].replace(r"\|", "|"), html, flags=re.DOTALL)
    return html.replace("::</p>", ":</p>")
