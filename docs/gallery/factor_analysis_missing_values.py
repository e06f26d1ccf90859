"""Two factors of nine columns, a fifth of the values missing, and the standard errors with and without incomplete rows.

python docs/gallery/factor_analysis_missing_values.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from boxloop import FactorAnalysis
from boxloop.figures import png

rng = np.random.default_rng(0)
truth = np.zeros((2, 9))
truth[0, :5] = [0.9, 0.8, 0.7, 0.6, 0.5]
truth[1, 5:] = [0.8, 0.6, 0.4, 0.3]
noise = 1 - (truth**2).sum(0)
X = rng.normal(size=(1500, 2)) @ truth + np.sqrt(noise) * rng.normal(size=(1500, 9))
X[rng.random(X.shape) < 0.2] = np.nan

complete = ~np.isnan(X).any(1)
factors = FactorAnalysis(2).fit(X)
errors = factors.standard_errors(X)
z = (factors.noise_variance_ - noise) / errors["noise_variance"]
print(f"complete rows: {complete.sum()} of {len(X)}")
print(f"noise variances within two standard errors of the truth: {(abs(z) < 2).sum()} of {len(z)}")

dropped = FactorAnalysis(2).fit(X[complete])
wider = dropped.standard_errors(X[complete])["noise_variance"] / errors["noise_variance"]
print(f"error bars when incomplete rows are dropped: {np.median(wider):.1f} times as wide")

Path(__file__).with_suffix(".png").write_bytes(png(factors.plot(X)))
