"""The one-pass stream against document 004's Algorithm 2 to the letter, and against plain averages then solve."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from boxloop.average import Power
from boxloop.estimate.stream import FactorStream
from boxloop.models import FactorModel

D, K, T, WARMUP = 37, 3, 300, 40


def draws(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def vectors(n: int = T, seed: int = 0) -> Tensor:
    """Rows of a factor model whose columns differ in place and scale."""
    stream = draws(seed)
    scale = torch.logspace(-1, 1, D, dtype=torch.float64)
    loadings = torch.randn(D, K, generator=stream, dtype=torch.float64)
    z = torch.randn(n, K, generator=stream, dtype=torch.float64)
    noise = torch.randn(n, D, generator=stream, dtype=torch.float64)
    return scale * (2.0 + z @ loadings.mT + noise)


def stream_of(seed: int = 1, **options: object) -> FactorStream:
    return FactorStream.start(D, K, draws(seed), **{"dtype": torch.float64, "warmup": WARMUP, **options})


def first_loadings(seed: int = 1) -> Tensor:
    """The orthonormal start: Q of a QR decomposition, signs as the Cholesky factor gives them."""
    normals = torch.randn(K, D, generator=draws(seed), dtype=torch.float64).mT
    q, r = torch.linalg.qr(normals)
    return q * r.diagonal().sign()


def algorithm_2(rows: Tensor, loadings: Tensor, warmup: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Document 004, Algorithm 2, line by line; F and psi held during the warm-up of section 5.1."""
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
    batches: list[Tensor], loadings: Tensor, warmup: int, schedule: Power, expand: bool
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Running means of the statistics, then the closed-form solve; the start counts as ``warmup`` observations."""
    mean, square = torch.zeros(D).double(), torch.zeros(D).double()
    cross, latent, f, psi = torch.empty(0), torch.eye(K).double(), torch.empty(0), torch.empty(0)
    for t, x in enumerate(batches, 1):
        gamma = schedule(t)
        jump = x.mean(0) - mean
        mean = mean + gamma * jump
        d = x - x.mean(0) + (1.0 - gamma) ** 0.5 * jump
        if t > warmup:
            sigma = torch.linalg.inv(torch.eye(K) + f.mT @ (f / psi[:, None]))
            m = d @ (f / psi[:, None]) @ sigma
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
        yield mean, f, psi


def close(model: FactorModel, expected: tuple[Tensor, Tensor, Tensor], tol: float) -> None:
    for found, right in zip((model.mean, model.loadings, model.noise), expected, strict=True):
        torch.testing.assert_close(found, right, rtol=tol, atol=tol * float(right.abs().max()))


def same(a: FactorStream, b: FactorStream) -> bool:
    left, right = a.state(), b.state()
    return left.count == right.count and all(
        torch.equal(x, y) for (_, x), (_, y) in zip(left.leaves(), right.leaves(), strict=True)
    )


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


@pytest.mark.parametrize("variant", ["exact", "paper"])
def test_held_noise_changes_only_the_noise_that_posteriors_see(variant: str) -> None:
    """The held recursion, written out: psi of the E step is the solve of the last refresh."""
    refresh, gap = 4, None
    stream = stream_of(variant=variant, refresh=refresh, expand=False)
    mean, square = torch.zeros(D).double(), torch.zeros(D).double()
    start = first_loadings()
    cross, latent = torch.zeros(D, K).double(), torch.zeros(K, K).double()
    f, psi, solved = start, torch.ones(D).double(), torch.ones(D).double()
    for t, theta in enumerate(vectors(), 1):
        gamma = 1.0 / t
        gap = theta - mean
        mean = mean + gamma * gap
        d = gap * ((1 - gamma) ** 0.5 if variant == "exact" else 1 - gamma)
        warm = t <= WARMUP
        if not (warm and variant == "exact"):
            sigma = torch.linalg.inv(torch.eye(K) + f.mT @ (f / psi[:, None]))
            m = sigma @ f.mT @ (d / psi)
            fresh = torch.outer(m, m) + (sigma if variant == "exact" else 0.0)
            latent = (1 - gamma) * latent + gamma * fresh
            cross = (1 - gamma) * cross + gamma * torch.outer(d, m)
        square = (1 - gamma) * square + gamma * d.square()
        if variant == "exact" and t == WARMUP:
            cross, latent = square.sqrt()[:, None] * start, torch.eye(K).double()
            f, psi = cross, square - cross.square().sum(1)
        if not warm:
            moment = latent if variant == "exact" else latent + sigma
            f = cross @ torch.linalg.inv(moment)
            solved = square - (f * cross).sum(1)
            if (t - WARMUP - 1) % refresh == 0:
                psi = solved
        stream.observe(theta)
        if t > WARMUP:
            close(stream.model(), (mean, f, solved), 1e-9)


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
    assert saved.count == at, "a saved state does not follow the stream"


def test_looking_at_the_model_does_not_touch_the_stream() -> None:
    quiet, watched = stream_of(), stream_of()
    for theta in vectors(n=90):
        quiet.observe(theta)
        watched.observe(theta)
        if watched.count > 1:
            watched.model()
    assert same(quiet, watched)


@pytest.mark.parametrize("refresh", [1, 5])
@pytest.mark.parametrize("variant", ["exact", "paper"])
@pytest.mark.parametrize("tile", [1, 5, 16, D, 1000])
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


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (torch.zeros(D + 1), "shape"),
        (torch.zeros(2, D - 1), "shape"),
        (torch.zeros(1, 1, D), "shape"),
        (torch.zeros(0, D), "shape"),
        (torch.tensor(1.0), "shape"),
        (torch.zeros(D, dtype=torch.int64), "real numbers"),
        (torch.zeros(D).index_fill(0, torch.tensor(4), torch.nan), "entry 4 .* nan"),
        (torch.zeros(3, D).index_fill(1, torch.tensor(7), -torch.inf), "entry 7 .* -inf"),
    ],
)
def test_a_bad_observation_is_refused_and_nothing_changes(values: Tensor, says: str) -> None:
    stream, other = stream_of(), stream_of()
    for theta in vectors(n=60):
        stream.observe(theta)
        other.observe(theta)
    with pytest.raises(ValueError, match=says):
        stream.observe(values)
    assert same(stream, other)


def test_squares_that_overflow_are_refused() -> None:
    stream = stream_of(dtype=torch.float32)
    with pytest.raises(ValueError, match="overflow"):
        stream.observe(torch.full((D,), 1e30))
    assert stream.count == 0


def test_an_interrupted_observation_is_not_built_upon(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = stream_of()
    for theta in vectors(n=60):
        stream.observe(theta)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("boxloop.estimate.stream.advance", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stream.observe(vectors()[0])
    for use in (stream.model, stream.state, lambda: stream.observe(vectors()[0])):
        with pytest.raises(RuntimeError, match="torn"):
            use()


def test_constant_columns_and_a_late_start_stay_finite() -> None:
    rows = vectors()
    rows[:, 3] = 5.0
    rows[:150, 8] = -1.0
    stream = stream_of(dtype=torch.float32)
    for theta in rows:
        stream.observe(theta)
    model = stream.model()
    assert model.is_finite()
    assert bool((model.noise > 0.0).all())
    assert float(model.loadings[3].abs().max()) == 0.0


def test_weights_that_require_gradients_are_read_only() -> None:
    theta = vectors()[0].requires_grad_()
    stream = stream_of()
    stream.observe(theta)
    assert not stream.state().mean.requires_grad


@pytest.mark.parametrize(
    "options",
    [
        {"variant": "other"},
        {"warmup": 1},
        {"refresh": 0},
        {"floor": 1.0},
        {"dtype": torch.float16},
        {"variant": "paper", "expand": True},
    ],
)
def test_bad_settings_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        stream_of(**options)
    for rank in (0, D + 1):
        with pytest.raises(ValueError, match="rank"):
            FactorStream.start(D, rank, draws(0))


def test_a_model_needs_two_observations() -> None:
    stream = stream_of()
    stream.observe(vectors()[0])
    with pytest.raises(ValueError, match="two observations"):
        stream.model()


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
