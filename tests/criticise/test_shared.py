"""A covariance that all members share is held once, and gives what copies of it would."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from boxloop.criticise import (
    MomentPenalty,
    cdf_of_counts,
    is_low_rank_form_smaller,
    moment_of_counts,
    second_gap_norm,
)
from boxloop.distributions import Bernoulli, LogitBernoulli, LogPoisson, Poisson, TiedLowRankGaussian
from boxloop.numeric import average_covariance, covariance as forms, generator, normal, projected_variance
from models.autoencoder_cases import rows_of, small

NORMAL = TiedLowRankGaussian(
    normal((6, 40), generator(0)), normal((40, 2), generator(1)), normal((40,), generator(2)).exp()
)
WEIGHT = torch.rand(6, generator=generator(3), dtype=torch.float64)


def copied() -> forms.LowRank:
    return forms.LowRank(NORMAL.loadings.repeat(6, 1, 1), NORMAL.noise.repeat(6, 1))


def test_sums_and_projections_are_those_of_copies() -> None:
    shared = NORMAL.covariance()
    assert_close(shared.dense(), copied().dense())
    assert_close(shared.diagonal(), copied().diagonal())
    assert shared.diagonal().untyped_storage().nbytes() == 40 * 8
    assert_close(average_covariance(shared, WEIGHT), average_covariance(copied(), WEIGHT))
    directions = normal((3, 40), generator(4))
    assert_close(projected_variance(shared, directions), projected_variance(copied(), directions))


def test_the_norm_of_a_second_gap_is_that_of_the_matrix() -> None:
    rows = normal((5, 40), generator(5))
    second = (
        average_covariance(NORMAL.covariance(), WEIGHT) + (NORMAL.mean * WEIGHT[:, None]).mT @ NORMAL.mean
    )
    assert is_low_rank_form_smaller(rows, NORMAL)
    expected = torch.linalg.matrix_norm(rows.mT @ rows / 5 - second)
    assert_close(second_gap_norm(rows, NORMAL, WEIGHT), expected)


def test_the_penalty_of_a_low_rank_head_does_not_copy_its_loadings() -> None:
    """The largest tensor that the penalty of 4000 nodes makes is that of the means, not 2 x 4000 loadings."""
    model, sizes = small("low rank"), []
    rows = rows_of(model)

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found = func(*args, **(kwargs or {}))
            sizes.extend(
                out.untyped_storage().nbytes()
                for out in (found if isinstance(found, tuple | list) else (found,))
                if isinstance(out, torch.Tensor)
            )
            return found

    with Watch():
        MomentPenalty(1.0, nodes=4000)(model, rows, generator(0))
    assert max(sizes) <= 4000 * 8 * 8


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_counts_by_their_logs_have_the_moments_of_counts(order: int) -> None:
    logs, origin = normal((4, 3), generator(0)), normal((3,), generator(1))
    places, at = torch.tensor([0, 2]), torch.tensor([0.5, 1.0]).double()
    pairs = ((LogitBernoulli(logs), Bernoulli(logs.sigmoid())), (LogPoisson(logs), Poisson(logs.exp())))
    for ours, theirs in pairs:
        found = moment_of_counts(ours, origin, order)
        assert found is not None
        assert_close(found, moment_of_counts(theirs, origin, order))
        assert_close(cdf_of_counts(ours, places, at), cdf_of_counts(theirs, places, at))
