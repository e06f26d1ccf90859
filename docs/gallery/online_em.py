"""A table that is read once, in batches that are forgotten: as good as all rows at once.

python docs/gallery/online_em.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from boxloop import GaussianMixture
from boxloop.figures import curves, png

CENTRES = np.array([[-2.0, 0.0, 1.0], [2.0, 0.0, -1.0], [0.0, 2.5, 0.0]])


def batch(rng: np.random.Generator, n: int = 1000) -> np.ndarray:
    return CENTRES[rng.integers(3, size=n)] + rng.normal(size=(n, 3))


rng = np.random.default_rng(0)
held = batch(rng, 20_000)
stream = GaussianMixture(3, random_state=0)
kept, seen, scores = [], [], []
for count in range(1, 101):
    rows = batch(rng)
    kept.append(rows)
    stream.partial_fit(rows)
    if count in (1, 2, 3, 5, 10, 20, 30, 50, 100):
        seen.append(1000 * count)
        scores.append(stream.score_samples(held))

whole = GaussianMixture(3, random_state=0, tol=1e-8).fit(np.concatenate(kept))
paired = np.array(scores) - whole.score_samples(held)
ahead, error = paired.mean(1), paired.std(1) / np.sqrt(len(held))
for n, gap, spread in zip(seen, ahead, error, strict=True):
    print(f"{n:6d} rows seen: {gap:.4f} ± {spread:.4f} against the fit to all rows")

axes = curves(
    {"one pass": (seen, ahead, error)},
    title="A stream of batches against all rows at once",
    across="rows seen",
    up="held-out log-likelihood a row, less that of all rows",
)
axes.set_xscale("log")
Path(__file__).with_suffix(".png").write_bytes(png(axes))
