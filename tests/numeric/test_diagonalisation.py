"""Axes that make all slices of a tensor diagonal."""

from __future__ import annotations

import numpy as np
import pytest

from boxloop.numeric import diagonalise_by_powers, diagonalise_jointly, diagonalise_widest_gap, generator

EVERY = pytest.mark.parametrize(
    "method", [diagonalise_jointly, diagonalise_widest_gap, diagonalise_by_powers]
)


def tensor(k: int, seed: int, noise: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    axes = np.linalg.qr(rng.normal(size=(k, k)))[0]
    sizes = rng.uniform(1.0, 3.0, size=k)
    found = np.einsum("h,ah,bh,ch->abc", sizes, axes, axes, axes)
    error = noise * rng.normal(size=(k, k, k))
    places = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    return found + sum(error.transpose(order) for order in places) / 6.0, axes


def distance(found: np.ndarray, axes: np.ndarray) -> float:
    """One less the smallest of the largest cosines: 0 when the axes are the same but for order and sign."""
    return float(1.0 - np.abs(found.T @ axes).max(1).min())


@EVERY
@pytest.mark.parametrize("k", [1, 2, 5, 12])
def test_axes_of_an_exact_tensor(method, k):
    given, axes = tensor(k, k)
    found = method(given, generator(0))
    np.testing.assert_allclose(found.T @ found, np.eye(k), atol=1e-12)
    assert distance(found, axes) < 1e-12


@EVERY
def test_axes_of_a_noisy_tensor(method):
    given, axes = tensor(5, 0, noise=0.02)
    assert distance(method(given, generator(0)), axes) < 0.02


def test_all_slices_together_are_better_than_one():
    """Medians over 60 noisy tensors, seeds fixed: 6e-4 beside 2e-2 for one slice and 8e-4 for power iterations."""
    losses = {diagonalise_jointly: [], diagonalise_widest_gap: [], diagonalise_by_powers: []}
    for seed in range(60):
        given, axes = tensor(8, seed, noise=0.05)
        for method, found in losses.items():
            found.append(distance(method(given, generator(seed)), axes))
    medians = {method: np.median(found) for method, found in losses.items()}
    assert medians[diagonalise_jointly] < 0.8 * medians[diagonalise_widest_gap]
    assert medians[diagonalise_jointly] <= 1.05 * medians[diagonalise_by_powers]


def test_power_iterations_take_the_best_of_their_starts():
    """Medians over 60 noisy tensors, seeds fixed: 1.15 of those of all slices together; the worst of them has 1.5."""
    losses = {diagonalise_jointly: [], diagonalise_by_powers: []}
    for seed in range(60):
        given, axes = tensor(8, seed, noise=0.2)
        for method, found in losses.items():
            found.append(distance(method(given, generator(seed)), axes))
    assert np.median(losses[diagonalise_by_powers]) < 1.3 * np.median(losses[diagonalise_jointly])


def test_a_joint_turn_is_a_minimum():
    given, _ = tensor(4, 1, noise=0.1)
    axes = diagonalise_jointly(given, generator(0))

    def off(turned: np.ndarray) -> float:
        slices = np.einsum("abc,ag,bh->cgh", given, turned, turned)
        return float((slices**2).sum() - (np.diagonal(slices, axis1=1, axis2=2) ** 2).sum())

    best = off(axes)
    for p in range(4):
        for q in range(p):
            for angle in (-1e-3, 1e-3, 0.1):
                turn = np.eye(4)
                turn[[p, p, q, q], [p, q, p, q]] = np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)
                assert off(axes @ turn) > best
