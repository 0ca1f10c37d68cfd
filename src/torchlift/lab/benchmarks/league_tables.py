"""What the records of `torchlift bench league` say: standings of a case, performance profiles, Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from torchlift.lab.benchmarks import league
from torchlift.lab.benchmarks.kept import markdown_table
from torchlift.lab.benchmarks.league_cases import MEASURES

#: How the tables call a start.
START = {"torch": "torch's", "ours": "our"}
#: Factors of the least time at which performance profiles are read.
FACTORS = (1.0, 1.5, 2.0, 4.0)


def standings(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row for each method and start: its best trial on held-out data, and when it reached the best baseline's end.

    Rows have "method", "start", "setting", "report", "to target" (seconds or None) and "steps".
    """
    rank = _ranking(record["metric"])
    best: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in record["runs"]:
        key = row["method"], row["start"]
        best[key] = max(best.get(key, row), row, key=lambda trial: rank(trial["choice"]))
    target = max((rank(row["choice"]) for row in best.values() if _is_baseline(row["method"])), default=math.inf)
    return [
        {name: row[name] for name in ("method", "start", "setting", "report", "steps")}
        | {"to target": next((seconds for seconds, value in row["curve"] if rank(value) >= target), None)}
        for row in best.values()
    ]


def _ranking(metric: str) -> Callable[[float | None], float]:
    """What makes a value of the metric comparable: larger is better, and a run that failed comes last."""
    sign = 1.0 if MEASURES[metric].larger_is_better else -1.0
    return lambda value: -math.inf if value is None else sign * value


def profiles(records: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """{method and start: the share of the cases in which it reaches the best baseline's end within `FACTORS`}.

    The factors are of the least time that any method needs (performance profiles, Dolan & Moré 2002).
    """
    ratios: dict[str, list[float]] = {}
    for record in records:
        rows = standings(record)
        least = min((row["to target"] for row in rows if row["to target"]), default=math.inf)
        for row in rows:
            ratio = math.inf if not row["to target"] else row["to target"] / least
            ratios.setdefault(f"{row['method']} ({row['start']} start)", []).append(ratio)
    return {name: [sum(r <= f for r in values) / len(records) for f in FACTORS] for name, values in ratios.items()}


def markdown(records: Sequence[Mapping[str, Any]]) -> str:
    """The tables of the documentation: who wins, every method, and what each part of ours gives; medians over seeds."""
    rows: list[list[list[str]]] = [[], [], []]
    for case in dict.fromkeys(record["case"] for record in records):
        chosen = [record for record in records if record["case"] == case]
        tables = [{(row["method"], row["start"]): row for row in standings(record)} for record in chosen]
        keys = dict.fromkeys(key for table in tables for key in table)
        medians = {key: _median(table.get(key, {}).get("report") for table in tables) for key in keys}
        seconds, seeds, trials = median(record["seconds"] for record in chosen), len(chosen), chosen[0]["trials"]
        unit = MEASURES[chosen[0]["metric"]].unit or "error, less is better"
        counts = f"{_counted(seeds, 'seed')}, {_counted(trials, 'trial')}"
        title = f"{case} ({unit}; {seconds:.1f} s, {counts})"
        for lines, cells in zip(rows, _cells(medians, tables, chosen[0]["metric"]), strict=True):
            lines.append([title, *cells])
    return "\n\n".join(markdown_table(headings, lines) for headings, lines in zip(_headings(), rows, strict=True))


def _headings() -> list[list[str]]:
    faster = "time of the best baseline to its end, over ours"
    return [
        ["case", "ours", "best baseline", "AdamW from our start", faster],
        ["from torch's start / from ours", "ours", *league.BASELINES],
        ["case", *(name if name == "ours" else name.removeprefix("ours, ") for name in league.ABLATIONS)],
    ]


def _cells(
    medians: Mapping[tuple[str, str], float | None], tables: Sequence[Mapping[tuple[str, str], Any]], metric: str
) -> tuple[list[str], list[str], list[str]]:
    """One row of each table."""
    rank = _ranking(metric)
    best = max((key for key in medians if _is_baseline(key[0])), key=lambda key: rank(medians[key]), default=None)
    ours, given, adam = ("ours", "ours"), ("ours, torch's start", "torch"), ("AdamW", "ours")
    mark = "**" if best is None or rank(medians.get(ours)) >= rank(medians[best]) else ""
    name = "–" if best is None else f"{_shown(medians[best])}, {best[0]}, {START[best[1]]} start"
    pairs = [f"{_shown(medians.get((n, 'torch')))} / {_shown(medians.get((n, 'ours')))}" for n in league.BASELINES]
    return (
        [f"{mark}{_shown(medians.get(ours))}{mark}", name, _shown(medians.get(adam)), _speed(tables, ours)],
        [f"{_shown(medians.get(given))} / {_shown(medians.get(ours))}", *pairs],
        [_shown(medians.get((method, start))) for method, (_, start) in league.ABLATIONS.items()],
    )


def _speed(tables: Sequence[Mapping[tuple[str, str], Any]], ours: tuple[str, str]) -> str:
    """How many times sooner than the best baseline we reach its last value on held-out data; the median over seeds."""
    ratios = []
    for table in tables:
        theirs = [row["to target"] for (name, _), row in table.items() if _is_baseline(name) and row["to target"]]
        mine = table.get(ours, {}).get("to target")
        ratios.append(min(theirs) / mine if theirs and mine else 0.0)
    ratio = median(ratios)
    return f"{ratio:.1f}" if ratio > 0 else "not reached"


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _is_baseline(method: str) -> bool:
    return not method.startswith("ours")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
