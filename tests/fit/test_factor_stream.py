"""The one-pass stream against Brownlie's (2021) Algorithm 2 to the letter, and against plain averages then solve."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from boxloop.average import Power
from boxloop.fit import FactorStream, StreamSettings, StreamState
from boxloop.persist import load_tree, save_tree
from fit.factor_stream_cases import WARMUP, D, K, T, close, first_loadings, same, stream_of, vectors


def algorithm_2(rows: Tensor, loadings: Tensor, warmup: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Brownlie (2021), Algorithm 2, line by line; F and psi held during the warm-up of section 5.1."""
    f, psi = loadings, torch.ones(D, dtype=torch.float64)
    mean, a, b, d2 = torch.zeros(D).double(), torch.zeros(D, K).double(), torch.zeros(K, K).double(), 0.0
    for t, theta in enumerate(rows, 1):
        mean = mean + (theta - mean) / t
        d = theta - mean
        c = (f / psi[:, None]).mT
        sigma = torch.linalg.inv(torch.eye(K) + c @ f)
        m = sigma @ c @ d
        b = b + (torch.outer(m, m) - b) / t
        h = sigma + b
        a = a + (torch.outer(d, m) - a) / t
        d2 = d2 + (d.square() - d2) / t
        if t > warmup:
            f = a @ torch.linalg.inv(h)
            psi = d2 + ((f @ h) * f - 2.0 * f * a).sum(1)
        yield mean, f, psi


