"""The variational posterior of a mixture compared with draws of the exact one: overlapping clusters and separated ones.

python docs/gallery/variational_posterior.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from boxloop import BayesianGaussianMixture
from boxloop.figures import COLOURS, add_legend, dress, new_figure, png
from boxloop.sample import sample_mixture

rng = np.random.default_rng(0)
figure = new_figure(11.0, 4.2)
panels = figure.subplots(1, 2, sharey=True)
for axes, distance in zip(panels, (3.0, 6.0), strict=True):
    rows = rng.normal(size=(1000, 1)) + distance * (rng.random((1000, 1)) < 0.5)
    variational = BayesianGaussianMixture(
        2,
        weight_concentration_prior_type="dirichlet_distribution",
        weight_concentration_prior=1.0,
        random_state=0,
    ).fit(rows)
    left_means = {
        "variational": np.asarray(variational.sample_posterior(10_000)["means"]).reshape(-1, 2).min(1),
        "Gibbs sampling": np.asarray(sample_mixture(rows, 2, draws=2500, random_state=0).means)
        .reshape(-1, 2)
        .min(1),
    }
    deviations = ", ".join(f"{name} {means.std():.3f}" for name, means in left_means.items())
    print(f"means {distance:.0f} apart, standard deviation of the left mean: {deviations}")
    for colour, (name, means) in zip(COLOURS, left_means.items(), strict=False):
        axes.hist(
            means,
            bins=60,
            range=(-0.4, 0.4),
            density=True,
            histtype="stepfilled",
            alpha=0.5,
            color=colour,
            label=name,
        )
    dress(axes, f"Two clusters, means {distance:.0f} apart", "left mean", "posterior density")
panels[1].set_ylabel("")
add_legend(panels[0], "upper left")

Path(__file__).with_suffix(".png").write_bytes(png(figure, dpi=100))
