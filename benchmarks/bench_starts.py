"""Long overlapping clusters, and many round ones: the likelihood reached from the default start, in how much time.

scikit-learn gets as many restarts as fit into our time, and one as it comes.

    python benchmarks/bench_starts.py [--quick]
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture as Peer

from boxloop import GaussianMixture
from boxloop.data import draw_overlapping_clusters
from boxloop.numeric import generator
from common import report


def timed(estimator, rows):
    begin = time.perf_counter()
    estimator.fit(rows)
    return time.perf_counter() - begin, estimator.score(rows)


def long_clusters(n: int, k: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rows, label = draw_overlapping_clusters(n, k, d, generator(seed))
    return rows.numpy(), label.numpy()


def round_clusters(n: int, k: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    centres = 6.0 * rng.normal(size=(k, d)) / np.sqrt(d)
    label = rng.choice(k, n, p=rng.dirichlet(np.full(k, 5.0)))
    return centres[label] + rng.normal(size=(n, d)), label


def one_seed(seed: int, n: int, k: int, d: int, kind: str = "long") -> dict:
    rows, label = (long_clusters if kind == "long" else round_clusters)(n, k, d, seed)
    shape = {"covariance_type": "full" if kind == "long" else "spherical", "tol": 1e-6, "max_iter": 1000}
    mine = GaussianMixture(k, random_state=seed, **shape)
    ours_s, ours = timed(mine, rows)
    once = Peer(k, random_state=seed, **shape)
    peer_s, peer = timed(once, rows)
    spent, best, restarts = peer_s, peer, 1
    while spent + peer_s < ours_s:
        seconds, score = timed(Peer(k, random_state=seed + 1000 * restarts, **shape), rows)
        spent, best, restarts = spent + seconds, max(best, score), restarts + 1
    return {
        "seed": seed,
        "ours_ms": 1e3 * ours_s,
        "peer_ms": 1e3 * peer_s,
        "ours": ours,
        "peer": peer,
        "peer_equal_time": best,
        "restarts": restarts,
        "ours_rand": adjusted_rand_score(label, mine.predict(rows)),
        "peer_rand": adjusted_rand_score(label, once.predict(rows)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few seeds, to see that it runs")
    seeds = 3 if parser.parse_args().quick else 40
    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        one_seed(0, 200, 2, 2)  # first calls load libraries
        for n, k, d, kind in [(1000, 4, 2, "long"), (2000, 5, 4, "long"), (10_000, 20, 30, "round")]:
            runs = [one_seed(seed, n, k, d, kind) for seed in range(seeds)]
            wrong = [r["ours"] - r["peer_equal_time"] > 1e-3 for r in runs]
            worse = [r["peer_equal_time"] - r["ours"] > 1e-3 for r in runs]
            rows.append(
                {
                    "case": f"{kind} clusters, n={n} K={k} d={d}, {seeds} data sets",
                    "peer": "scikit-learn",
                    "peer_ms": float(np.median([r["peer_ms"] for r in runs])),
                    "ours_ms": float(np.median([r["ours_ms"] for r in runs])),
                    "ratio": float(np.median([r["peer_ms"] / r["ours_ms"] for r in runs])),
                    "target": None,
                    "peer_wrong": float(np.mean(wrong)),
                    "ours_wrong": float(np.mean(worse)),
                    "peer_rand": float(np.mean([r["peer_rand"] for r in runs])),
                    "ours_rand": float(np.mean([r["ours_rand"] for r in runs])),
                }
            )
    report("starts", rows)


if __name__ == "__main__":
    main()
