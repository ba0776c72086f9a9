"""Studies with every kind of end, and what the terminal, the report and frontier.json say of each.

``python tests/helpers/answered_studies.py`` writes these texts to ``tests/helpers/golden/answers/``. A person reads
what has changed before it is committed.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.storages import JournalStorage
from optuna.trial import FrozenTrial, TrialState

optuna.logging.set_verbosity(optuna.logging.WARNING)
GOLDEN = Path(__file__).resolve().parent / "golden" / "answers"
if __name__ == "__main__":
    sys.path[:0] = [str(GOLDEN.parents[3] / "src"), str(GOLDEN.parents[2])]

from bigbatch.train_loop.config import TrainConfig  # noqa: E402
from bigbatch.tune.commands.show import study_text  # noqa: E402
from bigbatch.tune.report.markup import FigureBook, joined  # noqa: E402
from bigbatch.tune.report.recorded_study import open_recorded  # noqa: E402
from bigbatch.tune.report.sections import answer_part  # noqa: E402
from bigbatch.tune.runs.answer import answer_of, leading_trial  # noqa: E402
from bigbatch.tune.runs.objectives import objectives_of  # noqa: E402
from bigbatch.tune.storage.frontier_file import FRONTIER_FILE, write_frontier  # noqa: E402
from bigbatch.tune.storage.summary import summarize  # noqa: E402
from helpers.invented_studies import Lines, description, write_journal  # noqa: E402

BATCHES = (128, 256, 512, 1024)


@dataclass(frozen=True)
class RunSpec:
    """One trial: its value of the frontier, its curve on what chooses, and how it ended."""

    value: object
    curve: Sequence[float]
    held_out: float | None = None
    """After the last epoch, on the examples that made no choice."""
    state: TrialState = TrialState.COMPLETE
    attrs: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class StudySpec:
    """A whole study."""

    runs: Sequence[RunSpec]
    about: Mapping[str, object] = field(default_factory=dict)
    """Keys of study.json."""
    values: Sequence[object] | None = BATCHES
    name: str = "global_batch_size"


def rising(end: float, *, start: float = 0.1, epochs: int = 6) -> list[float]:
    """A curve that comes near to its end early: the distance falls to a third with each epoch."""
    return [round(end + (start - end) * 0.3**epoch, 6) for epoch in range(epochs - 1)] + [end]


def run(value: object, end: float, held: float | None = None, **attrs: object) -> RunSpec:
    return RunSpec(value, rising(end), held, attrs=attrs)


def confirms(number: int, value: object, ends: Sequence[float], held: Sequence[float] = ()) -> list[RunSpec]:
    """Runs of trial ``number`` with fresh seeds."""
    pairs = zip(ends, held or [None] * len(ends), strict=True)
    return [run(value, end, h, confirms=number, confirmation_seed=i + 1) for i, (end, h) in enumerate(pairs)]


def own_metric(name: str, runs: Sequence[RunSpec], *, less: bool = False, **about: object) -> StudySpec:
    """A study of a training function of the user's own that reports one metric."""
    keys = {"trainable": "mine.py:train", "model": "mine.py:train", "objective": f"{name}:{'min' if less else 'max'}"}
    return StudySpec(
        runs, {**keys, "tolerance": "1%", "image_size": 0, "num_classes": 0, "val_size": 0, "confirm": "none", **about}
    )


