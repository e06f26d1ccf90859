"""Trajectories and naive followers: every method once more, dense and slow, for the tests of this folder."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from boxloop.average import Power
from boxloop.fit import FactorStream
from boxloop.networks import (
    MAX_STANDARDISED,
    METHOD_NAMES,
    SWA,
    SWAG,
    FactorEM,
    FactorGradient,
    FullCovariance,
    Method,
    RunningEstimate,
    WeightDistribution,
    WindowAverage,
    pick_method,
)

SIZE, RANK = 12, 3
CPU = torch.device("cpu")
METHODS: dict[str, Method] = {word: pick_method(word, RANK, SIZE) for word in METHOD_NAMES} | {
    "window full": WindowAverage(2, FullCovariance()),
    "window factor": WindowAverage(3, FactorEM(RANK)),
    "window swag": WindowAverage(None, SWAG(RANK), n_rows=40, batch_size=10),
    "factor paper": FactorEM(RANK, warmup=4, variant="paper"),
    "factor lazy": FactorEM(RANK, refresh=4),
    "factor forgetting": FactorEM(RANK, schedule=Power(1.0, offset=1.0, scale=2.0)),
}


def trajectory(steps: int, seed: int = 0, size: int = SIZE, dtype: torch.dtype = torch.float64) -> Tensor:
    """Autocorrelated vectors that drift and spread by a thousandth of their size, (steps, size)."""
    draws = torch.Generator().manual_seed(seed)
    noise = torch.randn(steps, size, generator=draws, dtype=torch.float64)
    shared = torch.randn(steps, 2, generator=draws, dtype=torch.float64)
    mixing = torch.randn(2, size, generator=draws, dtype=torch.float64)
    moves = 1e-3 * (noise + 2.0 * shared @ mixing)
    rows = [torch.randn(size, generator=draws, dtype=torch.float64)]
    centre = rows[0]
    for move in moves[1:]:
        rows.append(centre + 0.8 * (rows[-1] - centre) + move)
    return torch.stack(rows).to(dtype)


def followed(method: Method, rows: Tensor, seed: int = 1) -> RunningEstimate:
    """A follower that has seen all rows."""
    draws = torch.Generator().manual_seed(seed)
    follower = method.start(rows.shape[1], draws, rows.dtype, CPU)
    for row in rows:
        follower.observe(row)
    return follower


def reference(method: Method, rows: Tensor, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Mean (D,) and covariance (D, D) of what a method should say of rows (n, D)."""
    match method:
        case SWA():
            return rows.mean(0), torch.zeros(rows.shape[1], rows.shape[1], dtype=rows.dtype)
        case FullCovariance():
            return rows.mean(0), torch.cov(rows.mT)
        case SWAG():
            return swag(rows, method.rank)
        case FactorEM():
            return factor(method, rows, seed)
        case FactorGradient():
            return gradient(method, rows, seed)
        case WindowAverage():
            length = method.window
            means = rows[: len(rows) // length * length].reshape(-1, length, rows.shape[1]).mean(1)
            return reference(method.inner, means, seed)
    raise TypeError(f"no reference for {method}")


def dense(distribution: WeightDistribution) -> Tensor:
    """The covariance of a distribution, (D, D)."""
    return distribution.loadings @ distribution.loadings.mT + distribution.noise.diag()


def swag(rows: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Maddox et al. (2019), as published: running first and second moments, deviations from the running mean."""
    mean, second, deviations = torch.zeros_like(rows[0]), torch.zeros_like(rows[0]), []
    for t, row in enumerate(rows):
        mean = (t * mean + row) / (t + 1)
        second = (t * second + row.square()) / (t + 1)
        deviations = [*deviations, row - mean][-rank:]
    columns = torch.stack(deviations, 1)
    variance = (second - mean.square()).clamp(min=1e-30)
    low_rank = columns @ columns.mT / (2.0 * (columns.shape[1] - 1))
    return mean, 0.5 * variance.diag() + low_rank


def factor(method: FactorEM, rows: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """A factor stream fed by hand; too many directions for the vectors become noise."""
    stream = FactorStream.start(
        rows.shape[1],
        method.rank,
        torch.Generator().manual_seed(seed),
        dtype=rows.dtype,
        schedule=method.schedule,
        warmup=method.warmup,
        variant=method.variant,
        refresh=method.refresh or (1 if method.variant == "paper" else 16),
    )
    for row in rows:
        stream.observe(row)
    if len(rows) <= method.warmup:
        return stream.state().mean, stream.state().square.diag()
    model = stream.model()
    return model.mean, reduced(model.loadings, model.noise, len(rows) - 1)


def reduced(loadings: Tensor, noise: Tensor, rank: int) -> Tensor:
    """The covariance with the ``rank`` longest directions kept, and the variances of all."""
    whole = loadings @ loadings.mT
    left, values, _ = torch.linalg.svd(whole)
    kept = left[:, :rank] * values[:rank] @ left[:, :rank].mT
    return kept + (noise + whole.diagonal() - kept.diagonal()).diag()


def gradient(method: FactorGradient, rows: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Algorithm 1 of Brownlie (2021) line by line, on vectors in units of their deviation."""
    size, warm = rows.shape[1], method.warmup
    if len(rows) <= warm:
        return rows.mean(0), rows.var(0, correction=0).diag()
    draws = torch.randn(method.rank, size, generator=torch.Generator().manual_seed(seed), dtype=rows.dtype)
    loadings = torch.linalg.solve_triangular(torch.linalg.cholesky(draws @ draws.mT), draws, upper=False).mT
    log_noise, scale, due = torch.zeros(size, dtype=rows.dtype), torch.zeros(size, dtype=rows.dtype), warm
    for t in range(warm, len(rows)):
        old, spread = rows[:t].mean(0), rows[: t + 1].std(0, correction=0)
        gap = rows[t] - old
        if t >= due or bool((gap.abs() > MAX_STANDARDISED * scale).any()):
            scale, due = spread, 2 * t
        deviation = math.sqrt(1.0 - 1.0 / (t + 1)) * gap / scale
        noise = log_noise.exp()
        sigma = torch.linalg.inv(torch.eye(method.rank, dtype=rows.dtype) + (loadings.mT / noise) @ loadings)
        score = sigma @ (loadings.mT / noise) @ deviation
        moment = sigma + score.outer(score)
        slope = (deviation.outer(score) - loadings @ moment) / noise[:, None]
        residual = (
            deviation.square()
            - 2.0 * deviation * (loadings @ score)
            + ((loadings @ moment) * loadings).sum(1)
        )
        log_noise = log_noise + method.learning_rate * (0.5 * residual / noise - 0.5)
        loadings = loadings + method.learning_rate * slope
    return rows.mean(0), reduced(
        loadings * scale[:, None], log_noise.exp() * scale.square(), min(method.rank, len(rows) - 1)
    )
