"""The relevance of two families of features: its value, its gradient, and what singular features do to them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from boxloop.numeric import generator
from boxloop.twoview import relevance_loss

N = 60


def pair(k: int = 4, m: int = 3, n: int = N, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Features with means of their own, that share two directions."""
    stream = generator(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=stream, dtype=torch.float64)

    shared = normal(n, 2)
    left = shared @ normal(2, k) + normal(n, k) + normal(k)
    return left, shared @ normal(2, m) + normal(n, m) + normal(m)


def centred(features: Tensor, weight: Tensor | None = None) -> Tensor:
    share = (
        torch.full((len(features),), 1.0 / len(features)).to(features)
        if weight is None
        else weight / weight.sum()
    )
    return (features - share @ features) * share.sqrt()[:, None]


def projector(features: Tensor, rtol: float = 1e-7) -> Tensor:
    """On the span of the columns, each in its own unit."""
    size = features.norm(dim=0)
    unit = features[:, size > 1e-12 * size.max()]
    u, s, _ = torch.linalg.svd(unit / unit.norm(dim=0), full_matrices=False)
    return u[:, s > rtol * s.max()] @ u[:, s > rtol * s.max()].mT if len(s) else unit @ unit.mT


def overlap(left: Tensor, right: Tensor, weight: Tensor | None = None) -> float:
    """Tr(PQ) of appendix A.1."""
    return float((projector(centred(left, weight)) * projector(centred(right, weight))).sum())


def plain(left: Tensor, right: Tensor, weight: Tensor, ridge: float, enforced: bool) -> Tensor:
    """The same by autograd through torch's own inverses."""
    share = weight / weight.sum()
    if enforced:
        left, right = left - share @ left, right - share @ right
    heavy = share[:, None]
    inner, outer, cross = left.mT @ (heavy * left), right.mT @ (heavy * right), right.mT @ (heavy * left)
    one = torch.linalg.inv(inner + ridge * torch.eye(len(inner)).double())
    two = torch.linalg.inv(outer + ridge * torch.eye(len(outer)).double())
    return min(len(inner), len(outer)) - (one @ cross.mT @ two @ cross).trace()


def slope(left: Tensor, right: Tensor, **options: object) -> tuple[Tensor, Tensor, Tensor]:
    f, g = left.clone().requires_grad_(), right.clone().requires_grad_()
    loss = relevance_loss(f, g, **options)  # type: ignore[arg-type]
    return loss.detach(), *torch.autograd.grad(loss, [f, g])


@pytest.mark.parametrize("seed", range(3))
def test_value_is_the_trace_of_pseudo_inverses_and_the_overlap_of_projectors(seed: int) -> None:
    left, right = pair(seed=seed)
    f, g = left - left.mean(0), right - right.mean(0)
    inner, outer, cross = f.mT @ f / N, g.mT @ g / N, g.mT @ f / N
    dense = (torch.linalg.pinv(inner) @ cross.mT @ torch.linalg.pinv(outer) @ cross).trace()
    found = float(relevance_loss(left, right))
    assert found == pytest.approx(3.0 - float(dense), rel=1e-10)
    assert found == pytest.approx(3.0 - overlap(left, right), rel=1e-10)


@pytest.mark.parametrize("ridge", [0.0, 0.3])
@pytest.mark.parametrize("constant", ["enforced", "learned"])
@pytest.mark.parametrize("weighted", [False, True])
def test_value_and_gradient_equal_autograd(ridge: float, constant: str, weighted: bool) -> None:
    left, right = pair()
    weight = (
        torch.rand(N, generator=generator(5), dtype=torch.float64) if weighted else torch.ones(N).double()
    )
    f, g = left.clone().requires_grad_(), right.clone().requires_grad_()
    expected = plain(f, g, weight, ridge, constant == "enforced")
    wanted = torch.autograd.grad(expected, [f, g])
    value, *found = slope(left, right, weight=weight if weighted else None, ridge=ridge, constant=constant)
    torch.testing.assert_close(value, expected.detach(), rtol=1e-10, atol=0.0)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("ridge", [0.0, 0.1])