HALVED = {"val_size": 180, "holdout_size": 180}
FAILED = TrialState.FAIL
STUDIES: dict[str, StudySpec] = {
    "nothing-learned": StudySpec(
        [RunSpec(b, [0.1, v]) for b, v in ((128, 0.15), (256, 0.1), (512, 0.1), (1024, 0.083))],
        {"val_size": 60, "max_epochs": 2},
    ),
    "nothing-learned-one-batch": StudySpec([RunSpec(256, [0.1, 0.11])], {"val_size": 100}, values=(256,)),
    "one-value-at-chance": StudySpec(
        [run(128, 0.97, 0.96), run(256, 0.97, 0.955), run(512, 0.965, 0.95), run(1024, 0.11, 0.1)],
        {"val_size": 1000, "holdout_size": 1000},
    ),
    "one-value-untried": StudySpec([run(128, 0.97), run(256, 0.968), run(512, 0.9)], {"val_size": 2000}),
    "one-value-unfinished": StudySpec(
        [run(128, 0.97), run(256, 0.968), run(512, 0.9), RunSpec(1024, [0.1, 0.5], state=TrialState.PRUNED)],
        {"val_size": 2000},
    ),
    "held-out-reverses-the-order": StudySpec(
        [run(128, 0.989, 0.972), run(256, 0.983, 0.967), run(512, 0.994, 0.944), run(1024, 0.978, 0.95)], HALVED
    ),
    "held-out-clearly-reverses-the-order": StudySpec(
        [run(128, 0.95, 0.96), run(256, 0.951, 0.90)], {"val_size": 5000, "holdout_size": 5000}, values=(128, 256)
    ),
    "ties": StudySpec([run(b, 0.95, 0.95) for b in BATCHES], HALVED),
    "confirmed-on-held-out": StudySpec(
        [
            run(128, 0.989, 0.972), run(256, 0.994, 0.944), run(512, 0.95, 0.93), run(1024, 0.9, 0.91),
            *confirms(1, 256, [0.983, 0.989, 0.978], [0.956, 0.95, 0.961]),
        ],
        HALVED,
    ),
    "confirmed-on-what-chose": StudySpec(
        [run(128, 0.99), run(256, 0.995), run(512, 0.95), *confirms(1, 256, [0.98, 0.985, 0.975])],
        {"val_size": 200}, values=(128, 256, 512),
    ),
    "a-fresh-seed-diverged": StudySpec(
        [
            run(128, 0.96), run(256, 0.97), *confirms(1, 256, [0.96, 0.955]),
            RunSpec(256, [0.1], state=FAILED, attrs={"confirms": 1, "confirmation_seed": 3, "diverged": True}),
        ],
        {"val_size": 1000}, values=(128, 256),
    ),
    "under-trained": StudySpec(
        [run(128, 0.95), run(256, 0.94), RunSpec(512, [0.1, 0.2, 0.3, 0.5, 0.7, 0.85])], {"val_size": 1000},
        values=(128, 256, 512),
    ),
    "all-diverged": StudySpec([RunSpec(b, [0.1], state=FAILED, attrs={"diverged": True}) for b in BATCHES]),
    "constrained": StudySpec(
        [
            run(128, 0.95), run(256, 0.94),
            RunSpec(512, [0.1, 0.99], state=TrialState.PRUNED, attrs={
                "infeasible": {"epoch_s": 0.2}, "ended_because": "infeasible after epoch 2: epoch time is 72 s, …"}),
        ],
        {"val_size": 1000}, values=(128, 256, 512),
    ),
    "no-frontier": StudySpec([run(None, 0.95, 0.93), run(None, 0.9, 0.9)], HALVED, values=None),
    "tiny-loss": own_metric(
        "mse", [RunSpec(b, [0.1, 0.01, v]) for b, v in zip(BATCHES, (0.0010, 0.0011, 0.0030, 0.0052), strict=True)],
        less=True, baseline={"mse": 0.2},
    ),
    "perplexity": own_metric(
        "ppl",
        [RunSpec(b, [900.0, 500.0, 450.0, v]) for b, v in zip(BATCHES, (412.0, 412.02, 412.5, 430.0), strict=True)],
        less=True, baseline={"ppl": 10000.0},
    ),
    "negative-metric": own_metric(
        "log_likelihood",
        [RunSpec(b, [-9.0, -6.0, -5.2, v]) for b, v in zip(BATCHES, (-5.00, -5.03, -5.10, -5.02), strict=True)],
        baseline={"log_likelihood": -12.0},
    ),
    "cannot-be-told-apart": own_metric(
        "score", [RunSpec(b, [0.40, 0.44, 0.39, v]) for b, v in zip(BATCHES, (0.41, 0.42, 0.405, 0.415), strict=True)]
    ),
    "regression": StudySpec(
        [RunSpec(b, [3.0, 1.0, 0.6, v]) for b, v in zip(BATCHES, (0.5, 0.502, 0.51, 0.9), strict=True)],
        {
            "objective": "val_loss:min", "tolerance": "1%", "confirm": "none", "image_size": 0, "num_classes": 0,
            "are_classes": False,
            "val_size": 300, "baseline": {"val_loss": 4.0}, "data": "houses.py:data",
        },
    ),
    "segmentation": StudySpec(
        [RunSpec(b, [0.2, 0.5, 0.6, v]) for b, v in zip(BATCHES, (0.71, 0.712, 0.709, 0.15), strict=True)],
        {
            "objective": "val_iou:max", "tolerance": "1%", "confirm": "none", "val_size": 100, "are_classes": False,
            "baseline": {"val_iou": 0.2},
        },
    ),
    "words-as-values": StudySpec(
        [run("cosine", 0.95), run("poly", 0.949)], {"val_size": 2000}, values=("cosine", "poly"), name="schedule.name"
    ),
}  # fmt: skip


