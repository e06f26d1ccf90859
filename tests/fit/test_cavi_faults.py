"""Coordinate ascent on models that break its rules, and runs that are cut short."""

from __future__ import annotations

import math

import pytest
import torch

from boxloop.distributions import Node
from boxloop.fit import ConditionalError, cavi
from boxloop.numeric import generator, normal
from fit import cavi_cases as cases

X = cases.mixture_rows(10, [-1.5, 1.5], seed=1)
NODES = {"mu": Node.normal(2), "c": Node.categorical(2, 10)}
JOINT = cases.mixture(X, [0.4, 0.6], 4.0)
CONDITIONALS = cases.mixture_conditionals(X, [0.4, 0.6], 4.0)


def test_conditionals_alone_give_the_same_distributions_and_the_same_gap():
    whole = cavi(NODES, JOINT, random_state=0)
    alone = cavi(NODES, conditionals=CONDITIONALS, random_state=0)
    both = cavi(NODES, JOINT, conditionals=CONDITIONALS, random_state=0)
    for found in (alone, both):
        torch.testing.assert_close(found["mu"].mean, whole["mu"].mean, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(found["c"].mean, whole["c"].mean, rtol=1e-10, atol=1e-10)
    assert both.elbo == pytest.approx(whole.elbo, rel=1e-12)
    constant = whole.elbo - alone.elbo  # that of the prior of the means: the labels carry theirs with them
    assert constant == pytest.approx(-math.log(8 * math.pi), rel=1e-10)
    assert alone.evidence().gap == pytest.approx(whole.evidence().gap, abs=1e-9)


def test_conditionals_of_a_vector_node():
    stream = generator(5)
    rows = normal((8, 2), stream)
    y = normal((8,), stream)
    nodes, joint = cases.regression(rows, y)

    def weights(t):
        precision = t["tau"].value * rows.mT @ rows + torch.diag(t["alpha"].value)
        return t["tau"].value * rows.mT @ y, -0.5 * precision

    whole = cavi(nodes, joint, random_state=0)
    found = cavi(nodes, joint, conditionals={"w": weights}, random_state=0)
    torch.testing.assert_close(found["w"].parameters["covariance"], whole["w"].parameters["covariance"])


def test_a_conditional_that_is_not_that_of_the_joint_is_named():
    wrong = {**CONDITIONALS, "mu": lambda t: (t["c"].value.mT @ X, -0.5 * t["c"].value.sum(0))}  # no prior
    with pytest.raises(ConditionalError, match="conditional of node 'mu' disagrees with the log-joint"):
        cavi(NODES, JOINT, conditionals=wrong, random_state=0)


def test_conditionals_that_no_joint_distribution_has_are_refused():
    wrong = {
        **CONDITIONALS,
        "mu": lambda t: (2 * t["c"].value.mT @ X, -0.5 / 4.0 - 0.5 * t["c"].value.sum(0)),
    }
    with pytest.raises(ConditionalError, match="disagrees with the log-joint"):
        cavi(NODES, conditionals=wrong, random_state=0)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (lambda t: t["mu"].value.prod(), "mu"),
        (lambda t: t["mu"].value.square().sum(), "mu"),
        (lambda t: t["c"].value.clamp(min=1e-9).log().sum(), "c"),
        (lambda t: t["mu"].value.sum() * (t["c"].value ** 2).sum(), "c"),
        (lambda t: t["mu"].value.exp().sum(), "mu"),
    ],
)
def test_a_log_joint_that_is_not_linear_in_a_node_names_it(wrong, name):
    with pytest.raises(ConditionalError, match=f"not linear in the statistics of node '{name}'"):
        cavi(NODES, lambda t: JOINT(t) + 1e-3 * wrong(t), random_state=0)


def test_a_conditional_that_is_not_a_distribution_is_named():
    with pytest.raises(ConditionalError, match="conditional of node 'tau' cannot be normalised"):
        cavi({"tau": Node.gamma()}, lambda t: t["tau"].log + t["tau"].value, random_state=0)
    with pytest.raises(ConditionalError, match="conditional of node 'w' cannot be normalised"):
        cavi({"w": Node.gaussian(2)}, lambda t: t["w"].value.sum() - t["w"].outer[0, 0], random_state=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cavi({}, JOINT), "nodes must not be empty"),
        (lambda: cavi(NODES, JOINT, order="odd"), "order must be"),
        (lambda: cavi(NODES, JOINT, n_starts=0), "n_starts"),
        (lambda: cavi(NODES), "every node needs a conditional; missing: mu, c"),
        (lambda: cavi(NODES, JOINT, conditionals={"nu": None}), "not nodes: nu"),
        (lambda: Node.normal(2, {"mean": 0.0}), "given by mean, variance"),
        (lambda: Node.normal(2, {"mean": 0.0, "variance": -1.0}), "not valid parameters"),
        (lambda: Node.normal(0), "no variables"),
        (lambda: cavi(NODES, JOINT, random_state=0).evidence(collapse="nu"), "no node 'nu'"),
        (lambda: cavi(NODES, JOINT, random_state=0).evidence(max_points=100), "max_points = 100"),
    ],
)
def test_what_cannot_be_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_log_joint_must_be_a_number():
    with pytest.raises(TypeError, match="one element"):
        cavi(NODES, lambda t: t["mu"].value, random_state=0)


@pytest.mark.parametrize("order", ["sweep", "random"])
def test_continuing_is_the_same_as_going_on(order):
    whole = cavi(NODES, JOINT, order=order, max_iter=6, tol=0.0, random_state=4)
    part = cavi(NODES, JOINT, order=order, max_iter=3, tol=0.0, random_state=4)
    again = cavi(NODES, JOINT, order=order, max_iter=6, tol=0.0, random_state=99, resume=part)
    assert again.trace == whole.trace
    assert torch.equal(again["c"].natural, whole["c"].natural)
    assert part.n_iter == 3


def test_interruption_keeps_the_last_iteration():
    def stop(progress):
        if progress.iteration == 2 and not progress.stopped:
            raise KeyboardInterrupt

    found = cavi(NODES, JOINT, random_state=4, tol=0.0, n_starts=3, observers=[stop])
    assert found.interrupted
    assert found.n_iter == 2
    assert len(found.elbos) == 1
    assert "interrupted" in repr(found)


def test_both_orders_end_at_the_same_place_and_the_best_start_is_kept():
    swept = cavi(NODES, JOINT, n_starts=3, random_state=0, tol=1e-11)
    drawn = cavi(NODES, JOINT, order="random", n_starts=3, random_state=0, tol=1e-11)
    assert swept.elbo == pytest.approx(drawn.elbo, abs=1e-8)
    assert swept.elbo == max(swept.elbos)
    assert len(swept.elbos) == 3


def test_a_symmetric_start_stays_symmetric():
    """Components that start alike stay alike: a saddle of the bound, not a maximum."""
    alike = {
        "mu": Node.normal(2, {"mean": 0.0, "variance": 1.0}),
        "c": Node.categorical(2, 10, {"probability": 0.5}),
    }
    joint = cases.mixture(X, [0.5, 0.5], 4.0)
    stuck = cavi(alike, joint, random_state=0)
    assert float(stuck["mu"].mean.diff().abs()) < 1e-12
    assert cavi(NODES, joint, random_state=0).elbo > stuck.elbo


def test_the_picture_and_the_table():
    found = cavi(NODES, JOINT, random_state=0)
    axes = found.plot()
    assert axes.get_title(loc="left") == "Evidence lower bound"
    assert len(found.table()) == 2 + 20
    assert "and 2 more" in repr(found)
