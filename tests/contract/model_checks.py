"""What every model must satisfy, as functions that raise AssertionError."""

from __future__ import annotations

from typing import Any

import torch
from scipy import stats
from torch import Generator, Tensor
from torch.testing import assert_close

from contract.distribution_checks import DRAWS, assert_peak, assert_refuses, near, slope, with_missing
from contract.models import ModelCase
from contract.scores import assert_scores, mean_scores, moment_scores

FALL = 1e-9
ITERATIONS = 25


def _tables(case: ModelCase) -> tuple[Tensor, Tensor]:
    return case.rows, with_missing(case.rows, rate=0.25)


def check_likelihood(case: ModelCase) -> None:
    """``expect`` tells the log-likelihood of ``log_prob`` less the base measure, and the total weight."""
    for rows in _tables(case):
        base = case.model.log_base(rows)
        density = case.model.log_prob(rows) - (0.0 if base is None else base)
        assert density.shape == (len(rows),)
        expected = case.model.expect(rows, case.weight)
        near(expected.log_likelihood, density @ case.weight)
        near(expected.weight, case.weight.sum())


def check_nothing_seen(case: ModelCase) -> None:
    """A row without values has likelihood one, and the M step takes it in its stride."""
    empty = torch.full_like(case.rows[:3], torch.nan)
    near(case.model.log_prob(empty), torch.zeros(3, dtype=torch.float64))
    statistics = case.model.expect(
        torch.cat([empty, case.rows]), torch.ones(3 + len(case.rows)).double()
    ).statistics
    assert case.model.solve(statistics).is_finite()


def check_chunks(case: ModelCase) -> None:
    """Chunked = whole, also where only some chunks have missing values."""
    for rows in (*_tables(case), torch.cat([with_missing(case.rows[:9]), case.rows[9:]])):
        whole = case.model.expect(rows, case.weight)
        sizes = [9, 1, len(rows) - 10]
        parts = [
            case.model.expect(r, w) for r, w in zip(rows.split(sizes), case.weight.split(sizes), strict=True)
        ]
        near(parts[0] + parts[1] + parts[2], whole)


def check_repetition(case: ModelCase) -> None:
    """An integer weight = that many copies of a row."""
    times = torch.arange(len(case.rows)) % 4
    for rows in _tables(case):
        repeated = rows.repeat_interleave(times, 0)
        ones = torch.ones(len(repeated), dtype=torch.float64)
        near(case.model.expect(rows, times.double()), case.model.expect(repeated, ones))


def check_solve(case: ModelCase) -> None:
    """The M step is where Q is flat; only ratios of statistics matter."""
    for rows in _tables(case):
        statistics = case.model.expect(rows, case.weight).statistics
        best = case.model.solve(statistics)
        near(case.model.solve(statistics * 3.0), best)
        assert_peak(best, statistics, float(case.weight.sum()))


def check_monotone(case: ModelCase) -> None:
    """EM never lowers the likelihood, and raises it at first."""
    for start in (case.model, *([case.expanded] if case.expanded is not None else [])):
        for rows in _tables(case):
            levels = _levels(start, rows, case.weight)
            falls = (levels[:-1] - levels[1:]).clamp(min=0.0)
            assert float(falls.max()) <= FALL * float(levels.abs().max()), "EM lowered the likelihood"
            assert float(levels[1] - levels[0]) > 1e-6, "EM stood still"


def _levels(model: Any, rows: Tensor, weight: Tensor) -> Tensor:
    levels = []
    for _ in range(ITERATIONS):
        expected = model.expect(rows, weight)
        levels.append(expected.log_likelihood)
        model = model.solve(expected.statistics)
    return torch.stack(levels)


def check_fisher(case: ModelCase) -> None:
    r"""Fisher's identity: the score is the slope of Q at the same parameters."""
    for rows in _tables(case):
        statistics = case.model.expect(rows, case.weight).statistics
        score = slope(lambda model, rows=rows: model.log_prob(rows) @ case.weight, case.model)
        by_q = slope(
            lambda model, statistics=statistics: model.expected_log_likelihood(statistics), case.model
        )
        assert float(score.abs().max()) > 1e-3
        assert_close(by_q, score, rtol=1e-8, atol=1e-8 * float(score.abs().max()))


