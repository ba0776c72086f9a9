"""Draws the pictures of a report: on a desktop, on a dark one, and on a phone.

    python docs/pictures/make_report.py runs/NAME

Writes the report of a real study, opens it in Chromium, and stores the pictures beside this file. They are smaller than
the screen, and have few colours, so that they stay small files.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from bigbatch.tune.report.page import write_report  # noqa: E402
from bigbatch.tune.report.recorded_study import open_recorded  # noqa: E402
from helpers.browser import opened_browser  # noqa: E402

PICTURES = Path(__file__).resolve().parent
LOOKS = {"desktop": (1280, 1860, False), "dark": (1280, 1860, True), "phone": (390, 1860, False)}
"""Width and height of what is shown, and whether the page is dark."""
COLOURS = 224


def main() -> None:
    """Write the pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("study", type=Path, help="the folder of a study")
    study = open_recorded(parser.parse_args().study)
    with tempfile.TemporaryDirectory(prefix="bigbatch-pictures-") as home, opened_browser() as page:
        report, raw = Path(home, "report.html"), Path(home, "raw.png")
        write_report(study, report)
        for name, (width, height, dark) in LOOKS.items():
            page.look(width, height, dark=dark, mobile=width < 600)
            page.open(report)
            page.screenshot(raw, whole=False)
            target = PICTURES / f"report_{name}.png"
            shrink(raw, target, 820 if width > 600 else width)
            print(f"{target}: {target.stat().st_size / 1e3:.0f} kB")


def shrink(source: Path, target: Path, width: int) -> None:
    """The picture at that width in few colours."""
    with Image.open(source) as picture:
        size = (width, round(picture.height * width / picture.width))
        small = picture.convert("RGB").resize(size, Image.Resampling.LANCZOS)
        small.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE).save(
            target, optimize=True
        )


if __name__ == "__main__":
    main()
