"""Mixtures against scikit-learn from the same start, and what happens to a component that empties."""

from __future__ import annotations

import warnings
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch import Generator, Tensor
from torch.testing import assert_close

from boxloop import distributions
from boxloop.data import ArraySource
from boxloop.fit import EMState, em
from boxloop.loop import run
from boxloop.models import Mixture
from contract.distribution_checks import near
from contract.distributions import FAMILIES, distribution_case, uniform

K, D, N = 3, 4, 400
KINDS = ("full", "tied", "diag", "spherical")


def table() -> Tensor:
    stream = Generator().manual_seed(0)
    centre = uniform(stream, K, D, low=-2, high=2)
    root = uniform(stream, K, D, D, low=-1, high=1)
    noise = torch.randn(K, N // K + 1, D, generator=stream, dtype=torch.float64)
    return (centre[:, None] + noise @ root.mT).reshape(-1, D)[:N]


def start(kind: str, rows: Tensor) -> tuple[Mixture[Any], np.ndarray]:
    """The same start in our words and, as precisions, in scikit-learn's."""
    mean, eye = rows[[0, 150, 300]].clone(), torch.eye(D).double()
    variance = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    family, precision = {
        "full": (
            distributions.FullGaussian(mean, variance.sqrt()[:, None, None] * eye),
            eye / variance[:, None, None],
        ),
        "tied": (distributions.TiedGaussian(mean, 1.5 * eye), eye / 2.25),
        "diag": (
            distributions.DiagonalGaussian(mean, variance[:, None].expand(K, D)),
            (1 / variance)[:, None].expand(K, D),
        ),
        "spherical": (distributions.SphericalGaussian(mean, variance[:, None]), 1 / variance),
    }[kind]
    return Mixture(torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64).log(), family), precision.numpy()


