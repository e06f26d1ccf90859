"""Nodes: statistics, entropies and integrals of every kind against torch.distributions and closed forms."""

from __future__ import annotations

import math

import pytest
import torch

from boxloop.distributions import CategoricalFamily, DirichletFamily, Node
from boxloop.fit import MeanField, compute_evidence
from boxloop.numeric import generator


def double(values):
    return torch.tensor(values, dtype=torch.float64)


COVARIANCE = double([[2.0, 0.6], [0.6, 1.0]])
D = torch.distributions
CASES = {
    "normal": (
        Node.normal(2, {"mean": [1.0, -3.0], "variance": [0.5, 4.0]}),
        D.Normal(double([1.0, -3.0]), double([0.5, 4.0]).sqrt()),
    ),
    "gamma": (
        Node.gamma(2, {"shape": [1.3, 4.0], "rate": [2.0, 0.1]}),
        D.Gamma(double([1.3, 4.0]), double([2.0, 0.1])),
    ),
    "bernoulli": (Node.bernoulli(2, {"probability": [0.2, 0.9]}), D.Bernoulli(double([0.2, 0.9]))),
    "categorical": (
        Node.categorical(3, 2, {"probability": [[0.2, 0.5, 0.3], [0.7, 0.2, 0.1]]}),
        D.OneHotCategorical(double([[0.2, 0.5, 0.3], [0.7, 0.2, 0.1]])),
    ),
    "dirichlet": (
        Node.dirichlet(3, (), {"concentration": [1.5, 1.0, 4.0]}),
        D.Dirichlet(double([1.5, 1.0, 4.0])),
    ),
    "gaussian": (
        Node.gaussian(2, 1, {"mean": [1.0, 2.0], "covariance": COVARIANCE}),
        D.MultivariateNormal(double([[1.0, 2.0]]), COVARIANCE),
    ),
}
every_kind = pytest.mark.parametrize("name", CASES)


@every_kind
def test_moments_and_entropy(name):
    node, peer = CASES[name]
    mean, sd = node.moments(node.start)
    torch.testing.assert_close(mean, peer.mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(sd, peer.variance.sqrt(), rtol=1e-12, atol=1e-12)
    entropy = node.entropy(node.start, node.expected_statistics(node.start)).reshape(node.shape)
    torch.testing.assert_close(entropy, peer.entropy().reshape(node.shape), rtol=1e-10, atol=1e-12)


@every_kind
def test_coefficients_and_partition_are_those_of_the_density(name):
    """log q(z) = <eta + b, T(z)> - A, in the usual measure."""
    node, peer = CASES[name]
    z = {
        "normal": double([0.3, 2.0]),
        "gamma": double([0.3, 2.0]),
        "bernoulli": double([1.0, 0.0]),
        "categorical": double([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
        "dirichlet": double([0.2, 0.5, 0.3]),
        "gaussian": double([[0.5, -1.0]]),
    }[name]
    rows = z.reshape(node.size, -1)
    flat = node.family.statistic(rows)
    ours = ((node.start + node.family.base_coefficients()) * flat).sum(1) - node.log_partition(node.start)
    torch.testing.assert_close(ours, peer.log_prob(z).reshape(-1), rtol=1e-12, atol=1e-12)


@every_kind
def test_a_density_integrates_to_one_over_its_grid(name):
    node, _ = CASES[name]
    weights = node.start + node.family.base_coefficients()
    constant = node.log_partition(node.start).sum()

    def log_joint(t):
        flat = t["z"]
        parts = node.name_statistics(weights)
        if name == "gaussian":  # packed coefficients count each pair once
            parts = parts._replace(
                outer=0.5 * (parts.outer + torch.diag_embed(parts.outer.diagonal(dim1=-2, dim2=-1)))
            )
        return sum((a * b).sum() for a, b in zip(parts, flat)) - constant + 0.0 * t["coin"].value

    field = MeanField({"z": node, "coin": Node.bernoulli()}, log_joint, {})
    natural = {"z": node.start, "coin": torch.zeros(1, 1).double()}
    check = compute_evidence(field, natural, collapse="coin")
    missed = check.log_evidence - math.log(2)
    assert abs(missed) <= max(check.error, 1e-10)
    assert check.error < 1e-6
    assert check.gap == pytest.approx(missed, abs=1e-10)
    for ours, known in zip(check.statistics["z"], node.name_statistics(node.expected_statistics(node.start))):
        torch.testing.assert_close(ours, known, rtol=1e-6, atol=1e-6)


@every_kind
def test_parameters_return(name):
    node, _ = CASES[name]
    maker = {
        "dirichlet": (Node.dirichlet, 3),
        "categorical": (Node.categorical, 3),
        "gaussian": (Node.gaussian, 2),
    }
    make, *more = maker.get(name, (getattr(Node, name),))
    again = make(*more, node.shape, node.parameters(node.start))
    torch.testing.assert_close(again.start, node.start, rtol=1e-12, atol=1e-12)
    assert node.draw_start(generator(0)) is node.start
    random = make(*more, node.shape).draw_start(generator(0))
    assert random.shape == node.start.shape
    assert bool(node.family.is_valid(random).all())


def test_flat_coefficients_of_a_matrix_are_those_of_the_named_ones():
    node, _ = CASES["gaussian"]
    statistic = node.family.statistic(double([[0.5, -1.0]]))
    slope, curve = double([[1.0, 2.0]]), double([[[1.0, 3.0], [5.0, 2.0]]])
    named = node.name_statistics(statistic)
    total = (slope * named.value).sum() + (curve * named.outer).sum()
    assert float((node.flatten_coefficients((slope, curve)) * statistic).sum()) == pytest.approx(
        float(total), rel=1e-14
    )
    with pytest.raises(ValueError, match="1 coefficients for"):
        node.flatten_coefficients((slope,))


@pytest.mark.parametrize("concentration", [[0.01, 0.02, 5.0], [1e4, 2e4, 1.0], [1.0, 1.0, 1.0]])
def test_dirichlet_from_its_mean_logs(concentration):
    family = DirichletFamily(3)
    natural = double(concentration)
    found = family.from_mean(family.mean(natural))
    torch.testing.assert_close(found, natural, rtol=1e-9, atol=0.0)


def test_dirichlet_and_categorical_families():
    shares = double([[0.2, 0.5, 0.3], [0.6, 0.6, -0.2]])
    family = DirichletFamily(3)
    natural = double([1.5, 1.0, 4.0])
    peer = D.Dirichlet(natural)
    assert float(family.log_prob(natural, shares)[0]) == pytest.approx(
        float(peer.log_prob(shares[0])), rel=1e-12
    )
    assert float(family.log_prob(natural, shares)[1]) == -math.inf
    other = double([0.5, 2.0, 1.0])
    known = D.kl_divergence(peer, D.Dirichlet(other))
    assert float(family.divergence(natural, other)) == pytest.approx(float(known), rel=1e-12)
    with pytest.raises(ValueError, match="no maximum"):
        family.fit([[0.2, 0.5, 0.3]])
    kinds = CategoricalFamily(3)
    assert kinds.log_prob(double([0.0, 1.0, 2.0]), double([[0, 1, 0], [1, 1, 0]])).tolist() == pytest.approx(
        [1 - math.log(1 + math.e + math.e**2), -math.inf]
    )
    torch.testing.assert_close(
        kinds.from_distribution(kinds.distribution(natural)).softmax(0), natural.softmax(0)
    )
