"""Metrics: sums of loss, right answers and images, a watch for NaN losses, and further metrics of validation.

The sums stay on the device until an epoch ends. Further metrics are torchmetrics' classes, and functions and objects of
the user's own. Over several ranks each example counts once: a ``torchmetrics.Metric`` shares its state among the ranks,
and the values of a plain function are averaged over all examples.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.data.info import DataInfo
from bigbatch.train_loop.distributed import World
from bigbatch.train_loop.errors import NonFiniteLossError
from bigbatch.train_loop.plugins.metric_names import KEY, TORCHMETRICS, checked_metrics, metric_name
from bigbatch.train_loop.plugins.nested import Nested, example_count
from bigbatch.train_loop.plugins.registry import OwnFunction, load_function, users_code

_NAN, _INF, _MINUS_INF = 3.0, 2.0, 1.0
_VALUES = {_NAN: math.nan, _INF: math.inf, _MINUS_INF: -math.inf}


class Sums(NamedTuple):
    """What training and validation sum up over images, in this order."""

    loss: float = 0.0
    correct: float = 0.0
    images: float = 0.0

    @property
    def mean_loss(self) -> float:
        """The loss of an image."""
        return self.loss / self.images

    @property
    def top1(self) -> float | None:
        """The share of right answers; None where the targets are no classes."""
        return None if math.isnan(self.correct) else self.correct / self.images


class MetricSums:
    """``Sums`` as float64 ``[3]`` on the device.

    A batch costs the device five operations. One of them adds all three numbers, each times its weight.
    """

    def __init__(self, device: torch.device) -> None:
        self.values = torch.zeros(len(Sums()), dtype=torch.float64, device=device)
        self._one = torch.ones((), device=device)
        self._no_answer = torch.full((), math.nan, device=device)
        self._weights: dict[int, torch.Tensor] = {}

    @torch.no_grad()
    def add(self, mean_loss: torch.Tensor, logits: Nested, labels: Nested) -> None:
        """Add a batch: its mean loss ``[]``, logits ``[N, classes]``, labels ``[N]``.

        For other outputs and targets there are no right answers: their sum becomes NaN.
        """
        right = (logits.argmax(dim=1) == labels).sum() if _have_classes(logits, labels) else self._no_answer
        numbers = torch.stack((mean_loss, right, self._one))  # float32 counts exactly to 2^24
        self.values.addcmul_(numbers, self._weights_of(example_count(labels)))

    def _weights_of(self, count: int) -> torch.Tensor:
        """The weights. They are made once for each batch size, because the host waits when it copies to a device."""
        if count not in self._weights:
            self._weights[count] = self.values.new_tensor([count, 1, count])
        return self._weights[count]


def _have_classes(outputs: Nested, targets: Nested) -> bool:
    """Whether these are scores ``[N, K]``, K > 1, and classes ``[N]``."""
    return (
        isinstance(outputs, torch.Tensor) and outputs.ndim == 2 and outputs.is_floating_point()
        and outputs.shape[1] > 1
        and isinstance(targets, torch.Tensor) and targets.ndim == 1 and not targets.is_floating_point()
    )  # fmt: skip


class LossWatch:
    """Finds the first loss that was not finite, without waiting for the device at each step.

    ``add`` each loss, then ``codes`` from time to time (this waits), all-reduce them with MAX so
    that every rank knows, and ``check``. Until then the losses stay where they are: a step costs the device nothing.
    """

    def __init__(self) -> None:
        self._losses: list[tuple[int, torch.Tensor]] = []
        self._rates: dict[int, float] = {}

    def add(self, step: int, learning_rate: float, loss: torch.Tensor) -> None:
        """Add the loss ``[]``, detached, of a micro-batch of the epoch's optimizer step ``step`` (0-based)."""
        self._rates[step] = learning_rate
        self._losses.append((step, loss))

    def codes(self) -> tuple[float, float]:
        """(−step, kind) of the first bad loss since the last call, (−inf, 0) if there is none: larger means earlier."""
        losses, self._losses = self._losses, []
        values = torch.stack([loss for _, loss in losses]).tolist() if losses else []
        for (step, _), loss in zip(losses, values, strict=True):
            if not math.isfinite(loss):
                return -float(step), _NAN if math.isnan(loss) else _INF if loss > 0 else _MINUS_INF
        return -math.inf, 0.0

    def check(self, minus_step: float, kind: float, epoch: int) -> None:
        """Raise NonFiniteLossError if the (all-reduced) codes hold a bad loss; ``epoch`` is 1-based."""
        if minus_step > -math.inf:
            step = int(-minus_step)
            raise NonFiniteLossError(
                f"training loss is {_VALUES[kind]} in epoch {epoch} at its step {step + 1} "
                f"with learning rate {self._rates[step]:.6g}"
            )
        self._rates.clear()


