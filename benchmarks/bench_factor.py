"""Batch factor analysis at equal or higher likelihood, against scikit-learn's two solvers.

python benchmarks/bench_factor.py [--quick] [--lapack]
"""

from __future__ import annotations

import argparse
import warnings

import torch
from sklearn.decomposition import FactorAnalysis as Peer

from boxloop import FactorAnalysis, FitWarning
from boxloop.data import draw_factor_problem
from boxloop.numeric import generator
from common import gemm_rate, interleave, report

FACTORS = 10


def one_case(n: int, d: int, dtype: str, target: float, solver: str, repeats: int) -> dict:
    stream = generator(0)
    problem = draw_factor_problem(d, FACTORS, (1.0, 100.0), stream)
    rows = problem.rows(n, stream).numpy()
    fitted = {}

    def fit(name: str, estimator):
        fitted[name] = estimator.fit(rows)

    times = interleave(
        {
            "peer": lambda: fit("peer", Peer(FACTORS, svd_method=solver, random_state=0)),
            "ours": lambda: fit("ours", FactorAnalysis(FACTORS, dtype=dtype)),
        },
        repeats,
    )
    scores = {name: estimator.score(rows) for name, estimator in fitted.items()}
    assert scores["ours"] >= scores["peer"] - 1e-6, (
        f"likelihood {scores['ours']} below the peer's {scores['peer']}"
    )
    floor_ms = 1e3 * n * d * d / gemm_rate(dtype)  # a symmetric product is half of 2 n d^2
    return {
        "case": f"n={n} d={d} k={FACTORS} {dtype}, against {solver}",
        "peer": "scikit-learn",
        "peer_ms": 1e3 * times["peer"],
        "ours_ms": 1e3 * times["ours"],
        "ratio": times["peer"] / times["ours"],
        "target": target,
        "floor_ms": floor_ms,
        "of_floor": floor_ms / (1e3 * times["ours"]),
        "likelihood_gain": scores["ours"] - scores["peer"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--lapack", action="store_true", help="also scikit-learn's exact solver (minutes)")
    options = parser.parse_args()
    cases = [
        (100_000, 100, "float64", 30.0, "randomized", 3),
        (100_000, 1000, "float64", 3.0, "randomized", 3),
        (100_000, 1000, "float32", 6.0, "randomized", 3),
    ]
    if options.lapack:
        cases.append((100_000, 100, "float64", 500.0, "lapack", 3))
    if options.quick:
        cases = [(2_000, 20, "float64", 1.0, "randomized", 3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        torch.set_grad_enabled(False)
        report("factor", [one_case(*case) for case in cases])


if __name__ == "__main__":
    main()
