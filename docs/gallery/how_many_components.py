"""How many components do the wine data need? Six candidates, each with its error bar.

python docs/gallery/how_many_components.py
"""

from __future__ import annotations

from pathlib import Path

from boxloop import GaussianMixture, ModelSearchCV
from boxloop.data import load_dataset
from boxloop.figures import png

wine = load_dataset("wine")
search = ModelSearchCV(
    GaussianMixture(covariance_type="diag"),
    {"n_components": [1, 2, 3, 4, 5, 6]},
    random_state=0,
).fit(wine.rows)

table = search.cv_results_
for i, parameters in enumerate(table["params"]):
    behind = f"{table['difference'][i]:6.2f} ± {table['difference_error'][i]:.2f}"
    print(f"{parameters['n_components']} components: {behind} against the best")
print("highest on held-out rows:", max(zip(table["mean_test_score"], range(1, 7), strict=True))[1])
print("chosen by the one-standard-error rule:", search.best_params_["n_components"])

Path(__file__).with_suffix(".png").write_bytes(png(search.plot()))
