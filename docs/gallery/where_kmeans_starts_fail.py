"""Three elongated clusters side by side: a k-means start cuts across them, a choice among several starts does not.

python docs/gallery/where_kmeans_starts_fail.py
"""

from __future__ import annotations

from pathlib import Path

from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture as Peer

from boxloop import GaussianMixture
from boxloop.data import load_dataset
from boxloop.figures import ellipses, new_figure, png

data = load_dataset("long_clusters")
rows = data.rows
fits = {
    "scikit-learn, one start": Peer(3, random_state=0, tol=1e-6, max_iter=1000).fit(rows),
    "scikit-learn, ten starts": Peer(3, n_init=10, random_state=0, tol=1e-6, max_iter=1000).fit(rows),
    "boxloop": GaussianMixture(3, random_state=0, tol=1e-6, max_iter=1000).fit(rows),
}

figure = new_figure(13.0, 4.4)
for axes, (name, fit) in zip(figure.subplots(1, 3), fits.items(), strict=True):
    labels = fit.predict(rows)
    agreement = adjusted_rand_score(data.target, labels)
    likelihood = fit.score(rows)
    print(f"{name}: log-likelihood per row {likelihood:.3f}, agreement with the truth {agreement:.2f}")
    ellipses(
        rows[:, :2],
        fit.means_[:, :2],
        fit.covariances_[:, :2, :2],
        data.names[:2],
        axes,
        component=labels,
        title=f"{name}: {likelihood:.2f} per row",
    )

Path(__file__).with_suffix(".png").write_bytes(png(figure, dpi=100))
