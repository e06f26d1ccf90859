"""Two versions of the library beside each other in one run: the same jobs, one after the other, answers compared.

python benchmarks/compare_commits.py OLD [--new COMMIT] [--only WORD] [--repeats N]

OLD and COMMIT are commits; without ``--new`` the working tree is the new version. Each version runs in a process of
its own, in which every job is set up and run once before it is timed; then the versions take turns. The table has the
least wall and processor time of each, and the ratio new / old of both: below 1.03 a change of code has cost nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

PRELUDE = """
import importlib, warnings
import numpy as np
import torch
from boxloop import FactorAnalysis, GaussianMixture, mega

warnings.simplefilter("ignore")
rng = np.random.default_rng(0)

def clusters(n, d, k):
    return rng.normal(size=(n, d)) + 2.5 * rng.normal(size=(k, d))[rng.integers(k, size=n)]

def room(*names):  # the first of these rooms that this version has
    for name in names:
        if importlib.util.find_spec("boxloop." + name):
            return importlib.import_module("boxloop." + name)
"""
"""What every job may use."""

JOBS = {
    "mixture, iris size": """
X = clusters(150, 4, 3)
job = lambda: GaussianMixture(3, random_state=0).fit(X).lower_bound_
""",
    "mixture, 20,000 x 10, 10 components": """
X = clusters(20_000, 10, 10)
job = lambda: GaussianMixture(10, random_state=0).fit(X).lower_bound_
""",
    "mixture, 100,000 x 10, 20 iterations": """
X = clusters(100_000, 10, 10)
mixture = GaussianMixture(10, random_state=0, init_params="random_from_data", max_iter=20, tol=0.0)
job = lambda: mixture.fit(X).lower_bound_
""",
    "mixture, 20,000 x 50, 20 iterations": """
X = clusters(20_000, 50, 10)
mixture = GaussianMixture(10, random_state=0, init_params="random_from_data", max_iter=20, tol=0.0)
job = lambda: mixture.fit(X).lower_bound_
""",
    "mixture, diagonal, 100,000 x 10": """
X = clusters(100_000, 10, 10)
job = lambda: GaussianMixture(
    10, covariance_type="diag", random_state=0, init_params="random_from_data", max_iter=20, tol=0.0
).fit(X).lower_bound_
""",
    "mixture, 10% missing, 5,000 x 5": """
X = clusters(5_000, 5, 3)
X[rng.random(X.shape) < 0.1] = np.nan
job = lambda: GaussianMixture(3, random_state=0).fit(X).lower_bound_
""",
    "factor analysis, 1,000 x 10": """
X = rng.normal(size=(1_000, 3)) @ rng.normal(size=(3, 10)) + rng.normal(size=(1_000, 10))
job = lambda: FactorAnalysis(3).fit(X).lower_bound_
""",
    "factor analysis, 100,000 x 100": """
X = rng.normal(size=(100_000, 10)) @ rng.normal(size=(10, 100)) + rng.normal(size=(100_000, 100))
job = lambda: FactorAnalysis(10).fit(X).lower_bound_
""",
    "online factor analysis, 100 vectors of 1e5": """
vectors = torch.from_numpy(rng.normal(size=(100, 100_000))).float()
FactorStream = room("fit", "estimate.stream").FactorStream
def job():
    stream = FactorStream.start(100_000, 10, torch.Generator().manual_seed(0), warmup=20)
    for vector in vectors:
        stream.observe(vector)
    return stream.model().noise.sum()
""",
    "moment gaps, 2,000 x 10": """
X = clusters(2_000, 10, 3)
train, held = X[:1_000], X[1_000:]
model = GaussianMixture(3, random_state=0).fit(train)
job = lambda: float(mega(model, held, train=train).p_value)
""",
    "moment gaps, diagonal mixture, 4,000 x 20": """
X = clusters(4_000, 20, 3)
train, held = X[:2_000], X[2_000:]
model = GaussianMixture(3, covariance_type="diag", random_state=0, init_params="kmeans").fit(train)
job = lambda: float(mega(model, held, train=train).p_value)
""",
}
"""Each makes its rows and defines ``job``, which returns the number that both versions must agree on."""

WORKER = """
import json, sys, time
prelude, jobs = json.loads(sys.stdin.readline())
replies, sys.stdout = sys.stdout, sys.stderr
ready = {}
for line in sys.stdin:
    name = json.loads(line)
    try:
        if name not in ready:
            scope = {}
            exec(prelude + jobs[name], scope)
            scope["job"]()
            ready = {name: scope["job"]}
        wall, cpu = time.perf_counter(), time.process_time()
        answer = ready[name]()
        reply = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "answer": float(answer)}
    except Exception as error:
        reply = {"error": type(error).__name__ + ": " + str(error)}
    print(json.dumps(reply), file=replies, flush=True)
"""
"""Runs a job whenever it is named, in a process that imports one version of the library."""


class Version:
    """A process that runs jobs with the library of one source tree."""

    def __init__(self, source: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(source)},
        )
        self._send([PRELUDE, JOBS])

    def _send(self, message: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def run(self, name: str) -> dict[str, Any]:
        """Wall and processor time of one run of a job, and its answer."""
        self._send(name)
        assert self.process.stdout is not None
        reply: dict[str, Any] = json.loads(self.process.stdout.readline())
        if "error" in reply:
            raise SystemExit(f"{name}: {reply['error']}")
        return reply


def check_out(commit: str, folder: Path) -> Path:
    """The sources of a commit, in a folder."""
    archive = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, check=True, capture_output=True)
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder / "src"


def compare(name: str, old: Version, new: Version, repeats: int) -> str:
    """A line of the table."""
    best = [{"wall": float("inf"), "cpu": float("inf")} for _ in range(2)]
    answers = [0.0, 0.0]
    for _ in range(repeats):
        for i, version in enumerate((old, new)):
            reply = version.run(name)
            answers[i] = reply["answer"]
            best[i] = {key: min(value, reply[key]) for key, value in best[i].items()}
    times = "".join(f"{1e3 * best[i][key]:10.1f}" for key in ("wall", "cpu") for i in range(2))
    ratios = "".join(f"{best[1][key] / best[0][key]:8.3f}" for key in ("wall", "cpu"))
    return f"{name:42}{times}{ratios}   {answers[1] - answers[0]:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old")
    parser.add_argument("--new", help="a commit; the working tree when omitted")
    parser.add_argument("--only", default="", help="jobs whose name holds this word")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        old = Version(check_out(options.old, Path(folder) / "old"))
        new = Version(check_out(options.new, Path(folder) / "new") if options.new else ROOT / "src")
        columns = ("old ms", "new ms", "old cpu", "new cpu")
        print(
            f"{'':42}"
            + "".join(f"{c:>10}" for c in columns)
            + f"{'wall':>8}{'cpu':>8}   difference of answers"
        )
        for name in JOBS:
            if options.only in name:
                print(compare(name, old, new, options.repeats), flush=True)
        for version in (old, new):
            version.process.kill()


if __name__ == "__main__":
    main()
