"""What files of models must hold: shapes and values of the fields of every distribution and model."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any

import torch

from boxloop.distributions import (
    Bernoulli,
    Categorical,
    CategoricalColumns,
    DiagonalGaussian,
    Dirichlet,
    FullGaussian,
    LowRankGaussian,
    MixturePrior,
    Multinomial,
    NormalInverseGamma,
    NormalInverseWishart,
    NormalMixture,
    Poisson,
    SphericalGaussian,
    SphericalNormalInverseGamma,
    StickBreaking,
    TiedGaussian,
    TiedInverseWishart,
    TiedLowRankGaussian,
    WordDirichlet,
)
from boxloop.models.energy import EnergyModel, Perceptron
from boxloop.models.linear_gaussian import FactorModel, PrincipalModel
from boxloop.models.mixture import Mixture
from boxloop.models.networks import Convolutions, Deconvolutions, Layers, Part, SavedModule
from boxloop.models.random_effects import BernoulliResponse, PoissonResponse, RandomEffects
from boxloop.models.vae import (
    MAX_SCORE_DRAWS,
    Autoencoder,
    BernoulliHead,
    CategoricalHead,
    GaussianHead,
    LowRankHead,
    NormalMixturePrior,
    PoissonHead,
    StandardNormal,
)
from boxloop.models.variational_factor import RelevancePrior, VariationalFactor
from boxloop.models.variational_mixture import VariationalMixture
from boxloop.persist import (
    COUNTS,
    LOCATION,
    LOG_SIMPLEX,
    LOGARITHM,
    LOWER_FACTOR,
    NOT_NEGATIVE,
    POSITIVE,
    POSITIVE_DEFINITE,
    PROBABILITY,
    SCALE,
    SIMPLEX,
    Array,
    Axes,
    Constraints,
    Nested,
    Number,
    Table,
)

HEAD_FLOOR = Number(above=0.0, most=1e30)
"""Of a variance in standard units, in whatever precision."""
FLOOR, TOTAL = Number(least=0.0), Number(least=1, most=2**31)
FAMILIES = (
    FullGaussian, TiedGaussian, DiagonalGaussian, SphericalGaussian, Poisson, Bernoulli, Multinomial,
)  # fmt: skip
COMPONENTS = (
    NormalInverseWishart, TiedInverseWishart, NormalInverseGamma, SphericalNormalInverseGamma, WordDirichlet,
)  # fmt: skip
HEADS = (GaussianHead, LowRankHead, BernoulliHead, PoissonHead, CategoricalHead)
LATENTS = (StandardNormal, NormalMixturePrior)


def _check_degrees_of_freedom(prior: Any, axes: Axes) -> str | None:
    """Of Wishart distributions."""
    if bool((prior.dof > axes["d"] - 1).all()):
        return None
    return f"dof must be above {axes['d'] - 1} for {axes['d']} columns"


def _check_same_kinds(model: VariationalMixture[Any], axes: Axes) -> str | None:
    for part in ("weights", "components"):
        prior = type(getattr(model.parameter_prior, part))
        posterior = type(getattr(model.parameter_posterior, part))
        if prior is not posterior:
            return (
                f"parameter_prior.{part} is a {prior.__name__}, parameter_posterior.{part} a {posterior.__name__}: "
                "they must be alike"
            )
    if axes["m"] == axes["k"]:
        return None
    return f"parameter_posterior.components has {axes['m']} members, not {axes['k']}"


def _check_factor_precision(model: Any, axes: Axes) -> str | None:
    """Whether the posterior precision of the factors, I + loadings' loadings / noise, has a Cholesky factor."""
    loadings = model.loadings.double()
    precision = loadings.mT @ (loadings / model.noise.double()[:, None])
    precision.diagonal().add_(1.0)
    usable = torch.isfinite(precision).all() and torch.linalg.cholesky_ex(precision).info == 0
    return None if bool(usable) else "noise is so small beside loadings that factors have no posterior"


def _check_finite_errors(model: VariationalFactor, axes: Axes) -> str | None:
    """Whether loadings in units of the noise have fourth powers, of which their errors are made."""
    squares = model.coefficients.square() / (model.rate / model.shape)[:, None]
    finite = bool(torch.isfinite(squares[:, :-1].square()).all())
    return None if finite else "coefficients are so large beside the noise that errors overflow"