def write_study(folder: Path, spec: StudySpec) -> Path:
    """The folder of such a study, as a search leaves it."""
    folder.mkdir(parents=True)
    frontier = {"name": spec.name, "values": list(spec.values)} if spec.values else None
    searched = [one for one in spec.runs if "confirms" not in one.attrs]
    about = description(folder.name, len(searched))
    about |= {"tolerance": "0.5pt", "confirm": "auto", "max_epochs": 6, "frontier": frontier, **spec.about}
    (folder / "study.json").write_text(json.dumps(about))
    objectives, lines = objectives_of(about), Lines()
    storage, direction = JournalStorage(lines), objectives.first.direction
    study = optuna.create_study(study_name=folder.name, storage=storage, direction=direction)
    for one in spec.runs:
        study.add_trial(_trial(one, spec, objectives.first.name))
    write_journal(folder, lines)
    trials = study.get_trials(deepcopy=False)
    answer = answer_of(trials, about, objectives)
    if answer is not None:
        write_frontier(answer, folder)
    best = leading_trial(trials, answer, objectives)
    if best is not None:
        (folder / "best.json").write_text(json.dumps(best.user_attrs["config"]))
    return folder


def _trial(one: RunSpec, spec: StudySpec, metric: str) -> FrozenTrial:
    batch = one.value if type(one.value) is int else 256
    config = TrainConfig(epochs=len(one.curve)).replace_keys({"batch.global_size": batch}).to_dict()
    held = f"holdout_{metric.removeprefix('val_')}"
    epochs = {}
    for epoch, value in enumerate(one.curve, 1):
        record: dict[str, Any] = {"epoch": epoch, "train_s": 10.0 * 128 / batch + 1.0}
        record |= {"val_loss": 1.0} if metric != "val_loss" else {}
        if "trainable" not in spec.about:
            record |= {"optimizer_steps": epoch * (1437 // batch), "images_per_s": 1000.0}
        record |= {"metrics": {metric: value}} if metric not in ("val_top1", "val_loss") else {metric: value}
        if one.held_out is not None:
            record[held] = one.held_out
        epochs[f"epoch/{epoch:05d}"] = record
    named = bool(spec.values) and len(spec.values or ()) > 1
    return optuna.trial.create_trial(
        state=one.state,
        value=one.curve[-1] if one.state == TrialState.COMPLETE else None,
        params={spec.name: one.value} if named else {},
        distributions={spec.name: CategoricalDistribution(spec.values)} if named else {},  # type: ignore[arg-type]
        user_attrs={"config": config, "gpu_hours": 0.01, **epochs, **one.attrs},
        intermediate_values=dict(enumerate(one.curve, 1)),
    )


def said_of(folder: Path) -> str:
    """What the terminal, the report's card and frontier.json say of a study."""
    shown = study_text(summarize(folder), None)
    answer = shown.split("\n\n", 2)[2] if shown.count("\n\n") > 1 else shown
    card = joined(answer_part(open_recorded(folder), FigureBook()))
    words = str(card).split("<h3>The configuration to copy")[0]
    words = re.sub("<figure.*?</figure>", "", words, flags=re.DOTALL)
    words = re.sub(r"</(p|h2|h3|tr|div|caption)>", "\n", words)
    words = html.unescape(re.sub(r"<[^>]+>", " ", words))
    report = "\n".join(line for line in (" ".join(line.split()) for line in words.splitlines()) if line)
    written = (folder / FRONTIER_FILE).read_text() if (folder / FRONTIER_FILE).exists() else "{}"
    # Versions of SciPy differ in the last digits of a quantile.
    values = json.loads(written, parse_float=lambda number: float(f"{float(number):.10g}"))
    for row in values.get("rows", ()):
        row.pop("config")
    written = json.dumps(values, indent=1)
    text = f"== the end ==\n{answer}\n\n== the report ==\n{report}\n\n== frontier.json ==\n{written}\n"
    return text.replace(str(folder.parent), "runs")


def write_golden(say: Callable[[str], None] = print) -> None:
    """Write the texts of all studies."""
    shutil.rmtree(GOLDEN, ignore_errors=True)
    GOLDEN.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as place:
        for name, spec in STUDIES.items():
            (GOLDEN / f"{name}.txt").write_text(said_of(write_study(Path(place, name), spec)))
            say(name)


if __name__ == "__main__":
    write_golden()
