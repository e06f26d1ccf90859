"""Held-out correlations, their errors, and p-values that keep their word where there is nothing to find."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy import stats

from boxloop.data import ArraySource, ConcatenatedRows
from boxloop.figures import png
from boxloop.numeric import generator
from boxloop.twoview import (
    CanonicalVariables,
    FourierView,
    LinearView,
    MomentSums,
    RelevanceModel,
    Significance,
    VariableScores,
    ViewPair,
    assign_folds,
    combine_p_values,
    cross_fitted_significance,
    draw_sample_mask,
    held_out_significance,
    studentise_permutations,
    sum_moments_by_fold,
    sum_over_permutations,
    sum_over_rotations,
)


def linear(d):
    return LinearView(torch.zeros(d).double(), torch.ones(d).double())


def views(n, d, gamma, seed):
    """n rows of d columns a view; column j of one is related to column j of the other with correlation gamma[j]."""
    x, e = torch.randn(2, n, d, generator=generator(seed), dtype=torch.float64)
    rho = torch.zeros(d).double()
    rho[: len(gamma)] = torch.as_tensor(gamma).double()
    return torch.cat([x, rho * x + (1 - rho**2).sqrt() * e], 1)


class Tiled(ArraySource):
    """Rows in tiles of odd sizes."""

    def chunks(self, size=None):
        return super().chunks(7)


def uniform(p):
    """Kolmogorov's test of p-values on a grid of many steps."""
    return stats.kstest(p, "uniform").pvalue


# Rows by their place


def test_folds_do_not_depend_on_tiles():
    whole = assign_folds(0, 1000, 7, 5)
    cut = torch.cat(
        [assign_folds(a, b, 7, 5) for a, b in ((0, 1), (1, 3), (3, 500), (500, 993), (993, 1000))]
    )
    assert torch.equal(whole, cut)
    assert whole.bincount().tolist() == [143] * 6 + [142] or set(whole.bincount().tolist()) == {142, 143}
    assert not torch.equal(whole, assign_folds(0, 1000, 7, 6))


def test_folds_are_random():
    """Fold after fold as often as not: chi-square of pairs of neighbours in different blocks, one run in 10,000."""
    fold = assign_folds(0, 60_000, 3, 1).reshape(-1, 3)
    table = torch.zeros(3, 3)
    table.index_put_((fold[:-1, 2], fold[1:, 0]), torch.ones(1), accumulate=True)
    assert stats.chi2_contingency(table.numpy()).pvalue > 1e-4
    assert stats.chisquare(fold[:, 0].bincount().numpy()).pvalue > 1e-4


def test_chosen_rows_are_a_fair_choice_whatever_the_tiles():
    """Places of 2,000 rows of 20,000, uniform by Kolmogorov's test, one run in 10,000."""
    rows = torch.arange(20_000.0).double()[:, None]
    weight = torch.ones(20_000).double()
    weight[::5] = 0.0

    def chosen(tile, mass, start):
        return ConcatenatedRows.of(tile[draw_sample_mask(mass, start, 2500 / 20_000, 3)])

    found = ArraySource(rows, weight).reduce_at(chosen).concatenate()[:, 0]
    assert torch.equal(found, Tiled(rows, weight).reduce_at(chosen).concatenate()[:, 0])
    assert not bool((found % 5 == 0).any())
    assert abs(len(found) - 2000) < 5 * 2000**0.5
    assert uniform(found.numpy() / 20_000) > 1e-4


# Exchanged rows


