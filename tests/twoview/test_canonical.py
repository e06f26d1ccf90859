"""Canonical variables: against scikit-learn, SciPy's QR and closed forms; views that are singular or badly scaled."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import scipy.linalg
import torch
from sklearn.cross_decomposition import CCA
from torch import Tensor

from boxloop.data import ArraySource, fit_standardisation
from boxloop.models import Part
from boxloop.numeric import generator
from boxloop.twoview import (
    CanonicalVariables,
    FiniteView,
    FourierView,
    LinearView,
    MomentSums,
    NetworkView,
    RelevanceFit,
    RelevanceModel,
    ViewPair,
    fit_fixed_features,
)
from boxloop.types import Source

N = 500


def normal(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def views(k: int = 5, m: int = 4, n: int = N, seed: int = 0) -> tuple[Tensor, Tensor]:
    shared = normal((n, 2), seed)
    left = shared @ normal((2, k), seed + 1) + normal((n, k), seed + 2) + 1.0
    return left, shared @ normal((2, m), seed + 3) + 0.5 * normal((n, m), seed + 4)


def linear(rows: Tensor, standard: bool = True) -> LinearView:
    if not standard:
        return LinearView(torch.zeros(rows.shape[1]).double(), torch.ones(rows.shape[1]).double())
    frame = fit_standardisation(ArraySource(rows))
    return LinearView(frame.origin, frame.scale)


def solved(
    left: Tensor,
    right: Tensor,
    most: int = 9,
    weight: Tensor | None = None,
    ridge: float = 0.0,
    standard: bool = True,
) -> RelevanceModel:
    pair = ViewPair(linear(left, standard), linear(right, standard))
    source = ArraySource(torch.cat([left, right], 1), weight)
    return RelevanceModel.solve(pair, source, most, ridge)


def by_qr(left: Tensor, right: Tensor, rtol: float = 1e-12) -> np.ndarray:
    """Björck and Golub (1973): correlations as cosines between the spans, from Householder's QR with pivots."""

    def basis(table: Tensor) -> np.ndarray:
        x = (table - table.mean(0)).numpy()
        q, r, _ = scipy.linalg.qr(x / np.linalg.norm(x, axis=0), mode="economic", pivoting=True)
        size = np.abs(np.diag(r))
        return np.asarray(q[:, size > rtol * size[0]])

    return np.asarray(np.linalg.svd(basis(left).T @ basis(right), compute_uv=False))


def orthonormal(
    model: RelevanceModel, left: Tensor, right: Tensor, atol: float, weight: Tensor | None = None
) -> None:
    u, v = model.both(torch.cat([left, right], 1))
    share = (
        torch.full((len(u),), 1.0 / len(u), dtype=torch.float64) if weight is None else weight / weight.sum()
    )
    eta = model.canonical.correlation
    eye = torch.eye(len(eta)).double()
    assert max(float((share @ part).abs().max()) for part in (u, v)) < atol
    for a, b, wanted in ((u, u, eye), (v, v, eye), (u, v, torch.diag(eta))):
        torch.testing.assert_close(a.mT @ (share[:, None] * b), wanted, rtol=0.0, atol=atol)