def peer(kind: str, rows: Tensor, iterations: int) -> GaussianMixture:
    model, precision = start(kind, rows)
    reference = GaussianMixture(
        K,
        covariance_type=kind,
        tol=0.0,
        reg_covar=0.0,
        max_iter=iterations,
        init_params="random",
        random_state=0,
        weights_init=model.log_weight.exp().numpy(),
        means_init=model.family.mean.numpy(),
        precisions_init=precision,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return reference.fit(rows.numpy())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("iterations", [1, 2, 60])
def test_em_is_scikit_learns(kind: str, iterations: int) -> None:
    rows = table()
    model, _ = start(kind, rows)
    outcome = run(em(ArraySource(rows)), EMState(model), max_iter=iterations, monotone=True)
    ours, theirs = outcome.state.model, peer(kind, rows, iterations)
    named = ours.named_parameters()
    for mine, other in (("weights", "weights_"), ("means", "means_"), ("covariances", "covariances_")):
        assert_close(named[mine], torch.from_numpy(getattr(theirs, other)), rtol=1e-10, atol=1e-10)
    assert_close(
        ours.log_prob(rows), torch.from_numpy(theirs.score_samples(rows.numpy())), rtol=1e-9, atol=1e-9
    )
    assert_close(
        ours.posterior(rows), torch.from_numpy(theirs.predict_proba(rows.numpy())), rtol=1e-8, atol=1e-9
    )
    assert outcome.trace[-1] == pytest.approx(theirs.lower_bounds_[-1], rel=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_float32_tiles_take_the_same_step(kind: str) -> None:
    rows = table().float()
    model, _ = start(kind, rows.double())
    low, high = (model.expect(tile, torch.ones(N).double()) for tile in (rows, rows.double()))
    assert_close(low.log_likelihood, high.log_likelihood, rtol=1e-6, atol=0)
    near(model.solve(low.statistics), model.solve(high.statistics), rtol=2e-6)


def emptied(family: type, k: int) -> tuple[Mixture[Any], Tensor]:
    """A mixture of which only one component has any weight."""
    case = distribution_case(family)
    distribution = case.distribution.select(torch.arange(k) % case.k)
    log_weight = torch.full((k,), -800.0, dtype=torch.float64)
    log_weight[1] = 0.0
    return Mixture(log_weight, distribution), case.rows


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
@pytest.mark.parametrize("k", [2, 3, 6])
def test_empty_components_get_distinct_parts_of_the_living(family: type, k: int) -> None:
    model, rows = emptied(family, k)
    expected = model.expect(rows, torch.ones(len(rows)).double())
    statistics, notes = model.repair_statistics(expected.statistics)
    assert len(notes) == k - 1
    assert all("was empty; component 1 was split" in note for note in notes)
    assert_close(statistics.count.sum(), expected.weight, rtol=1e-12, atol=0)
    mended = model.solve(statistics)
    assert mended.is_finite()
    assert_close(mended.log_weight.exp(), torch.full((k,), 1 / k, dtype=torch.float64), rtol=1e-12, atol=0)
    assert float(torch.pdist(mended.family.mean).min()) > 1e-3


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_em_goes_on_after_a_repair_and_says_so(family: type) -> None:
    model, rows = emptied(family, 3)
    floors = {"floor": 1e-2} if "floor" in {f.name for f in fields(model.family)} else {}
    model = replace(model, family=replace(model.family, **floors))
    outcome = run(em(ArraySource(rows)), EMState(model), max_iter=30, monotone=True)
    assert outcome.events[0].startswith("iteration 1: component 0 was empty")
    assert outcome.trace[-1] > outcome.trace[1]
    assert outcome.state.model.is_finite()


def test_the_largest_share_is_split_first() -> None:
    """Two empty components and two living ones: each living one gives a part."""
    distribution = distribution_case(distributions.DiagonalGaussian).distribution.select(
        torch.tensor([0, 1, 2, 2])
    )
    model = Mixture(torch.full((4,), 0.25, dtype=torch.float64).log(), distribution)
    rows = distribution_case(distributions.DiagonalGaussian).rows
    share = torch.zeros(4, len(rows)).double()
    share[0, ::2], share[1, 1::2] = 1.0, 1.0
    _, notes = model.repair_statistics(distribution.view(rows).summarise(share))
    assert notes == (
        "component 2 was empty; component 0 was split",
        "component 3 was empty; component 1 was split",
    )


def test_a_tied_covariance_survives_a_repair_far_from_the_data() -> None:
    family = distributions.TiedGaussian(
        torch.tensor([[50.0, 50.0], [80.0, 0.0]], dtype=torch.float64), 9 * torch.eye(2).double()
    )
    rows = distribution_case(distributions.TiedGaussian).rows
    statistics = family.view(rows).summarise(
        torch.stack([torch.ones(len(rows)), torch.zeros(len(rows))]).double()
    )
    model = Mixture(torch.tensor([0.5, 0.5], dtype=torch.float64).log(), family)
    mended = model.solve(model.repair_statistics(statistics)[0])
    assert_close(mended.family.covariance().dense()[0], torch.cov(rows.T, correction=0), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["full", "tied", "diagonal", "spherical"])
def test_log_densities_have_gradients_in_the_rows(name):
    from boxloop.distributions import DiagonalGaussian, FullGaussian, SphericalGaussian, TiedGaussian

    mean = torch.tensor([[0.0, 1.0], [2.0, -1.0]]).double()
    root = torch.tensor([[1.0, 0.0], [0.5, 0.8]]).double()
    family = {
        "full": FullGaussian(mean, root.expand(2, 2, 2)),
        "tied": TiedGaussian(mean, root),
        "diagonal": DiagonalGaussian(mean, torch.tensor([[1.0, 2.0], [0.5, 0.7]]).double()),
        "spherical": SphericalGaussian(mean, torch.tensor([[1.0], [0.3]]).double()),
    }[name]
    model = Mixture(torch.tensor([0.4, 0.6]).double().log(), family)
    rows = torch.tensor([[0.3, -0.2], [1.0, 2.0]]).double().requires_grad_()
    assert torch.autograd.gradcheck(model.log_prob, (rows,))
    assert torch.autograd.gradgradcheck(model.log_prob, (rows,))
