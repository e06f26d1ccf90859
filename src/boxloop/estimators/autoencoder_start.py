"""An autoencoder before training: networks by the shape of the data, a head by its kind, a prior of codes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn

from boxloop.data import Standardisation
from boxloop.estimators._input import Likelihood
from boxloop.estimators.learned import NetworkShapes, make_part
from boxloop.models import (
    Autoencoder,
    BernoulliHead,
    CategoricalHead,
    Convolutions,
    Deconvolutions,
    GaussianHead,
    Layers,
    LowRankHead,
    NormalMixturePrior,
    PoissonHead,
    StandardNormal,
)
from boxloop.numeric import spawn
from boxloop.types import Source

Variance = Literal["diagonal", "shared", "spherical", "low_rank"]


def start_model(
    shapes: NetworkShapes,
    head: Any,
    latent: Any,
    encoder: nn.Module | None,
    decoder: nn.Module | None,
    device: torch.device,
    dtype: torch.dtype,
    stream: Generator,
) -> Autoencoder:
    """A model of standardised rows; default networks start alike on every device.

    Raises:
        ValueError: a module that does not give the columns it should.
    """
    streams = spawn(stream, 2)
    width, seen = head.width(shapes.columns), shapes.convolution_input
    inward: Any = Layers(shapes.columns, shapes.widths, 2 * shapes.codes)
    outward: Any = Layers(shapes.codes, shapes.widths[::-1], width)
    if seen is not None:
        inward = Convolutions(seen, shapes.widths, 2 * shapes.codes)
        if width % shapes.columns == 0 and not isinstance(head, CategoricalHead):
            several = (seen[0] * (width // shapes.columns), *seen[1:])
            outward = Deconvolutions(several, shapes.widths[::-1], shapes.codes)
    parts = [
        make_part(module, network, device, dtype, own)
        for module, network, own in ((encoder, inward, streams[0]), (decoder, outward, streams[1]))
    ]
    return Autoencoder.start(parts[0], parts[1], head.to(device), latent.to(device), shapes.columns)


def head_of(
    likelihood: Likelihood,
    variance: Variance,
    rank: int,
    source: Source,
    dtype: torch.dtype,
    stream: Generator,
    floor: float,
) -> Any:
    """What the decoder's columns mean; the categories of a column are those up to its largest code."""
    if likelihood == "bernoulli":
        return BernoulliHead()
    if likelihood == "poisson":
        return PoissonHead()
    if likelihood == "categorical":
        top = torch.stack([rows.amax(0) for rows, _ in source.chunks()]).amax(0)
        return CategoricalHead.of([int(code) + 1 for code in top.tolist()])
    if variance == "low_rank":
        if rank >= source.n_columns:
            raise ValueError(f"rank={rank} must be below the {source.n_columns} columns of the rows")
        return LowRankHead.start(source.n_columns, rank, stream, dtype, floor=floor)
    return GaussianHead.start(variance, source.n_columns, dtype, floor=floor)


def latent_of(prior: str, codes: int, components: int, dtype: torch.dtype, stream: Generator) -> Any:
    """The prior of codes."""
    return (
        StandardNormal(codes)
        if prior == "normal"
        else NormalMixturePrior.start(components, codes, stream, dtype)
    )


def levelled(model: Autoencoder, likelihood: Likelihood, frame: Standardisation) -> Autoencoder:
    """A start that knows the columns' means and spreads, where they could not be standardised away.

    The default encoder's first layer sees counts as if they were standardised, and the default decoder's last gives
    each column its mean: rates of 1000 would be a long way to go.
    """
    if likelihood not in ("bernoulli", "poisson"):
        return model
    mean, encoder, decoder = frame.origin, model.encoder, model.decoder
    if likelihood == "poisson" and isinstance(encoder.network, Layers):
        slope, shift, *rest = encoder.parameters
        slope = (slope.double() / frame.scale.clamp(min=1.0)[:, None]).to(slope)
        encoder = replace(encoder, parameters=(slope, shift - mean.to(slope) @ slope, *rest))
    level = _natural(likelihood, mean, frame.weight)
    if isinstance(decoder.network, Layers):
        decoder = replace(decoder, parameters=(*decoder.parameters[:-1], level.to(decoder.parameters[-1])))
    elif isinstance(decoder.network, Deconvolutions):
        last = decoder.parameters[-1]
        middle = _natural(likelihood, mean.reshape(len(last), -1).mean(1), frame.weight)
        decoder = replace(decoder, parameters=(*decoder.parameters[:-1], middle.to(last)))
    return replace(model, encoder=encoder, decoder=decoder)


def _natural(likelihood: Likelihood, mean: Tensor, weight: float) -> Tensor:
    """Log-odds or log-rates of means, half a row away from the ends."""
    least = 0.5 / (weight + 1.0)
    return (
        mean.clamp(least, 1.0 - least).logit() if likelihood == "bernoulli" else mean.clamp(min=least).log()
    )
