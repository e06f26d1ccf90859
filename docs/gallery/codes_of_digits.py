"""An autoencoder of digits: samples, reconstructions of held-out images, and its active units.

python docs/gallery/codes_of_digits.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from boxloop import VariationalAutoencoder, active_units, aggregate_gap
from boxloop.figures import image_grid, image_pairs, new_figure, png

rng = np.random.default_rng(0)
pixels = rng.permutation(load_digits().data)
pixels = (pixels + rng.random(pixels.shape)) / 17.0  # whole numbers have no density
train, held = pixels[:1300], pixels[1300:]

fit = VariationalAutoencoder(
    20, hidden=(128,), weight_decay=1.0, learning_rate=5e-3, schedule="cosine", max_iter=160, random_state=0
).fit(train)
bound, used, gap = fit.elbo(held), active_units(fit, held), aggregate_gap(fit, held)
print(f"bound of a held-out image: {bound.elbo:.1f} ± {bound.elbo_error:.1f} nats")
print(f"its code costs {bound.divergence:.1f} nats; {used.count} of {len(used.variance)} columns are used")
print(f"aggregate posterior of the codes against the prior: p = {gap.p_value}")

figure = new_figure(12.0, 6.6)
grid = figure.add_gridspec(2, 2)
drawn, codes = fit.sample(40)
pictures = {"Samples: means with noise": drawn, "Their means alone": fit.inverse_transform(codes)}
for place, (title, shown) in enumerate(pictures.items()):
    axes = figure.add_subplot(grid[0, place])
    image_grid(shown.reshape(-1, 8, 8), axes, columns=10, limits=(0, 1), title=title)
image_pairs(
    held[:20].reshape(-1, 8, 8),
    fit.reconstruct(held[:20]).reshape(-1, 8, 8),
    ("held out", "reconstructed"),
    figure.add_subplot(grid[1, 0]),
    limits=(0, 1),
    title="Held-out images and their reconstructions",
)
used.plot(figure.add_subplot(grid[1, 1]))

Path(__file__).with_suffix(".png").write_bytes(png(figure, dpi=100))
