"""Random effects: the density, its derivatives, the M step, the likelihood by quadrature."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from torch import distributions as distribution

from boxloop.models import (
    EffectSums,
    GroupedRows,
    RandomEffects,
    find_modes,
    flatten,
    group_log_likelihood,
    unflatten,
)
from boxloop.numeric import ConditionError, generator
from models.random_effects_cases import RESPONSES, make_model, make_table

every_kind = pytest.mark.parametrize("kind", RESPONSES)
every_width = pytest.mark.parametrize("q", [1, 2])


def effects(model: RandomEffects, rows: GroupedRows, copies: int, seed: int = 1) -> torch.Tensor:
    return model.draw_latent(rows, copies, generator(seed))


@every_kind
@every_width
def test_the_joint_density_is_that_of_torch(kind: str, q: int) -> None:
    rows, model, m = make_table(kind, q).rows(), make_model(kind, q), 3
    z = effects(model, rows, m)
    found = model.log_joint(rows, z)
    prior = distribution.MultivariateNormal(torch.zeros(q).double(), scale_tril=model.factor).log_prob(z)
    for i in (0, 7, rows.n_groups - 1):
        here = rows.group == i
        for j in range(m):
            place = i * m + j
            level = rows.fixed[here] @ model.coefficients + rows.random[here] @ z[place]
            response = (
                distribution.Bernoulli(logits=level)
                if kind == "bernoulli"
                else distribution.Poisson(level.exp())
            )
            expected = response.log_prob(rows.response[here]).sum() + prior[place]
            torch.testing.assert_close(found[place], expected, rtol=1e-12, atol=1e-12)


@every_kind
@every_width
def test_the_score_in_closed_form_is_that_of_autograd(kind: str, q: int) -> None:
    """The statistics hold A and b with b - A beta the score, and A minus the second derivative."""
    rows, model, m = make_table(kind, q).rows(), make_model(kind, q), 4
    z = effects(model, rows, m)
    found = model.statistics(rows, z)

    def level(coefficients: torch.Tensor) -> torch.Tensor:
        return replace(model, coefficients=coefficients).log_joint(rows, z).sum() / m

    score = torch.autograd.functional.jacobian(level, model.coefficients)
    torch.testing.assert_close(
        found.target - found.curvature @ model.coefficients, score, rtol=1e-10, atol=1e-10
    )
    curvature = torch.autograd.functional.hessian(level, model.coefficients)
    torch.testing.assert_close(found.curvature, -curvature, rtol=1e-10, atol=1e-10)


@every_kind
@every_width
def test_the_covariance_that_solves_is_the_best_one(kind: str, q: int) -> None:
    rows, model = make_table(kind, q).rows(), make_model(kind, q, shared=False)
    z = effects(model, rows, 5)
    solved = model.solve(model.statistics(rows, z))
    free = {"covariance": solved.free_parameters()["covariance"].clone().requires_grad_()}
    there = solved.with_free_parameters({"coefficients": solved.coefficients, **free})
    (slope,) = torch.autograd.grad(there.log_prior(z).sum(), free["covariance"])
    assert float(slope.abs().max()) < 1e-8 * len(z)


@every_kind
@every_width
def test_the_order_of_rows_and_the_names_of_groups_are_irrelevant(kind: str, q: int) -> None:
    table, model = make_table(kind, q), make_model(kind, q)
    rows = table.rows()
    order = torch.randperm(len(table.response), generator=generator(5))
    shuffled = GroupedRows.from_rows(
        table.response[order], table.fixed[order], table.random[order], table.group[order]
    )
    renamed = GroupedRows.from_rows(
        table.response, table.fixed, table.random, rows.n_groups - 1 - table.group
    )
    base = group_log_likelihood(model, rows)
    torch.testing.assert_close(group_log_likelihood(model, shuffled), base, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(group_log_likelihood(model, renamed).flip(0), base, rtol=1e-10, atol=1e-10)


@every_kind
def test_weights_are_repetitions(kind: str) -> None:
    table, model = make_table(kind, 2), make_model(kind, 2)
    times = torch.randint(0, 4, (len(table.response),), generator=generator(6))
    times[:30] = times[:30].clamp(min=1)  # no group without rows
    parts = (table.response, table.fixed, table.random, table.group)
    repeated = GroupedRows.from_rows(*(part.repeat_interleave(times, 0) for part in parts))
    weighted = GroupedRows.from_rows(*parts, weight=times.double())
    z = effects(model, weighted, 3)
    torch.testing.assert_close(
        model.log_joint(weighted, z), model.log_joint(repeated, z), rtol=1e-10, atol=1e-10
    )
    for one, other in zip(model.statistics(weighted, z).leaves(), model.statistics(repeated, z).leaves()):
        torch.testing.assert_close(one[1], other[1], rtol=1e-10, atol=1e-10)


@every_kind
def test_an_offset_is_a_known_part_of_the_predictor(kind: str) -> None:
    table, model = make_table(kind), make_model(kind)
    offset = torch.full((len(table.response),), 0.3).double()
    moved = replace(model, coefficients=model.coefficients + torch.tensor([0.3, 0.0]))
    rows = GroupedRows.from_rows(table.response, table.fixed, table.random, table.group, offset=offset)
    z = effects(model, rows, 2)
    torch.testing.assert_close(
        model.log_joint(rows, z), moved.log_joint(table.rows(), z), rtol=1e-12, atol=1e-12
    )


@every_kind
@every_width
def test_what_is_carried_solves_to_the_same_model(kind: str, q: int) -> None:
    rows, model = make_table(kind, q).rows(), make_model(kind, q)
    z = effects(model, rows, 3) + 0.2
    statistics = model.statistics(rows, z)
    carried, moved = model.change_coordinates(statistics, z)
    one, other = model.solve(statistics), model.solve(carried)
    torch.testing.assert_close(one.coefficients, other.coefficients, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(one.covariance, other.covariance, rtol=1e-10, atol=1e-12)
    plain = replace(model, shared=()).solve(statistics)
    torch.testing.assert_close(
        one.linear_predictor(rows, moved), plain.linear_predictor(rows, z), rtol=1e-10, atol=1e-10
    )


@every_kind
@every_width
def test_following_is_nothing_at_the_origin_and_keeps_the_integral(kind: str, q: int) -> None:
    """The likelihood by quadrature does not depend on how effects follow the parameters, if volumes are counted."""
    rows, model = make_table(kind, q, groups=6, each=4).rows(), make_model(kind, q)
    z = effects(model, rows, 3)
    spread = torch.eye(q).double().expand(rows.n_groups, q, q) * 0.3
    same, volume = model.transport_latent(model, z, spread)
    torch.testing.assert_close(same, z, rtol=1e-12, atol=1e-12)
    assert float(volume.abs().max()) < 1e-12
    other = replace(model, coefficients=model.coefficients + 0.2, factor=1.3 * model.factor)
    _, volume = other.transport_latent(model, z, spread)
    turn = torch.autograd.functional.jacobian(lambda u: other.transport_latent(model, u, spread)[0].sum(0), z)
    dense = turn.transpose(0, 1)  # one q x q matrix for each draw
    torch.testing.assert_close(torch.linalg.slogdet(dense).logabsdet, volume, rtol=1e-10, atol=1e-10)


@every_kind
def test_quadrature_is_the_integral(kind: str) -> None:
    rows, model = make_table(kind, groups=5, each=5).rows(), make_model(kind)
    found = group_log_likelihood(model, rows, 30)
    for i in range(rows.n_groups):
        here = rows.group == i
        alone = GroupedRows.from_rows(
            rows.response[here], rows.fixed[here], rows.random[here], torch.zeros(int(here.sum())).long()
        )

        def density(u: float, alone: GroupedRows = alone) -> float:
            return float(model.log_joint(alone, torch.tensor([[u]]).double()).exp())

        value, _ = quad(density, -9.0, 9.0, epsabs=0.0, epsrel=1e-9, limit=400)
        np.testing.assert_allclose(float(found[i]), np.log(value), rtol=1e-7)


@every_kind
def test_quadrature_in_two_effects_settles_as_nodes_grow(kind: str) -> None:
    rows, model = make_table(kind, 2).rows(), make_model(kind, 2)
    fine = group_log_likelihood(model, rows, 40)
    rough = group_log_likelihood(model, rows, 1)
    np.testing.assert_allclose(group_log_likelihood(model, rows, 20), fine, rtol=1e-7)
    assert 1e-5 < float((rough - fine).abs().max()) < 0.2  # Laplace's approximation is one


@every_kind
@every_width
def test_modes_are_modes(kind: str, q: int) -> None:
    rows, model = make_table(kind, q).rows(), make_model(kind, q)
    found = find_modes(model, rows)
    place = found.place.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model.log_joint(rows, place).sum(), place)
    assert float(slope.abs().max()) < 1e-6
    curve = torch.autograd.functional.hessian(lambda u: model.log_joint(rows, u).sum(), found.place)
    for i in range(0, rows.n_groups, 7):
        covariance = found.factor[i] @ found.factor[i].mT
        torch.testing.assert_close(torch.linalg.inv(-curve[i, :, i]), covariance, rtol=1e-6, atol=1e-9)


def test_free_parameters_go_round() -> None:
    model = make_model("poisson", 2)
    back = model.with_free_parameters(unflatten(flatten(model.free_parameters()), model.free_parameters()))
    torch.testing.assert_close(back.factor, model.factor, rtol=1e-12, atol=1e-12)
    with pytest.raises(ConditionError, match="covariance of effects"):
        model.with_free_parameters(
            {**model.free_parameters(), "covariance": torch.tensor([1.0, 2.0, 1.0]).double()}
        )


def test_a_vanishing_variance_is_held_at_the_floor() -> None:
    model = make_model("bernoulli")
    rows = make_table("bernoulli").rows()
    nothing = torch.zeros(rows.n_groups, 1).double()
    solved = model.solve(model.statistics(rows, nothing))
    assert float(solved.covariance) == pytest.approx(model.floor)


def test_collinear_columns_are_named() -> None:
    eye = torch.eye(1).double()
    sums = EffectSums(
        torch.ones(2, 2).double(), torch.ones(2).double(), torch.zeros(1).double(), eye, eye[0, 0]
    )
    with pytest.raises(ConditionError, match="information of the coefficients"):
        make_model("bernoulli").solve(sums)


def test_groups_are_numbered_without_gaps() -> None:
    one = torch.ones(2, 1)
    with pytest.raises(ValueError, match="group 1 has no rows"):
        GroupedRows.from_rows(torch.zeros(2), one, one, torch.tensor([0, 2]))


def test_quadrature_refuses_many_effects() -> None:
    rows = make_table("bernoulli").rows()
    model = RandomEffects(torch.zeros(2).double(), torch.eye(4).double(), RESPONSES["bernoulli"])
    with pytest.raises(ValueError, match="at most 3 effects"):
        group_log_likelihood(model, rows)
