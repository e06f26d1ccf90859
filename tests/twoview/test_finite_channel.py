"""The finite channel against SciPy's chi-square, sums over the table, and canonical variables of drawn codes."""

import numpy as np
import pytest
import torch
from scipy import stats

from boxloop.data import ArraySource
from boxloop.numeric import generator
from boxloop.twoview import FiniteChannel, FiniteView, RelevanceModel, ViewPair

COUNTS = torch.tensor(
    [[20.0, 5.0, 3.0, 9.0], [4.0, 30.0, 8.0, 2.0], [6.0, 7.0, 40.0, 11.0]], dtype=torch.float64
)


def test_chi_square_is_scipys():
    known = stats.chi2_contingency(COUNTS.numpy(), correction=False).statistic
    assert FiniteChannel(COUNTS).chi_square() == pytest.approx(known, rel=1e-12)
    assert FiniteChannel(COUNTS / COUNTS.sum()).chi_square(int(COUNTS.sum())) == pytest.approx(
        known, rel=1e-12
    )


def test_variables_are_orthonormal_and_related_pairwise():
    channel = FiniteChannel(COUNTS)
    p, q = channel.marginals
    u, v = channel.left(torch.arange(3)), channel.right(torch.arange(4))
    eye = torch.eye(2).double()
    torch.testing.assert_close(u.mT @ (p[:, None] * u), eye, rtol=0, atol=1e-12)
    torch.testing.assert_close(v.mT @ (q[:, None] * v), eye, rtol=0, atol=1e-12)
    torch.testing.assert_close(u.mT @ channel.joint @ v, channel.correlation.diag(), rtol=0, atol=1e-12)
    assert float((p @ u).abs().max()) < 1e-12
    assert float((q @ v).abs().max()) < 1e-12


def test_all_variables_are_the_table_and_fewer_miss_their_relevance():
    channel = FiniteChannel(COUNTS)
    p, q = channel.marginals
    torch.testing.assert_close(channel.truncated(2), channel.joint, rtol=0, atol=1e-14)
    torch.testing.assert_close(channel.truncated(0), p[:, None] * q, rtol=0, atol=1e-14)
    missed = ((channel.truncated(1) - channel.joint) ** 2 / (p[:, None] * q)).sum()
    torch.testing.assert_close(missed, channel.relevance[1], rtol=1e-10, atol=0)


def test_expectations_row_by_row():
    channel, theta = FiniteChannel(COUNTS), torch.tensor([1.0, -2.0, 0.5])
    for b in range(4):
        known = float((COUNTS[:, b] * theta).sum() / COUNTS[:, b].sum())
        assert float(channel.expect(theta)[b]) == pytest.approx(known, rel=1e-12)
    both = channel.expect(torch.stack([theta, theta**2], 1))
    assert both.shape == (4, 2)
    turned = channel.swapped().expect(torch.arange(4.0))
    assert float(turned[0]) == pytest.approx(float((COUNTS[0] * torch.arange(4.0)).sum() / COUNTS[0].sum()))
    u, eta, v = channel.left(torch.arange(3)), channel.correlation, channel.right(torch.arange(4))
    series = (channel.marginals[0] @ theta.double()) + v @ (eta * (u.mT @ (channel.marginals[0] * theta)))
    torch.testing.assert_close(series, channel.expect(theta), rtol=1e-10, atol=1e-12)


def test_draws_have_the_joint_law():
    """Chi-square of 50,000 draws over 12 cells, one run in 10,000."""
    channel = FiniteChannel(COUNTS)
    x, y = channel.draw(50_000, generator(0))
    seen = torch.zeros(3, 4).double()
    seen.index_put_((x, y), torch.ones(1).double(), accumulate=True)
    assert stats.chisquare(seen.reshape(-1), 50_000 * channel.joint.reshape(-1)).pvalue > 1e-4


def test_canonical_variables_of_codes_are_those_of_their_table():
    """One pass over indicators solves the table of the rows exactly."""
    x, y = FiniteChannel(COUNTS).draw(2000, generator(1))
    rows = torch.stack([x, y], 1).double()
    pair = ViewPair(FiniteView(torch.arange(3.0).double()), FiniteView(torch.arange(4.0).double()))
    found = RelevanceModel.solve(pair, ArraySource(rows), 2)
    seen = torch.zeros(3, 4).double()
    seen.index_put_((x, y), torch.ones(1).double(), accumulate=True)
    table = FiniteChannel(seen)
    torch.testing.assert_close(found.canonical.correlation, table.correlation, rtol=1e-9, atol=1e-12)
    u, mine = found.left(rows[:, :1]), table.left(x)
    sign = torch.sign((u * mine).sum(0))
    torch.testing.assert_close(u, sign * mine, rtol=1e-7, atol=1e-8)
    assert table.chi_square() == pytest.approx(2000 * float(found.canonical.relevance.sum()), rel=1e-9)


def test_independent_views_and_perfect_ones():
    p, q = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64), torch.tensor([0.6, 0.4], dtype=torch.float64)
    channel = FiniteChannel(p[:, None] * q)
    assert float(channel.correlation.max()) < 1e-12
    u = channel.left(torch.arange(3))
    assert float((p @ u).abs().max()) < 1e-10
    torch.testing.assert_close(u.mT @ (p[:, None] * u), torch.eye(1).double(), rtol=0, atol=1e-10)
    same = FiniteChannel(p.diag())
    np.testing.assert_allclose(same.correlation, [1.0, 1.0], rtol=1e-12)
    assert float((p @ same.left(torch.arange(3))).abs().max()) < 1e-10


def test_values_that_never_come():
    wide = torch.zeros(4, 5).double()
    wide[[0, 1, 3]] = torch.nn.functional.pad(COUNTS, (0, 1))
    found, known = FiniteChannel(wide), FiniteChannel(COUNTS)
    torch.testing.assert_close(found.correlation, known.correlation, rtol=1e-12, atol=0)
    assert found.left(torch.tensor([2])).tolist() == [[0.0, 0.0]]
    assert bool(torch.isnan(found.expect(torch.ones(4))[4]))
    torch.testing.assert_close(found.truncated(2), found.joint, rtol=0, atol=1e-14)
    assert FiniteChannel(torch.ones(1, 4)).correlation.shape == (0,)
    assert FiniteChannel(torch.ones(1, 4)).chi_square() == 0.0


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (torch.zeros(2, 2), "the table is empty"),
        (torch.tensor([[1.0, -1.0]]), "not negative"),
        (torch.tensor([[1.0, float("nan")]]), "finite"),
        (torch.ones(3), "two axes"),
        (torch.ones(0, 3), "two axes"),
    ],
)
def test_what_is_no_table_is_refused(table, words):
    with pytest.raises(ValueError, match=words):
        FiniteChannel(table)
