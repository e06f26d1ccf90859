r"""A posterior over weights against short chains that draw from the true one, where the network is small.

Weights have symmetries, so predictions are compared, not weights. The chains begin around the mean network: they tell
whether the law is like the posterior there, not whether there are other modes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, jacrev, vmap

from boxloop.concerns import Concern, Level
from boxloop.data import make_frame
from boxloop.numeric import generator, normal, safe_cholesky, spawn
from boxloop.sample import HMC, SampleWarning, diagnose, sample_density
from boxloop.weights.classes import classes
from boxloop.weights.functional import NetFunction, batch_norms, evaluating
from boxloop.weights.inputs import Inputs, as_inputs, count, cut, mapped
from boxloop.weights.method import Part
from boxloop.weights.prediction import targets

Array = NDArray[np.float64]

CHUNK = 256
"""Rows whose Jacobians are found at once."""
ROWS, WATCHED = 100, 24
"""Test rows that are predicted, and predictions whose mixing is watched."""
REACH, LONGEST, LEAPS = 0.5, 1.6, 32
"""Length of trajectories while the step is tuned, and later at most, in deviations of Laplace's law; most steps."""
TUNED, FORGOTTEN = 150, 50
"""Warm-up steps of each chain, and steps after them that are thrown away too."""
MIXED, WORTH = 1.2, 25.0
"""R-hat and effective draws of predictions, beyond which a short run says nothing. Chains that agree so far know a
spread to some tens of per cent, where verdicts are about factors of two."""
NEAR, FAR = 2.0, 4.0
"""Factors between spreads that are good, and bad."""
OFF, AWRY = 0.5, 1.5
"""Distances between means, in deviations, that are good, and bad."""


@dataclass(frozen=True)
class Chains:
    """Predictions of a law against those of chains.

    Args:
        n_chains: how many.
        n_draws: of each.
        r_hat: the largest of the watched predictions.
        effective: the fewest effective draws of them.
        spread: root mean square of the standard deviations of predictions under the law.
        true_spread: under the chains.
        off: root mean square difference of mean predictions, in units of ``true_spread``, less what finitely many draws
            add to it.
        weight_ratio: of the root mean square deviations of weights, law over chains; symmetries widen the chains'.
    """

    n_chains: int
    n_draws: int
    r_hat: float
    effective: float
    spread: float
    true_spread: float
    off: float
    weight_ratio: float

    @property
    def ratio(self) -> float:
        """Of the spreads of predictions, law over chains."""
        return self.spread / self.true_spread

    @property
    def mixed(self) -> bool:
        """Whether the chains agree well enough to be compared with."""
        return self.r_hat <= MIXED and self.effective >= WORTH

    @property
    def worries(self) -> tuple[Concern, ...]:
        """One."""
        what = "Against Monte Carlo over all weights"
        if not self.mixed:
            why = (
                f"{self.n_chains} short chains disagree (R-hat {self.r_hat:.2f}, {self.effective:.0f} effective draws "
                "of predictions): nothing follows from them"
            )
            return (
                Concern("doubtful", what, why, "more chain_draws, or sample_density() with a longer warm-up"),
            )
        why = (
            f"predictions spread by {self.spread:.3g} where {self.n_chains} chains of {self.n_draws} draws spread by "
            f"{self.true_spread:.3g} (ratio {self.ratio:.2g}); means are {self.off:.2g} deviations apart"
        )
        level = judged(self.ratio, self.off)
        said = {"good": ""}.get(level, "scale the covariance on validation rows, or draw by sample_density()")
        return (Concern(level, what, why, said),)

    def table(self) -> Any:
        """One column."""
        names = ("ratio", "off", "spread", "true_spread", "r_hat", "effective", "weight_ratio")
        return make_frame({"value": [float(getattr(self, name)) for name in names]}, list(names))


def judged(ratio: float, off: float) -> Level:
    """A verdict on a ratio of spreads, and on a distance in deviations."""
    apart = max(ratio, 1.0 / ratio) if ratio > 0.0 else np.inf
    if apart > FAR or off > AWRY:
        return "bad"
    return "doubtful" if apart > NEAR or off > OFF else "good"