def test_correlations_equal_those_of_scikit_learn() -> None:
    left, right = views()
    peer = CCA(n_components=4, max_iter=100_000, tol=1e-15).fit(left.numpy(), right.numpy())
    one, two = peer.transform(left.numpy(), right.numpy())
    expected = [np.corrcoef(one[:, i], two[:, i])[0, 1] for i in range(4)]
    model = solved(left, right)
    np.testing.assert_allclose(model.canonical.correlation, expected, rtol=1e-8)
    scores = model.left(left).numpy()
    for i in range(4):
        assert abs(np.corrcoef(scores[:, i], one[:, i])[0, 1]) == pytest.approx(1.0, abs=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_correlations_equal_those_of_qr_and_variables_are_orthonormal(seed: int) -> None:
    left, right = views(seed=10 * seed)
    model = solved(left, right)
    np.testing.assert_allclose(model.canonical.correlation, by_qr(left, right), rtol=1e-11)
    orthonormal(model, left, right, 1e-12)


def test_variables_of_the_bivariate_gaussian_are_hermite_polynomials() -> None:
    """Appendix C: on nodes and weights of the channel the relevances of x and x^2 are gamma and gamma^2."""
    nodes, mass = np.polynomial.hermite_e.hermegauss(12)
    x, noise = np.meshgrid(nodes, nodes)
    gamma = 1.0 / (1.0 + 0.6**2)
    y = x + 0.6 * noise
    rows = torch.from_numpy(np.stack([c.ravel() for c in (x, x**2, y, y**2)], 1))
    weight = torch.from_numpy(np.outer(mass, mass).ravel())
    found = solved(rows[:, :2], rows[:, 2:], weight=weight)
    np.testing.assert_allclose(found.canonical.relevance, [gamma, gamma**2], rtol=1e-10)


def test_weights_are_repetitions() -> None:
    left, right = views()
    times = torch.randint(0, 4, (N,), generator=generator(2))
    once = solved(left, right, weight=times.double())
    again = solved(left.repeat_interleave(times, 0), right.repeat_interleave(times, 0))
    np.testing.assert_allclose(once.canonical.correlation, again.canonical.correlation, rtol=1e-10)
    torch.testing.assert_close(once.left(left), again.left(left), rtol=1e-8, atol=1e-8)
    orthonormal(once, left, right, 1e-11, times.double())


def test_rows_without_weight_may_come_first() -> None:
    left, right = views(n=2000)
    first = linear(left)
    pair = ViewPair(FourierView.start(first.origin, first.scale, 6, 2.0, generator(0)), linear(right))
    weight = (torch.arange(2000) >= 1200).double()
    rows = torch.cat([left, right], 1)
    found = RelevanceModel.solve(pair, ArraySource(rows, weight), 4).canonical
    expected = RelevanceModel.solve(pair, ArraySource(rows[1200:]), 4).canonical
    torch.testing.assert_close(found.correlation, expected.correlation, rtol=1e-10, atol=0.0)


class Pieces(ArraySource):
    """The same rows, a few at a time."""

    def chunks(self, size: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        return super().chunks(min(size or 37, 37))


@pytest.mark.parametrize("kind", ["linear", "fourier", "weak"])
def test_chunks_give_what_the_whole_does(kind: str) -> None:
    left, right = views()
    if kind == "weak":
        left[:, 1] = left[:, 0] + 1e-9 * left[:, 1]
    first = linear(left)
    if kind == "fourier":
        first = FourierView.start(first.origin, first.scale, 12, 2.0, generator(0))
    pair, rows = ViewPair(first, linear(right)), torch.cat([left, right], 1)
    whole, pieces = (RelevanceModel.solve(pair, kind(rows), 4).canonical for kind in (ArraySource, Pieces))
    exact = 1e-6 if kind == "weak" else 1e-10  # some units of 2e-16 over the size of the difference, 1e-9
    np.testing.assert_allclose(pieces.correlation, whole.correlation, rtol=exact)
    found = RelevanceModel(pair, pieces).left(left), RelevanceModel(pair, whole).left(left)
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-6 if kind == "weak" else 1e-9)


def test_solving_from_products_is_the_same() -> None:
    left, right = views()
    pair, rows = ViewPair(linear(left), linear(right)), torch.cat([left, right], 1)
    products = ArraySource(rows).reduce(lambda tile, weight: MomentSums.of(pair, tile, weight))
    found, model = CanonicalVariables.solve(products, 5, 4), solved(left, right)
    for (name, a), (_, b) in zip(found.leaves(), model.canonical.leaves(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12, msg=name)


def test_ridge_shrinks_by_the_closed_form() -> None:
    left, right = views()
    ridge = 0.3
    x, y = ((part - part.mean(0)) / part.std(0, correction=0) for part in (left, right))
    k, m, a = x.mT @ x / N, y.mT @ y / N, x.mT @ y / N
    inner = torch.linalg.solve(k + ridge * torch.eye(5).double(), a)
    outer = torch.linalg.solve(m + ridge * torch.eye(4).double(), a.mT)
    expected = torch.linalg.eigvals(outer @ inner).real.sort(descending=True).values.sqrt()
    found = solved(left, right, ridge=ridge).canonical.correlation
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0.0)
    assert bool((found < solved(left, right).canonical.correlation).all())


def singular(case: str) -> tuple[Tensor, Tensor]:
    left, right = views()
    if case == "duplicated":
        left = torch.cat([left, left[:, :2]], 1)
    elif case == "collinear":
        left = torch.cat([left, left @ normal((5, 2), 9)], 1)
    elif case == "constant":
        left = torch.cat([left, torch.full((N, 2), 0.1).double()], 1)
    elif case == "collinear far from zero":
        left = torch.cat([left, 3.0 * left[:, :1] + 1e7], 1)
    elif case == "both":
        left, right = torch.cat([left, -left], 1), torch.cat([right, right[:, :1] + right[:, 1:2]], 1)
    return left, right


@pytest.mark.parametrize("case", ["duplicated", "collinear", "constant", "collinear far from zero", "both"])
@pytest.mark.parametrize("standard", [True, False])
def test_columns_that_say_nothing_new_change_nothing(case: str, standard: bool) -> None:
    plain = solved(*views())
    left, right = singular(case)
    model = solved(left, right, standard=standard)
    np.testing.assert_allclose(model.canonical.correlation, plain.canonical.correlation, rtol=1e-9)
    orthonormal(model, left, right, 1e-8)


@pytest.mark.parametrize("kind", ["linear", "module"])
def test_a_column_that_only_rounding_moves_is_constant(kind: str) -> None:
    left, right = views()
    last = torch.randint(0, 2, (N, 1), generator=generator(3)).double()
    still = 1e7 * (1.0 + last * torch.finfo(torch.float64).eps)
    rows = torch.cat([left, still, right + last], 1)
    one, two = linear(torch.cat([left, still], 1), standard=False), linear(right, standard=False)
    pair = ViewPair(one, two)
    if kind == "module":
        first = NetworkView(
            one.origin, one.scale, Part(lambda own, x: x * own[0], (torch.ones(1).double(),)), 6, False
        )
        pair = ViewPair(first, two)
    found = RelevanceModel.solve(pair, ArraySource(rows), 4).canonical
    assert bool((found.left[5] == 0.0).all())
    np.testing.assert_allclose(found.correlation, solved(left, right + last).canonical.correlation, rtol=1e-9)


def test_identical_views_are_perfectly_correlated() -> None:
    left, _ = views()
    model = solved(left, left @ normal((5, 5), 3) - 2.0)
    torch.testing.assert_close(model.canonical.correlation, torch.ones(5).double(), rtol=0.0, atol=1e-12)
    assert float(model.canonical.relevance.max()) <= 1.0


def test_a_constant_view_has_no_variables() -> None:
    left, _ = views()
    model = solved(left, torch.full((N, 2), 0.3).double())
    assert model.canonical.correlation.shape == (0,)
    u, v = model.both(torch.cat([left, torch.full((N, 2), 0.3).double()], 1))
    assert u.shape == v.shape == (N, 0)


def test_fewer_rows_than_features() -> None:
    left, right = views(30, 3, 12)
    model = solved(left, right)
    torch.testing.assert_close(model.canonical.correlation, torch.ones(3).double(), rtol=0.0, atol=1e-9)
    wide = solved(left, views(30, 25, 12)[1])
    assert wide.canonical.correlation.shape == (9,)
    assert bool(((wide.canonical.relevance >= 0.0) & (wide.canonical.relevance <= 1.0)).all())


def test_finite_views_are_correspondence_analysis() -> None:
    """Indicators sum to 1, so both views are singular; the closed form is a decomposition of the table."""
    codes = torch.multinomial(
        torch.rand(12, generator=generator(0)), 2000, replacement=True, generator=generator(1)
    )
    rows = torch.stack([codes // 4, codes % 4], 1).double()
    table = (
        torch.zeros(3, 4)
        .double()
        .index_put_((codes // 4, codes % 4), torch.tensor(1.0).double(), accumulate=True)
    )
    joint = table / table.sum()
    rest = joint / (joint.sum(1)[:, None] * joint.sum(0)).sqrt()
    expected = torch.linalg.svdvals(rest)[1:3]
    pair = ViewPair(FiniteView(torch.arange(3.0).double()), FiniteView(torch.arange(4.0).double()))
    found = RelevanceModel.solve(pair, ArraySource(rows), 5).canonical.correlation
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("standard", [True, False])
def test_columns_far_from_zero_and_of_very_different_scale(standard: bool) -> None:
    left, right = views()
    plain = solved(left, right)
    odd = (
        left * torch.tensor([0.1, 1e-8, 1e8, 1.0, 1e3]).double()
        + torch.tensor([1e7, 0.0, 0.0, 0.0, -1e9]).double()
    )
    model = solved(odd, right * 1e-8, standard=standard)
    np.testing.assert_allclose(model.canonical.correlation, plain.canonical.correlation, rtol=1e-7)
    exact = solved(left, right * 1e-150, standard=standard)
    np.testing.assert_allclose(exact.canonical.correlation, plain.canonical.correlation, rtol=1e-11)


def nearly_collinear(gap: float) -> tuple[Tensor, Tensor]:
    """What the second view tells of the first is in the small difference of two columns."""
    a, b, noise = (normal((2000, 1), seed) for seed in (1, 2, 3))
    return torch.cat([a, a + gap * b], 1), b + noise


@pytest.mark.parametrize("gap", [1e-4, 1e-6, 1e-8, 1e-10])
@pytest.mark.parametrize("standard", [True, False])
def test_a_difference_that_covariances_lose_is_kept(gap: float, standard: bool) -> None:
    left, right = nearly_collinear(gap)
    expected = by_qr(left, right)
    assert expected[0] > 0.6
    model = solved(left, right, standard=standard)
    np.testing.assert_allclose(model.canonical.correlation, expected, rtol=max(1e-8, 1e-14 / gap))
    orthonormal(model, left, right, max(1e-8, 1e-14 / gap))
    if gap < 1e-7:
        rows = torch.cat([left, right], 1)
        pair = ViewPair(linear(left), linear(right))
        products = ArraySource(rows).reduce(lambda tile, weight: MomentSums.of(pair, tile, weight))
        assert float(CanonicalVariables.solve(products, 2, 1).correlation[0]) < 0.1


def test_an_exact_repetition_beside_a_small_difference() -> None:
    """Rounding of covariances mixes the null direction with the small one, which must not pass for a third."""
    left, right = nearly_collinear(5e-3)
    double = torch.cat([left, left @ normal((2, 2), 4)], 1)
    model = solved(double, right)
    assert solved(double, double).canonical.correlation.shape == (2,)
    np.testing.assert_allclose(model.canonical.correlation, by_qr(left, right), rtol=1e-9)
    orthonormal(model, double, right, 1e-8)


def test_powers_of_a_column_are_distinguished() -> None:
    """A Vandermonde view, of condition 1e9 in units of its columns; the 12th power of the second view is the target."""
    x = torch.linspace(0.2, 1.2, 3000).double()
    powers = torch.stack([x**p for p in range(1, 13)], 1)
    wave = torch.cos(9.0 * x[:, None] * torch.arange(1, 4)) + 0.3 * normal((3000, 3), 5)
    sizes = torch.linalg.svdvals((powers - powers.mean(0)) / powers.std(0))
    assert float(sizes[0] / sizes[-1]) > 1e9
    model = solved(powers, wave)
    np.testing.assert_allclose(model.canonical.correlation, by_qr(powers, wave), rtol=1e-6)
    orthonormal(model, powers, wave, 1e-5)


def test_rounding_of_float32_rows_is_not_a_direction() -> None:
    left, right = nearly_collinear(1e-9)
    rows = torch.cat([left, 3.0 * left, right], 1).float()
    still = LinearView(torch.zeros(4).double(), torch.ones(4).double())
    pair = ViewPair(still, LinearView(torch.zeros(1).double(), torch.ones(1).double()))
    model = RelevanceModel.solve(pair, ArraySource(rows), 4)
    assert model.canonical.left.shape[1] == 1
    expected = abs(np.corrcoef(left[:, 0], right[:, 0])[0, 1])
    assert float(model.canonical.correlation[0]) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("kind", ["linear", "fourier"])
def test_products_in_float32_agree_to_their_digits(kind: str) -> None:
    left, right = views(n=5000)
    left = left * torch.tensor([1.0, 1e-6, 1e6, 1.0, 1.0]).double() + 1e4
    first = linear(left)
    if kind == "fourier":
        first = FourierView.start(first.origin, first.scale, 12, 2.0, generator(0))
    pair, source = ViewPair(first, linear(right)), ArraySource(torch.cat([left, right], 1))
    exact, quick = (
        RelevanceModel.solve(pair, source, 4, dtype=kind) for kind in (torch.float64, torch.float32)
    )
    assert quick.canonical.left.dtype == torch.float64
    np.testing.assert_allclose(quick.canonical.correlation, exact.canonical.correlation, atol=3e-6)
    assert bool((quick.canonical.correlation != exact.canonical.correlation).any())


def test_swapped_views_have_the_same_variables() -> None:
    left, right = views()
    model = solved(left, right)
    turned = model.swap_views()
    torch.testing.assert_close(turned.left(right), model.right(right), rtol=0.0, atol=0.0)
    u, v = turned.both(torch.cat([right, left], 1))
    torch.testing.assert_close(v, model.left(left), rtol=0.0, atol=0.0)
    again = solved(right, left).canonical.correlation
    torch.testing.assert_close(again, model.canonical.correlation, rtol=1e-11, atol=0.0)
    assert u.shape == v.shape


def test_signs_repeat_and_no_more_variables_than_asked() -> None:
    left, right = views()
    few, all_ = solved(left, right, most=2).canonical, solved(left, right).canonical
    torch.testing.assert_close(few.left, all_.left[:, :2], rtol=1e-14, atol=1e-15)
    assert bool((all_.left.gather(0, all_.left.abs().argmax(0, keepdim=True)) > 0.0).all())
    assert list(all_.correlation) == sorted(all_.correlation, reverse=True)


def test_any_source_will_do() -> None:
    source: Source = Pieces(torch.cat(views(), 1))
    pair = ViewPair(*(linear(part) for part in views()))
    assert RelevanceModel.solve(pair, source, 2).canonical.correlation.shape == (2,)


@pytest.mark.parametrize("kind", ["plain", "weighted", "weak", "far", "ridge", "float32", "fourier"])
def test_means_of_linear_views_follow_from_the_moments(kind: str) -> None:
    left, right = views()
    weight = torch.rand(N, generator=generator(7), dtype=torch.float64) if kind == "weighted" else None
    if kind == "weak":
        left[:, 1] = left[:, 0] + 1e-5 * left[:, 1]
    if kind == "far":
        left, right = left * 1e-3 + 1e4, right * 1e70
    first = linear(left)
    if kind == "fourier":
        first = FourierView.start(first.origin, first.scale, 6, 2.0, generator(0))
    pair, source = ViewPair(first, linear(right)), ArraySource(torch.cat([left, right], 1), weight)
    ridge, dtype = (0.1 if kind == "ridge" else 0.0), (torch.float32 if kind == "float32" else torch.float64)
    found = fit_fixed_features(pair, source, 3, ridge, dtype)
    expected = RelevanceFit.of(RelevanceModel.solve(pair, source, 3, ridge, dtype), source)
    for (name, a), (_, b) in zip(found.leaves(), expected.leaves(), strict=True):
        # standardised features have means that are zero but for rounding, and standard deviation 1
        size = 1.0 if name.endswith("_mean") else float(b.abs().max())
        torch.testing.assert_close(
            a, b, rtol=0.0, atol=size * (1e-5 if kind == "float32" else 1e-9), msg=name
        )
    torch.testing.assert_close(
        found.left[0], left.mean(0) if weight is None else weight @ left / weight.sum()
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
@pytest.mark.parametrize("kind", ["fourier", "products", "linear"])
def test_features_that_are_not_finite_are_named(bad: float, kind: str) -> None:
    left, right = views()
    plain = linear(left, standard=False), linear(right, standard=False)
    right[7, 2] = bad
    first = FourierView.start(plain[0].origin, plain[0].scale, 6, 2.0, generator(0))
    pair = ViewPair(first if kind == "fourier" else plain[0], plain[1])
    source = ArraySource(torch.cat([left, right], 1))

    def solve() -> CanonicalVariables:
        if kind == "products":
            return CanonicalVariables.solve(
                source.reduce(lambda rows, weight: MomentSums.of(pair, rows, weight)), 5, 3
            )
        return RelevanceModel.solve(pair, source, 3).canonical

    if kind == "linear" and np.isfinite(bad):  # columns are in units of their deviation
        assert bool(torch.isfinite(solve().correlation).all())
        return
    with pytest.raises(ValueError, match="feature 2 of the second view is missing, infinite or too large"):
        solve()
