"""The waits that lie within one another: each is shorter than the one around it, and the docs say the same figures."""

import ast
import re
from pathlib import Path

import pytest

from bigbatch.base import waits
from bigbatch.cluster.job.watch import TimeLeft

w = waits
WITHIN = {
    "a job's margin holds its driver and what comes after": (w.SAVE_S + w.MARGIN_REST_S, w.MARGIN_S),
    "a driver's time holds its trials and its own end": (w.LEAST_WAIT_S + w.AFTER_TRIALS_S, w.SAVE_S),
    "trials get at least the least": (w.LEAST_WAIT_S, w.MOST_WAIT_S),
    "a driver's end holds the end of a stopped trial": (w.TRIAL_END_S, w.AFTER_TRIALS_S + w.LEAST_WAIT_S),
    "a process is given up after its workers": (2 * w.LEAVE_S + w.GROUP_END_S + w.ANSWER_S, w.RESET_S),
    "a late driver leaves the nodes their time": (w.NODES_END_S, w.LIMIT_REST_S),
    "a driver in time leaves more": (w.LIMIT_REST_S, w.MARGIN_REST_S),
    "a controller is given up before nothing is left": (w.GIVE_UP_REST_S, w.NODES_END_S),
    "a node ends before its job kills it": (w.HOLD_S + w.RAY_END_S + w.FOLDER_GONE_S, w.NODES_END_S),
    "a cancelled job has ended before Slurm kills it": (
        w.CRASH_OR_SIGNAL_S + w.FIRST_ANSWER_S + w.CANCELLED_SAVE_S + w.CANCELLED_NODES_S,
        w.KILL_WAIT_S,
    ),
    "nodes end between driver and SIGKILL": (w.CANCELLED_NODES_S, w.KILLED_REST_S),
    "a driver that saves has most of KillWait": (w.KILLED_REST_S + w.FIRST_ANSWER_S, w.KILL_WAIT_S / 2),
    "a doubled Ctrl-C is over before a run is given up": (w.SAME_SIGNAL_S, w.RUN_SAVE_S),
    "a joined cluster is waited for longest": (w.WAIT_IN_JOB_S, w.JOINED_GRACE_S),
    "a lease's holder may miss a few signs of life": (4 * w.RENEW_S, w.STALE_S),
    "a claim is settled before a lease is stale": (w.CLAIM_S, w.STALE_S),
    "a node may miss a few heartbeats": (4 * w.HEARTBEAT_S, w.HUNG_S),
    "a worker is given up before the first node is": (w.HUNG_S, w.FIRST_LOST_S),
    "Ray hears of a hung node before the next one hangs": (w.HUNG_DRAIN_S, w.HUNG_S),
    "a start of Ray is tried several times": (4 * w.RAY_START_S, w.START_TIMEOUT_S),
    "a silent controller is asked several times": (4 * w.COMMAND_S, w.SILENT_S),
}


def constants() -> dict[str, float]:
    return {name: value for name, value in vars(waits).items() if name.endswith("_S")}


@pytest.mark.parametrize("rule", WITHIN)
def test_an_inner_wait_is_shorter_than_the_one_around_it(rule: str) -> None:
    inner, outer = WITHIN[rule]
    assert 0 < inner < outer


def test_every_wait_of_the_table_is_held_by_a_rule_and_told_in_the_table_with_its_figure() -> None:
    source = ast.parse(Path(__file__).read_text())
    assigned = (node for node in source.body if isinstance(node, ast.Assign))
    (rules,) = (node.value for node in assigned if ast.unparse(node.targets[0]) == "WITHIN")
    held = {node.attr for node in ast.walk(rules) if isinstance(node, ast.Attribute)}
    assert held == set(constants())
    table = {name: float(figure) for name, figure in re.findall(r"\b([A-Z_]+_S) ([0-9.]+)\b", waits.__doc__ or "")}
    assert {name: constants()[name] for name in table} == table and len(table) >= len(constants()) - 4


def test_a_longer_margin_goes_to_the_driver() -> None:
    for margin_s in (60.0, w.MARGIN_S, 600.0):
        left = TimeLeft(None, margin_s, w.KILL_WAIT_S)
        assert left.save_s >= w.SAVE_S and (margin_s <= 90 or left.save_s + w.MARGIN_REST_S == margin_s)