def _check_network(part: Part, axes: Axes) -> str | None:
    """The parameters of a network of ours; those of the user's modules are compared with the modules."""
    network: Any = part.network
    function = is_dataclass(network) and callable(network)
    kinds = {value.dtype for value in part.parameters}
    if len(kinds) != 1 or not kinds <= {torch.float32, torch.float64}:
        return f"parameters must be of one floating type, not of {len(kinds)}"
    if isinstance(network, SavedModule):
        sizes = len(network.names), len(part.parameters)
        return None if sizes[0] == sizes[1] else f"{sizes[0]} names are given for {sizes[1]} parameters"
    if not function:
        return f"network is {network!r:.40}, which cannot be called"
    axes["dtype"] = kinds.pop()
    if not isinstance(network, Layers | Convolutions | Deconvolutions):
        return None
    shapes = [tuple(value.shape) for value in part.parameters]
    if shapes != network.parameter_shapes():
        return f"parameters have the shapes {shapes}, the network needs {network.parameter_shapes()}"
    axes["i"] = shapes[0][0] if not isinstance(network, Convolutions) else _pixels(network.shape)
    axes["o"] = shapes[-1][0] if not isinstance(network, Deconvolutions) else _pixels(network.shape)
    return (
        None if _has_finite_output(part, axes["i"]) else "parameters are so large that the network overflows"
    )


def _has_finite_output(part: Part, columns: int) -> bool:
    """Whether no row within 10 standard units makes a network of ours, or the square of its result, overflow."""
    # As |silu(x)| <= silu(|x|), no activation is above that of the absolute parameters at the absolute row.
    most = torch.full((1, columns), 10.0, dtype=part.parameters[0].dtype)
    output = part.network([value.abs() for value in part.parameters], most)
    return bool(torch.isfinite(output.square()).all())


def _pixels(shape: tuple[int, int, int]) -> int:
    return shape[0] * shape[1] * shape[2]


def _set_code_axis(latent: StandardNormal, axes: Axes) -> str | None:
    axes["c"] = latent.columns
    return None


def _check_head(head: GaussianHead, axes: Axes) -> str | None:
    if head.log_variance is None:
        return None
    size = len(head.log_variance)
    if head.variance == "shared":
        axes["d"] = size
    return None if head.variance == "shared" or size == 1 else f"log_variance has {size} entries, not 1"


def _check_autoencoder(model: Autoencoder, axes: Axes) -> str | None:
    """Widths of the networks, as far as they are known: a module of the user's has none in the file."""
    d, c = axes["d"], axes["c"]
    if not model.head.continuous and not bool((model.origin == 0.0).all() and (model.scale == 1.0).all()):
        return f"origin must be 0 and scale 1 for a {type(model.head).__name__}, which has no other units"
    for name, before, after in (("encoder", d, 2 * c), ("decoder", c, model.head.raw_columns(d))):
        widths = axes.get(f"{name}_in", before), axes.get(f"{name}_out", after)
        if widths != (before, after):
            return f"the {name} maps {widths[0]} columns to {widths[1]}, not {before} to {after}"
    return None


def _check_energy_model(model: EnergyModel, axes: Axes) -> str | None:
    if not isinstance(model.network, Perceptron):
        return None
    shapes = [tuple(value.shape) for value in model.parameters]
    if model.network.columns != axes["d"] or shapes != model.network.parameter_shapes():
        return f"parameters have the shapes {shapes}, the network needs {model.network.parameter_shapes()}"
    if any(value.dtype != axes["dtype"] for value in model.parameters):
        return f"parameters must be {axes['dtype']}"
    return None


def _effects_fit(model: RandomEffects, axes: Axes) -> str | None:
    if len(set(model.shared)) == len(model.shared) and set(model.shared) <= set(range(axes["p"])):
        return None
    return f"shared is {model.shared}, which are not distinct columns out of {axes['p']}"


