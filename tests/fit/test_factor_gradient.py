"""Gradient ascent in one pass against Brownlie's (2021) Algorithm 1 to the letter; its gradients against autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from boxloop.distributions import LowRankGaussian
from boxloop.fit import GradientStream

D, K, T, WARMUP, RATE = 23, 3, 300, 30, 0.01


def draws(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def vectors(n: int = T) -> Tensor:
    return 1.0 + torch.randn(n, D, generator=draws(0), dtype=torch.float64).cumsum(1) / 3.0


def stream_of(**options: object) -> GradientStream:
    given = {"dtype": torch.float64, "warmup": WARMUP, "learning_rate": RATE, **options}
    return GradientStream.start(D, K, draws(1), **given)


def first_loadings() -> Tensor:
    q, r = torch.linalg.qr(torch.randn(K, D, generator=draws(1), dtype=torch.float64).mT)
    return q * r.diagonal().sign()


def gradients(f: Tensor, psi: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """Brownlie (2021), eq. 4.23 to 4.26, for one deviation d."""
    c = (f / psi[:, None]).mT
    sigma = torch.linalg.inv(torch.eye(K) + c @ f)
    m = sigma @ c @ d
    h = sigma + torch.outer(m, m)
    by_f = (torch.outer(d, m) - f @ h) / psi[:, None]
    by_psi = 0.5 / psi**2 * (d * d - 2.0 * d * (f @ m) + ((f @ h) * f).sum(1)) - 0.5 / psi
    return by_f, by_psi * psi


def algorithm_1(batches: list[Tensor], variant: str, warmup: int = WARMUP) -> tuple[Tensor, Tensor, Tensor]:
    """Brownlie (2021), Algorithm 1, line by line; a batch climbs by its mean gradient."""
    f, beta, mean = first_loadings(), torch.zeros(D).double(), torch.zeros(D).double()
    for t, theta in enumerate(batches, 1):
        jump = theta.mean(0) - mean
        mean = mean + jump / t
        shrink = 1.0 - 1.0 / t
        d = theta - theta.mean(0) + jump * (shrink if variant == "paper" else shrink**0.5)
        if t > warmup:
            by_f, by_beta = zip(*(gradients(f, beta.exp(), one) for one in d), strict=True)
            f = f + RATE * torch.stack(by_f).mean(0)
            beta = beta + RATE * torch.stack(by_beta).mean(0)
    return mean, f, beta.exp()


def close(stream: GradientStream, expected: tuple[Tensor, Tensor, Tensor], tol: float = 1e-10) -> None:
    model = stream.model()
    for found, right in zip((model.mean, model.loadings, model.noise), expected, strict=True):
        torch.testing.assert_close(found, right, rtol=tol, atol=tol)


def test_closed_form_gradients_are_those_of_the_log_density() -> None:
    f = first_loadings().requires_grad_()
    beta = torch.linspace(-1.0, 1.0, D, dtype=torch.float64).requires_grad_()
    d = vectors()[3]
    LowRankGaussian(torch.zeros(D).double(), f, beta.exp()).log_prob(d[None]).sum().backward()
    by_f, by_beta = gradients(f.detach(), beta.detach().exp(), d)
    torch.testing.assert_close(by_f, f.grad, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(by_beta, beta.grad, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("variant", ["paper", "exact"])
@pytest.mark.parametrize("n", [WARMUP, WARMUP + 1, WARMUP + 2, T])
def test_the_stream_is_algorithm_1(variant: str, n: int) -> None:
    stream = stream_of(variant=variant)
    for theta in vectors()[:n]:
        stream.observe(theta)
    close(stream, algorithm_1(list(vectors()[:n, None]), variant))


def test_batches_climb_by_their_mean_gradient() -> None:
    sizes = [4] * 40 + [1, 1, 6] * 10
    batches = list(vectors(n=sum(sizes)).split(sizes))
    stream = stream_of()
    for batch in batches:
        stream.observe(batch)
    close(stream, algorithm_1(batches, "exact"))


@pytest.mark.parametrize("tile", [1, 7, D, 1000])
def test_tiles_do_not_matter(tile: int) -> None:
    stream = stream_of(tile=tile)
    for theta in vectors():
        stream.observe(theta)
    close(stream, algorithm_1(list(vectors()[:, None]), "exact"))


@pytest.mark.parametrize("at", [10, WARMUP, WARMUP + 1, 100])
def test_a_restored_stream_continues_bit_for_bit(at: int) -> None:
    stream = stream_of(dtype=torch.float32)
    for theta in vectors()[:at]:
        stream.observe(theta)
    other = GradientStream.restore(stream.state())
    for theta in vectors()[at:]:
        stream.observe(theta)
        other.observe(theta)
        if other.count % 40 == 0:
            other.model()
    pairs = zip(stream.state().leaves(), other.state().leaves(), strict=True)
    assert all(torch.equal(a, b) for (_, a), (_, b) in pairs)
    assert stream.count == other.count == T


@pytest.mark.parametrize("values", [torch.zeros(D + 1), torch.full((D,), torch.nan), torch.zeros(D).long()])
def test_a_bad_observation_is_refused_and_nothing_changes(values: Tensor) -> None:
    stream, other = stream_of(), stream_of()
    for theta in vectors()[:60]:
        stream.observe(theta)
        other.observe(theta)
    with pytest.raises(ValueError):
        stream.observe(values)
    pairs = zip(stream.state().leaves(), other.state().leaves(), strict=True)
    assert all(torch.equal(a, b) for (_, a), (_, b) in pairs)


def test_divergence_is_named() -> None:
    stream = stream_of(learning_rate=50.0, dtype=torch.float32)

    def all_of_them() -> None:
        for theta in vectors():
            stream.observe(100.0 * theta)

    with pytest.raises(ValueError, match="learning_rate"):
        all_of_them()
    with pytest.raises(RuntimeError, match="interrupted"):
        stream.model()


@pytest.mark.parametrize("options", [{"learning_rate": 0.0}, {"warmup": 0}, {"variant": "other"}])
def test_bad_settings_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        stream_of(**options)
    with pytest.raises(ValueError, match="rank"):
        GradientStream.start(D, D + 1, draws(0))
