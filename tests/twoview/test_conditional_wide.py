"""Covariances of many functions, and quantiles from cut points: the cheap way beside the exact one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from boxloop.twoview import conditional as module, principal_directions
from twoview.conditional_cases import POINTS, fitted, rows_of, theta


def many(x: Tensor) -> Tensor:
    """60 functions with a few main directions and noise that depends on x."""
    at = torch.linspace(-2.0, 2.0, 60).double()
    return torch.exp(-(((x - at) / 0.4) ** 2)) * torch.linspace(0.5, 2.0, 60).double() + 0.3 * x


def signed_covariance(conditional: object, function: object) -> np.ndarray:
    """(m, p, p) from the signed weights of rows, written out."""
    x, model = conditional.source.rows[:, :1], conditional.model
    u, v = model.left(x), model.right(POINTS)
    weight = (1.0 + (v * model.canonical.correlation) @ u.T) / len(x)
    value = function(x)
    mean = weight @ value
    return (torch.einsum("mn,np,nq->mpq", weight, value, value) - mean[:, :, None] * mean[:, None]).numpy()


def test_dense_directions_are_those_of_signed_weights() -> None:
    conditional = fitted(rows_of(400, 40), (5, 5, 4))
    matrix = signed_covariance(conditional, many)
    values, _ = np.linalg.eigh(matrix)
    assert values[:, 0].min() < -1e-4 * values.max()  # indefinite indeed
    found = conditional.expect(many, POINTS)
    low_rank = found.covariance(4)
    main = found.ambiguity()
    np.testing.assert_allclose(main.deviation, np.sqrt(values[:, -1]), rtol=1e-9)
    np.testing.assert_allclose(low_rank.diagonal().numpy(), found.deviation**2, rtol=1e-9, atol=1e-12)
    assert (low_rank.noise >= 0.0).all()
    along = np.einsum("mp,mpq,mq->m", main.direction, matrix, main.direction)
    np.testing.assert_allclose(along, values[:, -1], rtol=1e-9)
    np.testing.assert_allclose(
        found.deviation, np.sqrt(np.clip(np.einsum("mpp->mp", matrix), 0, None)), atol=1e-7
    )


def test_searched_directions_are_the_dense_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    conditional = fitted(rows_of(400, 40), (5, 5, 4))
    exact = np.linalg.eigvalsh(signed_covariance(conditional, many))[:, ::-1][:, :3]
    given = conditional.condition_on(POINTS)
    dense = principal_directions(conditional, many, given, 3)
    monkeypatch.setattr(module, "DENSE", 10)
    values, vectors = principal_directions(conditional, many, given, 3)
    np.testing.assert_allclose(values.numpy(), exact, rtol=1e-7)
    overlap = (vectors * dense[1]).sum(1).abs().numpy()
    np.testing.assert_allclose(overlap, 1.0, atol=1e-7)


def test_search_that_does_not_settle_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    conditional = fitted(rows_of(400, 40), (5, 5, 4))
    for name, value in {"DENSE": 10, "KRYLOV_BLOCKS": 1, "RESTARTS": 1, "OVERSAMPLING": 0}.items():
        monkeypatch.setattr(module, name, value)
    with pytest.warns(UserWarning, match="nearly equal"):
        principal_directions(conditional, many, conditional.condition_on(POINTS), 2)


def test_cut_points_are_near_the_held_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    conditional = fitted(rows_of(20_000, 41), (4, 4, 4))
    found = conditional.expect(theta, POINTS)
    exact = found.quantile(0.7)
    monkeypatch.setattr(module, "HELD_VALUES", 0)
    near = found.quantile(0.7)
    apart = np.abs(near.value - exact.value) / theta(conditional.source.rows[:, :1]).std(0).numpy()
    assert apart.max() < 0.01
    np.testing.assert_allclose(near.standard_error, exact.standard_error, rtol=0.3)


def test_cut_points_of_few_values_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    conditional = fitted(rows_of(2000, 42), (4, 4, 4))
    found = conditional.expect(lambda x: x.round(), POINTS)
    exact = found.quantile(0.35)
    monkeypatch.setattr(module, "HELD_VALUES", 0)
    near = found.quantile(0.35)
    np.testing.assert_allclose(near.value, exact.value, rtol=1e-12)
    np.testing.assert_allclose(near.standard_error, exact.standard_error, rtol=1e-12)


def test_quantiles_rise() -> None:
    found = fitted(rows_of(150, 43), (6, 6, 6)).expect(theta, POINTS * 2.0)
    assert found.negative_mass.max() > 0.01
    values = np.stack([found.quantile(q).value for q in (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98)])
    assert (np.diff(values, axis=0) >= 0.0).all()


def test_negative_mass_is_that_of_the_weights() -> None:
    conditional = fitted(rows_of(150, 43), (6, 6, 6))
    x = conditional.source.rows[:, :1]
    model = conditional.model
    weight = 1.0 + (model.right(POINTS) * model.canonical.correlation) @ model.left(x).T
    found = conditional.expect(None, POINTS).negative_mass
    np.testing.assert_allclose(found, (-weight.clamp(max=0.0)).mean(1).numpy(), rtol=1e-10)
    left_out = fitted(rows_of(150, 43), (6, 6, 3))
    model = left_out.model
    weight = 1.0 + (model.right(POINTS) * model.canonical.correlation) @ model.left(x).T
    found = left_out.expect(None, POINTS).negative_mass
    np.testing.assert_allclose(found, (-weight.clamp(max=0.0)).mean(1).numpy(), rtol=1e-10)
