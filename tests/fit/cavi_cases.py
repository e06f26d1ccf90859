"""Small models with known answers, for coordinate ascent."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from boxloop.distributions import Node
from boxloop.numeric import generator, normal

LOG_2PI = math.log(2 * math.pi)


def double(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def mixture_rows(n: int, means: list[float], seed: int) -> Tensor:
    stream = generator(seed)
    label = torch.randint(len(means), (n,), generator=stream)
    return double(means)[label] + normal((n,), stream)


def mixture(x: Tensor, weights: list[float], variance: float) -> Any:
    """The log-joint of Le Corff, section 3.3."""
    log_weight = double(weights).log()

    def log_joint(t: dict[str, Any]) -> Tensor:
        mu, c = t["mu"], t["c"].value
        prior = -0.5 * (mu.square / variance + math.log(variance) + LOG_2PI).sum()
        apart = x[:, None] ** 2 - 2 * x[:, None] * mu.value + mu.square
        return prior + (c * (log_weight - 0.5 * (apart + LOG_2PI))).sum()

    return log_joint


def mixture_conditionals(x: Tensor, weights: list[float], variance: float) -> Any:
    log_weight = double(weights).log()

    def means(t: dict[str, Any]) -> Any:
        c = t["c"].value
        return c.mT @ x, -0.5 / variance - 0.5 * c.sum(0)

    def labels(t: dict[str, Any]) -> Any:
        apart = x[:, None] ** 2 - 2 * x[:, None] * t["mu"].value + t["mu"].square
        return (log_weight - 0.5 * (apart + LOG_2PI),)

    return {"mu": means, "c": labels}


def normal_gamma(x: Tensor, centre: float, strength: float, shape: float, rate: float) -> Any:
    """mu given tau is normal of precision strength * tau: everything has a closed form."""

    def log_joint(t: dict[str, Any]) -> Tensor:
        mu, tau = t["mu"], t["tau"]
        prior = (shape - 1) * tau.log - rate * tau.value + shape * math.log(rate) - math.lgamma(shape)
        pull = mu.square - 2 * centre * mu.value + centre**2
        location = 0.5 * (tau.log + math.log(strength) - LOG_2PI) - 0.5 * strength * tau.value * pull
        apart = (x**2 - 2 * x * mu.value + mu.square).sum()
        return prior + location + 0.5 * len(x) * (tau.log - LOG_2PI) - 0.5 * tau.value * apart

    return log_joint


def normal_gamma_evidence(x: Tensor, centre: float, strength: float, shape: float, rate: float) -> float:
    n, mean = len(x), float(x.mean())
    after = rate + 0.5 * float(((x - mean) ** 2).sum())
    after += 0.5 * strength * n * (mean - centre) ** 2 / (strength + n)
    found = math.lgamma(shape + n / 2) - math.lgamma(shape) + shape * math.log(rate)
    return (
        found
        - (shape + n / 2) * math.log(after)
        + 0.5 * math.log(strength / (strength + n))
        - n / 2 * LOG_2PI
    )


def regression(rows: Tensor, y: Tensor) -> tuple[dict[str, Node], Any]:
    """A precision of its own for each coefficient: alpha_j and the noise precision tau are G(2, 1)."""
    n, d = rows.shape
    gram, cross, square = rows.mT @ rows, rows.mT @ y, y @ y

    def log_joint(t: dict[str, Any]) -> Tensor:
        w, alpha, tau = t["w"], t["alpha"], t["tau"]
        rest = square - 2 * cross @ w.value + (gram * w.outer).sum()
        own = 0.5 * (alpha.log - LOG_2PI - alpha.value * w.outer.diagonal(dim1=-2, dim2=-1)).sum()
        hyper = (alpha.log - alpha.value).sum() + tau.log - tau.value
        return 0.5 * n * (tau.log - LOG_2PI) - 0.5 * tau.value * rest + own + hyper

    return {"w": Node.gaussian(d), "alpha": Node.gamma(d), "tau": Node.gamma()}, log_joint


def hidden_kinds(emission: Tensor, concentration: Tensor, x: Tensor) -> tuple[dict[str, Node], Any]:
    """Symbols x_i of hidden kinds c_i, whose shares are Dirichlet."""
    k = len(concentration)
    seen = emission.log()[:, x].mT
    constant = torch.lgamma(concentration.sum()) - torch.lgamma(concentration).sum()

    def log_joint(t: dict[str, Any]) -> Tensor:
        share, c = t["share"].log, t["c"].value
        return constant + ((concentration - 1) * share).sum() + (c * (share + seen)).sum()

    return {"c": Node.categorical(k, len(x)), "share": Node.dirichlet(k)}, log_joint


def hidden_kinds_evidence(emission: Tensor, concentration: Tensor, x: Tensor) -> float:
    """Every labelling in turn, each a Dirichlet-multinomial."""
    k, n = len(concentration), len(x)
    labels = torch.cartesian_prod(*[torch.arange(k)] * n)
    count = torch.nn.functional.one_hot(labels, k).sum(1).double()
    total = concentration.sum()
    prior = torch.lgamma(concentration + count).sum(1) - torch.lgamma(concentration).sum()
    prior = prior + torch.lgamma(total) - torch.lgamma(total + n)
    return float((prior + emission.log()[labels, x].sum(1)).logsumexp(0))
