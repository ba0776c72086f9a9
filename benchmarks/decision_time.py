"""How long a strategy thinks: the time for one proposal, and for choosing which paused trial goes on.

    python benchmarks/decision_time.py [--trials 100 300 1000] [--rounds 5] [--output FILE.json]

Each study is in memory: a quarter of its trials ran to the end (16 epochs), the others were paused in the second epoch.
The space is ``large_batch`` for CIFAR-10. What is counted is the time of the processor, so other work on the machine
matters little. Prints a table and, last, one JSON line.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import optuna  # noqa: E402
from optuna.trial import TrialState  # noqa: E402
from store import store  # noqa: E402

from bigbatch.search_spaces.check import check_space  # noqa: E402
from bigbatch.search_spaces.registry import load_space  # noqa: E402
from bigbatch.search_spaces.workload import Workload  # noqa: E402
from bigbatch.tune.models.protocol import SearchFacts, dimensions_of  # noqa: E402
from bigbatch.tune.proposers.samplers import PerTrialSampler, quiet_optuna  # noqa: E402
from bigbatch.tune.runs.objective import Objective  # noqa: E402
from bigbatch.tune.runs.run import PAUSED_ATTR  # noqa: E402
from bigbatch.tune.storage.description import provenance  # noqa: E402
from bigbatch.tune.strategies import make_strategy  # noqa: E402

EPOCHS = 16
SPACE = load_space("large_batch")
WORKLOAD = Workload(
    data="cifar10",
    train_size=50_000,
    num_classes=10,
    image_size=32,
    model="resnet18",
    epochs=EPOCHS,
    max_micro_size=256,
)


def facts_of(trials: int) -> SearchFacts:
    """``trials`` more than a study has, so that the next one is proposed and not the end."""
    dimensions = dimensions_of(check_space(SPACE, WORKLOAD))
    return SearchFacts(dimensions, 2 * trials, EPOCHS, 8, 0, Objective(worst=0.1), "global_batch_size")


def filled(trials: int, facts: SearchFacts) -> optuna.Study:
    """A study of quasi-random trials with invented curves."""
    study = optuna.create_study(direction="maximize")
    random = make_strategy("random", "none", facts)
    for number in range(trials):
        study.sampler = PerTrialSampler(random.sampler)
        trial = study.ask()
        SPACE(trial, WORKLOAD, {})
        trial.set_user_attr("config", {"epochs": EPOCHS, "schedule": {"warmup_epochs": 0.8}})
        end = 0.9 - 0.1 * abs(math.log(trial.params["lr_multiplier"])) - 0.3 * trial.params["label_smoothing"]
        ended = number % 4 == 0
        for epoch in range(1, EPOCHS + 1 if ended else 3):
            trial.report(end - 0.5 / epoch, epoch)
        if not ended:
            trial.set_user_attr(PAUSED_ATTR, 2)
        study.tell(trial, end if ended else None, state=TrialState.COMPLETE if ended else TrialState.PRUNED)
    return study


def processor_ms(work: Callable[[], object], rounds: int) -> list[float]:
    """Milliseconds of each call; the first is not counted, because it fills caches."""
    work()
    found = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        found.append(1e3 * (time.process_time() - began))
    return found


def measured(trials: int, rounds: int) -> dict[str, object]:
    """The times for a study of that many trials."""
    facts = facts_of(trials)
    study = filled(trials, facts)
    strategy = make_strategy("curves", "look", facts)
    looks = make_strategy("curves", "look", SearchFacts(**{**vars(facts), "trials": trials}))

    def propose() -> object:
        asked = optuna.trial.create_trial(state=TrialState.RUNNING)
        asked.number = trials
        sampler = strategy.sampler(trials)
        return sampler.sample_relative(study, asked, sampler.infer_relative_search_space(study, asked))

    return {
        "trials": trials,
        "proposal_ms": processor_ms(propose, rounds),
        "continuation_ms": processor_ms(lambda: looks.to_continue(study), rounds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, nargs="+", default=[100, 300, 1000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    quiet_optuna()
    rows = []
    print(f"{'trials':>7} {'proposal':>12} {'continuation':>13}")
    for trials in args.trials:
        row = measured(trials, args.rounds)
        rows.append(row)
        medians = [statistics.median(row[name]) for name in ("proposal_ms", "continuation_ms")]
        print(f"{trials:7} {medians[0]:9.1f} ms {medians[1]:10.1f} ms")
    result = {"benchmark": "decision_time", "rows": rows, "provenance": provenance()}
    store(result, args.output)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
