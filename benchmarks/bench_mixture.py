"""Gaussian mixtures, full covariance: one EM iteration and a cold start, against scikit-learn (and pomegranate).

python benchmarks/bench_mixture.py [--quick]
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture as Peer

from boxloop import GaussianMixture
from boxloop.data import ArraySource, StandardisedSource, fit_standardisation
from boxloop.distributions import QUADRATIC_COLUMNS, FullGaussian
from boxloop.fit import EMState, em
from boxloop.loop import run
from boxloop.models import Mixture
from common import gemm_rate, interleave, report

CASES = [
    (100_000, 10, 10, "float64", 7.0),
    (20_000, 50, 10, "float64", 2.4),
    (20_000, 50, 10, "float32", 4.5),
    (2_000, 50, 10, "float64", 1.7),
    (2_000, 50, 10, "float32", 3.0),
    (1_000_000, 8, 16, "float64", 13.0),
]
EXP_NS = {"float64": 1.85, "float32": 0.6}


def clusters(n: int, d: int, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Standardised rows and the clusters they came from."""
    rng = np.random.default_rng(seed)
    centre = 2.0 * rng.normal(size=(k, d))
    labels = rng.integers(k, size=n)
    rows = centre[labels] + rng.normal(size=(n, d))
    return (rows - rows.mean(0)) / rows.std(0), labels


def starting_rows(rows: np.ndarray, labels: np.ndarray, k: int) -> np.ndarray:
    """The first k rows; of few rows, one of each cluster: else a component starves, and the peer stops."""
    if len(rows) >= 100 * k * k:
        return rows[:k].copy()
    return np.stack([rows[np.flatnonzero(labels == j)[0]] for j in range(k)])


def peer_iterations(rows: np.ndarray, start: np.ndarray, iterations: int) -> Peer:
    k, d = start.shape
    return Peer(
        k,
        weights_init=np.full(k, 1.0 / k),
        means_init=start,
        precisions_init=np.tile(np.eye(d), (k, 1, 1)),
        max_iter=iterations,
        tol=0.0,
        reg_covar=0.0,
    ).fit(rows)


def one_case(n: int, d: int, k: int, dtype: str, target: float, repeats: int) -> dict:
    rows, labels = clusters(n, d, k)
    start = starting_rows(rows, labels, k)
    source = ArraySource(torch.from_numpy(rows))
    frame = fit_standardisation(source)
    standard = StandardisedSource(source, frame, getattr(torch, dtype))
    eye = torch.eye(d, dtype=torch.float64).expand(k, d, d).contiguous()
    model = Mixture(
        torch.full((k,), 1.0 / k, dtype=torch.float64).log(), FullGaussian(torch.from_numpy(start), eye)
    )
    iterations = 3 if n > 500_000 else 6

    def ours(r: int):
        return run(em(standard), EMState(model), max_iter=r)

    peer, mine = peer_iterations(rows, start, iterations), ours(iterations)
    apart = abs(mine.trace[-1] - frame.log_volume / n - peer.lower_bound_) / abs(peer.lower_bound_)
    assert apart < (1e-10 if dtype == "float64" else 1e-6), f"answers differ by {apart}"
    times = interleave(
        {
            "peer": lambda: peer_iterations(rows, start, iterations),
            "peer 1": lambda: peer_iterations(rows, start, 1),
            "ours": lambda: ours(iterations),
            "ours 1": lambda: ours(1),
        },
        repeats,
    )
    peer_ms = 1e3 * (times["peer"] - times["peer 1"]) / (iterations - 1)
    ours_ms = 1e3 * (times["ours"] - times["ours 1"]) / (iterations - 1)
    p = 1 + d + d * (d + 1) // 2
    quadratic = d <= QUADRATIC_COLUMNS and dtype == "float64"
    flops = 4.0 * n * k * p if quadratic else 2.0 * n * k * d * d
    floor_ms = 1e3 * flops / gemm_rate(dtype) + 1e-6 * n * k * EXP_NS[dtype]
    return {
        "case": f"n={n} d={d} K={k} {dtype}",
        "peer": "scikit-learn",
        "peer_ms": peer_ms,
        "ours_ms": ours_ms,
        "ratio": peer_ms / ours_ms,
        "target": target,
        "floor_ms": floor_ms,
        "of_floor": floor_ms / ours_ms,
        "difference": apart,
    }


def cold_start(n: int, d: int, k: int, repeats: int) -> dict:
    rows, _ = clusters(2 * n, d, k, seed=1)
    train, test = rows[:n], rows[n:]
    scores = {}

    def fit(name: str, estimator):
        scores[name] = estimator.fit(train).score(test)

    times = interleave(
        {
            "peer": lambda: fit("peer", Peer(k, random_state=0)),
            "ours": lambda: fit("ours", GaussianMixture(k, random_state=0)),
        },
        repeats,
    )
    return {
        "case": f"cold start n={n} d={d} K={k}",
        "peer": "scikit-learn",
        "peer_ms": 1e3 * times["peer"],
        "ours_ms": 1e3 * times["ours"],
        "ratio": times["peer"] / times["ours"],
        "target": None,
        "peer_held_out": scores["peer"],
        "ours_held_out": scores["ours"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    quick = parser.parse_args().quick
    cases = [(2_000, 5, 3, "float64", 1.0)] if quick else CASES
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        rows = [one_case(*case, repeats=3 if quick else 5) for case in cases]
        rows += [
            cold_start(*size, repeats=3)
            for size in ([(1_000, 5, 3)] if quick else [(20_000, 10, 10), (100_000, 10, 10)])
        ]
    report("mixture", rows)


if __name__ == "__main__":
    main()
