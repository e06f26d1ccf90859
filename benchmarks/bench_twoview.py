"""Two views: linear and deep canonical correlations and their loss against cca-zoo, inferred means against regressions.

    python benchmarks/bench_twoview.py [--quick] [--only SECTION] [--data FOLDER] [--peers FOLDER ...]

``--data`` is a folder with ``mnist.npz``, whose upper and lower halves are then the views; without it they are halves
of synthetic pictures. ``--peers`` are folders of packages in which cca-zoo (and lightning, for ``deep``) are looked for
when this environment has none; without them ours is timed alone.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import torch

from boxloop import RelevantFeatures
from boxloop.data import ArraySource, PairedSource
from boxloop.twoview import LinearView, ViewPair, fit_fixed_features, relevance_loss
from common import gemm_rate, interleave, report
from twoview_peers import deep, found_peer, means

VARIABLES = 50
TARGETS = {"float64": 3.5, "float32": 6.0}
LOSS_TARGET = 1.8


def pictures(n: int, data: Path | None) -> np.ndarray:
    """(n, 28, 28) in [0, 1]: digits, or smooth shapes of eight latent causes on a black ground."""
    if data is not None:
        with np.load(data / "mnist.npz") as store:
            return store["train_images"][:n] / 255.0
    rng = np.random.default_rng(0)
    grid = np.linspace(-1.0, 1.0, 28)
    bumps = [
        np.exp(-((grid[:, None] - a) ** 2 + (grid - b) ** 2) / 0.08)
        for a, b in rng.uniform(-0.8, 0.8, (60, 2))
    ]
    hidden = np.tanh(rng.normal(size=(n, 8)) @ rng.normal(size=(8, 60)))
    made = (hidden @ np.reshape(bumps, (60, -1)) + 0.15 * rng.normal(size=(n, 784))) / 3.0
    return np.clip(made, 0.0, 1.0).reshape(n, 28, 28)


def halves(n: int, data: Path | None) -> tuple[np.ndarray, np.ndarray]:
    images = pictures(n, data)
    return images[:, :14].reshape(len(images), -1).copy(), images[:, 14:].reshape(len(images), -1).copy()


def correlations(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    one, two = one - one.mean(0), two - two.mean(0)
    return (one * two).sum(0) / np.sqrt((one**2).sum(0) * (two**2).sum(0))


def linear(n: int, data: Path | None, repeats: int) -> list[dict]:
    """Rows to variables and the means by which one view is inferred; correlations must agree first."""
    X, Y = halves(n, data)
    k = X.shape[1]
    zero, one = torch.zeros(k, dtype=torch.float64), torch.ones(k, dtype=torch.float64)
    pair = ViewPair(LinearView(zero, one), LinearView(zero, one))
    both = PairedSource(ArraySource(torch.from_numpy(X)), ArraySource(torch.from_numpy(Y)))
    made: dict[str, np.ndarray] = {}

    def ours(dtype: str) -> None:
        fit = fit_fixed_features(pair, both, VARIABLES, dtype=getattr(torch, dtype))
        made[dtype] = fit.model.canonical.correlation.numpy()

    def estimator() -> None:
        fit = RelevantFeatures(VARIABLES, x_features="linear", y_features="linear").fit(X, Y)
        made["estimator"] = fit.correlation_

    runs = {"float64": lambda: ours("float64"), "float32": lambda: ours("float32"), "estimator": estimator}
    peer = found_peer("cca_zoo.linear")
    if peer is not None:

        def theirs() -> None:
            made["fit"] = peer.CCA(n_components=VARIABLES).fit([X, Y])

        theirs()
        made["peer"] = correlations(*made["fit"].transform([X, Y]))
        runs["peer"] = theirs
    for name, run in runs.items():
        if name != "peer":
            run()
        apart = float(np.abs(made[name] - made.get("peer", made["float64"])).max())
        assert apart < (1e-4 if name == "float32" else 1e-8), f"correlations of {name} are {apart} apart"
    times = interleave(runs, repeats)
    return [
        {
            "case": f"linear, n={n} columns={k}+{k} variables={VARIABLES}, {name}",
            "peer": "cca-zoo",
            "peer_ms": 1e3 * times["peer"] if "peer" in times else None,
            "ours_ms": 1e3 * times[name],
            "ratio": times["peer"] / times[name] if "peer" in times else None,
            "target": TARGETS.get(name, TARGETS["float64"]),
            "floor_ms": 1e3 * floor,
            "of_floor": floor / times[name],
            "correlations_apart": float(np.abs(made[name] - made.get("peer", made["float64"])).max()),
        }
        for name in ("float64", "float32", "estimator")
        for floor in [n * (2 * k) ** 2 / gemm_rate("float32" if name == "float32" else "float64")]
    ]


def loss(n: int, k: int, dtype: str, repeats: int) -> dict:
    """Forward and backward of a batch; gradients must agree first."""
    stream = torch.Generator().manual_seed(0)
    kind = getattr(torch, dtype)
    left = torch.randn(n, k, generator=stream, dtype=kind)
    right = (0.5 * left + torch.randn(n, k, generator=stream, dtype=kind)).requires_grad_()
    left.requires_grad_()
    peer = found_peer("cca_zoo.deep.objectives")

    def ours() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(relevance_loss(left, right), [left, right])

    def theirs() -> tuple[torch.Tensor, ...]:
        value = peer.CCALoss(0.0 if dtype == "float64" else 1e-6)([left, right])
        return torch.autograd.grad(value, [left, right])

    runs = {"ours": ours} if peer is None else {"peer": theirs, "ours": ours}
    apart = None
    if peer is not None:
        apart = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(ours(), theirs()))
        assert apart < (1e-10 if dtype == "float64" else 1e-3), f"gradients are {apart} apart"
    times = interleave(runs, repeats)
    floor = n * (2 * k) ** 2 / gemm_rate("float64") + 2 * n * (2 * k) ** 2 / gemm_rate(dtype)
    return {
        "case": f"loss and gradient, batch={n} features={k}+{k}, {dtype}",
        "peer": "cca-zoo",
        "peer_ms": 1e3 * times["peer"] if peer is not None else None,
        "ours_ms": 1e3 * times["ours"],
        "ratio": times["peer"] / times["ours"] if peer is not None else None,
        "target": LOSS_TARGET if dtype == "float64" else None,
        "floor_ms": 1e3 * floor,
        "of_floor": floor / times["ours"],
        "gradients_apart": apart,
    }


def growth(sizes: list[int], widths: list[int], repeats: int) -> list[dict]:
    """Time of linear views against rows and columns of each view, as slopes on logarithmic axes."""
    X, Y = halves(max(sizes), None)
    found = []
    for along, values, expected in (("rows", sizes, 1.0), ("columns", widths, 2.0)):
        seconds = []
        for value in values:
            n, k = (value, 98) if along == "rows" else (min(sizes), value)
            still = LinearView(torch.zeros(k, dtype=torch.float64), torch.ones(k, dtype=torch.float64))
            both = PairedSource(*(ArraySource(torch.from_numpy(part[:n, :k].copy())) for part in (X, Y)))
            run = partial(fit_fixed_features, ViewPair(still, still), both, 20)
            seconds.append(interleave({"ours": run}, repeats)["ours"])
        slope = float(np.polyfit(np.log(values), np.log(seconds), 1)[0])
        row = {"case": f"growth with {along}, {values}", "slope": slope, "expected": expected}
        found.append({**row, "ours_ms": 1e3 * seconds[-1]})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--only", choices=["linear", "loss", "growth", "deep", "means"])
    parser.add_argument("--data", type=Path, help="folder with mnist.npz")
    parser.add_argument("--peers", nargs="*", default=[], help="folders of packages with cca-zoo")
    options = parser.parse_args()
    sys.path.extend(options.peers)
    quick, data = options.quick, options.data
    n = 3_000 if quick else 60_000
    sections = {
        "linear": lambda: linear(n, data, 3 if quick else 5),
        "loss": lambda: [
            loss(*((500, 20) if quick else (2_000, 200)), dtype, 5 if quick else 20) for dtype in TARGETS
        ],
        "growth": lambda: growth(
            *(([500, 1_000], [40, 80]) if quick else ([7_500, 15_000, 30_000, 60_000], [49, 98, 196, 392])), 3
        ),
        "deep": lambda: deep(*halves(n, data), passes=2 if quick else 12),
        "means": lambda: means(*halves(2_000 if quick else 12_000, data), quick),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, section in sections.items():
            if options.only in (None, name):
                report(f"twoview_{name}", section())


if __name__ == "__main__":
    main()
