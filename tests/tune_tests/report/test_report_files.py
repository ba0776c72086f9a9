"""``bigbatch report``: whatever a study's folder holds, there is a report that says so, and never a traceback."""

import json
import re
import shutil
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from bigbatch.command import main
from bigbatch.tune.report import markup
from bigbatch.tune.report.recorded_study import open_recorded
from bigbatch.tune.report.sections import PARTS
from bigbatch.tune.storage.store import StudyStore
from helpers.invented_studies import Lines, description, hostile_study, invented_study, write_journal
from helpers.refusals import refused_command

pytestmark = pytest.mark.without_ray


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of forty trials that ended in every way. Not to be changed."""
    return invented_study(tmp_path_factory.mktemp("runs") / "kept", 40)


@pytest.fixture
def study(kept: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(kept, tmp_path / "runs" / "kept"))


def with_tables(folder: Path) -> None:
    store = StudyStore.open(folder, None)
    store.refresh(force=True)
    store.close()


def report_of(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    """The page, as the command writes it; nothing of the study may change."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "report.html"}
    assert main(["report", str(folder), *more]) == 0, capsys.readouterr().err
    assert {path: path.read_bytes() for path in before} == before, "a report changes nothing"
    assert capsys.readouterr().out.endswith(f"Report: {folder / 'report.html'}\n")
    return (folder / "report.html").read_text(encoding="utf-8")


def words_of(text: str) -> str:
    """What a reader sees, without scripts, styles and tags."""
    text = re.sub(r"<(script|style)\b.*?</\1>", " ", text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))


