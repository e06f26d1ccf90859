"""The left half of a digit inferred from the right one: its mean, its main ambiguity, the share of variance explained.

python docs/gallery/halves_of_digits.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from boxloop import RelevantFeatures
from boxloop.figures import image_grid, new_figure, png

rng = np.random.default_rng(0)
images = rng.permutation(load_digits().images) / 16.0
left, right = images[:, :, :4], images[:, :, 4:]  # (n, 8, 4)
train, held = slice(1400), slice(1400, None)

fit = RelevantFeatures(20, x_features="fourier", y_features="fourier", n_fourier=300, random_state=0)
fit.fit(right[train], left[train])
significance = fit.significance(right[held], left[held])
found = fit.expect(given=right[held])
truth = left[held].reshape(found.mean.shape)
explained = 1.0 - ((truth - found.mean) ** 2).mean() / ((truth - truth.mean(0)) ** 2).mean()
ambiguity = found.ambiguity()
along = ((truth - found.mean) * ambiguity.direction).sum(1)

relevance, error = significance.relevance, significance.relevance_error
print(f"relevance of the first variable {relevance[0]:.2f} ± {error[0]:.2f}")
print(f"relevance of the twentieth variable {relevance[-1]:.2f} ± {error[-1]:.2f}")
print(f"share of the variance of left halves that right halves explain: {explained:.2f}")
predicted, observed = ambiguity.deviation.mean(), along.std()
print(f"standard deviation in the direction of ambiguity: {predicted:.2f} predicted, {observed:.2f} observed")
print(
    f"negative mass {found.negative_mass.mean():.2f}, negative variances {found.negative_variance.mean():.2f}"
)


def join_halves(half: np.ndarray) -> np.ndarray:
    """Left halves joined with the given right halves."""
    return np.concatenate([half.reshape(-1, 8, 4), right[held][: len(half)]], 2)


first = slice(10)
lines = {
    "image": images[held][first],
    "given": join_halves(np.full((10, 8, 4), np.nan)),
    "mean": join_halves(found.mean[first]),
    "mean - 1 sd": join_halves(ambiguity.low[first]),
    "mean + 1 sd": join_halves(ambiguity.high[first]),
}
figure = new_figure(13.0, 4.4)
grid = figure.add_gridspec(1, 2, width_ratios=[1.6, 1.0])
axes = figure.add_subplot(grid[0])
title = "Left halves inferred from right halves"
image_grid(np.concatenate(list(lines.values())), axes, columns=10, limits=(0, 1), title=title)
axes.set_yticks(9.0 * np.arange(5) + 3.5, list(lines))
axes.tick_params(axis="y", length=0)
significance.plot(figure.add_subplot(grid[1]))

Path(__file__).with_suffix(".png").write_bytes(png(figure, dpi=100))