@pytest.mark.parametrize("constant", ["enforced", "learned"])
def test_gradcheck(ridge: float, constant: str) -> None:
    left, right = (part.requires_grad_() for part in pair(3, 2, 12))
    weight = torch.rand(12, generator=generator(1), dtype=torch.float64)

    def loss(f: Tensor, g: Tensor) -> Tensor:
        return relevance_loss(f, g, weight, ridge=ridge, constant=constant)  # type: ignore[arg-type]

    assert torch.autograd.gradcheck(loss, (left, right))


def test_weights_are_repetitions() -> None:
    left, right = pair()
    times = torch.randint(0, 4, (N,), generator=generator(2))
    value, by_left, _ = slope(left, right, weight=times.double())
    again, repeated, _ = slope(left.repeat_interleave(times, 0), right.repeat_interleave(times, 0))
    torch.testing.assert_close(value, again, rtol=1e-10, atol=0.0)
    place = torch.arange(N).repeat_interleave(times)
    summed = torch.zeros_like(left).index_add_(0, place, repeated)
    torch.testing.assert_close(by_left, summed, rtol=1e-10, atol=1e-13)


def test_enforced_constant_is_a_constant_feature() -> None:
    left, right = pair()
    ones = torch.ones(N, 1).double()
    joined = torch.cat([left, ones], 1), torch.cat([right, ones], 1)
    assert float(relevance_loss(*joined, constant="learned")) == pytest.approx(
        float(relevance_loss(left, right)), rel=1e-10
    )


def test_invertible_maps_change_nothing() -> None:
    left, right = pair()
    stream = generator(3)
    turn, other = (torch.randn(k, k, generator=stream, dtype=torch.float64) for k in (4, 3))
    shifted = left @ turn + 7.0, (right @ other - 3.0) * torch.tensor([1e-8, 1.0, 1e8]).double()
    assert float(relevance_loss(*shifted)) == pytest.approx(float(relevance_loss(left, right)), rel=1e-10)


def singular(case: str) -> tuple[Tensor, Tensor, Tensor]:
    """Features, and a change of the first view along which its rank stays what it is."""
    left, right = pair()
    move = torch.randn(left.shape, generator=generator(8), dtype=torch.float64)
    if case == "duplicated":
        left[:, 1], move[:, 1] = left[:, 0], move[:, 0]
    elif case == "collinear":
        mix = torch.tensor([0.4, -2.0, 1.0]).double()
        left[:, 3], move[:, 3] = left[:, :3] @ mix, move[:, :3] @ mix
    elif case == "constant":
        left[:, 2], move[:, 2] = 0.1, 0.7
    elif case == "zero":
        left[:, 2], move[:, 2] = 0.0, 0.0
    elif case == "sizes":
        size = torch.tensor([1e-7, 1.0, 1e7, 1e3]).double()
        left[:, 1], move[:, 1] = 3.0 * left[:, 0], 3.0 * move[:, 0]
        left, move = left * size, move * size
    return left, right, move


