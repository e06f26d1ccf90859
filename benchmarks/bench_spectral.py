"""Topics from moments: against dense moments, EM, scikit-learn's LDA, and TensorLy's power iteration if there.

python benchmarks/bench_spectral.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from sklearn.decomposition import LatentDirichletAllocation

from boxloop import FitWarning, MultinomialMixture
from boxloop.data import SparseSource, Topics, csr_tensor, draw_topics
from boxloop.distributions import Multinomial
from boxloop.fit import EMState, em, match_topics, mixture_from_topics, spectral
from boxloop.loop import run
from boxloop.numeric import generator
from common import gemm_rate, interleave, report
from spectral_peer import Whitened, dense_topics, moments_apart, scipy_counts

LENGTH, CONCENTRATION = 50, 0.2
TARGETS = {1_000: 10.0, 10_000: 35.0}
ITERATIONS = 8
"""Most EM iterations that the spectral estimate may take."""
EQUAL = 1.001
"""Perplexities within this ratio are equal."""


def problem(n: int, b: int, k: int, seed: int = 0) -> tuple[Topics, SparseSource]:
    topics = draw_topics(k, b, generator(seed), concentration=CONCENTRATION)
    return topics, topics.source(n, LENGTH, generator(seed + 1))


def error(truth: torch.Tensor, found: torch.Tensor) -> float:
    return float((found[match_topics(truth, found)] - truth).abs().sum(1).mean())


def against_dense(n: int, b: int, k: int, repeats: int) -> dict:
    """Ours and the peer on the same documents; moments must agree to rounding, and neither may be further off."""
    topics, source = problem(n, b, k)
    counts = scipy_counts(source)
    apart = moments_apart(source)
    assert apart < 1e-9, f"moments differ by {apart}"
    found = {}

    def ours() -> None:
        found["ours"] = spectral(source, k, generator(0)).probabilities

    def peer() -> None:
        found["peer"] = torch.from_numpy(dense_topics(counts, k, 0))

    times = interleave({"peer": peer, "ours": ours}, repeats)
    off = {name: error(topics.probabilities, value) for name, value in found.items()}
    between = error(found["peer"], found["ours"])
    assert off["ours"] <= off["peer"], f"error {off['ours']} above the peer's {off['peer']}"
    assert between <= 1.5 * off["peer"], f"topics differ by {between}, more than their errors {off}"
    iteration_s = em_iteration(source, k, repeats)
    return {
        "case": f"n={n} words={b} k={k}",
        "peer": "dense moments",
        "peer_ms": 1e3 * times["peer"],
        "ours_ms": 1e3 * times["ours"],
        "ratio": times["peer"] / times["ours"],
        "target": TARGETS.get(b),
        "floor_ms": 1e3 * floor(source, k),
        "of_floor": floor(source, k) / times["ours"],
        "em_iteration_ms": 1e3 * iteration_s,
        "em_iterations": times["ours"] / iteration_s,
        "most_em_iterations": ITERATIONS,
        "moments_apart": apart,
        "topics_apart": between,
        "error_ours": off["ours"],
        "error_peer": off["peer"],
    }


def em_iteration(source: SparseSource, k: int, repeats: int) -> float:
    """One sparse EM iteration, with k topics that are neither all alike nor sharp."""
    level = torch.full((k, source.n_columns), 1.0 / source.n_columns, dtype=torch.float64)
    model = mixture_from_topics(spectral(source, k, generator(0)), Multinomial(level))
    return interleave({"iteration": lambda: run(em(source), EMState(model), max_iter=1)}, repeats)[
        "iteration"
    ]


def floor(source: SparseSource, k: int) -> float:
    """Seconds of the multiplications alone at the rate of a dense product: eight sparse ones, thin on one side."""
    columns = 6 * (k + 10) + 2 * (k + 2)
    return 2.0 * len(source.rows.values()) * columns / gemm_rate()


def slope(x: list[int], y: list[float]) -> float:
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def growth(base: tuple[int, int, int], along: dict[str, list[int]], repeats: int) -> list[dict]:
    """Time against documents, vocabulary and topics, one at a time."""
    order = {"n": 1.0, "words": 1.0, "k": 3.0}  # nnz k + n k^3 + words k^2
    rows = []
    for which, values in along.items():
        seconds = []
        for value in values:
            n, b, k = (value if which == name else size for name, size in zip(("n", "words", "k"), base))
            _, source = problem(n, b, k)
            timed = interleave({"ours": lambda s=source, k=k: spectral(s, k, generator(0))}, repeats)
            seconds.append(timed["ours"])
        rows.append(
            {
                "case": f"time against {which}, from n={base[0]} words={base[1]} k={base[2]}",
                "at": values,
                "ms": [round(1e3 * s, 2) for s in seconds],
                "slope": slope(values, seconds),
                "order": order[which],
            }
        )
    return rows


def memory(b: int, k: int, sizes: list[int]) -> dict:
    """Most memory that a spectral call adds to what holds the documents, in a process of its own."""
    peaks = []
    with tempfile.TemporaryDirectory() as folder:
        for n in sizes:
            _, source = problem(n, b, k)
            path, rows = Path(folder) / "counts.npz", source.rows
            np.savez(path, ends=rows.crow_indices(), columns=rows.col_indices(), values=rows.values())
            command = [sys.executable, __file__, "--child", str(path), "--shape", str(n), str(b), str(k)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            peaks.append(json.loads(done.stdout)["added_mib"])
    return {
        "case": f"memory that a call adds, words={b} k={k}",
        "at": sizes,
        "mib": peaks,
        "slope": slope(sizes, [max(peak, 1.0) for peak in peaks]),
        "order": 1.0,
        "dense_mib": 8 * b * b / 2**20,
    }


def child(path: Path, n: int, b: int, k: int) -> None:
    """Load counts, forget how much memory that took, and see what a call adds. Linux only."""
    with np.load(path) as file:
        ends, columns, values = (torch.from_numpy(file[name]) for name in ("ends", "columns", "values"))
    source = SparseSource(csr_tensor(ends, columns, values, (n, b)))
    spectral(problem(2_000, 100, 3)[1], 3, generator(0))  # first calls load libraries
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmHWM")
    spectral(source, k, generator(0))
    print(json.dumps({"added_mib": round(_status("VmHWM") - before, 2)}))


def _status(key: str) -> float:
    line = next(s for s in Path("/proc/self/status").read_text().splitlines() if s.startswith(key))
    return int(line.split()[1]) / 1024


def equal_perplexity(n: int, b: int, k: int, starts: int) -> list[dict]:
    """Time to a held-out perplexity as low as that of EM from moments; LDA is another model, with its own bound."""
    topics, source = problem(n, b, k)
    held = topics.source(max(n // 10, 1000), LENGTH, generator(99))
    plans = {"moments + EM": [{"init_params": "spectral", "random_state": 0}]}
    plans["default starts"] = [{"random_state": 0}]
    plans[f"{starts} random starts"] = [
        {"init_params": "random_from_data", "random_state": seed} for seed in range(starts)
    ]
    rows, goal = [], None
    for name, options in plans.items():
        begin = time.perf_counter()
        fits = [MultinomialMixture(k, **each).fit(source) for each in options]
        seconds = time.perf_counter() - begin
        best = max(fits, key=lambda fit: fit.lower_bound_)
        found = perplexity(best, held)
        goal = goal or found
        equal = sum(perplexity(fit, held) <= EQUAL * goal for fit in fits)
        rows.append(_line(name, n, b, k, seconds, found, rows) | {"fits_equal": f"{equal} of {len(fits)}"})
    return [*rows, _lda(source, held, k, rows)]


def _line(name: str, n: int, b: int, k: int, seconds: float, found: float, rows: list[dict]) -> dict:
    first = rows[0]["ms_total"] if rows else 1e3 * seconds
    return {
        "case": f"held-out perplexity, {name}, n={n} words={b} k={k}",
        "ms_total": 1e3 * seconds,
        "times_as_long": 1e3 * seconds / first,
        "perplexity": found,
    }


def _lda(source: SparseSource, held: SparseSource, k: int, rows: list[dict]) -> dict:
    counts = scipy_counts(source)
    begin = time.perf_counter()
    peer = LatentDirichletAllocation(
        k, learning_method="online", batch_size=4096, max_iter=2, random_state=0
    ).fit(counts)
    seconds = time.perf_counter() - begin
    found = float(peer.perplexity(scipy_counts(held)))
    return _line("scikit-learn LDA (its own bound)", source.n_rows, source.n_columns, k, seconds, found, rows)


def perplexity(fit: MultinomialMixture, held: SparseSource) -> float:
    expected = held.reduce(fit.model_.expect)
    return float((-expected.log_likelihood / held.rows.values().sum()).exp())


def against_tensorly(n: int, b: int, k: int, repeats: int) -> list[dict]:
    """Joint diagonalisation and TensorLy's symmetric power iteration on the same whitened tensor."""
    if find_spec("tensorly") is None:
        return []
    from tensorly.decomposition import symmetric_parafac_power_iteration

    topics, source = problem(n, b, k)
    made = Whitened.of(source, k, 0)
    found: dict[str, np.ndarray] = {}

    def ours() -> None:
        found["ours"] = made.joint()

    def peer() -> None:
        found["peer"] = symmetric_parafac_power_iteration(made.tensor, k)[1]

    times = interleave({"peer": peer, "ours": ours}, repeats)
    off = {name: error(topics.probabilities, made.topics(turn)) for name, turn in found.items()}
    return [
        {
            "case": f"whitened tensor, n={n} words={b} k={k}",
            "peer": "TensorLy, 10 starts of 10 steps",
            "peer_ms": 1e3 * times["peer"],
            "ours_ms": 1e3 * times["ours"],
            "ratio": times["peer"] / times["ours"],
            "error_ours": off["ours"],
            "error_peer": off["peer"],
        }
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--shape", type=int, nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    if options.child:
        child(options.child, *options.shape)
        return
    n, k, words = (5_000, 4, [200]) if options.quick else (100_000, 10, [1_000, 10_000])
    along = {"n": [n // 4, n // 2, n, 2 * n], "words": [500, 1_000, 2_000, 4_000], "k": [2, 4, 8]}
    if not options.quick:
        along |= {"words": [1_000, 3_000, 10_000, 30_000], "k": [5, 10, 20, 40]}
    rows = [against_dense(n, b, k, 3) for b in words]
    rows += growth((n, words[0], k), along, 3)
    rows.append(memory(words[-1], k, along["n"]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        rows += equal_perplexity(n, words[0], k, 10)
    for topics in (k, 2 * k):
        rows += against_tensorly(n, words[0], topics, 3)
    report("spectral", rows)


if __name__ == "__main__":
    main()
