"""A few batches through model, loss, optimizer and validation on the CPU, before anything expensive starts."""

from __future__ import annotations

import contextlib
import io
import itertools
import math
from collections.abc import Callable

import torch
from torch import nn

from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.train_loop.config.own_names import own_words
from bigbatch.train_loop.config.rules import is_own
from bigbatch.train_loop.config.train_config import LOSSES
from bigbatch.train_loop.data.sets.scan import FolderScan
from bigbatch.train_loop.errors import ImageError, LoaderError, OwnCodeError
from bigbatch.train_loop.loop.assembly import Run, set_up
from bigbatch.train_loop.loop.checkpoint import CheckpointFolder
from bigbatch.train_loop.loop.metrics import Sums
from bigbatch.train_loop.loop.train import take_step
from bigbatch.train_loop.loop.validation import measure
from bigbatch.train_loop.model.networks import build_model
from bigbatch.train_loop.plugins.registry import whose_error
from bigbatch.train_loop.reporter import ListReporter

IMAGES = 4
"""Images of a batch. BatchNorm needs two. Four reveal a loss that confuses examples and classes."""


def run_smoke_test(config: TrainConfig, scan: FolderScan | None = None, needs_top1: bool = False) -> None:
    """Train one step of two micro-batches of a few images, and validate one, on the CPU in float32.

    Args:
        scan: the list of an image folder's images, if it exists already.
        needs_top1: whether a search optimises top-1. Then outputs and targets must be such that it can be computed.

    Raises:
        ConfigError: outputs do not fit the classes, the loss or the objective, the loss is not one finite number, or a
            checkpoint could not hold the optimizer's state. One line.
        OwnCodeError: the user's code raised an exception.
    """
    words = own_words(config)
    run: Run | None = None
    try:
        with whose_error(words):
            run = set_up(_small(config), ListReporter(), CheckpointFolder(None, 0.0), torch.device("cpu"), scan=scan)
            _train_and_validate(run, needs_top1)
    except (ConfigError, OwnCodeError, ImageError, LoaderError, MemoryError):
        raise
    except Exception as error:
        raise _refusal(config, error) from None
    finally:
        if run:
            run.source.close()


def _small(config: TrainConfig) -> TrainConfig:
    """The same components with few images, on a CPU: two micro-batches, or one where the run's batch is smaller."""
    micro = min(IMAGES, config.batch.micro_size or IMAGES)  # BatchNorm refuses one image
    size = min(2 * micro, config.batch.global_size)
    return config.replace_keys(
        {
            "batch.global_size": size,
            "batch.micro_size": micro if size == 2 * micro else size,
            "precision": "off",
            # Compiling takes minutes, and torch's SyncBatchNorm works on GPUs alone.
            "model.compile": "off",
            "model.sync_bn": False,
            "data.loader.workers": 0,
            # A packed set would be decoded as a whole, by this process alone.
            "data.loader.name": "auto" if is_own(config.data.name) else "ring",
            "data.drop_last": True,
        }
    )


def _train_and_validate(run: Run, needs_top1: bool) -> None:
    config = run.config
    info = run.source.info
    counts_classes = config.loss in LOSSES and info.are_classes and info.num_classes > 0
    handle = run.model.register_forward_hook(_check_logits(run)) if counts_classes else None
    for step in itertools.islice(run.source.train_steps(config.seed, 0, run.split, 0), 1):
        take_step(run, step, config.optimizer.peak_lr * 1e-3)  # a whole rate without warmup may explode at once
    _check_loss(run)
    run.model.eval()
    with torch.no_grad():
        answers = Sums(*measure(run, itertools.islice(run.source.val_batches(IMAGES, 0, 1), 1)).tolist()).correct
        for metric in run.metrics.values():
            with contextlib.suppress(OwnCodeError):  # a few images may be too few to compute anything of
                metric.values()
    if needs_top1 and math.isnan(answers):
        raise ConfigError(
            f"the objective val_top1 needs outputs [N, K] with K > 1 and targets [N] that are classes; got others from "
            f"model.name={config.model.name} and data.name={config.data.name}. Write e.g. --objective val_loss:min."
        )
    if handle is not None:
        handle.remove()
    _check_state(run)


def _check_logits(run: Run) -> Callable[[nn.Module, object, object], None]:
    """A hook that refuses outputs that are no logits of the data's classes."""
    classes, name, images = run.source.info.num_classes, run.config.model.name, run.config.batch.micro_size

    def check(_: nn.Module, inputs: object, outputs: object) -> None:
        shape = list(outputs.shape) if isinstance(outputs, torch.Tensor) else None
        if shape is None or len(shape) != 2 or shape[1] != classes:
            got = f"a tensor {shape}" if shape is not None else f"a {type(outputs).__name__}"
            raise ConfigError(
                f"with loss={run.config.loss} a model must return logits [N, {classes}]; got {got} from "
                f"model.name={name} for {images} images. Use workload.num_classes, or --loss FILE.py:FUNCTION."
            )

    return check


def _check_loss(run: Run) -> None:
    bad, loss = run.watch.codes()
    if bad > -math.inf:
        raise ConfigError(
            f"the loss of the first batch must be a finite number; got {'nan' if loss == 3.0 else 'inf'} from "
            f"loss={run.config.loss} and model.name={run.config.model.name}. "
            "Look for a division by or a logarithm of zero."
        )


def _check_state(run: Run) -> None:
    """Raise ConfigError if a run could not resume: its network is built again, and a checkpoint is loaded into it."""
    config, file = run.config, io.BytesIO()
    try:
        torch.save([run.model.state_dict(), run.optimizer.state_dict()], file)
        file.seek(0)
        model, _ = torch.load(file, weights_only=True)  # as checkpoints are read, so that no code in them can run
        if is_own(config.model.name):  # torchvision's and timm's are built alike each time
            build_model(config.model, run.source.info).load_state_dict(model)
    except Exception as error:
        reason = " ".join(str(error).split())[-200:].removesuffix(".")
        raise ConfigError(
            f"the states of model.name={config.model.name} and optimizer.name={config.optimizer.name} must be tensors "
            f"and numbers, under the names and shapes with which they are built, or a run cannot resume; got {reason}. "
            "Make parameters and buffers in __init__, or write register_buffer(…, persistent=False)."
        ) from None


def _refusal(config: TrainConfig, error: Exception) -> ConfigError:
    reason = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(".")
    return ConfigError(
        f"two batches must go through model, loss and optimizer; got {reason} with model.name={config.model.name}, "
        f"loss={config.loss}, optimizer.name={config.optimizer.name}. Correct them, or write --no-check."
    )