def check_posterior(case: ModelCase) -> None:
    """Bayes: p(z) p(x|z) / q(z|x) is p(x), whatever z."""
    for rows in _tables(case):
        z, log_q = _latent(case.model, rows)
        for i in range(len(z)):
            prior = case.model.prior().log_prob(z[i : i + 1])[0, 0]
            emission = case.model.emission(z[i : i + 1]).log_prob(rows)[0]
            near(prior + emission - log_q[i], case.model.log_prob(rows), rtol=1e-9)


def _latent(model: Any, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Some latent values, (m, .), and the log of their posterior given every row, (m, n)."""
    posterior = model.posterior(rows)
    if isinstance(posterior, Tensor):
        near(posterior.sum(1), torch.ones(len(rows), dtype=torch.float64))
        return torch.arange(posterior.shape[1])[:, None], posterior.log().mT
    mean, covariance = posterior
    z = torch.randn(3, mean.shape[1], generator=Generator().manual_seed(8), dtype=torch.float64)
    pairs = list(zip(mean.numpy(), covariance.numpy(), strict=True))
    log_q = [[stats.multivariate_normal(m, c).logpdf(v) for m, c in pairs] for v in z.numpy()]
    return z, torch.tensor(log_q, dtype=torch.float64)


def check_sample(case: ModelCase) -> None:
    """Sampled rows have the model's moments, and their latent values those of the prior."""
    rows, z = case.model.sample(DRAWS, Generator().manual_seed(9))
    again, _ = case.model.sample(DRAWS, Generator().manual_seed(9))
    assert torch.equal(rows, again)
    mean, covariance = case.model.moments()
    assert rows.shape == (DRAWS, len(mean))
    assert_scores(moment_scores(rows, mean, covariance.dense()[0]))
    prior = case.model.prior()
    assert_scores(moment_scores(z.reshape(DRAWS, -1).double(), prior.mean[0], prior.covariance().dense()[0]))


def check_sample_pairs(case: ModelCase) -> None:
    """A sampled row goes with its own latent value: the mean of p(x|z) explains it without bias."""
    rows, z = case.model.sample(DRAWS, Generator().manual_seed(10))
    centre = case.model.emission(z.reshape(DRAWS, -1)).mean
    assert_scores(mean_scores((rows - centre) * centre, torch.zeros(rows.shape[1], dtype=torch.float64)))


def check_affine(case: ModelCase) -> None:
    """A change of units moves the density by its Jacobian, and the moments with the rows; counts refuse."""
    origin = torch.arange(1.0, 1.0 + case.rows.shape[1], dtype=torch.float64)
    if case.scale is None:
        assert_refuses(case.model, origin)
        return
    moved = case.model.affine(origin, case.scale)
    for rows in _tables(case):
        jacobian = (~torch.isnan(rows)).double() @ case.scale.log()
        near(moved.log_prob(origin + case.scale * rows), case.model.log_prob(rows) - jacobian)
    mean, covariance = case.model.moments()
    moved_mean, moved_covariance = moved.moments()
    near(moved_mean, origin + case.scale * mean)
    near(moved_covariance.dense()[0], case.scale[:, None] * covariance.dense()[0] * case.scale)


def check_free(case: ModelCase) -> None:
    """Free parameters go out and in again; parameters are finite; healthy statistics need no repair."""
    near(case.model.with_free_parameters(case.model.free_parameters()), case.model)
    assert all(bool(torch.isfinite(value).all()) for value in case.model.named_parameters().values())
    assert case.model.is_finite()
    statistics = case.model.expect(case.rows, case.weight).statistics
    for scale in (1e-20, 1.0, 1e20):
        repaired, notes = case.model.repair_statistics(statistics * scale)
        assert notes == ()
        near(repaired, statistics * scale)


MODEL_CHECKS = (
    check_likelihood,
    check_nothing_seen,
    check_chunks,
    check_repetition,
    check_solve,
    check_monotone,
    check_fisher,
    check_posterior,
    check_sample,
    check_sample_pairs,
    check_affine,
    check_free,
)