CASES = ["duplicated", "collinear", "constant", "zero", "sizes"]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("constant", ["enforced", "learned"])
def test_gradient_on_singular_features_equals_finite_differences(case: str, constant: str) -> None:
    left, right, move = singular(case)
    sideways = torch.randn(right.shape, generator=generator(9), dtype=torch.float64)
    _, by_left, by_right = slope(left, right, constant=constant)
    wanted = float((by_left * move).sum() + (by_right * sideways).sum())
    step = 1e-5
    ends = [
        float(relevance_loss(left + s * move, right + s * sideways, constant=constant))  # type: ignore[arg-type]
        for s in (-step, step)
    ]
    assert wanted == pytest.approx((ends[1] - ends[0]) / (2 * step), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_value_on_singular_features_is_the_overlap_of_spans(case: str) -> None:
    left, right, _ = singular(case)
    assert float(relevance_loss(left, right)) == pytest.approx(3.0 - overlap(left, right), rel=1e-9)
    assert float(relevance_loss(right, left)) == pytest.approx(3.0 - overlap(left, right), rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ridge", [0.0, 1e-3])
def test_constants_of_both_views_are_not_correlated(dtype: torch.dtype, ridge: float) -> None:
    """What rounding leaves of 0.1 and 0.3 minus their means is the same in every row."""
    left, right = (part.to(dtype) for part in pair(2, 2))
    still = torch.cat([left, torch.full((N, 1), 0.1, dtype=dtype)], 1)
    other = torch.cat([right, torch.full((N, 1), 0.3, dtype=dtype)], 1)
    found = float(relevance_loss(still, other, ridge=ridge))
    assert found == pytest.approx(1.0 + float(relevance_loss(left, right, ridge=ridge)), rel=1e-7)
    _, *both = slope(still, other, ridge=ridge)
    assert all(bool((part[:, 2] == 0.0).all()) for part in both)


def test_fewer_rows_than_features() -> None:
    left, right = pair(8, 7, 5)
    value, *both = slope(left, right)  # both spans are all of the 4 directions with mean 0
    assert float(value) == pytest.approx(3.0, abs=1e-9)
    assert all(float(part.abs().max()) < 1e-7 for part in both)


def test_perfect_correlation_is_a_minimum() -> None:
    left, _ = pair()
    turn = torch.randn(4, 4, generator=generator(4), dtype=torch.float64)
    value, *both = slope(left, left @ turn + 1.0)
    assert 0.0 <= float(value) < 1e-9
    assert all(float(part.abs().max()) < 1e-9 for part in both)


def test_features_of_very_different_size_in_float32() -> None:
    left, right = pair()
    left, right = left - left.mean(0), right - right.mean(0)
    size = torch.tensor([1e-15, 1e-3, 1.0, 1e15])
    found, small, _ = slope((left.float() * size), right.float())
    expected, plain_slope, _ = slope(left, right)
    assert float(found) == pytest.approx(float(expected), rel=1e-5)
    torch.testing.assert_close(small * size, plain_slope.float(), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("angle", [1.0, 1e-3])
@pytest.mark.parametrize("weighted", [False, True])
def test_gradient_of_float32_features_has_their_digits(angle: float, weighted: bool) -> None:
    """Whether features are far from collinear, so that the last product is in float32, or near."""
    left, right = (part.float() for part in pair(n=400))
    left[:, 1] = left[:, 0] + angle * left[:, 1]
    weight = torch.rand(400, generator=generator(6)) if weighted else None
    _, *found = slope(left, right, weight=weight)
    _, *exact = slope(left.double(), right.double(), weight=weight)
    for a, b in zip(found, exact, strict=True):
        assert a.dtype == torch.float32
        assert float((a.double() - b).abs().max() / b.abs().max()) < 3e-6


@pytest.mark.parametrize("seed", range(20))
def test_between_zero_and_the_number_of_features_and_never_nan(seed: int) -> None:
    stream = generator(100 + seed)
    n, k, m = (int(torch.randint(1, 9, (), generator=stream)) for _ in range(3))
    left, right = (torch.randint(-1, 2, (n, c), generator=stream).float() for c in (k, m))
    for options in ({}, {"ridge": 1e-12}, {"constant": "learned"}, {"weight": torch.ones(n)}):
        value, *both = slope(left, right, **options)
        assert 0.0 <= float(value) <= min(k, m)
        assert all(bool(torch.isfinite(part).all()) for part in both)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e200])
def test_features_that_are_not_finite_give_nan_and_no_exception(bad: float) -> None:
    left, right = pair()
    left[3, 1] = bad
    value, by_left, by_right = slope(left, right)
    assert all(bool(torch.isnan(part).any()) for part in (value, by_left, by_right))


def test_no_second_derivative_is_pretended() -> None:
    left, right = pair()
    f = left.clone().requires_grad_()
    (first,) = torch.autograd.grad(relevance_loss(f, right), f, create_graph=True)
    with pytest.raises(RuntimeError, match=r"does not require grad|once_differentiable"):
        torch.autograd.grad(first.square().sum(), f)


@pytest.mark.parametrize("shapes", [((5, 2), (4, 2)), ((5,), (5, 2)), ((5, 2), (5, 2, 1))])
def test_shapes_are_checked(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="features must be"):
        relevance_loss(*(torch.zeros(shape) for shape in shapes))
