"""Outliers, each with a p-value and the column responsible.

python docs/gallery/outliers.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from boxloop import FactorAnalysis, OutlierDetector
from boxloop.data import load_dataset
from boxloop.figures import png

data = load_dataset("planted_outliers")
planted = data.target > 0
detector = OutlierDetector(FactorAnalysis(1), level=0.01, random_state=0).fit(data.rows[~planted])

flagged = detector.predict(data.rows) == -1
print(f"planted rows found: {flagged[planted].sum()} of {planted.sum()}")
print(f"ordinary rows flagged: {flagged[~planted].sum()} of {(~planted).sum()}")

reasons = detector.reasons(data.rows[planted], top=1)
p_values = detector.p_values(data.rows[planted])
largest = abs(data.rows[planted]).max(1)
print(f"largest value of an ordinary row: {abs(data.rows[~planted]).max():.1f}")
for i in np.argsort(-reasons["drop 1"].to_numpy())[:5]:
    name, drop = reasons["column 1"].iloc[i], reasons["drop 1"].iloc[i]
    print(
        f"p = {p_values[i]:.3f}, largest value {largest[i]:.1f}: {name} lowers the log-density by {drop:.0f}"
    )

Path(__file__).with_suffix(".png").write_bytes(png(detector.plot(data.rows)))