def test_the_answer_comes_first_and_is_that_of_frontier_json(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_tables(study)
    found = json.loads((study / "frontier.json").read_text())
    row = next(row for row in found["rows"] if row["value"] == found["answer"]["value"])
    text = report_of(study, capsys)
    seen = words_of(text)
    assert f"The answer is batch {row['value']:,} (trial {row['trial']}): validation top-1" in seen
    assert f"{100 * row['reported']:.1f} %" in seen
    assert f"({100 * row['low']:.1f} to {100 * row['high']:.1f} % at 95 %)" in seen
    order = [text.index(f'id="{name}"') for name in PARTS]
    assert order == sorted(order)
    config = re.search(r'<pre id="config">(.*?)</pre>', text, re.DOTALL)
    assert config and json.loads(config[1].replace("&quot;", '"')) == row["config"]
    assert f"--config {study}/frontier/{row['value']}.json" in seen
    assert "bigbatch tune --study kept" in seen, "the command that repeats it"
    assert "energy not measured" in seen


def test_the_page_is_one_small_file_that_may_load_nothing(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = report_of(study, capsys)
    assert len(text.encode()) < 5e6
    assert "default-src 'none'" in text and "'unsafe-eval'" not in text and "script-src 'unsafe-inline'" not in text
    assert not re.search(r"(src|href)=\"(?!#|data:,)", text), "no address but places in the page"


def test_a_study_that_has_not_begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new"
    folder.mkdir()
    (folder / "study.json").write_text(json.dumps(description("new", 8, sessions=[])))
    seen = words_of(report_of(folder, capsys))
    assert "There is no answer yet. No trial has begun." in seen and "No trial has reported an epoch yet." in seen
    (folder / "optuna.journal").write_bytes(b"")
    assert "No trial has begun." in words_of(report_of(folder, capsys))


def test_a_study_whose_trials_never_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, lines = tmp_path / "silent", Lines()
    folder.mkdir()
    (folder / "study.json").write_text(json.dumps(description("silent", 8)))
    found = optuna.create_study(
        study_name="silent", storage=optuna.storages.JournalStorage(lines), direction="maximize"
    )
    for state in (TrialState.FAIL, TrialState.PRUNED, None):
        trial = found.ask()
        trial.suggest_float("rate", 0.1, 1.0)
        if state is not None:
            found.tell(trial, state=state)
    write_journal(folder, lines)
    seen = words_of(report_of(folder, capsys))
    assert "3 trials have begun, none has finished (" in seen and "could not be written" not in seen
    assert "1 failed otherwise" in seen


def test_a_running_study_with_a_half_line(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = StudyStore.open(study, None)  # this process is its driver
    try:
        trial = store.study.ask()
        trial.suggest_float("lr_multiplier", 1 / 16, 16, log=True)
        with (study / "optuna.journal").open("ab") as lines:
            lines.write(b'{"op_code":6,"trial_id":40,"sta')
        assert main(["report", str(study)]) == 0
    finally:
        store.close()
    captured = capsys.readouterr()
    seen = words_of((study / "report.html").read_text(encoding="utf-8"))
    assert "The search is running" in seen and "The answer is batch" in seen and captured.err == ""


def test_a_damaged_journal_shows_what_comes_before(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = study / "optuna.journal"
    lines = journal.read_bytes().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if line.count(b'"op_code":6') and b'"trial_id":18,' in line) + 1
    journal.write_bytes(b"".join([*lines[:at], b"\x00\xff garbage\n", *lines[at:]]))
    assert main(["report", str(study)]) == 0
    seen = words_of((study / "report.html").read_text(encoding="utf-8"))
    assert f"The journal is damaged at line {at + 1}; only what comes before can be read." in seen
    assert f"damaged at line {at + 1}" in capsys.readouterr().err
    assert len(open_recorded(study).trials) == 19
    for command in (["show", str(study)], ["studies", "--output", str(study.parent)]):
        assert main(command) == 0
        assert f"The journal is damaged at line {at + 1}" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("damage", [None, b'{"op_code": 0, "study_name": 7}\n', b'{"op_code": 99}\n'])
def test_without_a_journal_the_tables_say_the_same(study: Path, damage: bytes | None) -> None:
    with_tables(study)
    whole = open_recorded(study)
    (study / "optuna.journal").unlink()
    if damage is not None:
        (study / "optuna.journal").write_bytes(damage)
    found = open_recorded(study)
    assert [(t.number, t.state, t.value, t.params) for t in found.trials] == [
        (t.number, t.state, t.value, t.params) for t in whole.trials
    ]
    assert [row.best and row.best.objective for row in found.frontier.rows] == [
        row.best and row.best.objective for row in whole.frontier.rows
    ]
    assert bool(found.problems) == (damage is not None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "must be readable JSON"),
        ("[]", "study schema 1"),
        ('{"schema_version": 7}', "reads study schema 1; got 7"),
    ],
)
def test_a_description_that_cannot_be_read(study: Path, capsys, text: str, reason: str) -> None:
    (study / "study.json").write_text(text)
    seen = words_of(report_of(study, capsys))
    assert "The study cannot be read" in seen and reason in seen and "Nothing more is known" in seen


def test_html_in_a_study_is_text_in_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = report_of(hostile_study(tmp_path / "hostile"), capsys)
    assert "&lt;script&gt;alert(1)" in text and "could not be written" not in words_of(text)
    for piece in ("<script>alert", "<img", "<a href='javascript", 'href="javascript'):
        assert piece not in text
    assert len(re.findall("<script", text)) == 3, "plotly, figures, page.js"


def test_without_plotly_the_report_is_refused_in_one_line(study: Path, capsys, monkeypatch) -> None:
    markup.plotly_script.cache_clear()
    monkeypatch.setattr(markup.importlib.util, "find_spec", lambda name: None)
    said = refused_command(capsys, main, ["report", str(study)])
    assert "figures need plotly; it is not installed. Run: pip install plotly." in said
    assert not (study / "report.html").exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["nosuch"], "none called 'nosuch'"),
        (["kept", "-o", "."], "takes a file"),
        (["kept", "-o", "/dev/null"], "takes a file"),
        (["kept", "-o", "no/such/x.html"], "a folder that exists"),
        (["kept", "-o", "/proc/x.html"], "can be written"),
        ([], "STUDY|PATH"),
    ],
)
def test_wrong_input_is_one_line(kept: Path, capsys: pytest.CaptureFixture[str], more: list[str], words: str) -> None:
    assert words in refused_command(capsys, main, ["report", "--output", str(kept.parent), *more])


@pytest.mark.slow
def test_thousands_of_trials(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = report_of(invented_study(tmp_path / "large", 3_000), capsys)
    seen = words_of(text)
    assert len(text.encode()) < 5e6 and "could not be written" not in seen
    assert "trials: the best ones." in seen


def test_a_report_never_replaces_another_file(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("study.json", "optuna.journal"):
        before = (study / name).read_bytes()
        assert main(["report", str(study), "-o", str(study / name)]) == 2
        assert "-o replaces only an HTML page" in capsys.readouterr().err and (study / name).read_bytes() == before
    for _ in range(2):  # an earlier report is replaced
        assert main(["report", str(study), "-o", str(study / "other.html")]) == 0


def test_a_journal_that_was_cut_short_is_said(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_tables(study)
    total = len(open_recorded(study).trials)
    assert open_recorded(study).problems == ()
    journal = study / "optuna.journal"
    lines = journal.read_bytes().splitlines(keepends=True)
    begun = [number for number, line in enumerate(lines) if b'"op_code":4' in line.replace(b" ", b"")]
    journal.write_bytes(b"".join(lines[: begun[-3]]))  # a disk that filled up and kept whole lines alone
    (said,) = open_recorded(study).problems
    assert said == "The journal lacks 3 trials that trials.parquet has: it was cut short."
    assert len(open_recorded(study).trials) == total - 3
    assert said in words_of(report_of(study, capsys))
