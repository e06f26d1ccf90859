"""The tables of docs/performance.md, from the JSON of the benchmarks; every number of the page is written here.

make performance     # runs all benchmarks, then this script
python benchmarks/performance_page.py
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from common import RESULTS, number, table

PAGE = RESULTS.parents[1] / "docs" / "performance.md"

Row = dict[str, Any]
Cells = list[str]

HEAD = ["job", "peer", "its time", "boxloop", "ratio", "share of the floor"]

ABOUT = """# Performance

Each row times a job and its peer alternately in one process, takes the least of at least three times, and checks first
that both give the same answer. A ratio above 1 means that boxloop is faster. The *floor* is the time that the
arithmetic or the memory traffic of the job takes at the rates measured in the same run; its share says how much room is
left. No row was measured on a GPU.

Written by `make performance`, which runs every benchmark and then `benchmarks/performance_page.py`. The figures of a
section were measured on the machine named under it.
"""

WITHOUT_DATE = "November 2026, before dates were recorded; one thread set by hand"


def duration(milliseconds: float) -> str:
    """A time with its unit."""
    if milliseconds >= 1000.0:
        return f"{number(milliseconds / 1000.0)} s"
    return f"{number(milliseconds)} ms" if milliseconds >= 1.0 else f"{number(1000.0 * milliseconds)} µs"


def percentage(share: float | None) -> str:
    """A share of the floor, empty where no floor is known."""
    return "" if share is None else f"{100.0 * share:.0f}%"


def cells_beside_peer(rows: Iterable[Row]) -> list[Cells]:
    """Rows that name a peer, its time and ours."""
    return [
        [
            row["case"],
            row["peer"],
            duration(row["peer_ms"]),
            duration(row["ours_ms"]),
            number(row["ratio"]),
            percentage(row.get("of_floor")),
        ]
        for row in rows
        if "peer_ms" in row
    ]


def cells_of_streams(rows: Iterable[Row]) -> list[Cells]:
    """Online factor analysis: an observed vector, beside the order of operations of Brownlie (2021)."""
    found, paper = [], {}
    for row in rows:
        if row["method"].startswith("paper"):
            paper[row["D"], row["method"]] = row["ms"]
            continue
        method = "paper gradient" if row["method"] == "gradient" else "paper"
        peer = paper[row["D"], method]
        job = f"vector of {row['D']:,} numbers, {row['method']}"
        share = percentage(row["of_floor"])
        found.append(
            [job, "the paper's order", duration(peer), duration(row["ms"]), number(row["ratio"]), share]
        )
    return found


def cells_of_autoencoders(rows: Iterable[Row]) -> list[Cells]:
    """A training step beside a loop by hand with the same modules."""
    return [
        [
            f"a step of 256 rows, hidden layers {row['hidden']}",
            "a loop in PyTorch",
            duration(row["loop ms"]),
            duration(row["boxloop ms"]),
            number(row["ratio"]),
            percentage(row.get("of the floor")),
        ]
        for row in rows
    ]


def cells_of_cold_chains(rows: Iterable[Row]) -> list[Cells]:
    """Time to 1000 effective draws from a cold call, compilation included."""
    rows = list(rows)
    ours = {row["chains"]: 1e3 * row["seconds to 1000"] for row in rows if row["who"] == "boxloop"}
    found = []
    for row in rows:
        if row["who"] != "boxloop":
            own, peer = ours[row["chains"]], 1e3 * row["seconds to 1000"]
            job = f"1000 effective draws of a logistic regression, {row['chains']} chains"
            found.append([job, row["who"], duration(peer), duration(own), number(peer / own), ""])
    return found


def cells_of_chain_steps(rows: Iterable[Row]) -> list[Cells]:
    """A step of all chains, after compilation; compiled by request where that was measured."""
    found = []
    for row in rows:
        compiled = row.get("ratio compiled")
        ratio = number(row["ratio"]) + (f" (compiled {number(compiled)})" if compiled else "")
        job = f"{row['kernel']}, {row['chains']} chains, {row['dtype']}"
        peer, own = row["BlackJAX us"] / 1e3, row["us a step"] / 1e3
        found.append([job, "BlackJAX", duration(peer), duration(own), ratio, ""])
    return found


def cells_of_weights(rows: Iterable[Row]) -> list[Cells]:
    """Observing the weights of a network, beside the published code of SWAG."""
    found, published = [], {}
    for row in rows:
        if row["method"] == "SWAG as published":
            published[row["net"], row["D"]] = row["ms"]
        elif "ratio_to_published" in row:
            peer = published[row["net"], row["D"]]
            job = f"observe {row['D']:,} weights of {row['net']}, {row['method']}"
            ratio, share = number(row["ratio_to_published"]), percentage(row["of_floor"])
            found.append([job, "SWAG as published", duration(peer), duration(row["ms"]), ratio, share])
    return found


SECTIONS: list[tuple[str, str, Callable[[Iterable[Row]], list[Cells]]]] = [
    ("Gaussian mixtures", "mixture", cells_beside_peer),
    ("Bayesian mixtures", "variational", cells_beside_peer),
    ("Starts: wall time until the fit has ended", "starts", cells_beside_peer),
    ("Factor analysis", "factor", cells_beside_peer),
    ("Online factor analysis", "online_fa", cells_of_streams),
    ("Moment penalty", "mega", cells_beside_peer),
    ("Canonical correlation", "twoview_linear", cells_beside_peer),
    ("Loss of deep canonical correlation", "twoview_loss", cells_beside_peer),
    ("Topics from moments", "spectral", cells_beside_peer),
    ("Estimating equations", "equations", cells_beside_peer),
    ("Autoencoders", "autoencoder", cells_of_autoencoders),
    ("Posteriors over network weights", "weights", cells_of_weights),
    ("Chains from a cold call", "chains_cold", cells_of_cold_chains),
    ("Steps of chains", "chains_steady", cells_of_chain_steps),
]
"""Title, file of results, and how its rows become cells."""


def describe_machine(machine: Row) -> str:
    """When and on what a section was measured."""
    processor = machine.get("model", machine["processor"])
    cores = machine.get("cores", machine.get("threads"))
    rate = machine["gemm_float64_gflops"]
    return (
        f"{machine.get('date', WITHOUT_DATE)}; {processor}, {cores} {'core' if cores == 1 else 'cores'}, "
        f"{rate:.0f} GFLOP/s in float64 products; Python {machine['python']}, torch {machine['torch']}."
    )


def section(title: str, name: str, to_cells: Callable[[Iterable[Row]], list[Cells]]) -> str:
    """A heading, the machine and the table of one file of results, with that of one core where both were measured."""
    parts = [f"## {title}"]
    for suffix in ("", "_one_core"):
        file = RESULTS / f"{name}{suffix}.json"
        if file.exists():
            found = json.loads(file.read_text(encoding="utf-8"))
            parts += [describe_machine(found["machine"]), table(HEAD, to_cells(found["rows"]))]
    return "\n\n".join(parts)


def main() -> None:
    sections = [section(*parts) for parts in SECTIONS]
    PAGE.write_text("\n\n".join([ABOUT.rstrip(), *sections]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
