"""``bigbatch race``: places worked out here by hand, of studies and full runs, as table and as page."""

from __future__ import annotations

import html.parser
import json
import math
import re
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.study.store import StudyStore
from bigbatch.tune.watch.race_command import race_main
from helpers.recorded_studies import epoch_record, recorded_study

HOUR = 3600.0


def trial_of(study: optuna.Study, batch: int, values: list[float], hours: float, **attrs: object) -> int:
    """A finished trial whose epochs take ``hours`` each, validation (0.5 s) included."""
    trial = study.ask()
    config = TrainConfig(epochs=len(values)).replace_keys({"batch.global_size": batch, "optimizer.name": "lars"})
    trial.set_user_attr("config", config.to_dict())
    for name, value in attrs.items():
        trial.set_user_attr(name, value)
    for epoch, value in enumerate(values, 1):
        trial.set_user_attr(f"epoch/{epoch:05d}", epoch_record(epoch, value, seconds=hours * HOUR - 0.5))
        trial.report(value, epoch)
    study.tell(trial, values[-1])
    return trial.number


def study_of(folder: Path, trials: list[tuple], **description: object) -> Path:
    store = StudyStore.create(folder, folder.name, {"workers": 4, "max_epochs": 9, **description}, None)
    for one in trials:
        trial_of(store.study, *one)
    store.close()
    return folder


def full_run(folder: Path, values: list[float], hours: float, *, workers: int | None = 2) -> Path:
    """A folder of ``bigbatch train``; of a run that goes on without ``workers``."""
    folder.mkdir(parents=True)
    records = [epoch_record(epoch, value, seconds=hours * HOUR - 0.5) for epoch, value in enumerate(values, 1)]
    config = TrainConfig(epochs=len(values)).to_dict()
    if workers is None:
        (folder / "config.json").write_text(json.dumps(config))
        lines = [json.dumps(record) + "\n" for record in [*records[:1], *records]]  # the first epoch twice: it resumed
        (folder / "records.jsonl").write_text('{"resumed_after": 1}\n' + "".join(lines) + '{"epoch": 99, "val')
    else:
        result = {"schema_version": 1, "config": config, "workers": workers, "history": records}
        (folder / "result.json").write_text(json.dumps(result))
    return folder


def places(out: str) -> list[list[str]]:
    """The table's rows: place, run, optimizer, batch, workers, epochs, value, …"""
    rows = [re.split(r"\s{2,}", line.strip()) for line in out.splitlines()]
    return [row for row in rows if re.fullmatch(r"\d+|–", row[0])]


@pytest.fixture
def field(tmp_path: Path) -> Path:
    """Trial 0 is slow and good (4 workers × 1 h an epoch), trial 1 fast and worse; the full run (2 workers) between."""
    study_of(tmp_path / "runs" / "s", [(64, [0.5, 0.7, 0.8], 1.0), (512, [0.4, 0.6, 0.65], 0.25)])
    full_run(tmp_path / "runs" / "train" / "best-1234", [0.3, 0.75, 0.74], 0.5)
    (tmp_path / "runs" / "notes").mkdir()
    return tmp_path / "runs"


def test_without_a_cap_the_last_epoch_decides(field, capsys):
    assert race_main([str(path) for path in sorted(field.iterdir())]) == 0
    printed = capsys.readouterr()
    rows = places(printed.out)
    assert [(row[1], row[5], row[6], row[7]) for row in rows] == [
        ("s/trial-0000", "3/3", "80.0 %", "80.0 %"),
        (str(field / "train" / "best-1234"), "3/3", "74.0 %", "75.0 %"),
        ("s/trial-0001", "3/3", "65.0 %", "65.0 %"),
    ]
    assert [row[8] for row in rows] == ["12", "3", "3"], "hours × workers: 3 × 4, 1.5 × 2, 0.75 × 4"
    assert "left out" in printed.err and "notes" in printed.err


def test_a_cap_changes_the_order(field, capsys):
    folders = [str(field / "s"), str(field / "train")]
    assert race_main([*folders, "--cap-gpu-hours", "2.5"]) == 0
    rows = places(capsys.readouterr().out)
    # 2.5 device hours: two epochs of the full run (2 h), two of trial 1 (2 h), none of trial 0 (4 h each).
    assert [(row[0], row[1].split("/")[-1], row[5], row[6]) for row in rows] == [
        ("1", "best-1234", "2/3", "75.0 %"),
        ("2", "trial-0001", "2/3", "60.0 %"),
        ("–", "trial-0000", "0/3", "–"),
    ]
    assert race_main([*folders, "--cap-time", "1h30m"]) == 0
    rows = places(capsys.readouterr().out)
    assert [(row[1].split("/")[-1], row[5]) for row in rows] == [
        ("best-1234", "3/3"), ("trial-0001", "3/3"), ("trial-0000", "1/3"),
    ]  # fmt: skip


def test_the_objective_may_be_another_one(field, capsys):
    assert race_main([str(field / "s"), "--objective", "val_loss"]) == 0
    out = capsys.readouterr().out
    assert "validation loss, lower is better" in out and places(out)[0][6] == "1.7", "2.5 − 0.8"


