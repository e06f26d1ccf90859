"""Online EM: one pass over batches that are discarded, compared with EM on all rows.

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
batches, seen, scores = [], [], []
for count in range(1, 101):
    rows = batch(rng)
    batches.append(rows)
    stream.partial_fit(rows)
    if count in (1, 2, 3, 5, 10, 20, 30, 50, 100):
        seen.append(1000 * count)
        scores.append(stream.score_samples(held))

full = GaussianMixture(3, random_state=0, tol=1e-8).fit(np.concatenate(batches))
paired = np.array(scores) - full.score_samples(held)
difference, error = paired.mean(1), paired.std(1) / np.sqrt(len(held))
for n, mean, standard_error in zip(seen, difference, error, strict=True):
    print(f"{n:6d} rows seen: {mean:.4f} ± {standard_error:.4f} against the fit to all rows")

axes = curves(
    {"one pass": (seen, difference, error)},
    title="Online EM compared with EM on all rows",
    across="rows seen",
    up="held-out log-likelihood per row, minus that of EM",
)
axes.set_xscale("log")
Path(__file__).with_suffix(".png").write_bytes(png(axes))
