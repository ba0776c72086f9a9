"""A trial that goes on with a smaller micro-batch, because a larger one did not fit into a device's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bigbatch.train_loop.loop.healing import Halving, healed_config
from bigbatch.tune.study.trial_facts import HEALED_ATTR
from bigbatch.tune.trials.conductor import LiveTrial


def note_halvings(live: LiveTrial, reported: Sequence[Mapping[str, object]]) -> str:
    """Write the halvings that a trial reports to the study, with the micro-batch that fitted in its configuration.

    Returns a line for the user; "" if the study knows all of them. A resumed trial reports its past ones again.
    """
    if not reported or list(reported) == live.trial.user_attrs.get(HEALED_ATTR):
        return ""
    halvings = [Halving.from_dict(values) for values in reported]
    live.config = live.view.config = healed_config(live.config, halvings)
    live.trial.set_user_attr("config", live.config.to_dict())
    live.trial.set_user_attr(HEALED_ATTR, list(reported))
    return f"trial {live.view.number}: {halvings[-1]}"
