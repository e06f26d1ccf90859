"""Whether the error bars of inferred half images hold: of the mean, by other rows; of the law, by the true halves."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from boxloop.estimators import RelevantFeatures
from boxloop.twoview import RelevanceModel, with_one
from papers.halves_data import Halves, Images, flat, left, right
from papers.halves_trials import Setting, fit
from papers.words import standard_error

Array = NDArray[np.float64]

LEAST = 0.02
"""Standard deviation of a pixel among all images below which it is blank, and says nothing of error bars."""
BINS = 10
PAIRS = 3
"""Of parts of the rows."""


def refits(data: Halves, cutoff: int, given: int, seed: int, setting: Setting) -> dict[str, Any]:
    r"""z-scores of the difference of two inferred means from rows that have nothing in common.

    .. math:: z = (\hat m_1 - \hat m_2) / \sqrt{s_1^2 + s_2^2}

    With features that are given (learned from a third part of the rows) and variables solved on each of two parts, the
    error bars speak of all that differs, and z has standard deviation 1; where each part learns its own features, they
    leave that out. Pixels and images share their rows, so that errors are taken over pairs of parts.

    Args:
        data: the images.
        cutoff: k0.
        given: test images to condition on.
        seed: of the fits.
        setting: of training.

    Returns:
        By kind: root mean square of z, shares within 1 and 2, and a standard error of the first over pairs.
    """
    third = len(data.train) // 3
    parts = [data.train[i * third : (i + 1) * third] for i in range(3)]
    fits = [fit(part, cutoff, seed + i, setting) for i, part in enumerate(parts)]
    new, inked = right(data.test[:given]), flat(left(data.train)).std(0) > LEAST
    pieces = np.array_split(data.train[third:], 2 * PAIRS)
    same = [fits[0].expect(given=new, data=(right(part), left(part))) for part in pieces]
    own = [found.expect(given=new) for found in fits]
    return {
        "features given": _scores(list(zip(same[::2], same[1::2])), inked),
        "features learned anew": _scores(list(combinations(own, 2)), inked),
    }


def _scores(pairs: list[tuple[Any, Any]], inked: NDArray[np.bool_]) -> dict[str, float]:
    z = np.stack([_differences(one, two, inked) for one, two in pairs])
    each = np.sqrt((z**2).mean((1, 2)))
    return {
        "spread": float(np.sqrt((z**2).mean())),
        "error": standard_error(each),
        "pairs": len(pairs),
        "within 1": float((np.abs(z) < 1.0).mean()),
        "within 2": float((np.abs(z) < 2.0).mean()),
        "standard error": float(np.median(pairs[0][0].standard_error[:, inked])),
    }


def _differences(one: Any, two: Any, inked: NDArray[np.bool_]) -> Array:
    size = np.sqrt(one.standard_error**2 + two.standard_error**2)
    found: Array = ((one.mean - two.mean) / np.where(size > 0.0, size, 1.0))[:, inked]
    return found


def residuals(found: RelevantFeatures, data: Halves, given: int) -> dict[str, Any]:
    """True halves beside the inferred law: deviations, negative variances and mass, and the main direction.

    Args:
        found: the fit.
        data: the images.
        given: test images to condition on.
    """
    images = data.test[:given]
    law = found.expect(given=right(images))
    truth, inked = flat(left(images)).astype(float), flat(left(data.train)).std(0) > LEAST
    gap, sd = (truth - law.mean)[:, inked], law.deviation[:, inked]
    positive = sd > 0.0
    z = np.abs(gap[positive] / sd[positive])
    main = law.ambiguity()
    along = ((truth - law.mean) * main.direction).sum(1)
    clear = main.deviation > 0.0
    return {
        "negative variances": float(law.negative_variance[:, inked].mean()),
        "negative variances of all pixels": float(law.negative_variance.mean()),
        "negative mass": float(law.negative_mass.mean()),
        "worst negative mass": float(law.negative_mass.max()),
        "within 1": float((z < 1.0).mean()),
        "within 2": float((z < 2.0).mean()),
        "mean square of residuals": float((gap**2).mean()),
        "mean variance": float((sd**2).mean()),
        "by deviation": _by_deviation(gap, sd),
        "residual where negative": float(np.sqrt((gap[~positive] ** 2).mean())) if (~positive).any() else 0.0,
        "along within 1": float((np.abs(along[clear]) < main.deviation[clear]).mean()),
        "along within 2": float((np.abs(along[clear]) < 2.0 * main.deviation[clear]).mean()),
        "along ratio": float(np.sqrt((along[clear] ** 2).mean() / (main.deviation[clear] ** 2).mean())),
        "median standard error": float(np.median(law.standard_error[:, inked])),
    }


def _by_deviation(gap: Array, sd: Array) -> list[list[float]]:
    """Root mean square residual against the inferred deviation, in classes of about as many pixels."""
    order = np.argsort(sd, axis=None, kind="stable")
    return [
        [float(np.sqrt((sd.ravel()[part] ** 2).mean())), float(np.sqrt((gap.ravel()[part] ** 2).mean()))]
        for part in np.array_split(order, BINS)
    ]


def ranks(found: RelevantFeatures, images: Images, rows: Images, given: int, seed: int) -> dict[str, Any]:
    r"""Where true pixels lie in their inferred laws: uniform where those hold.

    .. math:: \mathrm{PIT} = F(x^- \mid y) + U \left( F(x \mid y) - F(x^- \mid y) \right), \qquad
        F(t \mid y) = \sum_n w_n(y) \, 1[x_n \le t]

    with U uniform, as many pixels are exactly black; F is clipped to [0, 1], for weights may be negative.

    Args:
        found: the fit.
        images: test images.
        rows: training images, whose left halves carry the weights.
        given: test images to look at.
        seed: of U.
    """
    model = found.model_
    device = model.canonical.correlation.device
    known, truth = (torch.from_numpy(flat(part(images[:given]))).to(device) for part in (right, left))
    pool = torch.from_numpy(flat(left(rows))).to(device)
    inked = pool.std(0) > LEAST
    with torch.no_grad():
        weight = signed_weights(model, known, pool)
        pool, truth = pool[:, inked], truth[:, inked]
        below, upto = (
            torch.stack([w @ sign(pool, x).double() for w, x in zip(weight, truth)]).clamp(0.0, 1.0)
            for sign in (torch.lt, torch.le)
        )
        dark = (weight @ (pool > 0.5).double()).clamp(0.0, 1.0)
    chance = np.random.default_rng(seed).random(tuple(below.shape))
    low, high = below.cpu().numpy(), upto.cpu().numpy()
    pit = low + chance * (high - low).clip(0.0)
    return {
        "histogram": np.histogram(pit, BINS, (0.0, 1.0))[0].tolist(),
        "reliability": _reliability(dark.cpu().numpy(), (truth > 0.5).cpu().numpy()),
        "distance": float(np.abs(np.sort(pit, axis=None) - np.linspace(0.0, 1.0, pit.size)).max()),
    }


def signed_weights(model: RelevanceModel, known: Tensor, pool: Tensor) -> Tensor:
    r"""Weights of rows of the second view given rows of the first, (m, n), which add up to 1 and may be negative.

    .. math:: w_n(x) \propto 1 + \sum_i \eta_i u_i(x) v_i(y_n)

    Args:
        model: canonical variables.
        known: rows of the first view, (m, d_x).
        pool: rows of the second, (n, d_y).
    """
    weight = with_one(model.left(known) * model.canonical.correlation) @ with_one(model.right(pool)).mT
    return weight / weight.sum(1, keepdim=True)


def _reliability(chance: Array, seen: NDArray[np.bool_]) -> list[list[float]]:
    """By class of chance: its mean, frequency of bright pixels, its standard error over images, share of pixels."""
    found = []
    for low in np.arange(BINS) / BINS:
        mine = (chance >= low) & (chance < low + 1.0 / BINS + (low > 0.89))
        if not mine.any():
            continue
        count = mine.sum(1)
        frequency = float(seen[mine].mean())
        off = ((seen - frequency) * mine).sum(1)
        error = float(np.sqrt((off**2).sum()) / count.sum())
        found.append([float(chance[mine].mean()), frequency, error, float(mine.mean())])
    return found
