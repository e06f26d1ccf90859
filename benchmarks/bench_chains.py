"""Chains against BlackJAX, NumPyro and emcee, on one core.

Three questions. How many chain-steps a second, once everything is warm (the same kernel, the same target, both stepping
from stationarity; the acceptance is compared first)? How long from a cold call, compilation and warm-up included, to
1000 effective draws of a logistic regression? And how many effective draws a second has the default method beside a
tuned MALA? Each cold call is a process of its own, in which only the imports come before the clock.

    python benchmarks/bench_chains.py [--quick] [--only steady|cold|default]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from chains_peers import DRAWS, cold_call

LIMIT = 600.0
"""Seconds after which a cold call is stopped."""

HERE = Path(__file__).parent
"""Where the processes of cold calls start."""


def steady(quick: bool, numbers: tuple[int, ...] = (4, 32, 256, 4096)) -> list[dict]:
    """Chain-steps a second, ours over BlackJAX's; every figure the best of several interleaved."""
    from chains_steady import PROBLEMS, ours, theirs

    rows = []
    for name in PROBLEMS:
        for chains in (4, 256) if quick else numbers:
            for dtype in ("float32", "float64"):
                here, there = ours(name, chains, dtype), theirs(name, chains, dtype)
                modes = {"ours": here.run, "BlackJAX": there.run}
                if chains <= 256 and not quick:
                    modes["ours, compiled"] = here.compiled()
                best = dict.fromkeys(modes, float("inf"))
                for _ in range(3 if quick else 7):
                    for mode, run in modes.items():
                        begin = time.perf_counter()
                        run()
                        best[mode] = min(best[mode], time.perf_counter() - begin)
                row = {"kernel": name, "chains": chains, "dtype": dtype}
                row["acceptance"], row["BlackJAX's"] = here.acceptance, there.acceptance
                row["us a step"] = best["ours"] / here.steps * 1e6
                row["BlackJAX us"] = best["BlackJAX"] / there.steps * 1e6
                row["ratio"] = row["BlackJAX us"] / row["us a step"]
                if "ours, compiled" in best:
                    row["ratio compiled"] = best["BlackJAX"] / best["ours, compiled"]
                rows.append(row)
                print(row, flush=True)
    return rows


def cold(quick: bool) -> list[dict]:
    """Seconds from a cold call to 1000 effective draws: the least of three processes, or one of over half a minute."""
    rows = []
    for chains in (4, 256):
        for who in ("boxloop", "BlackJAX", "NumPyro", "emcee"):
            found = [_process(who, chains)]
            if found[0]["seconds to 1000"] < 30.0 and not quick:
                found += [_process(who, chains) for _ in range(2)]
            best = min(found, key=lambda one: one["seconds to 1000"])
            rows.append({"chains": chains, "who": who, **best})
            print(rows[-1], flush=True)
    return rows


def _process(who: str, chains: int) -> dict:
    try:
        done = _run(who, chains)
    except subprocess.TimeoutExpired:
        return {"seconds to 1000": LIMIT, "note": "stopped: not there yet"}
    return json.loads(done.stdout.splitlines()[-1])


def _run(who: str, chains: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, __file__, "--one", who, "--chains", str(chains)],
        capture_output=True,
        text=True,
        check=True,
        cwd=HERE,
        timeout=LIMIT,
    )


def default(quick: bool) -> list[dict]:
    """Effective draws a second after warm-up: the default, and a MALA tuned in the same way."""
    import torch

    from boxloop.sample import MALA, sample_density
    from chains_peers import TARGETS, effective

    rows = []
    for name, (target, columns) in TARGETS().items():
        for chains in (4, 64, 256):
            rates = {}
            for who, kernel in (("default", None), ("MALA", MALA()), ("MALA, plain", MALA(dense=False))):
                best = 0.0
                for seed in range(1 if quick else 3):
                    draws = sample_density(
                        target,
                        torch.zeros(columns).double(),
                        kernel,
                        chains=chains,
                        draws=32,
                        warmup=600,
                        random_state=seed,
                    )
                    begin = time.perf_counter()
                    more = sample_density(
                        target,
                        draws.positions[-1],
                        draws.algorithm,
                        draws=DRAWS // chains + 100,
                        warmup=0,
                        random_state=seed,
                    )
                    seconds = time.perf_counter() - begin
                    best = max(best, effective(np.swapaxes(more.positions.numpy(), 0, 1)) / seconds)
                rates[who] = best
            rows.append(
                {"target": name, "chains": chains, **rates, "ratio": rates["default"] / rates["MALA"]}
            )
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only")
    parser.add_argument("--one")
    parser.add_argument(
        "--chains", type=int, default=None, help="of a cold call, or steady chains to time anew"
    )
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(cold_call(chosen.one, chosen.chains or 4)))
        return
    from common import RESULTS, report

    if chosen.only == "steady" and chosen.chains:
        kept = json.loads((RESULTS / "chains_steady.json").read_text())["rows"]
        rows = [row for row in kept if row["chains"] != chosen.chains] + steady(False, (chosen.chains,))
        order = list(dict.fromkeys(row["kernel"] for row in kept))
        report("chains_steady", sorted(rows, key=lambda row: (order.index(row["kernel"]), row["chains"])))
        return
    for part, measure in (("cold", cold), ("default", default), ("steady", steady)):
        if chosen.only in (None, part):
            report(f"chains_{part}", measure(chosen.quick))


if __name__ == "__main__":
    main()
