"""Whole jobs as a user runs them: nothing set, default arguments, the first call of a process and later ones.

Each job runs in processes of its own, with all cores and with one. Wall and CPU seconds; "first" includes what is
imported on first use. Beside scikit-learn where it has the same job.

    python benchmarks/bench_as_installed.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

import numpy as np


def clusters(n: int, d: int, k: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return (2.0 * rng.normal(size=(k, d)))[rng.integers(k, size=n)] + rng.normal(size=(n, d))


def factors(n: int, d: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 5)) @ rng.normal(size=(5, d)) + rng.normal(size=(n, d))


def mixture(who: str, n: int, d: int, k: int, kind: str = "GaussianMixture") -> Callable[[], float]:
    rows = clusters(n, d, k)
    if who == "boxloop":
        import boxloop as home
    else:
        import sklearn.mixture as home
    return lambda: getattr(home, kind)(n_components=k, random_state=0).fit(rows).score(rows)


def factor_analysis(who: str, n: int, d: int) -> Callable[[], float]:
    rows = factors(n, d)
    if who == "boxloop":
        from boxloop import FactorAnalysis
    else:
        from sklearn.decomposition import FactorAnalysis
    return lambda: FactorAnalysis(5, random_state=0).fit(rows).score(rows)


def principal_components(who: str, n: int, d: int) -> Callable[[], float]:
    rows = factors(n, d)
    if who == "boxloop":
        from boxloop import ProbabilisticPCA as Model
    else:
        from sklearn.decomposition import PCA as Model
    return lambda: Model(5, random_state=0).fit(rows).score(rows)


def bernoulli(who: str, n: int, d: int) -> Callable[[], float]:
    from boxloop import BernoulliMixture

    rows = (clusters(n, d, 3) > 0).astype(float)
    return lambda: BernoulliMixture(3, random_state=0).fit(rows).score(rows)


def gaps(who: str, n: int, d: int) -> Callable[[], float]:
    from boxloop import GaussianMixture, mega

    rows = clusters(2 * n, d, 3)
    model = GaussianMixture(3, random_state=0).fit(rows[:n])
    return lambda: mega(model, rows[n:], train=rows[:n], random_state=0).p_value


def two_views(who: str, n: int, d: int) -> Callable[[], float]:
    rows = factors(n, 2 * d)
    if who == "boxloop":
        from boxloop import RelevantFeatures

        return lambda: float(RelevantFeatures(5, random_state=0).fit(rows[:, :d], rows[:, d:]).relevances_[0])
    from sklearn.cross_decomposition import CCA

    return lambda: float(CCA(5).fit(rows[:, :d], rows[:, d:]).n_iter_[0])


BOTH = ("scikit-learn", "boxloop")
JOBS: dict[str, tuple[Callable[..., Callable[[], float]], tuple[object, ...], tuple[str, ...]]] = {
    "GaussianMixture 150 x 4, 3": (mixture, (150, 4, 3), BOTH),
    "GaussianMixture 1,000 x 10, 3": (mixture, (1_000, 10, 3), BOTH),
    "GaussianMixture 20,000 x 10, 10": (mixture, (20_000, 10, 10), BOTH),
    "GaussianMixture 200,000 x 8, 16": (mixture, (200_000, 8, 16), BOTH),
    "BayesianGaussianMixture 20,000 x 10, 10": (mixture, (20_000, 10, 10, "BayesianGaussianMixture"), BOTH),
    "FactorAnalysis 5,000 x 50": (factor_analysis, (5_000, 50), BOTH),
    "ProbabilisticPCA 5,000 x 50": (principal_components, (5_000, 50), BOTH),
    "BernoulliMixture 5,000 x 20": (bernoulli, (5_000, 20), ("boxloop",)),
    "RelevantFeatures 5,000 x (25 + 25)": (two_views, (5_000, 25), BOTH),
    "mega 1,000 x 10": (gaps, (1_000, 10), ("boxloop",)),
}


def measure(name: str, who: str) -> dict[str, float]:
    """In this process: the first call, then the best of three."""
    make, size, _ = JOBS[name]
    job = make(who, *size)
    time.sleep(0.2)
    found: dict[str, float] = {}
    for number in range(4):
        wall, cpu = time.perf_counter(), time.process_time()
        result = job()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        if number == 0:
            found |= {"first_ms": 1e3 * wall, "result": result}
        elif wall < found.get("wall_ms", float("inf")) / 1e3:
            found |= {"wall_ms": 1e3 * wall, "cpu_ms": 1e3 * cpu}
    return found


def measure_apart(name: str, who: str, cores: list[str]) -> dict[str, float]:
    command = [*cores, sys.executable, __file__, "--job", name, "--who", who]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--who", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        warnings.simplefilter("ignore")
        print(json.dumps(measure(options.job, options.who)))
        return
    from common import report

    rows = []
    for name, (_, _, peers) in list(JOBS.items())[: 2 if options.quick else None]:
        for cores, prefix in (("all", []), ("one", ["taskset", "-c", "0"])):
            found = {who: measure_apart(name, who, prefix) for who in peers}
            ratio = found[BOTH[0]]["wall_ms"] / found["boxloop"]["wall_ms"] if BOTH[0] in found else None
            for who in peers:
                rows.append({"job": name, "cores": cores, "who": who, **found[who], "ratio": ratio})
    report("as_installed", rows)


if __name__ == "__main__":
    main()
