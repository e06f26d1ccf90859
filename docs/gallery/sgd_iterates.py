"""Iterates of SGD compared with a posterior that is known exactly.

python docs/gallery/sgd_iterates.py
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from boxloop.figures import FAINT, INK, add_legend, new_figure, png
from boxloop.networks import (
    FullCovariance,
    Predictor,
    WeightPosterior,
    WindowAverage,
    last_layer_laplace,
    weight_decay,
)

ROWS, BATCH, PRECISION, NOISE, UNITS = 200, 10, 1.0, 0.15, 12
stream = torch.Generator().manual_seed(0)


def measured(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Observations of a curve between 1 and 3 and between -3 and -1, none elsewhere."""
    x = 1.0 + 2.0 * torch.rand(n, 1, generator=stream).double()
    x = torch.where(torch.rand(n, 1, generator=stream) < 0.5, -x, x)
    return x, torch.sin(1.5 * x) + NOISE * torch.randn(n, 1, generator=stream).double()


X, Y = measured(ROWS)
net = nn.Sequential(nn.Linear(1, UNITS), nn.Tanh(), nn.Linear(UNITS, 1)).double()
with torch.no_grad():  # the first layer is fixed, so that the posterior of the last one is Gaussian and known
    net[0].weight.copy_(1.2 * torch.randn(UNITS, 1, generator=stream))
    net[0].bias.copy_(1.5 * torch.randn(UNITS, generator=stream))
exact = last_layer_laplace(net, X, Y, "regression", PRECISION, NOISE)
features = net[1](net[0](X)).detach()

methods = {
    "iterates": FullCovariance(),
    "windows": WindowAverage(None, FullCovariance(), n_rows=ROWS, batch_size=BATCH),
}
followed = {
    name: WeightPosterior(net, method, parameters="last", random_state=0) for name, method in methods.items()
}
followed["iterates"].apply(exact.distribution.mean)  # begin at the optimum
decay = weight_decay(PRECISION, ROWS, "mean_squared", noise_precision=NOISE**-2)
optimiser = torch.optim.SGD(net[2].parameters(), lr=0.1, weight_decay=decay)
for _ in range(400):
    for some in torch.randperm(ROWS, generator=stream).split(BATCH):
        loss = nn.functional.mse_loss(net[2](features[some]), Y[some])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        for posterior in followed.values():
            posterior.observe(loss)

distributions = {"exact": exact, **followed}
over = torch.linspace(-4.0, 4.0, 161).double()[:, None]
places = {"among the data": 2.0, "in the gap": 0.0, "outside": 4.0}
titles = {
    "exact": "The posterior",
    "iterates": "Gaussian of the SGD iterates",
    "windows": f"Gaussian of means of {methods['windows'].window} iterates",
}
figure = new_figure(14.0, 4.6)
axes = figure.subplots(1, 3, sharey=True)
for ax, (name, distribution) in zip(axes, distributions.items(), strict=True):
    found = Predictor.from_posterior(distribution, "regression", 1000, noise=NOISE).predict(over)
    spread = {
        where: found.epistemic_std[int((over[:, 0] - at).abs().argmin()), 0] for where, at in places.items()
    }
    print(f"{name}: " + ", ".join(f"{value:.3f} {where}" for where, value in spread.items()))
    found.plot(over, ax=ax, name="x")
    ax.plot(X, Y, ".", color=INK, markersize=3, alpha=0.6)
    ax.plot(over, torch.sin(1.5 * over), color=FAINT, linestyle=(0, (4, 3)), label="truth")
    ax.set_title(titles[name], loc="left", fontsize=12, fontweight="bold")
    ax.set_ylim(-3.4, 4.0)
    ax.get_legend().remove()
    ax.set_ylabel("prediction" if ax is axes[0] else "")
add_legend(axes[0], "lower left")

found = followed["iterates"].audit(
    X, Y, X, Y, kind="regression", prior_precision=PRECISION, noise=NOISE, chains=0
)
print(next(f"{one.level}: {one.what}" for one in found.concerns))

Path(__file__).with_suffix(".png").write_bytes(png(figure, dpi=100))
