"""Labels of components and axes of factors: relabelling, alignment, and numbers that need neither."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from boxloop.distributions import DiagonalGaussian, MixturePrior
from boxloop.numeric import generator, normal, varimax
from boxloop.sample import (
    MixtureRows,
    Relabelling,
    align_loadings,
    assign_labels,
    compute_similarity_matrix,
    count_occupied_components,
    relabel_draws,
    sweep_rows,
)
from contract.scores import assert_scores

EXACT = {"rtol": 1e-10, "atol": 1e-10}


def shuffled(c: int, n: int, k: int, seed: int = 0) -> Tensor:
    """A random order of components for every draw, (c, n, k)."""
    return torch.rand(c, n, k, generator=generator(seed)).argsort(2)


def drawn_shares(c: int = 3, n: int = 40, k: int = 4, r: int = 60) -> Tensor:
    """Probabilities of components that all draws agree on but for noise, (c, n, k, r)."""
    stream = generator(1)
    common = 4.0 * torch.nn.functional.one_hot(torch.arange(r) % k, k).double().mT
    return (common + 0.7 * normal((c, n, k, r), stream)).softmax(2)


def test_planted_orders_are_found() -> None:
    share = drawn_shares()
    order = shuffled(3, 40, 4)
    mixed = share.gather(2, order[..., None].expand_as(share))
    found = relabel_draws(mixed, pivot=0)
    assert found.converged
    back = found.apply(mixed)
    assert_close(back, share.gather(2, order[:1, :1, :, None].expand_as(share)))  # the pivot's own order
    assert found.has_switched
    assert found.switched_share > 0.8
    assert "mix components" in str(found)


def test_orders_that_never_change_are_said_so() -> None:
    found = relabel_draws(drawn_shares(), pivot=5)
    assert not found.has_switched
    assert int(found.switches.sum()) == 0
    assert "same order in all draws" in str(found)


def test_changes_within_chains_are_counted() -> None:
    order = torch.tensor([[[0, 1], [0, 1], [1, 0], [0, 1]], [[1, 0]] * 4])
    found = Relabelling(order, True)
    assert found.switches.tolist() == [2, 0]
    assert found.switched_share == pytest.approx(3 / 8)


def test_values_of_any_shape_are_reordered() -> None:
    order = shuffled(2, 5, 3)
    found = Relabelling(order, True)
    values = normal((2, 5, 3, 2, 2), generator(2))
    back = found.apply(values)
    for c in range(2):
        for n in range(5):
            assert_close(back[c, n], values[c, n, order[c, n]])


def test_assignment_is_the_best_of_all() -> None:
    score = normal((50, 4, 4), generator(3))
    found = assign_labels(score)
    for one, order in zip(score, found, strict=True):
        best = max(sum(float(one[p[j], j]) for j in range(4)) for p in permutations(range(4)))
        assert sum(float(one[order[j], j]) for j in range(4)) == pytest.approx(best)


def test_iterations_lower_the_divergence() -> None:
    """The order found is at least as good as that of the first iteration, on components that overlap."""
    share = (1.2 * normal((1, 60, 3, 20), generator(4)) + normal((3, 20), generator(5))).softmax(2)
    first = assign_labels(torch.matmul(share[0], share[0, 0].clamp(min=1e-12).log().mT))
    found = relabel_draws(share, 0)

    def divergence(order: Tensor) -> float:
        moved = Relabelling(order[None], True).apply(share)[0]
        return float((moved * (moved.log() - moved.mean(0).log())).sum())

    assert divergence(found.order[0]) <= divergence(first) + 1e-9


def mixtures(s: int = 30, k: int = 3) -> tuple[Tensor, DiagonalGaussian]:
    zero, eye = torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    log_weight, family = MixturePrior.from_moments(zero, eye, k, diagonal=True).draw(s, generator(6))
    return log_weight, family


def test_similarity_is_free_of_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    log_weight, family = mixtures()
    rows = MixtureRows(normal((8, 2), generator(7)), True)
    order = shuffled(1, 30, 3)[0]
    member = (3 * torch.arange(30)[:, None] + order).flatten()
    found = compute_similarity_matrix(log_weight, family, rows)
    again = compute_similarity_matrix(log_weight.gather(1, order), family.select(member), rows)
    assert_close(found, again, **EXACT)
    assert_close(found, found.mT)
    assert_close(found.diagonal(), torch.ones(8, dtype=torch.float64))
    monkeypatch.setattr("boxloop.sample.mixture_posterior.BLOCK", 50)
    assert_close(compute_similarity_matrix(log_weight, family, rows), found, **EXACT)


def test_similarity_is_how_often_rows_go_together() -> None:
    """Against drawn components: each entry within its binomial error; false alarms as in contract.scores."""
    log_weight, family = mixtures(1)
    rows = normal((2, 2), generator(7))
    expected = compute_similarity_matrix(log_weight, family, MixtureRows(rows, True))[0, 1]
    c = 20_000
    many = family.map(lambda leaf: leaf.repeat(c, 1))
    sums, _ = sweep_rows(MixtureRows(rows, True), log_weight.expand(c, 3), many, generator(8))
    together = (sums[..., 0] == 2).any(1).double().mean()
    assert_scores(((together - expected) / (expected * (1 - expected) / c).sqrt())[None])


def test_occupied_components() -> None:
    """Two rows at the seats of two narrow components leave the third empty."""
    mean = torch.tensor([[0.0], [9.0], [-9.0]], dtype=torch.float64).repeat(5, 1)
    family = DiagonalGaussian(mean, torch.full_like(mean, 0.01))
    rows = MixtureRows(torch.tensor([[0.0], [9.0]], dtype=torch.float64), True)
    log_weight = torch.full((5, 3), 1 / 3, dtype=torch.float64).log()
    assert count_occupied_components(log_weight, family, rows, generator(0)).tolist() == [2] * 5


def turns(s: int, k: int) -> Tensor:
    """Rotations and reflections, uniformly."""
    turn, upper = torch.linalg.qr(normal((s, k, k), generator(9)))
    return turn * upper.diagonal(dim1=-2, dim2=-1).sign()[:, None]


def test_rotated_draws_are_brought_together() -> None:
    simple = torch.tensor([[2.0, 0.0], [1.5, 0.2], [0.1, 1.0], [0.0, 0.8]], dtype=torch.float64)
    draws = (simple + 0.01 * normal((60, 4, 2), generator(10))) @ turns(60, 2)
    found = align_loadings(draws.reshape(3, 20, 4, 2))
    assert found.agreement > 0.99
    assert found.agreement_before < 0.2
    assert_close(found.loadings.mean((0, 1)), simple, rtol=0, atol=0.2)  # varimax's axes, near to simple ones
    flat = found.loadings.flatten(0, 1)
    assert_close(flat @ flat.mT, draws @ draws.mT, **EXACT)  # nothing but axes has changed
    assert "aligned" in str(found)


def test_alignment_does_not_depend_on_how_draws_were_turned() -> None:
    draws = normal((1, 20, 5, 2), generator(11)) * 0.1 + normal((5, 2), generator(12))
    first = align_loadings(draws)
    second = align_loadings(draws @ turns(20, 2))
    assert_close(first.loadings, second.loadings, rtol=1e-5, atol=1e-5)


def test_units_weigh_columns() -> None:
    draws = normal((1, 20, 3, 2), generator(13)) + 2.0 * torch.eye(3, 2, dtype=torch.float64)
    unit = torch.tensor([1.0, 1e6, 1e-3], dtype=torch.float64)
    scaled = align_loadings(draws * unit[:, None], 0, unit)
    assert_close(scaled.loadings / unit[:, None], align_loadings(draws).loadings, rtol=1e-8, atol=1e-8)


def test_varimax_is_orthogonal_and_raises_its_criterion() -> None:
    loadings = normal((8, 3), generator(14))
    rotation = varimax(loadings)
    assert_close(rotation @ rotation.mT, torch.eye(3, dtype=torch.float64), **EXACT)

    def criterion(values: Tensor) -> float:
        return float(values.square().var(0, correction=0).sum())

    best = criterion(loadings @ rotation)
    assert all(best >= criterion(loadings @ turn) for turn in turns(200, 3))
    size = (loadings @ rotation).square().sum(0)
    assert bool((size[:-1] >= size[1:]).all())


def test_one_factor_has_its_sign_alone() -> None:
    loadings = torch.tensor([[-2.0], [0.5]], dtype=torch.float64)
    assert_close(loadings @ varimax(loadings), -loadings)
