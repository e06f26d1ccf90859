"""z-scores with a written false-alarm rate."""

from __future__ import annotations

import torch
from scipy.special import ndtri
from torch import Tensor

FALSE_ALARM = 1e-4
"""Chance that a sound library fails any of the statistical checks below in one run (they use fixed seeds, so in
fact it either always fails or never does): each of at most ``CALLS`` calls takes an equal share, and each z-score
of a call an equal share of that."""
CALLS = 100


def assert_scores(scores: Tensor) -> None:
    """Every z-score is as small as the false-alarm rate lets it be."""
    limit = -float(ndtri(FALSE_ALARM / CALLS / (2 * scores.numel())))
    worst = float(scores.abs().max())
    assert worst <= limit, f"a z-score of {worst:.1f} where at most {limit:.1f} is expected"


def mean_scores(values: Tensor, expected: Tensor) -> Tensor:
    """z-scores of the means of (n, p) values against (p,)."""
    error = values.std(0) / values.shape[0] ** 0.5
    return (values.mean(0) - expected) / error


def moment_scores(draws: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    """z-scores of the first and second moments of draws (n, d) against a mean (d,) and covariance (d, d)."""
    centred = draws - mean
    i, j = torch.triu_indices(len(mean), len(mean))
    second = mean_scores(centred[:, i] * centred[:, j], covariance[i, j])
    return torch.cat([mean_scores(draws, mean), second])