def averages_then_solve(
    batches: list[Tensor],
    loadings: Tensor,
    warmup: int,
    schedule: Power,
    expand: bool,
    passes: Container[int] = range(10_000),
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Running means of the statistics, then the closed-form solve; the start counts as ``warmup`` observations.

    E steps take the psi of the last count in ``passes``.
    """
    mean, square = torch.zeros(D).double(), torch.zeros(D).double()
    cross, latent, f, psi = torch.empty(0), torch.eye(K).double(), torch.empty(0), torch.empty(0)
    seen = psi
    for t, x in enumerate(batches, 1):
        gamma = schedule(t)
        jump = x.mean(0) - mean
        mean = mean + gamma * jump
        d = x - x.mean(0) + (1.0 - gamma) ** 0.5 * jump
        if t > warmup:
            sigma = torch.linalg.inv(torch.eye(K) + f.mT @ (f / seen[:, None]))
            m = d @ (f / seen[:, None]) @ sigma
            cross = (1 - gamma) * cross + gamma * d.mT @ m / len(x)
            latent = (1 - gamma) * latent + gamma * (sigma + m.mT @ m / len(x))
        square = (1 - gamma) * square + gamma * d.square().mean(0)
        if t == warmup:
            cross = square.sqrt()[:, None] * loadings
        if t >= warmup:
            f = cross @ torch.linalg.inv(latent)
            psi = square - 2 * (f * cross).sum(1) + ((f @ latent) * f).sum(1)
        if expand and t > warmup:
            f = cross = cross @ torch.linalg.inv(torch.linalg.cholesky(latent)).mT
            latent = torch.eye(K).double()
        if t <= warmup or t in passes:
            seen = psi
        yield mean, f, psi


def test_the_start_is_the_qr_factor() -> None:
    stream = stream_of(variant="paper")
    stream.observe(torch.ones(D))
    stream.observe(torch.zeros(D))
    torch.testing.assert_close(stream.model().loadings, first_loadings(), rtol=1e-12, atol=1e-12)


def test_paper_variant_is_algorithm_2_to_the_letter() -> None:
    stream = stream_of(variant="paper")
    for t, (theta, expected) in enumerate(
        zip(vectors(), algorithm_2(vectors(), first_loadings(), WARMUP), strict=True)
    ):
        stream.observe(theta)
        if t >= 1:
            close(stream.model(), expected, 1e-10)


@pytest.mark.parametrize("expand", [False, True])
@pytest.mark.parametrize("exponent", [1.0, 0.7])
def test_exact_variant_is_averages_then_solve(expand: bool, exponent: float) -> None:
    schedule = Power(exponent=exponent)
    stream = stream_of(expand=expand, schedule=schedule)
    batches = list(vectors()[:, None])
    reference = averages_then_solve(batches, first_loadings(), WARMUP, schedule, expand)
    for t, (theta, expected) in enumerate(zip(vectors(), reference, strict=True), 1):
        stream.observe(theta)
        if t >= WARMUP:
            close(stream.model(), expected, 1e-9)


@pytest.mark.parametrize("expand", [False, True])
def test_mini_batches_are_averages_then_solve(expand: bool) -> None:
    schedule = Power(exponent=0.8)
    batches = list(vectors(n=7 * 80).split(7))
    stream = stream_of(expand=expand, schedule=schedule, warmup=10)
    reference = averages_then_solve(batches, first_loadings(), 10, schedule, expand)
    for t, (batch, expected) in enumerate(zip(batches, reference, strict=True), 1):
        stream.observe(batch)
        if t >= 10:
            close(stream.model(), expected, 1e-9)


def test_batch_sizes_may_change_between_observations() -> None:
    sizes = [1, 5, 5, 1, 2] * 12
    batches = list(vectors(n=sum(sizes)).split(sizes))
    stream = stream_of(warmup=10)
    reference = averages_then_solve(batches, first_loadings(), 10, Power(exponent=1.0), True)
    for batch in batches:
        stream.observe(batch)
    close(stream.model(), list(reference)[-1], 1e-9)


def test_square_is_the_variance_of_all_vectors_seen() -> None:
    stream = stream_of()
    for theta in vectors():
        stream.observe(theta)
    model, variance = stream.model(), vectors().var(0, correction=0)
    torch.testing.assert_close(stream.state().square, variance, rtol=1e-12, atol=0.0)
    torch.testing.assert_close(model.mean, vectors().mean(0), rtol=1e-12, atol=0.0)


def ends(refresh: int, warmup: int) -> set[int]:
    """Counts after which a pass is made: no more than a quarter of the vectors seen share one, by powers of two."""
    found, t = set(), warmup
    while t < T:
        t += 1 if t == warmup or t < 8 else min(refresh, 2 ** int(math.log2(t / 4)))
        found.add(t)
    return found


@pytest.mark.parametrize("expand", [False, True])
@pytest.mark.parametrize(("refresh", "warmup"), [(4, WARMUP), (16, 3), (5, 12), (32, WARMUP)])
def test_vectors_that_share_a_pass_share_only_the_noise_that_posteriors_see(
    refresh: int, warmup: int, expand: bool
) -> None:
    """The recursion, written out: psi of the E step is the solve before the vectors that share a pass."""
    schedule = Power(exponent=0.9)
    stream = stream_of(refresh=refresh, warmup=warmup, expand=expand, schedule=schedule)
    rows, passes = vectors(n=200), ends(refresh, warmup)
    reference = averages_then_solve(list(rows[:, None]), first_loadings(), warmup, schedule, expand, passes)
    for t, (theta, expected) in enumerate(zip(rows, reference, strict=True), 1):
        stream.observe(theta)
        assert stream.count == t
        if t >= warmup and t % 5 == 0:  # between passes, and after some
            close(stream.model(), expected, 1e-8)
            assert (len(stream.state().gathered) == 0) == (t == warmup or t in passes)


def test_a_mini_batch_among_vectors_that_wait() -> None:
    """It has a pass of its own, and those that waited one before it."""
    sizes = [*[1] * 44, 4, *[1] * 6, 4, 4, *[1] * 5]
    batches = list(vectors(n=sum(sizes)).split(sizes))
    stream, schedule = stream_of(refresh=4), Power(exponent=1.0)
    passes = {41, 44, 45, 49, 51, 52, 53, 57}
    reference = averages_then_solve(batches, first_loadings(), WARMUP, schedule, True, passes)
    for batch in batches:
        stream.observe(batch)
    close(stream.model(), list(reference)[-1], 1e-9)
    assert stream.count == len(sizes)


@pytest.mark.parametrize("options", [{}, {"refresh": 4}, {"variant": "paper"}, {"batch": 3}])
@pytest.mark.parametrize("at", [15, WARMUP, WARMUP + 1, 90])
def test_a_restored_stream_continues_bit_for_bit(options: dict[str, object], at: int) -> None:
    batch = int(options.get("batch", 1))
    stream = stream_of(dtype=torch.float32, **{k: v for k, v in options.items() if k != "batch"})
    rows = vectors(n=batch * 120).split(batch)
    for x in rows[:at]:
        stream.observe(x)
    saved = stream.state()
    for x in rows[at:]:
        stream.observe(x)
    other = FactorStream.restore(saved)
    for x in rows[at:]:
        other.observe(x)
    assert same(stream, other)
    assert saved.count + len(saved.gathered) == at, "a saved state does not follow the stream"


@pytest.mark.parametrize("options", [{}, {"variant": "paper"}, {"refresh": 4, "warmup": 10}])
def test_a_stream_read_from_a_file_continues_bit_for_bit(options: dict[str, object], tmp_path: Path) -> None:
    stream = stream_of(**options)
    for x in vectors(n=29):
        stream.observe(x)
    save_tree(tmp_path / "stream.boxloop", stream.state())
    classes = {c.__name__: c for c in (StreamState, StreamSettings, Power)}
    other = FactorStream.restore(load_tree(tmp_path / "stream.boxloop", classes).tree)
    for x in vectors(n=60)[29:]:
        stream.observe(x)
        other.observe(x)
    assert same(stream, other)


@pytest.mark.parametrize("refresh", [1, 8])
def test_looking_at_the_model_does_not_touch_the_stream(refresh: int) -> None:
    quiet, watched = (stream_of(refresh=refresh) for _ in range(2))
    for theta in vectors(n=90):
        quiet.observe(theta)
        watched.observe(theta)
        if watched.count > 1:
            watched.model()
    assert same(quiet, watched)


@pytest.mark.parametrize(("variant", "refresh"), [("exact", 1), ("exact", 5), ("paper", 1)])
@pytest.mark.parametrize("tile", [1, 5, 1000])
def test_tiles_do_not_matter(tile: int, variant: str, refresh: int) -> None:
    whole, tiled = (stream_of(variant=variant, refresh=refresh, tile=n) for n in (D, tile))
    for theta in vectors():
        whole.observe(theta)
        tiled.observe(theta)
    model = whole.model()
    close(tiled.model(), (model.mean, model.loadings, model.noise), 1e-10)


def test_float32_follows_float64() -> None:
    low, high = (stream_of(dtype=dtype) for dtype in (torch.float32, torch.float64))
    for theta in vectors():
        low.observe(theta)
        high.observe(theta)
    found, right = (s.model().moments()[1].dense()[0].double() for s in (low, high))
    # The two starts differ by the rounding of the normals drawn, so only the covariances are compared, loosely.
    torch.testing.assert_close(found.diagonal(), right.diagonal(), rtol=1e-4, atol=0.0)


def test_the_covariance_is_found() -> None:
    """T = 4000 vectors: the error is within twice that of the sample covariance (fixed seeds, no false alarms)."""
    rows = vectors(n=4000, seed=5)
    truth = vectors(n=200_000, seed=5).T.cov()
    stream = stream_of(schedule=Power(exponent=0.9))
    for theta in rows:
        stream.observe(theta)
    scale = truth.diagonal().sqrt()
    errors = [
        float((c - truth).div(scale).div(scale[:, None]).norm())
        for c in (stream.model().moments()[1].dense()[0], rows.T.cov())
    ]
    assert errors[0] < 2.0 * errors[1]
