"""The small matrices of a stream: gaps of vectors to one mean, and posteriors of factors in spite of rounding."""

from __future__ import annotations

import numpy as np
import pytest

from boxloop.fit import PassWeights, compute_factor_posterior


def normals(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def straight(values: np.ndarray, steps: list[float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Deviations, mean and mean square of vectors one after another, from 2 and 3."""
    mean, square, deviations = np.full(values.shape[1], 2.0), np.full(values.shape[1], 3.0), []
    for x, step in zip(values, steps, strict=True):
        d = np.sqrt(1.0 - step) * (x - mean)
        mean = mean + step * (x - mean)
        square = (1.0 - step) * square + step * d**2
        deviations.append(d)
    return np.stack(deviations), mean, square


def apply_weights(weights: PassWeights, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    gaps = values - 2.0
    moved, keep = weights.mean_weights @ gaps, 1.0 - weights.mean_weights.sum()
    return (
        weights.deviation_weights @ gaps,
        2.0 + moved,
        keep * 3.0 + weights.mean_weights @ gaps**2 - weights.correction * moved**2,
    )


def test_gaps_tell_vectors_one_after_another() -> None:
    values, steps = normals(6, 4), [0.5, 0.3, 0.9, 0.2, 0.1, 0.4]
    for found, right in zip(
        apply_weights(PassWeights.from_steps(steps), values), straight(values, steps), strict=True
    ):
        np.testing.assert_allclose(found, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shrink", [0.6**0.5, 0.6])
def test_gaps_tell_a_mini_batch(shrink: float) -> None:
    values = normals(5, 4)
    jump = values.mean(0) - 2.0
    deviations = values - values.mean(0) + shrink * jump
    right = deviations, 2.0 + 0.4 * jump, 0.6 * 3.0 + 0.4 * (deviations**2).mean(0)
    for found, expected in zip(
        apply_weights(PassWeights.from_mini_batch(5, 0.4, shrink), values), right, strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_without_rounding_it_is_the_plain_posterior() -> None:
    half = normals(4, 9)
    inner = half @ half.T
    reach, sigma = compute_factor_posterior(inner, 0.0)
    np.testing.assert_allclose(sigma, np.linalg.inv(np.eye(4) + inner), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(reach, sigma, rtol=0.0, atol=0.0)


def test_rounding_is_noise_in_what_was_measured() -> None:
    """The best linear guess of z from v = A z + noise of covariance A + tau² I, and its error."""
    half, rounding = normals(4, 9), 0.01
    inner = half @ half.T
    blur = (rounding * inner.trace()) ** 2 * np.eye(4)
    reach, sigma = compute_factor_posterior(inner, rounding)
    guess = inner @ np.linalg.inv(inner @ inner + inner + blur)
    np.testing.assert_allclose(reach, guess, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(sigma, np.eye(4) - guess @ inner, rtol=1e-10, atol=1e-12)


def test_differences_within_rounding_are_not_followed() -> None:
    inner = np.diag([1e9, -5.0, 1e-3])
    reach, sigma = compute_factor_posterior(inner, 1e-7)
    np.testing.assert_allclose(reach.diagonal(), [1e-9, 0.0, 0.0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(sigma.diagonal()[1:], [1.0, 1.0], rtol=1e-6)