CONSTRAINTS: Table = {
    FullGaussian: Constraints(mean=Array("k d"), factor=Array("k d d", LOWER_FACTOR), floor=FLOOR),
    TiedGaussian: Constraints(mean=Array("k d"), factor=Array("d d", LOWER_FACTOR), floor=FLOOR),
    DiagonalGaussian: Constraints(mean=Array("k d"), variance=Array("k d", POSITIVE), floor=FLOOR),
    SphericalGaussian: Constraints(mean=Array("k d"), variance=Array("k 1", POSITIVE), floor=FLOOR),
    LowRankGaussian: Constraints(
        _check_factor_precision, centre=Array("d"), loadings=Array("d c"), noise=Array("d", POSITIVE)
    ),
    TiedLowRankGaussian: Constraints(
        _check_factor_precision, mean=Array("k d"), loadings=Array("d c"), noise=Array("d", POSITIVE)
    ),
    Poisson: Constraints(mean=Array("k d", POSITIVE), floor=FLOOR),
    Bernoulli: Constraints(mean=Array("k d", PROBABILITY), floor=Number(least=0.0, most=0.5)),
    Multinomial: Constraints(probability=Array("k d", SIMPLEX), total=TOTAL, smoothing=FLOOR),
    Categorical: Constraints(log_weight=Array("m k", LOG_SIMPLEX)),
    CategoricalColumns: Constraints(logits=Array("m p"), sizes=Array("d", COUNTS, torch.int64)),
    NormalMixture: Constraints(
        log_weight=Array("k", LOG_SIMPLEX), members=Nested((DiagonalGaussian,), "k dtype")
    ),
    Mixture: Constraints(log_weight=Array("k", LOG_SIMPLEX), family=Nested(FAMILIES, "k d dtype")),
    FactorModel: Constraints(
        _check_factor_precision,
        mean=Array("d"),
        loadings=Array("d k"),
        noise=Array("d", POSITIVE),
        floor=FLOOR,
    ),
    PrincipalModel: Constraints(
        _check_factor_precision,
        mean=Array("d"),
        loadings=Array("d k"),
        noise=Array("1", POSITIVE),
        floor=FLOOR,
    ),
    Dirichlet: Constraints(concentration=Array("k", SCALE)),
    StickBreaking: Constraints(first=Array("k-1", SCALE, least=0), second=Array("k-1", SCALE, least=0)),
    NormalInverseWishart: Constraints(
        _check_degrees_of_freedom,
        mean=Array("m d"),
        strength=Array("m", SCALE),
        dof=Array("m", SCALE),
        scale=Array("m d d", POSITIVE_DEFINITE),
    ),
    TiedInverseWishart: Constraints(
        _check_degrees_of_freedom,
        mean=Array("m d"),
        strength=Array("m", SCALE),
        dof=Array("", SCALE),
        scale=Array("d d", POSITIVE_DEFINITE),
    ),
    NormalInverseGamma: Constraints(
        mean=Array("m d"),
        strength=Array("m", SCALE),
        dof=Array("m", SCALE),
        scale=Array("m d", POSITIVE),
    ),
    SphericalNormalInverseGamma: Constraints(
        mean=Array("m d"),
        strength=Array("m", SCALE),
        dof=Array("m", SCALE),
        scale=Array("m 1", POSITIVE),
    ),
    WordDirichlet: Constraints(concentration=Array("m d", SCALE), total=TOTAL),
    MixturePrior: Constraints(
        weights=Nested((Dirichlet, StickBreaking), "k dtype"), components=Nested(COMPONENTS, "m d dtype")
    ),
    VariationalMixture: Constraints(
        _check_same_kinds,
        parameter_posterior=Nested((MixturePrior,), "k d m dtype"),
        parameter_prior=Nested((MixturePrior,), "k d m=m|1 dtype"),
        total=FLOOR,
    ),
    RelevancePrior: Constraints(centre=Array("d"), noise_rate=Array("d", POSITIVE)),
    VariationalFactor: Constraints(
        _check_finite_errors,
        coefficients=Array("d k+1"),
        coefficient_covariance=Array("d|1 k+1 k+1", POSITIVE_DEFINITE),
        shape=Array("d|1", POSITIVE),
        rate=Array("d", POSITIVE),
        relevance_rate=Array("k", POSITIVE),
        parameter_prior=Nested((RelevancePrior,), "d dtype"),
        total=FLOOR,
    ),
    Part: Constraints(_check_network),
    StandardNormal: Constraints(_set_code_axis),
    NormalMixturePrior: Constraints(
        log_weight=Array("p"), mean=Array("p c"), log_variance=Array("p c", LOGARITHM)
    ),
    GaussianHead: Constraints(_check_head, log_variance=Array("v", LOGARITHM), floor=HEAD_FLOOR),
    LowRankHead: Constraints(loadings=Array("d r"), log_noise=Array("d", LOGARITHM), floor=HEAD_FLOOR),
    CategoricalHead: Constraints(sizes=Array("d", COUNTS, torch.int64)),
    Autoencoder: Constraints(
        _check_autoencoder,
        encoder=Nested((Part,), "i=encoder_in o=encoder_out"),
        decoder=Nested((Part,), "i=decoder_in o=decoder_out"),
        head=Nested(HEADS, "d"),
        latent=Nested(LATENTS, "c"),
        origin=Array("d", LOCATION),
        scale=Array("d", SCALE),
        score_draws=Number(least=1, most=MAX_SCORE_DRAWS),
    ),
    EnergyModel: Constraints(
        _check_energy_model,
        network=Nested((Perceptron,)),
        base=Nested((DiagonalGaussian, FullGaussian, type(None)), "d dtype"),
        origin=Array("d", LOCATION),
        scale=Array("d", SCALE),
        log_partition=Array(""),
        log_partition_error=Array("", NOT_NEGATIVE),
        draws=Array("n d", LOCATION),
    ),
    RandomEffects: Constraints(
        _effects_fit,
        coefficients=Array("p"),
        factor=Array("q q", LOWER_FACTOR),
        response=Nested((BernoulliResponse, PoissonResponse)),
        floor=FLOOR,
    ),
}
"""By class."""