def test_a_continued_trial_takes_part_once(tmp_path, capsys):
    store = StudyStore.create(tmp_path / "s", "s", {"workers": 1}, None)
    paused = store.study.ask()
    paused.set_user_attr("epoch/00001", epoch_record(1, 0.2))
    paused.set_user_attr("paused_in_epoch", 1)
    store.study.tell(paused, state=TrialState.PRUNED)
    trial_of(store.study, 64, [0.2, 0.9], 1.0, continues=0)
    store.close()
    assert race_main([str(tmp_path / "s")]) == 0
    assert [row[1] for row in places(capsys.readouterr().out)] == ["s/trial-0001"]


def test_a_run_that_goes_on(tmp_path, capsys):
    folder = full_run(tmp_path / "now", [0.1, 0.2], 1.0, workers=None)
    assert race_main([str(folder)]) == 0
    (row,) = places(capsys.readouterr().out)
    assert (row[4], row[5], row[6], row[8], row[9]) == ("?", "2/2", "20.0 %", "?", "2:00:00")
    assert race_main([str(folder), "--cap-gpu-hours", "9"]) == 0
    assert "Without place" in capsys.readouterr().out


class Page(html.parser.HTMLParser):
    """What a browser makes of the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_has_the_same_places_loads_nothing_and_escapes_names(tmp_path, capsys):
    evil = tmp_path / "<script>alert(1)</script>"
    evil.parent.mkdir(exist_ok=True)
    full_run(tmp_path / "<img onerror=x>" / "run", [0.5], 1.0)
    study_of(tmp_path / "s", [(64, [0.5, math.nan, 0.8], 1.0)])
    page = tmp_path / "race.html"
    assert (
        race_main([str(tmp_path), str(tmp_path / "<img onerror=x>"), "--html", str(page), "--cap-gpu-hours", "99"]) == 0
    )
    found = Page(page.read_text())
    assert found.loads == [] and not {"script", "img", "link"} & set(found.tags)
    assert found.tags.count("polyline") == 2 and found.tags.count("tr") == 3
    assert any("<img onerror=x>" in text for text in found.texts)
    assert "nan" not in page.read_text()
    assert str(page) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--cap-time", "soon"), "--cap-time is a duration"),
        (("--cap-gpu-hours", "0"), "--cap-gpu-hours must be more than 0"),
        (("--objective", "gpu_hours"), "Cap it instead"),
        (("--objective", "val_topp1"), "Did you mean 'val_top1'"),
        (("--html", "/proc/none/race.html"), "--html must be a file"),
    ],
)
def test_wrong_input_meets_one_line(field, capsys, options, words):
    assert race_main([str(field / "s"), *options]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


def test_nothing_to_race_and_studies_that_aim_at_different_things(tmp_path, capsys):
    assert race_main([str(tmp_path)]) == 2
    assert "a race needs a trial" in capsys.readouterr().err
    one = study_of(tmp_path / "one", [(64, [0.5], 1.0)])
    other = study_of(tmp_path / "other", [(64, [0.5], 1.0)], objective="val_loss:min")
    assert race_main([str(one), str(other)]) == 2
    assert "val_loss:min, val_top1:max" in capsys.readouterr().err


def test_a_study_of_every_state_and_a_damaged_one(tmp_path, capsys):
    recorded_study(tmp_path / "s", 8).close()
    recorded_study(tmp_path / "torn", 2).close()
    (tmp_path / "torn" / "study.json").write_text("{")
    assert race_main([str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert len(places(printed.out)) == 8 and "torn" in printed.err
    assert sum("running" in row[-1] for row in places(printed.out)) == 2


def test_studies_of_one_name_are_told_apart_and_a_folder_races_once(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study_of(tmp_path / "a" / "s", [(64, [0.5], 1.0)])
    study_of(tmp_path / "b" / "s", [(64, [0.6], 1.0)])
    study_of(tmp_path / "b" / "t", [(64, [0.7], 1.0)])
    assert race_main(["a/s", "b", "b/s", str(tmp_path / "a" / "s"), "./b/t"]) == 0
    assert [row[1] for row in places(capsys.readouterr().out)] == ["t/trial-0000", "b/s/trial-0000", "a/s/trial-0000"]


@pytest.mark.parametrize("hours", ["nan", "inf", "0"])
def test_a_cap_is_a_number_of_hours(field, capsys, hours):
    assert race_main([str(field), f"--cap-gpu-hours={hours}"]) == 2
    assert "--cap-gpu-hours must be more than 0 and finite" in capsys.readouterr().err


def test_a_page_never_replaces_another_file(field, capsys):
    target = field / "s" / "study.json"
    before = target.read_bytes()
    assert race_main([str(field), "--html", str(target)]) == 2
    assert "--html replaces only an HTML page" in capsys.readouterr().err and target.read_bytes() == before
    for _ in range(2):  # a page of an earlier race is replaced
        assert race_main([str(field), "--html", str(field / "race.html")]) == 0
