"""Figures of replayed searches: medians, ratios and regrets of each arm, and the tables of the page of results.

``search_efficiency.py`` runs the searches and says what the figures mean.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from replay.curves import CurveTable
from scipy.stats import spearmanr
from search_arms import FIXED
from search_outcomes import MISSED

PARTS = (0.1, 0.25, 0.5)
"""Of a run: where early values are compared with the end."""

CUTS = (16, 24, 40)
"""Equivalents at which the regret is measured."""
RESAMPLES = 2000
WORST = 5.0
"""Points that a regret counts at most where means are compared. A search that has finished nothing has up to 80."""

NAMES = {
    "random": "random",
    "random_asha": "random, `--stopping asha`",
    "stock": "Ray's `OptunaSearch` and `ASHAScheduler`",
    "previous": "before: TPE, ASHA from a quarter",
    "ours": "`--strategy auto`",
    "bound_best_first": "bound: knows the table, best first",
    "bound_losers_stopped": "bound: random, losers stopped at a tenth",
}
"""Arms on the page of results."""


def hits(lines: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Equivalents of each search, misses at MISSED × the budget."""
    return np.array([MISSED * line["budget"] if line["hit"] is None else line["hit"] for line in lines])


def bootstrap(columns: Sequence[np.ndarray], figure: Callable[..., float]) -> tuple[float, float, float]:
    """``figure`` of the columns, and its 95 % interval over resampled seeds. Columns of one length go together."""
    rng = np.random.default_rng(0)
    draws = []
    for _ in range(RESAMPLES):
        picks = rng.integers(len(columns[0]), size=len(columns[0]))
        draws.append(figure(*(column[picks] for column in columns)))
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(figure(*columns)), float(low), float(high)


def _median(values: np.ndarray) -> float:
    return float(np.median(values))


def _ratio(others: np.ndarray, ours: np.ndarray) -> float:
    return float(np.median(others) / np.median(ours))


