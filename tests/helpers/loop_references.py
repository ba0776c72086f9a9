"""Runs of the loop in milliseconds, and what they must come to, computed without it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bigbatch.train_loop.config import TrainConfig
from bigbatch.train_loop.data import sampling
from bigbatch.train_loop.loop.train import train
from bigbatch.train_loop.optim.schedules import learning_rate
from bigbatch.train_loop.reporter import EpochRecord, ListReporter
from helpers.tiny_training import CONFIG, TinySource, changed, plain_model

STEPS = CONFIG.epochs * 4

ONE_STEP = changed(CONFIG, epochs=1, global_size=64, micro_size=16, schedule__name="constant", momentum=0.0,
                   nesterov=False, weight_decay=0.0)  # fmt: skip


def run(config: TrainConfig, **keywords: Any) -> list[EpochRecord]:
    reporter = keywords.pop("reporter", ListReporter())
    train(config, reporter=reporter, device=torch.device("cpu"), **keywords)
    return reporter.records


def rate(config: TrainConfig, step: int) -> float:
    steps = {"total_steps": 4 * config.epochs, "steps_per_epoch": 4}
    return learning_rate(step, **steps, peak_lr=config.optimizer.peak_lr, schedule=config.schedule)


def smoothed_loss(logits: torch.Tensor, labels: torch.Tensor, smoothing: float) -> torch.Tensor:
    """Szegedy et al. 2016, §7: cross entropy against (1 − ε)·one-hot + ε/K; the mean over images."""
    target = torch.full_like(logits, smoothing / logits.shape[1])
    target[torch.arange(len(labels)), labels] += 1 - smoothing
    log_p = logits - logits.exp().sum(dim=1, keepdim=True).log()
    return -(target * log_p).sum(dim=1).mean()


def parameters(model: nn.Module) -> list[torch.Tensor]:
    return [p.detach().double().clone() for p in model.parameters()]


def full_batch_gradient(config: TrainConfig) -> tuple[list[torch.Tensor], list[torch.Tensor], tuple[float, float]]:
    """Initial weights, and of the first global batch at once the gradient, and loss and top-1, in float64."""
    torch.manual_seed(config.seed)
    model = plain_model().double()
    images, labels = TinySource().train
    rows = torch.from_numpy(sampling.train_order(len(labels), config.seed, 0)[: config.batch.global_size])
    logits = model(images[rows].double())
    loss, top1 = smoothed_loss(logits, labels[rows], config.label_smoothing), (logits.argmax(1) == labels[rows])
    loss.backward()
    gradient = [p.grad for p in model.parameters() if p.grad is not None]
    return parameters(model), gradient, (loss.item(), top1.double().mean().item())


def val_reference(model: nn.Module, rows: list[int] | None = None) -> tuple[float, float]:
    """Mean cross entropy without smoothing and top-1 over all validation images (or ``rows``) at once, in float64."""
    images, labels = TinySource().val
    if rows is not None:
        images, labels = images[rows], labels[rows]
    with torch.no_grad():
        logits = model.double().eval()(images.double())
    return smoothed_loss(logits, labels, 0.0).item(), (logits.argmax(1) == labels).double().mean().item()
