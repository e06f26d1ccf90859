"""The tables and pictures of docs/scale.md, from the JSON of bench_scale.py and estimate_scale.py.

Every number of the page stands between a pair of markers and is written by this script.

    python benchmarks/scale_page.py
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from common import number, table
from scale_model import figures
from scale_pictures import NAMES, PICTURES

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end -->)", re.S)


def power(value: float) -> str:
    """A count of rows as a power of ten."""
    return f"{value:.0e}".replace("e+0", "e").replace("e+", "e")


def rows_block() -> str:
    found = figures("rows")
    sizes = sorted({row["rows"] for row in found})
    jobs = list(dict.fromkeys(row["job"] for row in found))
    at = {(row["job"], row["rows"]): row for row in found}
    times, peaks = [], []
    for job in jobs:
        last = at[job, sizes[-1]]
        seconds = [number(at[job, n]["seconds"]) for n in sizes]
        rate = f"{last['rows_per_second'] / 1e6:.1f}"
        times.append([job, *seconds, rate, f"{last['slope']:.2f} ({last['expected']:.0f})"])
        peak = [f"{at[job, n]['peak_mib']:.0f}" for n in sizes]
        peaks.append([job, f"{last['imports_mib']:.0f}", *peak, f"{last['memory_slope']:.3f} (0)"])
    head = [power(n) for n in sizes]
    largest = at[jobs[0], sizes[-1]]["file_mb"]
    off = max(row["off"] for row in found)
    return "\n\n".join(
        [
            f"Seconds of one pass; the largest files are {number(largest)} MB. Slopes are of the three largest sizes "
            "on logarithmic axes, with what is expected in brackets.",
            table(["rows", *head, "million rows a second", "slope"], times),
            "Peak of resident memory of the process, MiB; the first column is what libraries take before any row is "
            "read.",
            table(["rows", "libraries", *head, "slope"], peaks),
            f"Moments of every pass agree with those added up while writing, to {off:.0e} standard deviations.",
        ]
    )


def growth(part: str, along: str) -> str:
    found = figures(part)
    sizes = sorted({row[along] for row in found})
    lines = []
    for job in dict.fromkeys(row["job"] for row in found):
        mine = {row[along]: row for row in found if row["job"] == job}
        last = mine[sizes[-1]]
        slopes = [f"{last['slope']:.2f}", f"{last['slope_of_largest']:.2f}", f"{last['expected']:.0f}"]
        lines.append([NAMES[job], *(number(1e3 * mine[n]["seconds"]) for n in sizes), *slopes])
    head = [along, *map(str, sizes), "slope", "of the three largest", "expected"]
    return f"Milliseconds of a pass over {found[0]['rows']:,} rows in memory.\n\n" + table(head, lines)


def workers_block() -> str:
    lines = [
        [
            f"{row['rows']:,} x {row['columns']}, {row['components']} components, {row['partitions']} partitions",
            row["who"],
            number(row["seconds"]),
            f"{row['speedup']:.2f}",
            f"{row['worker_peak_mib']:.0f}" if row["workers"] else "",
        ]
        for row in figures("workers")
    ]
    return table(["pass", "who", "seconds", "times this process", "peak of a worker, MiB"], lines)


def overhead_block() -> str:
    found = figures("overhead")
    lines = [
        [
            row["what"],
            str(row["workers"]),
            str(row["partitions"]),
            number(row["bytes"]),
            number(1e3 * row["seconds"]),
            number(1e3 * row["scheduler_cpu"]),
            number(1e3 * row["worker_cpu"]),
        ]
        for row in found
        if "workers" in row
    ]
    fit = {row["what"]: row for row in found if "workers" not in row}["fit: seconds"]
    head = [
        "parameters",
        "workers",
        "partitions",
        "bytes",
        "ms",
        "ms of client and scheduler",
        "ms of workers",
    ]
    said = (
        f"On two workers an empty pass takes {number(fit['a_ms'])} ms, {number(fit['b_ms_a_partition'])} ms for each "
        f"partition and {number(fit['c_s_a_gigabyte'])} s for each gigabyte of statistics (fitted; the worst of these "
        f"passes is {100 * fit['worst_relative_error']:.0f}% away)."
    )
    return table(head, lines) + "\n\n" + said


def of_estimate(kind: str) -> list[dict]:
    return [row for row in figures("estimate") if row["table"] == kind]


def checks_block() -> str:
    lines = [
        [
            row["what"],
            str(row["partitions"]),
            str(row["workers"]),
            number(row["measured_s"]),
            number(row["formula_s"]),
            number(row["simulated_s"]),
            f"{row['simulated_over_measured']:.2f}",
        ]
        for row in of_estimate("check")
    ]
    head = [
        "pass",
        "partitions",
        "workers",
        "measured, s",
        "formula, s",
        "simulation, s",
        "simulation / measured",
    ]
    return table(head, lines)


def estimate_block() -> str:
    (one,) = of_estimate("pass")
    constants = [
        [row["what"], number(row["value"])] for row in of_estimate("constant") + of_estimate("assumed")
    ]
    parts = [
        [
            row["what"],
            number(row["seconds"]),
            f"{100 * row['share']:.2g}%",
            "yes" if row["at_once"] else "",
        ]
        for row in of_estimate("part")
    ]
    said = (
        f"A pass takes **{number(one['seconds'])} s** by the formula and {number(one['simulated_s'])} s by the "
        f"simulation ({number(one['simulated_5_percent_slow_s'])} s if five workers of a hundred are half as fast), in "
        f"{one['partitions']:,} partitions of {number(one['part_rows'])} rows. **The bottleneck is "
        f"{one['bottleneck']}.** Parameters, and the statistics of a partition, are "
        f"{number(one['parameter_bytes'])} bytes. With partitions so large one scheduler keeps "
        f"{number(one['workers_until_the_scheduler'])} workers busy. Held as float64 the rows are "
        f"{number(one['float64_terabytes'])} TB."
    )
    return "\n\n".join(
        [
            said,
            table(["part of a pass", "seconds", "share", "while workers work"], parts),
            "Measured constants, then what is assumed:",
            table(["constant", "value"], constants),
        ]
    )


def levers_block() -> str:
    lines = [
        [
            row["what"],
            f"{row['partitions']:,}",
            number(row["seconds"]),
            number(row["simulated_s"]),
            number(row["times_faster"]),
            row["bottleneck"],
        ]
        for row in of_estimate("lever")
    ]
    fits = [[row["what"], number(row["hours"])] for row in of_estimate("fit")]
    head = ["change", "partitions", "formula, s", "simulation, s", "times faster", "bottleneck"]
    return table(head, lines) + "\n\n" + table(["fit", "hours"], fits)


BLOCKS: dict[str, Callable[[], str]] = {
    "rows": rows_block,
    "columns": lambda: growth("columns", "columns"),
    "components": lambda: growth("components", "components"),
    "workers": workers_block,
    "overhead": overhead_block,
    "checks": checks_block,
    "estimate": estimate_block,
    "levers": levers_block,
}


def main() -> None:
    page = DOCS / "scale.md"
    text = page.read_text(encoding="utf-8")
    assert {name for _, name, _ in BLOCK.findall(text)} == set(BLOCKS), "a block of figures is missing"
    page.write_text(BLOCK.sub(lambda m: f"{m[1]}\n{BLOCKS[m[2]]()}\n\n{m[3]}", text), encoding="utf-8")
    for name, draw in PICTURES.items():
        (DOCS / "pictures" / f"scale_{name}.png").write_bytes(draw())


if __name__ == "__main__":
    main()