def test_sums_of_exchanged_rows_one_by_one():
    g = generator(0)
    a, b = torch.randn(2, 12, 3, generator=g, dtype=torch.float64)
    found = sum_over_permutations(a, b, 40, generator(9))
    order = torch.rand((40, 12), generator=generator(9), dtype=torch.float64).argsort(1)
    for i in range(40):
        there = b[order[i]]
        torch.testing.assert_close(found[0, i], (a * there).sum(0), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(found[1, i], (a**2 * there**2).sum(0), rtol=1e-10, atol=1e-12)


def test_sums_of_rotated_rows_one_by_one():
    a, b = torch.randn(2, 11, 2, generator=generator(0), dtype=torch.float64)
    found = sum_over_rotations(a, b, 6, generator(9))
    own = generator(9)
    order, turn = torch.randperm(11, generator=own), 1 + torch.randperm(10, generator=own)[:6]
    for i, step in enumerate(turn.tolist()):
        there = b[order].roll(-step, 0)
        torch.testing.assert_close(found[0, i], (a[order] * there).sum(0), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(found[1, i], (a[order] ** 2 * there**2).sum(0), rtol=1e-10, atol=1e-12)


def test_the_statistic_does_not_change_with_units_and_a_constant_says_nothing():
    u, v = torch.randn(2, 30, 2, generator=generator(0), dtype=torch.float64)
    weight = torch.rand(30, generator=generator(1), dtype=torch.float64) + 0.1
    one = studentise_permutations(u, v, weight, 20, generator(2))
    two = studentise_permutations(5.0 + 1e5 * u, 1e-5 * v - 3.0, 7.0 * weight, 20, generator(2))
    torch.testing.assert_close(one, two, rtol=1e-8, atol=1e-8)
    flat = studentise_permutations(u, torch.full_like(v, 0.1), weight, 20, generator(2))
    assert bool((flat == 0.0).all())
    assert combine_p_values([flat], [1.0]).tolist() == [1.0, 1.0]


def test_strong_correlations_of_few_rows_beat_every_other_order():
    x = torch.randn(12, 1, generator=generator(0), dtype=torch.float64)
    for y in (x, x + 0.01 * torch.randn(12, 1, generator=generator(1), dtype=torch.float64)):
        found = studentise_permutations(x, y, torch.ones(12).double(), 999, generator(2))
        assert bool((found[0] > found[1:]).all())


def test_uncorrelated_but_dependent_variables_are_not_called_correlated():
    """u normal, v = |u| times a sign: an unstudentised test is wrong in one of six at 5%. 400 tests of 300 rows; the
    rate is binomial, and beyond 0.05 + 4.2 errors one run in 50,000."""
    hits, plain = 0, 0
    for i in range(400):
        g = generator(i)
        u = torch.randn(300, 1, generator=g, dtype=torch.float64)
        v = u.abs() * torch.randn(300, 1, generator=g, dtype=torch.float64)
        hits += (
            combine_p_values([studentise_permutations(u, v, torch.ones(300).double(), 99, g)], [1.0])[0]
            <= 0.05
        )
        sums = sum_over_permutations(u - u.mean(), v - v.mean(), 99, g)[0, :, 0]
        plain += 1 + int((sums >= ((u - u.mean()) * v).sum()).sum()) <= 5
    assert hits / 400 < 0.05 + 4.2 * (0.05 * 0.95 / 400) ** 0.5
    assert plain / 400 > 0.05 + 4.2 * (0.05 * 0.95 / 400) ** 0.5


@pytest.mark.parametrize("n", [25, 6000])
def test_p_values_of_held_out_rows_are_uniform_under_independence(n):
    """Skewed variables; Kolmogorov's test over 300 repetitions, one run in 10,000 for each size."""
    p = []
    for i in range(300):
        g = generator(i)
        u = torch.randn(n, 1, generator=g, dtype=torch.float64).exp()
        v = torch.rand(n, 1, generator=g, dtype=torch.float64)
        p.append(
            combine_p_values([studentise_permutations(u, v, 0.5 + u[:, 0].clamp(max=2), 499, g)], [1.0])[0]
        )
    assert uniform(p) > 1e-4


# Correlations and errors


def test_correlations_are_those_of_numpy():
    rows = views(200, 3, [0.8, 0.3], 0)
    model = RelevanceModel.solve(ViewPair(linear(3), linear(3)), ArraySource(rows[:100]), 3)
    found = held_out_significance(model, ArraySource(rows[100:]))
    u, v = (z.numpy() for z in model.both(rows[100:]))
    known = [np.corrcoef(u[:, j], v[:, j])[0, 1] for j in range(3)]
    np.testing.assert_allclose(found.correlation, known, rtol=1e-10)
    np.testing.assert_allclose(found.training_correlation, model.canonical.correlation.numpy(), rtol=1e-12)
    np.testing.assert_allclose(found.relevance, np.clip(known, 0, 1) ** 2, rtol=1e-10)


def test_errors_are_the_delta_method_by_autograd():
    """The correlation as a function of the rows' shares; its gradient is the influence of a row."""
    u, v = torch.randn(2, 40, 1, generator=generator(0), dtype=torch.float64)
    v = v + u
    weight = torch.rand(40, generator=generator(1), dtype=torch.float64) + 0.1
    rho, error, _ = VariableScores(u, v, weight, torch.zeros(40)).compute_correlations()
    share = (weight / weight.sum()).requires_grad_()
    p = share / share.sum()
    a, b = u[:, 0] - p @ u[:, 0], v[:, 0] - p @ v[:, 0]
    value = (p @ (a * b)) / ((p @ a**2) * (p @ b**2)).sqrt()
    (slope,) = torch.autograd.grad(value, share)
    torch.testing.assert_close(rho[0], value.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(error[0] ** 2, (slope**2 * share.detach() ** 2).sum(), rtol=1e-10, atol=0)


def test_errors_cover_held_out_and_cross_fitted_correlations():
    """z-scores of 150 samples of a strong correlation: standard deviation 1 within 4.5 errors (1 run in 100,000)
    and within a tenth, for the finite sample."""
    truth, z = 0.7, {"held": [], "relevance": [], "crossed": [], "total": []}
    pair = ViewPair(linear(2), linear(2))
    model = RelevanceModel.solve(pair, ArraySource(views(20_000, 2, [truth, 0.4], 10_000)), 2)
    for i in range(150):
        rows = views(600, 2, [truth, 0.4], i)
        held = held_out_significance(model, ArraySource(rows), permutations=19)
        z["held"].append((held.correlation[0] - truth) / held.standard_error[0])
        z["relevance"].append((held.relevance[0] - truth**2) / held.relevance_error[0])
        z["total"].append((held.total - 0.65) / held.total_error)
        found = cross_fitted_significance(pair, ArraySource(rows), 2, permutations=19)
        z["crossed"].append((found.correlation[0] - truth) / found.standard_error[0])
    for name, scores in z.items():
        assert abs(np.std(scores) - 1) < 0.1 + 4.5 / (2 * 150) ** 0.5, name
        assert abs(np.mean(scores)) < 0.15 + 4.5 / 150**0.5, name


def test_fewer_rows_are_judged_than_there_are():
    rows = views(5000, 1, [0.5], 0)
    model = RelevanceModel.solve(ViewPair(linear(1), linear(1)), ArraySource(rows), 1)
    found = held_out_significance(model, ArraySource(rows), most_rows=500)
    assert abs(found.n_rows - 500) < 5 * 500**0.5
    assert abs(found.correlation[0] - 0.5) < 5 * found.standard_error[0]


def test_rows_without_weight_are_not_there():
    rows = views(300, 2, [0.5], 0)
    weight = torch.ones(300).double()
    weight[100:] = 0.0
    model = RelevanceModel.solve(ViewPair(linear(2), linear(2)), ArraySource(rows), 2)
    found = held_out_significance(model, ArraySource(rows, weight))
    known = held_out_significance(model, ArraySource(rows[:100]))
    np.testing.assert_array_equal(found.correlation, known.correlation)
    np.testing.assert_array_equal(found.p_value, known.p_value)


# Cross-fitting


def test_products_of_folds_add_up_and_do_not_depend_on_tiles():
    rows, weight = views(203, 2, [0.5], 0), torch.rand(203, generator=generator(1), dtype=torch.float64)
    pair = ViewPair(linear(2), linear(2))
    parts = sum_moments_by_fold(pair, ArraySource(rows, weight), 4, 11)
    tiled = sum_moments_by_fold(pair, Tiled(rows, weight), 4, 11)
    whole = MomentSums.of(pair, rows, weight)
    fold = assign_folds(0, 203, 4, 11)
    for f, (one, two) in enumerate(zip(parts, tiled, strict=True)):
        mine = MomentSums.of(pair, rows[fold == f], weight[fold == f])
        for a, b in ((one, two), (one, mine)):
            torch.testing.assert_close(a.first, b.first, rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(a.second.triu(), b.second.triu(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        sum(parts[1:], parts[0]).second.triu(), whole.second.triu(), rtol=1e-10, atol=1e-10
    )


def test_cross_fitted_correlations_are_those_of_fold_by_fold_fits():
    rows = views(150, 3, [0.8, 0.5], 0)
    pair, key = ViewPair(linear(3), linear(3)), 4
    found = cross_fitted_significance(pair, ArraySource(rows), 2, folds=3, random_state=key)
    tiled = cross_fitted_significance(pair, Tiled(rows), 2, folds=3, random_state=key)
    fold = assign_folds(0, 150, 3, key)
    top, left, right = np.zeros(2), np.zeros(2), np.zeros(2)
    for f in range(3):
        model = RelevanceModel.solve(pair, ArraySource(rows[fold != f]), 2)
        u, v = (z.numpy() - z.numpy().mean(0) for z in model.both(rows[fold == f]))
        top, left, right = top + (u * v).sum(0), left + (u * u).sum(0), right + (v * v).sum(0)
    np.testing.assert_allclose(found.correlation, top / np.sqrt(left * right), rtol=1e-9)
    np.testing.assert_allclose(found.correlation, tiled.correlation, rtol=1e-9)
    again = cross_fitted_significance(pair, ArraySource(rows), 2, folds=3, random_state=key)
    np.testing.assert_array_equal(found.p_value, again.p_value)
    whole = CanonicalVariables.solve(MomentSums.of(pair, rows, torch.ones(150).double()), 3, 2)
    np.testing.assert_allclose(found.training_correlation, whole.correlation.numpy(), rtol=1e-10)


@pytest.mark.parametrize(
    ("n", "d", "folds"),
    [
        (80, 1, 5),
        pytest.param(120, 3, 2, marks=pytest.mark.slow),
        pytest.param(40, 25, 4, marks=pytest.mark.slow),
    ],
)
def test_cross_fitted_p_values_are_uniform_under_independence(n, d, folds):
    """Few and many features, the last with more of them than rows; 250 repetitions, Kolmogorov's test of the first and
    the last variable, one run in 10,000 for each of six. With rows exchanged within the folds of ordinary
    cross-fitting the first case fails."""
    pair, p = ViewPair(linear(d), linear(d)), []
    for i in range(250):
        source = ArraySource(views(n, d, [], i))
        p.append(
            cross_fitted_significance(pair, source, 3, folds=folds, permutations=199, random_state=i).p_value
        )
    assert uniform(np.array(p)[:, 0]) > 1e-4
    assert uniform(np.array(p)[:, -1]) > 1e-4


def test_many_kernel_features_of_few_rows_do_not_deceive():
    """200 random features and 150 rows: training shows a strong relation; none is found, and one that exists is."""
    g = generator(0)
    view = FourierView.start(torch.zeros(1).double(), torch.ones(1).double(), 200, 0.2, g)
    none = cross_fitted_significance(ViewPair(view, view), ArraySource(views(150, 1, [], 1)), 5)
    assert none.training_correlation.min() > 0.6
    assert none.n_significant == 0
    assert none.overfitted
    assert "none of 5 variables is significant" in none.verdict
    some = cross_fitted_significance(ViewPair(view, view), ArraySource(views(150, 1, [0.8], 1)), 5, ridge=0.3)
    assert some.significant[0]


def test_power_beside_one_split():
    """Cross-fitting finds a weak relation at least as often as one half tested on the other."""
    pair, hits = ViewPair(linear(3), linear(3)), np.zeros(2)
    for i in range(60):
        rows = views(200, 3, [0.35], i)
        hits[0] += cross_fitted_significance(pair, ArraySource(rows), 3, permutations=99).p_value[0] <= 0.05
        model = RelevanceModel.solve(pair, ArraySource(rows[:100]), 3)
        hits[1] += held_out_significance(model, ArraySource(rows[100:]), permutations=99).p_value[0] <= 0.05
    assert hits[0] > hits[1] > 12


# Words


def result(p, correlation, training, n=1000):
    rho = np.asarray(correlation, dtype=float)
    trained = np.asarray(training, dtype=float)
    return Significance(rho, np.full(len(rho), 0.01), trained, np.asarray(p, dtype=float), 0.02, n, 0, 0.05)


def test_verdicts():
    good, last = [0.001, 0.001, 0.4], [0.001, 0.001, 0.002]
    found = result(good, [0.9, 0.5, 0.01], [0.9, 0.52, 0.1])
    assert found.sufficient
    assert found.verdict == "2 of 3 variables are significant: n_features is large enough"
    more = result(last, [0.9, 0.5, 0.3], [0.9, 0.52, 0.32])
    assert not more.sufficient
    assert more.verdict.startswith("the last of 3 variables is still significant (3 of 3 are)")
    assert "raise n_features" in more.verdict
    learned = result(good, [0.5, 0.2, -0.1], [0.99, 0.9, 0.8])
    assert learned.overfitted
    assert not more.overfitted
    assert "the fit is overfitted" in learned.verdict
    assert learned.relevance[2] == 0.0


def test_adjusted_p_values_are_benjamini_and_hochberg():
    p = [0.001, 0.02, 0.04, 0.9]
    found = result(p, [0.5] * 4, [0.5] * 4).adjusted_p_value
    np.testing.assert_allclose(found, [0.004, 0.04, 0.04 * 4 / 3, 0.9], rtol=1e-12)


def test_table_words_and_picture():
    found = cross_fitted_significance(
        ViewPair(linear(3), linear(3)), ArraySource(views(300, 3, [0.8, 0.5], 1)), 3
    )
    table = found.table()
    assert list(table.index) == [1, 2, 3]
    assert table["significant"].tolist() == [True, True, False]
    assert str(found).splitlines()[-1].startswith("On 300 rows cross-fitted in 5 folds: 2 of 3 variables")
    axes = found.plot()
    assert png(axes).startswith(b"\x89PNG")
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["training rows", "held out, significant", "held out, not significant"]


# Bad input


def test_what_cannot_be_judged_is_refused():
    pair, rows = ViewPair(linear(1), linear(1)), views(40, 1, [0.5], 0)
    model = RelevanceModel.solve(pair, ArraySource(rows), 1)
    with pytest.raises(ValueError, match="too few to test"):
        held_out_significance(model, ArraySource(rows, (torch.arange(40) < 3).double()))
    with pytest.raises(ValueError, match="cannot give a p-value of"):
        held_out_significance(model, ArraySource(rows), permutations=18)
    with pytest.raises(ValueError, match="between 0 and 1"):
        held_out_significance(model, ArraySource(rows), level=1.5)
    with pytest.raises(ValueError, match="40 rows are too few for 11 folds"):
        cross_fitted_significance(pair, ArraySource(rows), 1, folds=11)
    with pytest.raises(ValueError, match="at least 2 folds"):
        cross_fitted_significance(pair, ArraySource(rows), 1, folds=1)
    flat = torch.cat([rows[:, :1], torch.ones(40, 1).double()], 1)
    with pytest.raises(ValueError, match="one of the views is constant"):
        cross_fitted_significance(pair, ArraySource(flat), 1)
    with pytest.raises(ValueError, match="no row with weight"):
        cross_fitted_significance(pair, ArraySource(rows, (torch.arange(40) < 2).double()), 1)


def test_perfect_relation_and_a_singular_view():
    x = torch.randn(60, 1, generator=generator(0), dtype=torch.float64)
    rows = torch.cat([x, 2 * x, 1 - x, torch.ones_like(x)], 1)
    found = cross_fitted_significance(ViewPair(linear(2), linear(2)), ArraySource(rows), 2)
    assert found.correlation[0] == pytest.approx(1.0, abs=1e-12)
    assert found.p_value[0] == 0.001
    assert np.isfinite(dataclasses.astuple(found)[1]).all()
