"""What a pass on a cluster takes: a formula, and a simulation of its tasks, from the costs that were measured."""

from __future__ import annotations

import heapq
import json
import math
from collections import deque
from dataclasses import dataclass, replace

import numpy as np

from boxloop.data import FAN, PART_VALUES
from common import RESULTS
from scale_cluster import fitted

AHEAD = 2
"""Tasks that Dask gives to a thread: the one that runs and the next (worker-saturation 1.1)."""

ASSUMED = {"network_bytes_per_second": 10e9 / 8, "iterations": 50, "rate": 0.5, "sample": 1e7}
"""10 Gb/s for each worker; EM iterations of a fit; share of an error left after an iteration; rows of a first fit."""


@dataclass(frozen=True)
class Costs:
    """What was measured, in seconds.

    Args:
        graph: before the first task of a pass can start: at all, and for each partition.
        message: of the scheduler for each task.
        task: of a worker for each task, beside its rows.
        byte: of workers for each byte of statistics: half where it is made and packed, half where it is added.
        delay: of a message on its way, either way.
        read: of one row, decoded.
        stored: bytes of one row in its file.
        row: of one row in a pass over memory, by precision.
        spread: task times over their mean, at eleven even quantiles.
    """

    graph: tuple[float, float]
    message: float
    task: float
    byte: float
    delay: float
    read: float
    stored: float
    row: dict[str, float]
    spread: tuple[float, ...]


@dataclass(frozen=True)
class Setting:
    """A pass: how much there is, and how it is cut."""

    rows: float = 1e10
    columns: int = 20
    components: int = 16
    workers: int = 100
    part_values: float = PART_VALUES
    fan: int = FAN
    dtype: str = "float64"
    files: bool = True

    @property
    def part_rows(self) -> float:
        """Rows of a partition."""
        return self.part_values // self.columns

    @property
    def partitions(self) -> int:
        """How many there are."""
        return math.ceil(self.rows / self.part_rows)

    @property
    def bytes(self) -> float:
        """Of the parameters, and of the statistics."""
        return 8.0 * self.components * (1 + self.columns + self.columns**2)


def figures(part: str) -> list[dict]:
    """The rows of one part of bench_scale.py."""
    return json.loads((RESULTS / f"scale_{part}.json").read_text())["rows"]


def measured() -> Costs:
    """Costs from the files of results."""
    unit = {row["job"]: row for row in figures("unit")}
    empty = [row for row in figures("overhead") if row.get("workers") == 2]
    first, scheduler, worker = (fitted(empty, key) for key in ("first", "scheduler_cpu", "worker_cpu"))
    shared = next(row for row in figures("workers") if row["who"] == "two workers" and row["columns"] == 20)
    costs = Costs(
        graph=first[:2],
        message=max(scheduler[1] - first[1], 0.0),
        task=worker[1],
        byte=worker[2],
        delay=0.0,
        read=unit["read"]["ns_per_row"] * 1e-9,
        stored=unit["read"]["bytes_per_row"],
        row={kind: unit[f"pass, memory, {kind}"]["ns_per_row"] * 1e-9 for kind in ("float64", "float32")},
        spread=tuple(shared["spread"]),
    )
    most = max((row for row in empty if row["what"] == "K=8 d=10"), key=lambda row: row["partitions"])
    return replace(costs, delay=delay(costs, most))


def delay(costs: Costs, row: dict) -> float:
    """The delay with which the simulation of the longest empty pass takes as long as it did."""
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        seconds = simulated(replace(costs, delay=middle), **empty_pass(costs, row))
        low, high = (middle, high) if seconds < row["seconds"] else (low, middle)
    return low


def empty_pass(costs: Costs, row: dict) -> dict:
    """What is simulated for an empty pass."""
    leaf = np.full(row["partitions"], costs.task + costs.byte / 2 * row["bytes"])
    return {"leaves": leaf, "workers": row["workers"], "size": row["bytes"]}


def leaf_seconds(costs: Costs, s: Setting) -> dict[str, float]:
    """Of one partition on its worker."""
    n, network = s.part_rows, ASSUMED["network_bytes_per_second"]
    return {
        "bytes of files from storage": n * costs.stored / network if s.files else 0.0,
        "decoding Parquet": n * costs.read if s.files else 0.0,
        "the E step": n * costs.row[s.dtype],
        "Dask on the worker": costs.task,
        "packing statistics and adding them": costs.byte * s.bytes,
    }