def compare_chains(
    part: Part,
    outputs: Array,
    X: Any,
    y: Any,
    X_test: Any,
    *,
    kind: str,
    prior_precision: float,
    noise: Array | None,
    chains: int,
    draws: int,
    seed: int,
) -> Chains:
    r"""Hamiltonian Monte Carlo over all weights of a small network.

    .. math:: \log p(\theta \mid X, y) = \sum_i \log p(y_i \mid f(x_i; \theta)) - \tfrac{\alpha}{2} |\theta|^2 + c

    in the coordinates of Laplace's law at the mean, from points around it.

    Args:
        part: the law, with its network.
        outputs: predictions of draws of the law at the first rows of the test set, (m, n, q): numbers, or
            probabilities of classes.
        X: training rows.
        y: their outputs or classes.
        X_test: rows that are predicted.
        kind: ``regression`` or ``classification``.
        prior_precision: alpha.
        noise: standard deviations of outputs, (q,).
        chains: how many.
        draws: of each, after 150 steps of warm-up and 50 more that are thrown away.
        seed: of all random numbers.

    Raises:
        ValueError: a network with BatchNorm, whose outputs depend on other rows.
    """
    if batch_norms(part.net):
        raise ValueError("a network with BatchNorm has no likelihood of one row")
    function = NetFunction(part.net, part.layout)
    with evaluating(part.net), warnings.catch_warnings():
        warnings.simplefilter("ignore", SampleWarning)
        density = log_posterior(function, X, y, kind, prior_precision, noise)
        centre = part.law.mean.detach().double()
        root = laplace_root(function, centre, X, kind, prior_precision, noise)
        found = _drawn(lambda u: density(centre + u @ root.mT), len(centre), centre, chains, draws, seed)
        rows = function.take(cut(as_inputs(X_test), 0, outputs.shape[1]))
        positions = centre + found @ root.mT
        said = np.concatenate([_said(function, one, rows, kind) for one in positions])
    table = said.reshape(len(positions), chains, -1)
    watched = table[:, :, np.linspace(0, table.shape[2] - 1, min(WATCHED, table.shape[2])).astype(int)]
    mixing = diagnose(np.ascontiguousarray(watched.transpose(1, 0, 2)))
    lost = bool(mixing.constant_chains.any() or mixing.infinite.any())
    agreed = (np.inf, 0.0) if lost else (float(np.max(mixing.r_hat)), float(np.min(mixing.ess_bulk)))
    return compare_with_chains(outputs, said, part, positions, *agreed)


def _drawn(
    density: Callable[[Tensor], Tensor], size: int, like: Tensor, chains: int, draws: int, seed: int
) -> Tensor:
    """Draws (n, c, D) in coordinates where Laplace's law is standard normal: first the step is tuned on short
    trajectories, then they are as long as so many steps allow."""
    starting, tuning, moving = spawn(generator(seed), 3)
    start = 0.5 * normal((chains, size), starting).to(like)
    tuned = sample_density(
        density, start, HMC(dense=False, trajectory=REACH), draws=1, warmup=TUNED, random_state=tuning
    )
    scale, metric = tuned.algorithm.scale, tuned.algorithm.metric
    length = min(max(LEAPS * scale, REACH), LONGEST)
    settled = HMC(scale=scale, metric=metric, trajectory=length)
    found = sample_density(
        density, tuned.positions[-1], settled, draws=draws, warmup=FORGOTTEN, random_state=moving
    )
    return found.positions


