"""A set that commit 6dde4d6 packed: it is verified, described and read."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from bigbatch.train_loop.config import BatchConfig, DataConfig, LoaderConfig
from bigbatch.train_loop.data.catalogue import open_data
from helpers.paths import ROOT
from helpers.processes import clean_environment

BIGBATCH = "import sys; sys.argv[0] = 'bigbatch'; from bigbatch.command import console; sys.exit(console())"


def pack(*arguments: object) -> str:
    """What ``bigbatch pack`` prints."""
    done = subprocess.run(
        [sys.executable, "-c", BIGBATCH, "pack", *map(str, arguments)],
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_verified_and_described(copy_of: Callable[[str], Path]) -> None:
    packed = copy_of("packed")
    assert "24 images" in pack("--verify", packed)
    described = pack("--info", packed)
    assert "16" in described and "8" in described and "ant" in described and "bee" in described
    assert (packed / "contact_sheet.png").exists()


def test_a_changed_byte_is_found(copy_of: Callable[[str], Path]) -> None:
    packed = copy_of("packed")
    shard = max(packed.iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(AssertionError, match="as it was|faults|failed"):
        pack("--verify", packed)


@pytest.mark.parametrize("workers", [0, 1])
def test_its_images_are_those_that_were_packed(copy_of: Callable[[str], Path], workers: int) -> None:
    """Each is a ramp from 0 to 200, times 1, 0.5 and 0.2 for its colours, plus 20 × its class and its number."""
    source = open_data(DataConfig(name=str(copy_of("packed")), image_size=32, loader=LoaderConfig(workers=workers)))
    try:
        info = source.info
        assert (info.train_size, info.val_size, info.class_names) == (16, 8, ("ant", "bee"))
        batches = list(source.val_batches(3, 0, 1))
        labels = torch.cat([labels for _, labels in batches])
        images = torch.cat([source.finish(images) for images, _ in batches])
        assert labels.tolist() == [0] * 4 + [1] * 4 and images.shape == (8, 3, 32, 32)
        levels = images.mean(dim=(2, 3)).numpy()
        for channel, share in enumerate((1, 0.5, 0.2)):
            written = [100 * share + 20 * label + number for label in (0, 1) for number in range(4)]
            slope, start = np.polyfit(written, levels[:, channel], 1)
            # Normalised by the set's own mean, which lies within what was written (training images number 0 to 7).
            assert slope > 0 and 100 * share < -start / slope < 100 * share + 30
            assert levels[:, channel] == pytest.approx(start + slope * np.array(written), abs=2 * slope)
        split = BatchConfig(global_size=8, micro_size=8).split(1)
        steps = [list(step) for step in source.train_steps(0, 0, split, 0)]
        seen = torch.cat([labels for step in steps for _, labels in step])
        assert np.bincount(seen.numpy()).tolist() == [8, 8], "each training image once"
    finally:
        source.close()


def test_it_trains_by_its_new_place(copy_of: Callable[[str], Path], tmp_path: Path) -> None:
    """The set names no folder: it may be moved, and read where nothing can be written."""
    packed = copy_of("packed")
    for path in packed.iterdir():
        assert b"/tmp/" not in path.read_bytes(), path
    again = tmp_path / "elsewhere"
    shutil.move(packed, again)
    assert open_data(DataConfig(name=str(again), image_size=32)).info.train_size == 16
