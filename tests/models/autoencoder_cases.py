"""Small autoencoders of every head and prior, and one whose bound is exact."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from boxloop.models import (
    Autoencoder,
    BernoulliHead,
    CategoricalHead,
    FactorModel,
    GaussianHead,
    Layers,
    LowRankHead,
    NormalMixturePrior,
    Part,
    PoissonHead,
    StandardNormal,
)
from boxloop.numeric import generator, normal

D, K = 4, 2
HEADS: dict[str, Any] = {
    "diagonal": lambda dtype: GaussianHead(),
    "shared": lambda dtype: GaussianHead.initial("shared", D, dtype),
    "spherical": lambda dtype: GaussianHead.initial("spherical", D, dtype),
    "low rank": lambda dtype: LowRankHead.initial(D, 2, generator(1), dtype),
    "bernoulli": lambda dtype: BernoulliHead(),
    "poisson": lambda dtype: PoissonHead(),
    "categories": lambda dtype: CategoricalHead.from_sizes([2, 3, 2, 5]),
}
LATENTS: dict[str, Any] = {
    "normal": lambda dtype: StandardNormal(K),
    "mixture": lambda dtype: NormalMixturePrior.initial(3, K, generator(2), dtype),
}


def small(head: str = "diagonal", latent: str = "normal", dtype: torch.dtype = torch.float64) -> Autoencoder:
    """Random networks with one hidden layer."""
    chosen, prior = HEADS[head](dtype), LATENTS[latent](dtype)
    encoder, decoder = Layers(D, (8,), 2 * K), Layers(K, (8,), chosen.raw_columns(D))
    parts = (
        Part(net, net.draw_parameters(generator(seed), dtype)) for seed, net in ((3, encoder), (4, decoder))
    )
    return Autoencoder.from_parts(*parts, chosen, prior, D)


def rows_of(model: Autoencoder, n: int = 40, seed: int = 5) -> Tensor:
    return model.sample(n, generator(seed))[0].detach()


def exact(units: bool = True) -> tuple[Autoencoder, FactorModel]:
    """Factor analysis, and the autoencoder whose networks are its affine maps: q(z|x) is the posterior.

    In the canonical rotation the posterior's covariance is diagonal, so that a diagonal q can be it.
    """
    origin = torch.tensor([1e3, -2.0, 0.0, 5.0, 0.1]).double()
    scale = torch.tensor([50.0, 0.01, 1.0, 3.0, 1e-4]).double()
    if not units:
        origin, scale = torch.zeros(5).double(), torch.ones(5).double()
    noise = 0.2 + 0.3 * torch.rand(5, generator=generator(0), dtype=torch.float64)
    inner = FactorModel(torch.zeros(5).double(), normal((5, K), generator(1)), noise).to_canonical_form()
    variance = 1.0 / (1.0 + (inner.loadings.square() / noise[:, None]).sum(0))
    slope = (inner.loadings / noise[:, None]) * variance
    head = GaussianHead("shared", (noise - 1e-4).log())
    zero = torch.zeros(5, K).double()
    encoder = Part(Layers(5, (), 2 * K), (torch.cat([slope, zero], 1), torch.cat([zero[0], variance.log()])))
    decoder = Part(Layers(K, (), 5), (inner.loadings.mT.contiguous(), torch.zeros(5).double()))
    model = Autoencoder.from_parts(encoder, decoder, head, StandardNormal(K), 5)
    return model.affine(origin, scale), inner.affine(origin, scale)


def loosened(model: Autoencoder, step: float = 0.4) -> Autoencoder:
    """The same p, another q: its mean is moved and its deviation widened."""
    slope, shift = model.encoder.parameters
    moved = (slope, shift + step * torch.ones_like(shift))
    return replace(model, encoder=Part(model.encoder.network, moved))
