"""Coordinate ascent from a log-joint: known answers, identities, evidence by quadrature."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from scipy import integrate

from boxloop.distributions import Node
from boxloop.fit import cavi
from boxloop.numeric import generator, normal
from fit import cavi_cases as cases
from fit.cavi_cases import double

X = double([1.0, 2.0, 2.5, 4.0, 5.5])
PRIOR = (0.5, 0.3, 2.0, 1.5)


def plain_sweep(x, phi, weights, variance):
    """Algorithm 4 literally, from responsibilities: the means, then the responsibilities."""
    n, k = phi.shape
    m = [sum(phi[i, j] * x[i] for i in range(n)) / (1 / variance + sum(phi[:, j])) for j in range(k)]
    s = [1 / (1 / variance + sum(phi[:, j])) for j in range(k)]
    fresh = torch.empty_like(phi)
    for i in range(n):
        for j in range(k):
            fresh[i, j] = weights[j] * torch.exp(m[j] * x[i] - (m[j] ** 2 + s[j]) / 2)
        fresh[i] /= fresh[i].sum()
    return torch.stack(m), torch.stack(s), fresh


def test_each_sweep_is_that_of_algorithm_4():
    weights, variance = [0.2, 0.5, 0.3], 4.0
    x = cases.mixture_rows(25, [-2.0, 0.0, 2.5], seed=1)
    phi = normal((25, 3), generator(2)).softmax(1)
    nodes = {"mu": Node.normal(3), "c": Node.categorical(3, 25, {"probability": phi})}
    found = None
    for sweep in range(1, 8):
        found = cavi(
            nodes, cases.mixture(x, weights, variance), max_iter=sweep, tol=0.0, random_state=0, resume=found
        )
        m, s, phi = plain_sweep(x, phi, weights, variance)
        assert found.n_iter == sweep
        torch.testing.assert_close(found["mu"].mean, m, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found["mu"].sd ** 2, s, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found["c"].parameters["probability"], phi, rtol=1e-12, atol=1e-12)


def test_random_order_is_the_document_s_one_variable_at_a_time():
    weights, variance = [0.4, 0.6], 4.0
    x = cases.mixture_rows(8, [-1.5, 1.5], seed=3)
    phi = normal((8, 2), generator(4)).softmax(1)
    m, s = double([-1.0, 1.0]), double([1.0, 1.0])
    nodes = {
        "mu": Node.normal(2, {"mean": m, "variance": s}),
        "c": Node.categorical(2, 8, {"probability": phi}),
    }
    found = cavi(nodes, cases.mixture(x, weights, variance), order="random", max_iter=0, random_state=0)
    seed = found.outcome.state.seed
    found = cavi(nodes, cases.mixture(x, weights, variance), order="random", max_iter=1, random_state=0)
    for place in torch.randint(10, (10,), generator=generator(seed)).tolist():
        if place < 2:
            s[place] = 1 / (1 / variance + phi[:, place].sum())
            m[place] = s[place] * (phi[:, place] @ x)
        else:
            phi[place - 2] = (double(weights).log() + m * x[place - 2] - 0.5 * (m**2 + s)).softmax(0)
    torch.testing.assert_close(found["mu"].mean, m, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found["mu"].sd ** 2, s, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found["c"].mean, phi, rtol=1e-12, atol=1e-12)


def test_the_bound_of_the_mixture_is_the_sum_written_out():
    weights, variance = [0.3, 0.7], 5.0
    x = cases.mixture_rows(12, [-2.0, 1.0], seed=5)
    found = cavi(
        {"mu": Node.normal(2), "c": Node.categorical(2, 12)},
        cases.mixture(x, weights, variance),
        random_state=1,
    )
    m, s, phi = found["mu"].mean, found["mu"].sd ** 2, found["c"].mean
    by_hand = 0.5 * (1 + torch.log(s / variance) - (m**2 + s) / variance).sum()
    log_normal = -0.5 * (cases.LOG_2PI + (x[:, None] - m) ** 2 + s)
    by_hand += (phi * (double(weights).log() + log_normal - phi.log())).sum()
    assert found.elbo == pytest.approx(float(by_hand), rel=1e-12)


def test_normal_gamma_has_the_exact_evidence_and_the_known_fixed_point():
    found = cavi(
        {"mu": Node.normal(), "tau": Node.gamma()}, cases.normal_gamma(X, *PRIOR), random_state=0, tol=1e-13
    )
    centre, strength, shape, _ = PRIOR
    n = len(X)
    assert float(found["mu"].mean) == pytest.approx(
        (strength * centre + float(X.sum())) / (strength + n), rel=1e-12
    )
    assert float(found["tau"].parameters["shape"]) == pytest.approx(shape + (n + 1) / 2, rel=1e-14)
    precision = (strength + n) * found["tau"].mean
    assert float(found["mu"].sd) == pytest.approx(float(precision**-0.5), rel=1e-6)
    for node in ("mu", "tau"):
        check = found.evidence(collapse=node)
        assert check.log_evidence == pytest.approx(cases.normal_gamma_evidence(X, *PRIOR), abs=1e-10)
        assert check.error < 1e-6
        assert check.gap > 0.01
    # Under the exact posterior tau is gamma of shape a + n/2 and mu is Student's t.
    exact = found.evidence().statistics
    assert float(exact["mu"].value) == pytest.approx(float(found["mu"].mean), abs=1e-9)
    assert float(exact["mu"].square - exact["mu"].value ** 2) > float(found["mu"].sd ** 2)


def test_the_example_against_scipy():
    """The docstring of cavi: independent priors N(0, 100) and G(1, 1)."""

    def density(mu, tau):
        rows = (0.5 * tau / math.pi) ** 2.5 * math.exp(-0.5 * tau * sum((float(v) - mu) ** 2 for v in X))
        return rows * math.exp(-0.5 * mu**2 / 100) / math.sqrt(200 * math.pi) * math.exp(-tau)

    by_scipy, _ = integrate.dblquad(density, 0, 12, -30, 30, epsabs=1e-14, epsrel=1e-9)

    def log_joint(t):
        mu, tau = t["mu"], t["tau"]
        apart = (X**2 - 2 * X * mu.value + mu.square).sum()
        location = -0.5 * (mu.square / 100 + math.log(200 * math.pi))
        return 2.5 * (tau.log - cases.LOG_2PI) - 0.5 * tau.value * apart + location - tau.value

    found = cavi({"mu": Node.normal(), "tau": Node.gamma()}, log_joint, random_state=0)
    assert found.evidence().log_evidence == pytest.approx(math.log(by_scipy), abs=1e-6)


def test_an_ising_pair_has_the_mean_field_of_the_textbooks():
    """Spins s = 2 z - 1: m = tanh(J m' + h) for each, and the free energy by enumeration."""
    coupling, field = 0.7, (0.3, -0.1)

    def log_joint(t):
        a, b = (2 * t[name].value - 1 for name in "ab")
        return coupling * a * b + field[0] * a + field[1] * b

    found = cavi({"a": Node.bernoulli(), "b": Node.bernoulli()}, log_joint, random_state=0, tol=1e-15)
    a, b = (2 * float(found[name].mean) - 1 for name in "ab")
    assert a == pytest.approx(math.tanh(coupling * b + field[0]), abs=1e-7)
    assert b == pytest.approx(math.tanh(coupling * a + field[1]), abs=1e-7)
    spins = list(itertools.product((-1, 1), (-1, 1)))
    level = [coupling * s * r + field[0] * s + field[1] * r for s, r in spins]
    exact = math.log(sum(math.exp(e) for e in level))
    check = found.evidence()
    assert check.log_evidence == pytest.approx(exact, rel=1e-12)
    distribution = [0.25 * (1 + s * a) * (1 + r * b) for s, r in spins]
    divergence = sum(q * (math.log(q) - e + exact) for q, e in zip(distribution, level))
    assert check.gap == pytest.approx(divergence, rel=1e-9)
    for place, name in enumerate("ab"):
        magnet = sum(math.exp(e - exact) * spin[place] for e, spin in zip(level, spins))
        assert 2 * float(check.statistics[name].value) - 1 == pytest.approx(magnet, rel=1e-12)


def test_regression_with_relevance_integrates_to_the_same_evidence_in_two_ways():
    stream = generator(7)
    rows = normal((12, 2), stream)
    y = rows[:, 0] + 0.5 * normal((12,), stream)
    found = cavi(*cases.regression(rows, y), random_state=0)
    by_weights = found.evidence(collapse="w")
    by_precisions = found.evidence(collapse="alpha")
    assert by_weights.log_evidence == pytest.approx(by_precisions.log_evidence, abs=1e-6)
    assert 0.0 < by_weights.gap < 0.5
    for name in ("w", "alpha", "tau"):
        for one, other in zip(by_weights.statistics[name], by_precisions.statistics[name]):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    # Given the precisions the coefficients are ridge regression's.
    alpha, tau = found["alpha"].mean, found["tau"].mean
    ridge = torch.linalg.solve(tau * rows.mT @ rows + torch.diag(alpha), tau * rows.mT @ y)
    torch.testing.assert_close(found["w"].mean, ridge, rtol=1e-4, atol=1e-6)
    assert float(alpha[1]) > float(alpha[0])


def test_hidden_kinds_against_enumeration():
    emission = double([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
    concentration, x = double([1.5, 0.8]), torch.tensor([0, 0, 2, 1, 2, 2, 0])
    found = cavi(*cases.hidden_kinds(emission, concentration, x), random_state=0)
    exact = cases.hidden_kinds_evidence(emission, concentration, x)
    for node in ("c", "share"):
        check = found.evidence(collapse=node)
        assert check.log_evidence == pytest.approx(exact, abs=1e-9)
        assert 0.0 < check.gap < 0.5


@pytest.mark.parametrize("order", ["sweep", pytest.param("random", marks=pytest.mark.slow)])
def test_the_bound_never_falls_and_stays_below_the_evidence(order):
    x = cases.mixture_rows(15, [-1.0, 1.0], seed=8)
    nodes = {"mu": Node.normal(2), "c": Node.categorical(2, 15)}
    for seed in range(2):
        found = cavi(nodes, cases.mixture(x, [0.5, 0.5], 4.0), order=order, random_state=seed)
        rises = torch.tensor(found.trace).double().diff()
        assert bool((rises > -1e-12 * abs(found.elbo)).all())
        assert found.converged
        assert found.evidence().gap > 0.0


def test_the_evidence_sees_both_orders_of_the_components():
    """Far apart, each of the K! orders holds an equal part: the bound is short by log K! and little more."""
    x = cases.mixture_rows(40, [-4.0, 4.0], seed=9)
    nodes = {"mu": Node.normal(2), "c": Node.categorical(2, 40)}
    found = cavi(nodes, cases.mixture(x, [0.5, 0.5], 25.0), n_starts=5, random_state=0)
    assert found.evidence().gap == pytest.approx(math.log(2), abs=0.01)


def test_a_sweep_gains_the_divergences_of_its_replacements():
    """L(q) rises by KL(q_j || best q_j): Le Corff, section 3.2."""
    x = cases.mixture_rows(10, [-1.0, 1.0], seed=2)
    nodes = {"mu": Node.normal(2), "c": Node.categorical(2, 10)}
    before = cavi(nodes, cases.mixture(x, [0.5, 0.5], 4.0), max_iter=0, random_state=3)
    after = cavi(nodes, cases.mixture(x, [0.5, 0.5], 4.0), max_iter=1, random_state=3)
    old, new = before["mu"], after["mu"]
    first = torch.distributions.Normal(old.mean, old.sd)
    second = torch.distributions.Normal(new.mean, new.sd)
    gain = torch.distributions.kl_divergence(first, second).sum()
    labels = [torch.distributions.Categorical(distribution["c"].mean) for distribution in (before, after)]
    gain += torch.distributions.kl_divergence(*labels).sum()
    assert after.elbo - before.elbo == pytest.approx(float(gain), rel=1e-10)
