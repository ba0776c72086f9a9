"""What the plan says of the strategy, and what ``auto`` stands for."""

import shutil
from pathlib import Path

import pytest
from PIL import Image

from bigbatch.train_loop.data.info import DataInfo
from bigbatch.tune.commands.tune import tune_main
from bigbatch.tune.console.plan_notes import nothing_to_learn_from, size_of_images, unused_nodes
from bigbatch.tune.models.names import resolved


def test_a_search_whose_trials_all_start_at_once_is_told_which_numbers_would_help():
    text = nothing_to_learn_from("curves", trials=16, slots=16, workers=2)
    assert text is not None and "--trials 64" in text and "--workers 8" in text
    assert nothing_to_learn_from("curves", trials=17, slots=16, workers=2) is None
    assert nothing_to_learn_from("random", trials=16, slots=16, workers=2) is None, "it never learns"
    assert nothing_to_learn_from("tpe", trials=1, slots=1, workers=1) is None, "one trial is no search"


def test_a_search_on_one_of_several_nodes_says_so(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_NUM_NODES", raising=False)
    assert unused_nodes() is None
    for nodes, warns in (("1", False), ("4", True)):
        monkeypatch.setenv("SLURM_JOB_NUM_NODES", nodes)
        assert (unused_nodes() is not None) == warns and (not warns or "job's 4 nodes" in str(unused_nodes()))


@pytest.mark.parametrize(
    ("largest", "size", "model", "says", "other"),
    [
        (65, 224, "resnet50", "12 times", 65), (111, 224, "my.py:net", "4 times", 111), (112, 224, "resnet50", "", 0),
        (0, 224, "resnet50", "", 0), (32, 32, "resnet18", "", 0), (32, 32, "my.py:net", "", 0),
        (32, 32, "timm/vit_tiny_patch16_224", "49 times", 224), (64, 64, "alexnet", "12 times", 224),
    ],
)  # fmt: skip
def test_images_that_are_enlarged_or_small_are_said_with_what_that_costs(largest, size, model, says, other):
    info = DataInfo("d", None, 100, 10, 2, size, 3, ("a", "b"), "imagenet", largest_side=largest)
    text = size_of_images(info, model)
    assert (text is not None and says in text and f"image_size={other}." in text) if says else text is None


def test_a_plan_looks_how_large_the_images_are(tiny_images, tmp_path, capsys):
    folder = Path(shutil.copytree(tiny_images, tmp_path / "images"))
    arguments = ["--data", str(folder), "--model", "shufflenet_v2_x0_5", "--output", str(tmp_path), "--dry-run"]
    tune_main(arguments)
    said = capsys.readouterr().out
    assert "16 px" in said and "enlarged" not in said, "small images are trained as they are"
    for image in folder.glob("val/*/*"):
        with Image.open(image) as picture:
            picture.resize((65, 50)).save(image)
    tune_main(arguments)
    assert "images of at most 65 px are enlarged to 224 px, which takes about 12 times" in capsys.readouterr().out


def test_auto_looks_early_where_a_third_of_the_trials_is_enough_to_choose_from():
    assert resolved("auto", "auto", 64, 90) == ("curves", "look")
    assert resolved("auto", "auto", 12, 12) == ("curves", "asha")
    assert resolved("auto", "auto", 64, 6) == ("curves", "asha")
    assert resolved("tpe", "none", 64, 90) == ("tpe", "none")
