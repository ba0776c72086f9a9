"""``--trainable``: check a search over a whole training function of the user's, and plan it."""

from __future__ import annotations

from collections.abc import Iterable

from bigbatch.base.command_line import empty_value
from bigbatch.search_spaces.trainable_space import RESERVED, TrainableSpace, load_trainable_space
from bigbatch.train_loop.config import ConfigError, json_or_word
from bigbatch.train_loop.config.own_names import OwnName, own_name
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.train_loop.plugins.registry import check_call, load_function
from bigbatch.tune.plan.objective_options import one_of_objective_options
from bigbatch.tune.plan.options import SearchOptions
from bigbatch.tune.runs import metrics
from bigbatch.tune.runs.objectives import Objectives, own_objectives

OPTION = "--trainable"
ARGUMENTS = ("config", "report", "resume")
OF_THE_LOOP = (
    "data", "subset", "val_part", "holdout", "batch", "model", "loss", "optimizer",
    "on_bad_image", "stage", "find_lr", "prior_from", "enqueue", "wandb_watch", "log_every_steps", "metric",
)  # fmt: skip
"""Options of our own training loop: the function brings its own data and network."""
OWN_DATA = "own"
"""What stands for the name of the data set."""


def trainable_name(word: str) -> OwnName:
    """The function that ``--trainable`` names: ``FILE.py:FUNCTION``, or ``FILE.py`` for its ``train``.

    Raises ConfigError.
    """
    return own_name(OPTION, f"{word}:train" if word.endswith(".py") else word)


def refuse_options_of_the_loop(o: SearchOptions) -> None:
    """Raise ConfigError for an option that has no meaning for a function that brings its data and network."""
    for name in OF_THE_LOOP:
        if getattr(o, name) not in (None, (), ""):
            raise ConfigError(
                f"--trainable brings its own data, network and optimizer; got --{name.replace('_', '-')} too, which is "
                "for BigBatch's training loop. Leave it out."
            )


def own_values(assignments: Iterable[str]) -> dict[str, object]:
    """``--set`` with ``--trainable``: values for ``config``, by the names that the function knows.

    Raises ConfigError for a text without ``=``, a name that is given twice, and a name with an option of its own.
    """
    found: dict[str, object] = {}
    for text in assignments:
        name, equals, raw = (part.strip() for part in text.partition("="))
        if not equals or not name.isidentifier():
            raise ConfigError(f"--set takes NAME=VALUE with --trainable; got {text!r}. Write e.g. --set width=64.")
        if not raw:
            raise ConfigError(empty_value(f"--set {name}=", raw))
        if name in RESERVED:
            raise ConfigError(f"{name} has its own option; got --set {text}. Write {RESERVED[name]} {raw}.")
        if name in found:
            raise ConfigError(f"a name is set once; got {name!r} twice. Keep one --set {name}=….")
        found[name] = json_or_word(raw)
    return found


def load_trainable(o: SearchOptions) -> TrainableSpace:
    """The space of a search over a function, both checked. Runs the user's files.

    Raises ConfigError: there is no such file or function, or it does not take (config, report, resume); there is no
    space of the user's own. Raises OwnCodeError if the function's file raises an exception.
    """
    name = trainable_name(str(o.trainable))
    check_call(OPTION, str(name), load_function(OPTION, str(name)), ARGUMENTS, {})
    return load_trainable_space(o.space, str(name))


def trainable_data() -> DataInfo:
    """Stands for the data set, of which nothing is known."""
    return DataInfo(OWN_DATA, None, 0, 0, 0, 0, 0, (), "imagenet")


def read_own_objectives(o: SearchOptions) -> Objectives:
    """What the function's reports are judged by.

    Raises ConfigError without one, without a direction, and for an accuracy that our own loop counts.
    """
    option = one_of_objective_options(o)
    if option is None:
        raise ConfigError(
            "--trainable needs the name of what it reports, and which values are better; got no --objective. "
            "Write e.g. --objective accuracy:max or --objective loss:min."
        )
    found = own_objectives(f"--{option}", str(getattr(o, option)))
    for objective in found.each:
        if objective.shown.metric.is_proportion:
            raise ConfigError(
                f"--{option} {objective.shown.name} is an accuracy whose images BigBatch counts itself; got it with "
                "--trainable. Write e.g. --objective accuracy:max."
            )
    if not reported_names(found):
        raise ConfigError(
            f"--trainable needs an objective that the function reports; got {found.text}, which BigBatch measures. "
            "Write e.g. --objective accuracy:max."
        )
    return found


def reported_names(objectives: Objectives) -> tuple[str, ...]:
    """What each report of the function must have: the objectives, but for costs, which BigBatch measures itself."""
    names = (one.shown.name for one in objectives.each)
    return tuple(name for name in names if not name.endswith(metrics.COSTS))


def trainable_lines(space: object) -> list[tuple[str, str]]:
    """What the plan says of the function, in place of data and network."""
    if not isinstance(space, TrainableSpace):
        return []
    return [
        ("trainable", space.trainable),
        ("", "no options for batches, range tests or recipes: those are of BigBatch's own training loop"),
    ]
