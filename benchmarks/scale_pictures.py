"""The pictures of docs/scale.md."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from boxloop.figures import COLOURS, FAINT, MARKERS, add_legend, dress, new_figure, png
from scale_model import Setting, figures, measured, parts_of, total_of, whole

NAMES = {"diag": "mixture, diagonal", "full": "mixture, full", "moments": "second moments"}
WORKERS = (10, 30, 100, 300, 1000, 3000, 10_000)


def lines_of(axes, found: list[dict], along: str, value: str, by: str, scale: float = 1.0) -> None:
    """One line for each job."""
    for i, job in enumerate(dict.fromkeys(row[by] for row in found)):
        mine = [row for row in found if row[by] == job]
        x, y = [row[along] for row in mine], [scale * row[value] for row in mine]
        axes.plot(x, y, color=COLOURS[i], marker=MARKERS[i], markersize=5, label=NAMES.get(job, job))
    axes.set_xscale("log")
    axes.set_yscale("log")


def rows_picture() -> bytes:
    found = figures("rows")
    figure = new_figure(11.0, 4.4)
    left, right = figure.subplots(1, 2)
    lines_of(left, found, "rows", "seconds", "job")
    dress(left, "Time of a pass", "rows", "seconds")
    lines_of(right, found, "rows", "peak_mib", "job")
    held = [row for row in found if row["job"] == found[0]["job"]]
    x = [row["rows"] for row in held]
    right.plot(
        x, [80 * n / 2**20 for n in x], color=FAINT, linestyle="--", label="the rows themselves, as float64"
    )
    right.set_ylim(100, None)
    dress(right, "Peak of memory of its process", "rows", "MiB")
    add_legend(left)
    add_legend(right)
    return png(figure)


def columns_picture() -> bytes:
    figure = new_figure(11.0, 4.4)
    for axes, part, slopes in zip(
        figure.subplots(1, 2), ("columns", "components"), ((1, 2), (1,)), strict=True
    ):
        found = figures(part)
        lines_of(axes, found, part, "seconds", "job", 1e3)
        x = np.array(sorted({row[part] for row in found}), dtype=float)
        top = max(1e3 * row["seconds"] for row in found)
        for slope in slopes:
            axes.plot(x, top * (x / x[-1]) ** slope, color=FAINT, linestyle=":", linewidth=1)
            at = (x[1], top * (x[1] / x[-1]) ** slope)
            axes.annotate(f"slope {slope}", at, (6, -10), textcoords="offset points", color=FAINT, fontsize=9)
        axes.set_xticks(x, [f"{v:.0f}" for v in x])
        axes.minorticks_off()
        dress(axes, f"Time of a pass against {part}", part, "ms")
        add_legend(axes, "upper left")
    return png(figure)


def overhead_picture() -> bytes:
    figure = new_figure(11.0, 4.4)
    left, right = figure.subplots(1, 2)
    found = figures("workers")
    cases = list(dict.fromkeys(row["case"] for row in found))
    whos = list(dict.fromkeys(row["who"] for row in found))
    for i, who in enumerate(whos):
        mine = [next(r for r in found if r["case"] == c and r["who"] == who) for c in cases]
        place = np.arange(len(cases)) + 0.2 * (i - 1.5)
        bars = left.bar(place, [row["seconds"] for row in mine], 0.18, color=COLOURS[i], label=who)
        left.bar_label(bars, [f"{row['seconds']:.2g}" for row in mine], fontsize=8)
    first = [next(r for r in found if r["case"] == c) for c in cases]
    left.set_xticks(
        range(len(cases)),
        [f"{r['rows']:,} x {r['columns']},\n{r['partitions']} partitions" for r in first],
    )
    dress(left, "A pass over Parquet files", "", "seconds")
    left.set_ylim(0, 1.35 * max(row["seconds"] for row in found))
    add_legend(left, "upper right")
    empty = [row for row in figures("overhead") if row.get("workers") == 2]
    lines_of(right, empty, "partitions", "seconds", "what")
    dress(right, "A pass over partitions of one row, two workers", "partitions", "seconds")
    add_legend(right, "upper left", title="parameters")
    return png(figure)


def estimate_picture() -> bytes:
    costs, base = measured(), Setting()
    figure = new_figure(11.0, 4.4)
    left, right = figure.subplots(1, 2)
    parts = parts_of(costs, base)
    names = sorted(parts, key=parts.get)
    left.barh(names, [parts[name] for name in names], color=COLOURS[0])
    left.set_xscale("log")
    dress(left, "1e10 rows x 20 columns, 100 workers", "seconds of a pass")
    for i, (label, values) in enumerate(
        {"as they are": 1, "8 times larger": 8, "8 times smaller": 1 / 8}.items()
    ):
        at = [Setting(workers=w, part_values=base.part_values * values) for w in WORKERS]
        x, y = list(WORKERS), [total_of(parts_of(costs, s))[0] for s in at]
        right.plot(x, y, color=COLOURS[i], label=f"formula, partitions {label}")
        right.plot(x, [whole(costs, s) for s in at], MARKERS[i], color=COLOURS[i], markersize=5)
    right.set_xscale("log")
    right.set_yscale("log")
    dress(right, "Against workers (points: simulation)", "workers", "seconds of a pass")
    add_legend(right)
    return png(figure)


PICTURES: dict[str, Callable[[], bytes]] = {
    "rows": rows_picture,
    "columns": columns_picture,
    "workers": overhead_picture,
    "estimate": estimate_picture,
}
