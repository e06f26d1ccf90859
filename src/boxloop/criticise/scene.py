"""Where to look at a model from: its own mean and spread."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from boxloop.criticise.distributions import has_moments
from boxloop.criticise.forward import latent_nodes, marginal
from boxloop.criticise.probes import INNER
from boxloop.criticise.tally import Scene
from boxloop.types import Distribution, LatentModel


def model_scene(model: LatentModel, names: tuple[str, ...], generator: Generator, nodes: int = 8192) -> Scene:
    """Origin and scale from the model's first two moments; fixed numbers from here on.

    Raises:
        ValueError: another number of columns, or a model without finite second moments.
    """
    finite = marginal(model)
    with torch.no_grad():
        if finite is None:
            laws = [model.emission(z) for z in latent_nodes(model.prior(), nodes, generator, quasi=True)]
            parts = [_moments(law, 1, generator) for law in laws]
            mean, variance = (torch.cat(column) for column in zip(*parts, strict=True))
            weight = mean.new_full((len(mean),), 1.0 / len(mean))
        else:
            law, weight = finite
            mean, variance = _moments(law, max(2, INNER // len(weight)), generator)
            weight = weight.to(mean)
        origin = weight @ mean
        spread = (weight @ (variance + (mean - origin).square())).sqrt()
    if origin.shape[0] != len(names):
        raise ValueError(f"the model has {origin.shape[0]} columns, the rows have {len(names)}")
    bad = ~(torch.isfinite(origin) & torch.isfinite(spread))
    if bool(bad.any()):
        column = names[int(bad.nonzero()[0])]
        raise ValueError(f"the model has no finite second moment in column {column!r}")
    scale = torch.where(spread > 0, spread, torch.ones_like(spread))
    return Scene(names, origin.double(), scale.double(), generator)


def _moments(law: Distribution, n: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Means and variances (m, d) of a batch of laws, of n draws from each where they are not known."""
    if has_moments(law):
        return law.mean, law.covariance().diagonal().expand_as(law.mean)
    drawn = law.draw(n, generator)
    return drawn.mean(1), drawn.var(1, correction=0)