class MeanOfFunction:
    """The mean over all examples of ``fn(outputs, targets)``, which returns the batch's mean, or numbers ``[N]``."""

    def __init__(self, word: str, function: OwnFunction, world: World) -> None:
        self._word, self._function, self._world = word, function, world
        self.reset()

    def reset(self) -> None:
        """Begin again."""
        self._sums = torch.zeros(2, dtype=torch.float64, device=self._world.device)

    def update(self, outputs: Nested, targets: Nested) -> None:
        """Add a batch. Raises OwnCodeError, and ConfigError for a result that is not one number or one per example."""
        count = example_count(targets)
        with users_code(KEY, self._word):
            made = self._function(outputs, targets)
        try:
            found = torch.as_tensor(made, device=self._world.device)
            fits = found.numel() == 1 or found.shape == (count,)
        except (RuntimeError, TypeError, ValueError):
            fits = False
        if not fits:
            raise ConfigError(
                f"{KEY}={self._word} must return the batch's mean, or a number for each of its {count} examples; got "
                f"a {type(made).__name__}. Several numbers need a torchmetrics.Metric, or a function for each."
            )
        total = found.double().reshape(()) * count if found.numel() == 1 else found.double().sum()
        self._sums += torch.stack((total, total.new_full((), count)))  # for ``new_tensor`` the host would wait

    def values(self) -> dict[str, float]:
        """The mean."""
        # A copy: the sum over ranks is in place, and ``values`` may be called again.
        total, count = self._world.sum(self._sums.clone()).tolist()
        return {"": total / count if count else math.nan}


class MeterObject:
    """An object with torchmetrics' interface: ``update(outputs, targets)``, ``compute()`` and ``reset()``."""

    def __init__(self, word: str, meter: object, world: World) -> None:
        self._word, self._meter = word, meter
        if callable(move := getattr(meter, "to", None)):
            move(world.device)

    def reset(self) -> None:
        """Begin again."""
        with users_code(KEY, self._word):
            self._meter.reset()  # type: ignore[attr-defined]

    def update(self, outputs: Nested, targets: Nested) -> None:
        """Add a batch. Raises OwnCodeError."""
        with users_code(KEY, self._word):
            self._meter.update(outputs, targets)  # type: ignore[attr-defined]

    def values(self) -> dict[str, float]:
        """A number, or those of a dict. Raises OwnCodeError, and ConfigError for anything else."""
        with users_code(KEY, self._word):
            found = self._meter.compute()  # type: ignore[attr-defined]
        named = found if isinstance(found, Mapping) else {"": found}
        return {f"_{name}" if name else "": self._number(value) for name, value in named.items()}

    def _number(self, value: object) -> float:
        try:
            return float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, RuntimeError):
            raise ConfigError(
                f"{KEY}={self._word} must compute a number, or a dict of numbers; got a {type(value).__name__}. Take "
                "e.g. its mean."
            ) from None


ValidationMetric = MeanOfFunction | MeterObject
"""Validation calls ``update`` with each batch of this rank, outputs as float32 on the device. Then all ranks call
``values``: suffix of the name, which may be empty, → value over the examples of all ranks."""


def build_metrics(words: Sequence[str], info: DataInfo, world: World) -> dict[str, ValidationMetric]:
    """Name → metric, for the words of ``metrics``.

    Raises OwnCodeError, and ConfigError for a word that is no metric, or one that is wrong over several workers.
    """
    return {metric_name(word): _build(word, info, world) for word in checked_metrics(words)}


def _build(word: str, info: DataInfo, world: World) -> ValidationMetric:
    if word.startswith(TORCHMETRICS):
        return MeterObject(word, _of_torchmetrics(word, info), world)
    function = load_function(KEY, word)
    if not _may_be_called_without_arguments(function):
        return MeanOfFunction(word, function, world)
    with users_code(KEY, word):
        meter = function()
    missing = [name for name in ("update", "compute", "reset") if not callable(getattr(meter, name, None))]
    if missing:
        raise ConfigError(
            f"{KEY} must name a function of (outputs, targets), or one without arguments that returns an object with "
            f"update, compute and reset; got {word!r}, which returns a {type(meter).__name__}. Correct it."
        )
    # Every torchmetrics.Metric has this attribute: a look at the class itself would need the package.
    if world.workers > 1 and not hasattr(meter, "dist_sync_on_step"):
        raise ConfigError(
            f"{KEY}={word} must share its sums among {world.workers} workers; got a {type(meter).__name__}, "
            "which is no torchmetrics.Metric. Derive it from that class, or write a function of (outputs, targets)."
        )
    return MeterObject(word, meter, world)


def _may_be_called_without_arguments(function: OwnFunction) -> bool:
    try:
        inspect.signature(function).bind()
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def _of_torchmetrics(word: str, info: DataInfo) -> object:
    """An object of the class, with the number of classes if it asks for it."""
    try:
        package = importlib.import_module("torchmetrics")
        classification = importlib.import_module("torchmetrics.classification")
    except ImportError:
        raise ConfigError(
            f"{KEY}={word} needs torchmetrics; got none. Run: pip install 'bigbatch[torchmetrics]'"
        ) from None
    name = word.removeprefix(TORCHMETRICS)
    # Classes such as MulticlassAccuracy are in the subpackage alone.
    found = getattr(package, name, getattr(classification, name, None))
    if not (inspect.isclass(found) and issubclass(found, package.Metric)):
        raise ConfigError(f"{KEY} must name a class of torchmetrics; got {word!r}. Look for it in torchmetrics' docs.")
    parameters = inspect.signature(found.__init__).parameters
    arguments = {"num_classes": info.num_classes} if "num_classes" in parameters and info.num_classes else {}
    try:
        return found(**arguments)
    except (TypeError, ValueError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(
            f"{KEY}={word} needs arguments ({reason}); got {arguments or 'none'}. Write a function in a file that "
            f"returns torchmetrics.{name}(…), and name it: FILE.py:FUNCTION."
        ) from None


def values_of(metrics: Mapping[str, ValidationMetric], prefix: str) -> dict[str, float | None]:
    """The values after validation, by their whole names; None for a value that is not finite."""
    return {
        f"{prefix}_{name}{suffix}": value if math.isfinite(value) else None
        for name, metric in metrics.items()
        for suffix, value in metric.values().items()
    }
