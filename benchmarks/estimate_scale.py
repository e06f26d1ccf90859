"""A pass over 1e10 rows on 100 workers, from what bench_scale.py measured on two cores.

Two ways: a formula that adds up what each part of a pass costs, and a simulation of single tasks: one scheduler that
handles one message at a time, workers that hold one task ahead and take as long as tasks were seen to, sums in a tree.
Both are held against passes that were measured. What is assumed and not measured is in scale_model.ASSUMED.

    python benchmarks/estimate_scale.py
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from boxloop.data import PART_VALUES
from common import report
from scale_model import (
    ASSUMED,
    Costs,
    Setting,
    drawn,
    figures,
    leaf_seconds,
    measured,
    parts_of,
    simulated,
    total_of,
    whole,
)


def checks(costs: Costs) -> list[dict]:
    """Passes that were measured, beside what formula and simulation say of them.

    The time of a row is that of one process alone; none of these passes is behind a constant of Costs, but for the
    longest empty one, which the delay of messages comes from.
    """
    found = []
    for row in figures("overhead"):
        if "workers" in row and row["what"] != "K=8 d=100":
            leaf = np.full(row["partitions"], costs.task + costs.byte / 2 * row["bytes"])
            about = {"what": f"empty, {row['what']}", "partitions": row["partitions"]}
            found.append(beside(costs, about, row, leaf, row["bytes"]))
    rows = figures("workers")
    for row in rows:
        if row["who"] in ("one worker", "two workers"):
            alone = next(r for r in rows if r["case"] == row["case"] and r["workers"] == 0)
            size = Setting(columns=row["columns"], components=row["components"]).bytes
            mean = alone["seconds"] / row["partitions"] + costs.task + costs.byte / 2 * size
            about = {"what": f"{row['rows']} rows, {row['columns']} columns", "partitions": row["partitions"]}
            found.append(beside(costs, about, row, drawn(costs, mean, row["partitions"]), size))
    return found


def beside(costs: Costs, about: dict, row: dict, leaves: np.ndarray, size: float) -> dict:
    """One line of the comparison."""
    count, workers = len(leaves), row["workers"]
    graph = costs.graph[0] + costs.graph[1] * count
    formula = graph + max((leaves.sum() + costs.byte / 2 * size * count) / workers, costs.message * count)
    found = simulated(costs, leaves, workers, size)
    return {
        "table": "check",
        **about,
        "workers": workers,
        "measured_s": row["seconds"],
        "formula_s": formula,
        "simulated_s": found,
        "simulated_over_measured": found / row["seconds"],
    }


def estimate(costs: Costs, s: Setting) -> list[dict]:
    """A pass by what it is spent on."""
    parts = parts_of(costs, s)
    total, bottleneck = total_of(parts)
    rows = [
        {"table": "part", "what": name, "seconds": t, "share": t / total, "at_once": name == "the scheduler"}
        for name, t in parts.items()
    ]
    return [
        *rows,
        {
            "table": "pass",
            "partitions": s.partitions,
            "part_rows": s.part_rows,
            "parameter_bytes": s.bytes,
            "float64_terabytes": 8e-12 * s.rows * s.columns,
            "seconds": total,
            "simulated_s": whole(costs, s),
            "simulated_5_percent_slow_s": whole(costs, s, 0.05),
            "bottleneck": bottleneck,
            "workers_until_the_scheduler": sum(leaf_seconds(costs, s).values()) / costs.message,
        },
    ]


LEVERS: dict[str, dict] = {
    "as it is": {},
    "10 workers": {"workers": 10},
    "1,000 workers": {"workers": 1000},
    "10,000 workers": {"workers": 10_000},
    "10,000 workers, partitions 8 times larger": {"workers": 10_000, "part_values": 8 * PART_VALUES},
    "partitions 8 times larger": {"part_values": 8 * PART_VALUES},
    "partitions 8 times smaller": {"part_values": PART_VALUES / 8},
    "partitions 64 times smaller": {"part_values": PART_VALUES / 64},
    "4 statistics to a sum": {"fan": 4},
    "64 statistics to a sum": {"fan": 64},
    "float32 products": {"dtype": "float32"},
    "rows held in memory by the workers": {"files": False},
    "both": {"dtype": "float32", "files": False},
}
"""What might be changed."""


def levers(costs: Costs, s: Setting) -> list[dict]:
    """The same pass with one thing changed."""
    base = total_of(parts_of(costs, s))[0]
    found = []
    for name, change in LEVERS.items():
        other = replace(s, **change)
        total, bottleneck = total_of(parts_of(costs, other))
        found.append(
            {
                "table": "lever",
                "what": name,
                "partitions": other.partitions,
                "seconds": total,
                "simulated_s": whole(costs, other),
                "times_faster": base / total,
                "bottleneck": bottleneck,
            }
        )
    return found


def fits(costs: Costs, s: Setting) -> list[dict]:
    """Whole fits: the passes before the first iteration, and iterations."""
    one = total_of(parts_of(costs, s))[0]
    survey = total_of(parts_of(replace(costs, row=dict.fromkeys(costs.row, 0.0)), s))[0]
    sample, rate = ASSUMED["sample"], ASSUMED["rate"]
    iterations = math.ceil(math.log(math.sqrt(s.rows / sample)) / -math.log(rate))
    here = s.rows * (8 * (s.columns + 1) / ASSUMED["network_bytes_per_second"] + costs.row[s.dtype])
    begin = 2 * survey
    plans = {
        "what comes before the first iteration: survey, sample": begin,
        f"{ASSUMED['iterations']} iterations over all rows": begin + ASSUMED["iterations"] * one,
        f"{iterations} iterations after a fit to {sample:.0e} rows": begin + iterations * one,
        "online EM: one pass, rows brought to one process": here,
    }
    return [{"table": "fit", "what": what, "hours": seconds / 3600} for what, seconds in plans.items()]


def main() -> None:
    costs, setting = measured(), Setting()
    constants = [
        {"table": "constant", "what": "graph, ms a pass", "value": 1e3 * costs.graph[0]},
        {"table": "constant", "what": "graph, ms a partition", "value": 1e3 * costs.graph[1]},
        {"table": "constant", "what": "scheduler, ms a task", "value": 1e3 * costs.message},
        {"table": "constant", "what": "worker, ms a task", "value": 1e3 * costs.task},
        {"table": "constant", "what": "worker, ns a byte of statistics", "value": 1e9 * costs.byte},
        {"table": "constant", "what": "delay of a message, ms", "value": 1e3 * costs.delay},
        {"table": "constant", "what": "decoding, ns per row", "value": 1e9 * costs.read},
        {"table": "constant", "what": "bytes per row in its file", "value": costs.stored},
        {"table": "constant", "what": "E step, ns per row, float64", "value": 1e9 * costs.row["float64"]},
        {"table": "constant", "what": "E step, ns per row, float32", "value": 1e9 * costs.row["float32"]},
    ]
    constants += [{"table": "assumed", "what": key, "value": value} for key, value in ASSUMED.items()]
    rows = checks(costs) + estimate(costs, setting) + levers(costs, setting) + fits(costs, setting)
    report("scale_estimate", constants + rows)


if __name__ == "__main__":
    main()