def parts_of(costs: Costs, s: Setting) -> dict[str, float]:
    """Seconds of a pass by what they are spent on; those of workers go on at once with the scheduler's."""
    network = ASSUMED["network_bytes_per_second"]
    waves = math.ceil(s.partitions / s.workers)
    levels = math.ceil(math.log(s.partitions, s.fan)) if s.partitions > 1 else 0
    each = costs.task + s.fan * s.bytes * (1.0 / network + costs.byte / 2) + 2 * costs.delay
    return {
        "making the graph": costs.graph[0] + costs.graph[1] * s.partitions,
        "parameters out": s.workers * s.bytes / network,
        **{name: waves * seconds for name, seconds in leaf_seconds(costs, s).items()},
        "the scheduler": costs.message * s.partitions * (1 + 1 / (s.fan - 1)),
        "statistics back, up the tree": levels * each,
    }


SERIAL = ("making the graph", "parameters out", "statistics back, up the tree")


def total_of(parts: dict[str, float]) -> tuple[float, str]:
    """Seconds of a pass and its bottleneck: what takes longest, where workers and scheduler go on at once."""
    own = {name: t for name, t in parts.items() if name not in (*SERIAL, "the scheduler")}
    inner = max(sum(own.values()), parts["the scheduler"])
    behind = max(own, key=own.get) if sum(own.values()) >= parts["the scheduler"] else "the scheduler"
    serial = {name: parts[name] for name in SERIAL}
    slowest = max(serial, key=serial.get)
    return inner + sum(serial.values()), slowest if serial[slowest] > inner else behind


def simulated(
    costs: Costs, leaves: np.ndarray, workers: int, size: float, fan: int = FAN, slow: float = 0.0
) -> float:
    """Seconds of a pass, task by task.

    Args:
        costs: of messages and bytes.
        leaves: seconds of every partition's task.
        workers: one task at a time each, in order; the next one waits beside it.
        size: bytes of statistics.
        fan: statistics added by one task.
        slow: share of the workers that take twice as long.
    """
    begin = costs.graph[0] + costs.graph[1] * len(leaves)
    add = costs.task + fan * size * (1.0 / ASSUMED["network_bytes_per_second"] + costs.byte / 2)
    waiting = deque((0, i) for i in range(len(leaves)))  # (height, number) of a task
    missing, width = {}, len(leaves)  # inputs that a sum still waits for
    height = 0
    while width > 1:
        above = math.ceil(width / fan)
        missing |= {(height + 1, j): min(fan, width - j * fan) for j in range(above)}
        width, height = above, height + 1
    held: list[deque] = [deque() for _ in range(workers)]
    done: list[tuple[float, int, int, int]] = []
    free, clerk = np.full(workers, begin), begin

    def give(worker: int, task: tuple[int, int], now: float) -> None:
        held[worker].append(task)
        lasts = float(leaves[task[1]]) if task[0] == 0 else add
        pace = 2.0 if worker < slow * workers else 1.0
        free[worker] = max(free[worker], now + costs.delay) + pace * lasts
        heapq.heappush(done, (free[worker] + costs.delay, worker, *task))

    for worker in list(range(workers)) * AHEAD:
        if waiting:
            give(worker, waiting.popleft(), begin)
    while done:
        now, worker, level, number = heapq.heappop(done)
        clerk = max(clerk, now) + costs.message
        held[worker].popleft()
        above = (level + 1, number // fan)
        if above in missing:
            missing[above] -= 1
            if missing[above] == 0:
                waiting.appendleft(above)  # Dask prefers what lets go of memory
        while waiting and len(held[worker]) < AHEAD:
            give(worker, waiting.popleft(), clerk)
    return clerk + costs.delay


def drawn(costs: Costs, mean: float, count: int) -> np.ndarray:
    """Task times with the spread that was seen."""
    chance = np.random.default_rng(0).uniform(0, 1, count)
    times = np.interp(chance, np.linspace(0, 1, len(costs.spread)), costs.spread)
    return times * (mean / times.mean())


def whole(costs: Costs, s: Setting, slow: float = 0.0) -> float:
    """The simulation of a setting."""
    leaf = sum(leaf_seconds(costs, s).values()) - costs.byte / 2 * s.bytes  # the other half is in the sums
    return simulated(costs, drawn(costs, leaf, s.partitions), s.workers, s.bytes, s.fan, slow)