def summary(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each group, number of slots and arm."""
    by: dict[tuple[str, int, str], list[Mapping[str, Any]]] = defaultdict(list)
    for line in sorted(lines, key=lambda line: line["seed"]):
        by[(line["group"], line["slots"], line["arm"])].append(line)
    rows = []
    for (group, slots, arm), own in by.items():
        row: dict[str, Any] = {"group": group, "slots": slots, "arm": arm, "searches": len(own)}
        row["hit"] = [round(v, 2) for v in bootstrap([hits(own)], _median)]
        row["missed"] = sum(line["hit"] is None for line in own)
        for cut in CUTS:
            regrets = np.array([line["regret"][str(cut)] for line in own])
            row[f"regret_{cut}"] = [round(v, 3) for v in bootstrap([regrets], _median)]
        for other in ("random", "stock"):
            paired = _paired(by.get((group, slots, other), []), own)
            if paired and arm != other:
                row[f"times_{other}"] = [round(v, 2) for v in bootstrap(paired, _ratio)]
        if arm != "previous":
            row.update(less_previous(by.get((group, slots, "previous"), []), own))
        row["ms_a_trial"] = round(float(np.median([line["decision_ms"] for line in own])), 1)
        rows.append(row)
    return rows


def less_previous(others: Sequence[Mapping[str, Any]], own: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """At each of CUTS, the regrets less those of the others with the same seeds; empty if they share none."""
    theirs = {line["seed"]: line["regret"] for line in others}
    shared = [(line["regret"], theirs[line["seed"]]) for line in own if line["seed"] in theirs]
    found: dict[str, Any] = {}
    for cut in map(str, CUTS if shared else ()):
        less = np.array([min(WORST, mine[cut]) - min(WORST, other[cut]) for mine, other in shared])
        mean = [round(v, 3) for v in bootstrap([less], lambda values: float(np.mean(values)))]
        found[f"less_previous_{cut}"] = {"mean": mean, "better": int((less < 0).sum()), "worse": int((less > 0).sum())}
    return found


def against_earlier(
    earlier: Sequence[Mapping[str, Any]], lines: Sequence[Mapping[str, Any]], groups: Sequence[str]
) -> list[dict[str, Any]]:
    """For each group the searches less those of an earlier commit with the same arm, slots and seed.

    ``hits``: the geometric mean of the ratios of their hits, with its interval; below 1 is earlier.
    """
    theirs = {(line["group"], line["arm"], line["slots"], line["seed"]): line for line in earlier}
    found = []
    for group in groups:
        own = [line for line in lines if line["group"] == group]
        pairs = [
            (line, theirs[key]) for line in own if (key := (group, line["arm"], line["slots"], line["seed"])) in theirs
        ]
        if not pairs:
            continue
        mine, others = [one for one, _ in pairs], [other for _, other in pairs]
        logs = np.log(hits(mine) / hits(others))
        row: dict[str, Any] = {"group": group, "searches": len(pairs)}
        row["hits"] = [round(v, 2) for v in bootstrap([logs], lambda values: float(np.exp(np.mean(values))))]
        row["missed"] = [sum(line["hit"] is None for line in some) for some in (others, mine)]
        row["alike"] = sum(one["hit"] == other["hit"] and one["regret"] == other["regret"] for one, other in pairs)
        found.append({**row, **less_previous(others, mine)})
    return found


def earlier_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The figures of ``against_earlier`` for the page of results."""
    head = "".join(f" regret at {cut} |" for cut in CUTS)
    lines = [f"| less the commit before | searches | hits | missed |{head}", "|---|---|---|---|" + "---|" * len(CUTS)]
    for row in rows:
        ratio, low, high = row["hits"]
        cells = [f"{row['searches']}, {row['alike']} alike", f"× {ratio:.2f} ({low:.2f} … {high:.2f})"]
        cells += ["{} → {}".format(*row["missed"]), *(_against_cell(row[f"less_previous_{cut}"]) for cut in CUTS)]
        lines.append(f"| {row['group']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _paired(others: Sequence[Mapping[str, Any]], own: Sequence[Mapping[str, Any]]) -> list[np.ndarray]:
    """Hits of both with the same seeds; empty if they share none."""
    seeds = {line["seed"] for line in others} & {line["seed"] for line in own}
    if not seeds:
        return []
    return [hits([line for line in lines if line["seed"] in seeds]) for lines in (others, own)]


def overall(rows: Sequence[Mapping[str, Any]], aside: Sequence[str] = ()) -> list[dict[str, Any]]:
    """For each number of slots and arm, the geometric means over the groups of the ratios to random and to stock.

    Groups ``aside`` have means of their own. A mean is over the groups that have the ratio.
    """
    found = []
    for slots, arm, kept in sorted({(row["slots"], row["arm"], row["group"] in aside) for row in rows}):
        own = [r for r in rows if (r["slots"], r["arm"], r["group"] in aside) == (slots, arm, kept)]
        mean: dict[str, Any] = {"slots": slots, "arm": arm, "aside": kept, "groups": len(own)}
        for name in ("times_random", "times_stock"):
            logs = [math.log(row[name][0]) for row in own if name in row]
            if logs:
                mean[name] = round(math.exp(np.mean(logs)), 2)
        found.append(mean)
    return found


def markdown(rows: Sequence[Mapping[str, Any]], slots: int, groups: Sequence[str]) -> str:
    """Two tables for the page of results: hits, and regrets at CUTS, by arm and group."""
    own = {(row["arm"], row["group"]): row for row in rows if row["slots"] == slots}
    groups = [group for group in groups if any(key[1] == group for key in own)]
    arms = [arm for arm in FIXED if any((arm, group) in own for group in groups)]
    head = "".join(f" {group} |" for group in groups) + "\n|---|" + "---|" * len(groups)
    hit_lines = [f"| hit, {slots} slots |{head}"]
    regret_lines = [f"| regret at {', '.join(map(str, CUTS))} equivalents, {slots} slots |{head}"]
    for arm in arms:
        cells = [own.get((arm, group)) for group in groups]
        hit_lines.append(f"| {NAMES[arm]} | " + " | ".join(map(_hit_cell, cells)) + " |")
        regret_lines.append(f"| {NAMES[arm]} | " + " | ".join(map(_regret_cell, cells)) + " |")
    return "\n".join([*hit_lines, "", *regret_lines])


def against_table(rows: Sequence[Mapping[str, Any]], slots: int, arm: str, groups: Sequence[str]) -> str:
    """Regrets of an arm less those of ``previous``, for the page of results; empty where no search has both."""
    own = {row["group"]: row for row in rows if row["slots"] == slots and row["arm"] == arm}
    lines = []
    for group in groups:
        cells = [cell for cut in CUTS if (cell := own.get(group, {}).get(f"less_previous_{cut}"))]
        if cells:
            lines.append(f"| {group} | " + " | ".join(map(_against_cell, cells)) + " |")
    head = "".join(f" at {cut} |" for cut in CUTS)
    start = [f"| {NAMES.get(arm, f'`{arm}`')} less before |{head}", "|---|" + "---|" * len(CUTS)]
    return "\n".join([*start, *lines]) if lines else ""


def _against_cell(cell: Mapping[str, Any]) -> str:
    """E.g. ``−0.53 (−0.79 … −0.28), 41 : 12``: mean, interval, searches that were better and worse."""
    mean, low, high = (f"{value:+.2f}".replace("-", "−") for value in cell["mean"])
    return f"{mean} ({low} … {high}), {cell['better']} : {cell['worse']}"


def _hit_cell(row: Mapping[str, Any] | None) -> str:
    """E.g. ``23 (15–31), × 2.6; 2 of 16 missed``: the median with its interval, and its ratio to random search."""
    if row is None:
        return "–"
    median, low, high = row["hit"]
    times = f", × {row['times_random'][0]:.1f}" if "times_random" in row else ""
    missed = f"; {row['missed']} of {row['searches']} missed" if row["missed"] else ""
    return f"{median:.0f} ({low:.0f}–{high:.0f}){times}{missed}"


def _regret_cell(row: Mapping[str, Any] | None) -> str:
    return "–" if row is None else " / ".join(f"{row[f'regret_{cut}'][0]:.2f}" for cut in CUTS)


def early_values(tables: Sequence[CurveTable]) -> dict[str, float]:
    """At each of PARTS of a run: Spearman's correlation of the value there and at the end, mean over the tables.

    Among the better half of the runs that did not diverge: a search tells bad from good anyway.
    """
    found = defaultdict(list)
    for table in tables:
        gain, curves = table.objective.gain, [c for c in table.curves if c.final is not None and c.values]
        ends = np.array([gain(c.values[-1]) for c in curves])
        better = ends > np.median(ends)
        for part in PARTS:
            early = np.array([gain(c.values[math.ceil(part * c.epochs) - 1]) for c in curves])
            found[str(part)].append(float(spearmanr(early[better], ends[better])[0]))
    return {part: round(float(np.mean(values)), 2) for part, values in found.items()}


def early_table(early: Mapping[str, Mapping[str, float]]) -> str:
    """``early_values`` of each group, for the page of results."""
    head = "| rank correlation with the end |" + "".join(f" {group} |" for group in early)
    lines = [
        f"| after {part:.0%} of the run | ".replace("%", " %")
        + " | ".join(f"{found[str(part)]:+.2f}".replace("-", "−") for found in early.values())
        + " |"
        for part in PARTS
    ]
    return "\n".join([head, "|---|" + "---|" * len(early), *lines])


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    for group, slots in dict.fromkeys((row["group"], row["slots"]) for row in rows):
        print(f"\n{group}, {slots} slots")
        print(f"{'arm':22} {'hit (equivalents)':>22} {'missed':>8} {'x random':>20} {'x stock':>20}", end="")
        print("".join(f"{f'regret at {cut}':>24}" for cut in CUTS) + f"{'ms':>8}")
        for row in (row for row in rows if (row["group"], row["slots"]) == (group, slots)):
            print(f"{row['arm']:22} {_words(row['hit']):>22} {row['missed']:>3} of {row['searches']:<2}", end="")
            print(f" {_words(row.get('times_random')):>20} {_words(row.get('times_stock')):>20}", end="")
            print("".join(f"{_words(row[f'regret_{cut}']):>24}" for cut in CUTS) + f"{row['ms_a_trial']:>8}")


def _words(figure: Sequence[float] | None) -> str:
    return "" if figure is None else f"{figure[0]:.3g} ({figure[1]:.3g}–{figure[2]:.3g})"
