"""The events that a search sends to its observers: the display, W&B, tests."""

from __future__ import annotations

import sys
from typing import Protocol

from bigbatch.train_loop.host.disk_space import full_errno


class Observer(Protocol):
    """The driver calls these methods in its thread, one at a time; ``trial`` is a ``Run``, the same object from its
    first event to its last. An observer has those that it needs:

    - ``trial_planned(trial)``: the trial has its configuration.
    - ``trial_started(trial)``: its first worker runs. It is not called for a trial that could not begin.
    - ``steps_done(trial, steps)``: its worker has reported its position in an epoch, a ``StepProgress``.
    - ``epoch_ended(trial, record)``: an epoch has ended; ``record``: its EpochRecord as a dict.
    - ``trial_ended(trial)``: it has ended or was interrupted; ``trial.state`` and ``trial.because`` say how.
    - ``search_said(text)``: a line that belongs to no trial.
    """


def tell(observers: list[Observer], event: str, *arguments: object) -> None:
    """Call the method ``event`` of every observer that has it.

    An observer that fails, such as an unreachable tracker, is removed from the list, with a warning. A full disk
    does not remove the observer; the study reports it.
    """
    # A copy: one that fails leaves the list meanwhile.
    for observer in list(observers):
        try:
            getattr(observer, event, lambda *_: None)(*arguments)
        except Exception as error:
            # The search itself meets a full disk, and ends.
            if full_errno(error) is not None:
                continue
            observers.remove(observer)
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            name = type(observer).__name__
            print(f"warning: the search continues without {name}: {reason}", file=sys.stderr, flush=True)