def laplace_root(
    function: NetFunction, centre: Tensor, X: Any, kind: str, prior_precision: float, noise: Array | None
) -> Tensor:
    r"""A square root of the covariance of Laplace's law at a vector of weights, (D, D).

    .. math:: \Sigma^{-1} = \alpha I + \sum_i J_i^\top \Lambda_i J_i

    with the Jacobian J of the outputs and the curvature Lambda of the loss in them (generalised Gauss-Newton).
    """
    rows = function.take(as_inputs(X))
    fixed, dtype = function.fixed(), torch.promote_types(function.like.dtype, torch.float32)

    def said(vector: Tensor, row: Inputs) -> Tensor:
        own = {name: value.to(dtype) for name, value in function.layout.views(vector).items()}
        alone = mapped(row, lambda one: one[None])
        found = functional_call(function.net, {**fixed, **own}, (alone,)).reshape(1, 1, -1)
        return (found if kind == "regression" else _logits(found)).reshape(-1)

    slopes = vmap(jacrev(said), in_dims=(None, 0), chunk_size=CHUNK)(centre, rows).double()
    if kind == "regression":
        weighted = slopes / torch.as_tensor(np.asarray(noise), device=slopes.device).reshape(1, -1, 1)
    else:
        share = vmap(said, in_dims=(None, 0))(centre, rows).double().softmax(1)[:, :, None]
        weighted = share.sqrt() * (slopes - (share * slopes).sum(1, keepdim=True))
    weighted = weighted.reshape(-1, len(centre))
    precision = weighted.mT @ weighted
    precision.diagonal().add_(prior_precision)
    lower = safe_cholesky(precision, "Laplace's precision")
    eye = torch.eye(len(lower), dtype=lower.dtype, device=lower.device)
    return torch.linalg.solve_triangular(lower.mT, eye, upper=True)


def log_posterior(
    function: NetFunction, X: Any, y: Any, kind: str, prior_precision: float, noise: Array | None
) -> Callable[[Tensor], Tensor]:
    """Of vectors of weights (c, D), up to a constant."""
    rows, place = function.take(as_inputs(X)), function.like.device
    n = count(rows)
    with torch.no_grad():
        first = function(function.weights(_zero(function)), {}, cut(rows, 0, 1), together=True)
    if kind == "classification":
        labels = torch.as_tensor(classes(y, (n, max(2, first.numel()))), device=place)
    else:
        seen = torch.as_tensor(targets(y, (n, *first.shape[2:])), device=place)
        unit = torch.as_tensor(np.broadcast_to(np.asarray(noise), first.numel()).copy(), device=place)

    def density(vectors: Tensor) -> Tensor:
        said = _flat(function(function.weights(vectors), {}, rows, together=True)).double()
        prior = -0.5 * prior_precision * vectors.square().sum(1)
        if kind == "regression":
            return prior - 0.5 * ((said - seen) / unit).square().sum((1, 2))
        shares = _logits(said).log_softmax(-1)
        return prior + shares.gather(2, labels[None, :, None].expand(len(said), -1, 1)).sum((1, 2))

    return density


def compare_with_chains(
    outputs: Array, said: Array, part: Part, positions: Tensor, r_hat: float, effective: float
) -> Chains:
    law = outputs.reshape(len(outputs), -1)
    true = said.reshape(len(said), -1)
    wide = float(np.sqrt(true.var(0, ddof=1).mean()))
    if not wide > 0.0:
        raise ValueError("no chain moved: nothing follows from them")
    spread = float(np.sqrt(law.var(0, ddof=1).mean())) if len(law) > 1 else 0.0
    by_chance = (spread / wide) ** 2 / len(law) + 1.0 / max(effective, 1.0)
    weights = float(positions.reshape(-1, positions.shape[2]).var(0).mean().sqrt())
    return Chains(
        n_chains=positions.shape[1],
        n_draws=positions.shape[0],
        r_hat=r_hat,
        effective=effective,
        spread=spread,
        true_spread=wide,
        off=max(0.0, float(np.mean((law.mean(0) - true.mean(0)) ** 2)) / wide**2 - by_chance) ** 0.5,
        weight_ratio=float(part.law.variance().double().mean().sqrt()) / weights,
    )


def _said(function: NetFunction, vectors: Tensor, rows: Inputs, kind: str) -> Array:
    """Predictions of vectors (c, D): (c, n, q)."""
    found = _flat(function(function.weights(vectors), {}, rows, together=True)).double()
    found = found if kind == "regression" else _logits(found).softmax(-1)
    return found.cpu().numpy()


def _flat(outputs: Tensor) -> Tensor:
    return outputs.reshape(*outputs.shape[:2], -1)


def _logits(outputs: Tensor) -> Tensor:
    """A single output is the logit of class 1 against class 0."""
    return outputs if outputs.shape[2] > 1 else torch.cat([torch.zeros_like(outputs), outputs], 2)


def _zero(function: NetFunction) -> Tensor:
    return torch.zeros(1, function.layout.size, device=function.like.device)
