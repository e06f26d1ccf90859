"""The contract of methods, walked for each of them against a dense reference."""

from itertools import pairwise

import pytest
import torch

from boxloop.average import Power
from boxloop.networks import (
    METHOD_NAMES,
    METHODS as KINDS,
    SWA,
    SWAG,
    FactorEM,
    FactorGradient,
    FullCovariance,
    Method,
    WindowAverage,
    pick_method,
)
from networks.trajectories import CPU, METHODS, RANK, SIZE, dense, followed, reference, trajectory

every = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
paper = "factor paper"
with_variance = pytest.mark.parametrize("name", [name for name in METHODS if name not in ("swa", paper)])


def test_every_method_of_the_room_is_walked() -> None:
    assert {type(method) for method in METHODS.values()} == set(KINDS)
    assert {type(pick_method(word, RANK, SIZE)) for word in METHOD_NAMES} == set(KINDS) - {WindowAverage}


@every
@pytest.mark.parametrize("steps", [6, 7, 9, 12, 40])
def test_distributions_are_those_of_the_dense_reference(method: Method, steps: int) -> None:
    rows = trajectory(steps)
    distribution = followed(method, rows).distribution()
    mean, covariance = reference(method, rows)
    torch.testing.assert_close(distribution.mean, mean, rtol=1e-10, atol=0.0)
    torch.testing.assert_close(
        dense(distribution), covariance, rtol=1e-7, atol=1e-10 * float(covariance.abs().amax())
    )


@every
def test_count_shapes_and_the_lowered_rank(method: Method) -> None:
    rows = trajectory(30)
    follower = method.start(SIZE, torch.Generator().manual_seed(0), torch.float64, CPU)
    length = method.window if isinstance(method, WindowAverage) else 1
    for seen, row in enumerate(rows, 1):
        follower.observe(row)
        assert follower.count == seen
        if seen < method.min_vectors:
            continue
        distribution = follower.distribution()
        shown = seen // length
        assert distribution.mean.shape == distribution.noise.shape == (SIZE,)
        assert distribution.loadings.shape == (SIZE, distribution.rank)
        assert distribution.rank <= min(follower.rank, shown - 1)
        assert bool((distribution.noise >= 0.0).all())
        assert distribution.is_finite()
    assert followed(method, trajectory(200)).distribution().rank == follower.rank


@every
def test_a_restored_follower_goes_on_bit_for_bit(method: Method) -> None:
    rows = trajectory(41)
    whole = followed(method, rows)
    half = followed(method, rows[:17])
    state = half.state()
    before = dict(state.map(torch.clone).leaves())
    for row in rows[17:20]:
        half.observe(row)
    for name, leaf in state.leaves():
        assert torch.equal(leaf, before[name]), f"{name} of a state changed after it was taken"
    again = method.restore(state, CPU)
    for row in rows[17:]:
        again.observe(row)
    for (name, one), (_, other) in zip(whole.state().leaves(), again.state().leaves(), strict=True):
        assert torch.equal(one, other), name
    assert again.count == whole.count
    for (name, one), (_, other) in zip(
        whole.distribution().leaves(), again.distribution().leaves(), strict=True
    ):
        assert torch.equal(one, other), name


@every
def test_a_state_can_be_restored_twice(method: Method) -> None:
    rows = trajectory(30)
    state = followed(method, rows[:20]).state()
    ends = []
    for _ in range(2):
        follower = method.restore(state, CPU)
        for row in rows[20:]:
            follower.observe(row)
        ends.append(follower.state())
    for (name, one), (_, other) in zip(*(end.leaves() for end in ends), strict=True):
        assert torch.equal(one, other), name


@every
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_as_on_a_cpu(method: Method) -> None:
    """Followed on one device, gone on with on the other; float32 loses digits, but is kept."""
    rows, gpu = trajectory(40), torch.device("cuda")
    follower = method.start(SIZE, torch.Generator().manual_seed(1), rows.dtype, gpu)
    for row in rows[:20]:
        follower.observe(row.to(gpu))
    assert {leaf.device.type for _, leaf in follower.distribution().leaves()} == {"cuda"}
    back = method.restore(follower.state(), CPU)
    for row in rows[20:]:
        follower.observe(row.to(gpu))
        back.observe(row)
    right = dense(followed(method, rows).distribution())
    scale = float(right.abs().amax())
    for other in (follower, back):
        torch.testing.assert_close(dense(other.distribution()).cpu(), right, rtol=1e-7, atol=1e-8 * scale)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_is_kept(method: Method, dtype: torch.dtype) -> None:
    follower = followed(method, trajectory(20, dtype=dtype))
    assert {leaf.dtype for _, leaf in follower.distribution().leaves()} == {dtype}
    long = [leaf for _, leaf in follower.state().leaves() if SIZE in leaf.shape]
    assert long
    assert {leaf.dtype for leaf in long} == {dtype}


@every
def test_the_callers_vector_is_neither_kept_nor_changed(method: Method) -> None:
    rows = trajectory(20)
    follower = method.start(SIZE, torch.Generator().manual_seed(1), torch.float64, CPU)
    vector = torch.empty(SIZE, dtype=torch.float64)
    for row in rows:
        vector.copy_(row)
        follower.observe(vector)
        assert torch.equal(vector, row)
        vector.fill_(torch.nan)
    for (name, one), (_, other) in zip(
        follower.distribution().leaves(), followed(method, rows).distribution().leaves(), strict=True
    ):
        assert torch.equal(one, other), name


@every
def test_a_distribution_is_a_copy(method: Method) -> None:
    rows = trajectory(40)
    follower = followed(method, rows[:30])
    first = follower.distribution()
    kept = first.map(torch.clone)
    for row in rows[30:]:
        follower.observe(row)
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(first.leaves(), kept.leaves(), strict=True))
    again, other = followed(method, rows), followed(method, rows)
    for _, leaf in again.distribution().leaves():
        leaf.fill_(torch.nan)
    for (name, a), (_, b) in zip(again.distribution().leaves(), other.distribution().leaves(), strict=True):
        assert torch.equal(a, b), name


@with_variance
def test_vectors_all_alike_have_no_spread_and_later_ones_are_learned_from(name: str) -> None:
    method = METHODS[name]
    still = torch.linspace(-1.0, 1.0, SIZE, dtype=torch.float64).expand(30, SIZE)
    distribution = followed(method, still).distribution()
    torch.testing.assert_close(distribution.mean, still[0], rtol=1e-14, atol=0.0)
    assert float(distribution.variance().amax()) <= 1e-30
    rows = torch.cat([still, trajectory(300, seed=3)])
    distribution = followed(method, rows).distribution()
    torch.testing.assert_close(distribution.mean, reference_mean(method, rows), rtol=1e-9, atol=1e-12)
    assert distribution.is_finite()
    assert float(distribution.variance().amin()) > 1e-6


def reference_mean(method: Method, rows: torch.Tensor) -> torch.Tensor:
    if isinstance(method, WindowAverage):
        length = method.window
        return rows[: len(rows) // length * length].mean(0)
    if isinstance(method, FactorEM) and method.schedule != Power(1.0):
        weight = torch.arange(1.0, len(rows) + 1, dtype=rows.dtype)
        return weight @ rows / weight.sum()
    return rows.mean(0)


@with_variance
def test_weights_that_never_move_have_no_variance(name: str) -> None:
    rows = trajectory(60)
    rows[:, 4] = 0.25
    distribution = followed(METHODS[name], rows).distribution()
    torch.testing.assert_close(distribution.mean[4], torch.tensor(0.25).double(), rtol=1e-14, atol=0.0)
    assert 0.0 <= float(distribution.variance()[4]) < 1e-20
    assert distribution.is_finite()


@with_variance
def test_a_weight_that_wakes_up_late_is_learned(name: str) -> None:
    rows = trajectory(400)
    rows[:200, 4] = 0.0
    rows[200:, 4] *= 1e3
    distribution = followed(METHODS[name], rows).distribution()
    assert distribution.is_finite()
    assert 0.2 < float(distribution.variance()[4] / rows[:, 4].var()) < 2.0


@pytest.mark.parametrize("steps", [2, 3, 4, 11, 30])
def test_swag_is_the_published_formula(steps: int) -> None:
    rows = trajectory(steps, seed=5)
    distribution = followed(SWAG(4), rows).distribution()
    mean, covariance = reference(SWAG(4), rows)
    torch.testing.assert_close(distribution.mean, mean, rtol=1e-12, atol=0.0)
    torch.testing.assert_close(dense(distribution), covariance, rtol=1e-9, atol=1e-15)
    assert distribution.rank == min(4, steps - 1)


def test_swag_in_single_precision_keeps_a_spread_far_below_the_weights() -> None:
    rows = 10.0 + trajectory(200)
    right = rows.var(0, correction=0)
    distribution = followed(SWAG(3), rows.float()).distribution()
    torch.testing.assert_close(2.0 * distribution.noise.double(), right, rtol=0.01, atol=0.0)
    moments = rows.float().square().mean(0) - rows.float().mean(0).square()
    assert float((moments / right - 1.0).abs().max()) > 0.1, "second moments would have done"


@pytest.mark.parametrize(
    "method", [FactorEM(RANK), FactorEM(2, warmup=5), FactorEM(RANK, warmup=4, variant="paper")]
)
def test_factor_is_the_stream_fed_by_hand_bit_for_bit(method: FactorEM) -> None:
    rows = trajectory(50)
    distribution = followed(method, rows).distribution()
    mean, covariance = reference(method, rows)
    assert torch.equal(distribution.mean, mean)
    torch.testing.assert_close(dense(distribution), covariance, rtol=1e-12, atol=1e-18)


@pytest.mark.parametrize(("vectors", "together"), [(0.5, 1), (5.5, 5), (16, 16), (100, 16)])
def test_vectors_share_a_pass_where_there_is_room_for_them(
    vectors: float, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("boxloop.networks.methods.factor.QUEUE_BYTES", int(vectors * SIZE * 4))
    state = FactorEM(RANK).start(SIZE, torch.Generator(), torch.float32, CPU).state()
    assert state.settings.refresh == together


def test_the_distribution_of_vectors_that_share_a_pass_is_near_that_of_vectors_alone() -> None:
    """Twenty fixed seeds: they differ by a fifth, at most, of what both are away from the covariance of all vectors."""
    for seed in range(20):
        rows = trajectory(80, seed, size=200)
        right = torch.cov(rows.mT, correction=0)
        shared, alone = (dense(followed(FactorEM(5, refresh=n), rows).distribution()) for n in (16, 1))
        errors = [float((a - b).norm() / right.norm()) for a, b in ((shared, alone), (alone, right))]
        assert errors[0] < 0.2 * errors[1]


def test_factor_variances_are_those_of_all_vectors_whatever_the_rank() -> None:
    rows = trajectory(60)
    for steps in (2, 3, 4, 5, 60):
        distribution = followed(FactorEM(RANK), rows[:steps]).distribution()
        torch.testing.assert_close(
            distribution.variance(), rows[:steps].var(0, correction=0), rtol=1e-6, atol=0.0
        )


def test_factor_of_few_vectors_is_nearer_their_covariance_than_swag() -> None:
    """Twenty seeds of thirty vectors; a sign test of 20 to 0 is by chance 1e-6."""
    better = 0
    for seed in range(20):
        rows = trajectory(30, seed, size=200)
        right = torch.cov(rows.mT, correction=0)
        errors = [
            float((dense(followed(m, rows).distribution()) - right).norm() / right.norm())
            for m in (FactorEM(5), SWAG(5))
        ]
        better += errors[0] < errors[1]
    assert better == 20


def test_gradient_at_the_scale_of_weights_is_that_at_unit_scale() -> None:
    """The distribution of 1e-4 times the vectors is 1e-8 times the covariance: no unit is built in."""
    rows = trajectory(300)
    method = FactorGradient(2, learning_rate=0.01)
    one, other = followed(method, rows).distribution(), followed(method, 1e-4 * rows).distribution()
    torch.testing.assert_close(1e-8 * dense(one), dense(other), rtol=1e-9, atol=1e-22)


@pytest.mark.parametrize("steps", [16, 17, 25])
def test_gradient_changes_units_where_a_weight_leaps(steps: int) -> None:
    rows = trajectory(steps)
    rows[15:, 2] += 5.0
    rows[15:, 7] += 0.5
    method = FactorGradient(2, learning_rate=0.01)
    distribution = followed(method, rows).distribution()
    _, covariance = reference(method, rows)
    atol = 1e-10 * float(covariance.abs().amax())
    torch.testing.assert_close(dense(distribution), covariance, rtol=1e-7, atol=atol)
    assert float(distribution.variance()[2] / rows[:, 2].var(correction=0)) < 2.0


def test_gradient_climbs_on_standardised_vectors() -> None:
    draws = torch.Generator().manual_seed(2)
    size = 40
    loadings = 1e-3 * torch.randn(size, 1, generator=draws).double()
    noise = torch.randn(3000, size, generator=draws).double() * 3e-4
    rows = 0.5 + torch.randn(3000, 1, generator=draws).double() @ loadings.mT + noise
    right = loadings @ loadings.mT + 9e-8 * torch.eye(size).double()
    found = dense(followed(FactorGradient(1, learning_rate=3e-3), rows).distribution())
    assert float((found - right).norm() / right.norm()) < 0.3
    assert float((right.diagonal().diag() - right).norm() / right.norm()) > 0.8


@pytest.mark.parametrize("name", ["swa", "swag", "factor", "gradient", "full"])
def test_windows_of_one_iterate_are_no_windows(name: str) -> None:
    method = METHODS[name]
    rows = trajectory(20)
    one, other = (
        followed(WindowAverage(1, method), rows).distribution(),
        followed(method, rows).distribution(),
    )
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(one.leaves(), other.leaves(), strict=True))


def test_an_unfinished_window_is_not_shown() -> None:
    rows = trajectory(23)
    one, other = (
        followed(WindowAverage(5, FullCovariance()), rows),
        followed(WindowAverage(5, FullCovariance()), rows[:20]),
    )
    assert (one.count, other.count) == (23, 20)
    assert torch.equal(one.distribution().loadings, other.distribution().loadings)
    assert WindowAverage(5, FullCovariance()).min_vectors == 10


def test_full_is_the_sample_covariance_with_as_many_directions_as_vectors_tell() -> None:
    rows = trajectory(8)
    distribution = followed(FullCovariance(), rows).distribution()
    assert distribution.rank == 7
    torch.testing.assert_close(dense(distribution), torch.cov(rows.mT), rtol=1e-10, atol=1e-18)
    lengths = distribution.loadings.norm(dim=0)
    assert all(a >= b for a, b in pairwise(lengths.tolist()))
    assert followed(FullCovariance(), trajectory(8, dtype=torch.float32)).distribution().rank <= 7


def test_full_refuses_many_weights_and_says_what_else_to_use() -> None:
    with pytest.raises(ValueError, match=r"5000.*factor.*swag.*last"):
        FullCovariance().start(5000, torch.Generator(), torch.float64, CPU)


def test_words() -> None:
    assert pick_method("factor", 7, 100) == FactorEM(7)
    assert pick_method("gradient", 7, 3) == FactorGradient(3)
    assert pick_method("swag", 7, 1) == SWAG(2)
    assert pick_method("swa", 0, 3) == SWA()
    mine = WindowAverage(3, SWA())
    assert pick_method(mine, 7, 3) is mine
    with pytest.raises(
        ValueError, match="one of factor, gradient, swag, swa, full, or a method, got 'laplace'"
    ):
        pick_method("laplace", 7, 3)
    with pytest.raises(ValueError, match=r"WindowAverage\(n_rows"):
        pick_method("window", 7, 3)
    with pytest.raises(ValueError, match="rank must be a whole number, at least 1"):
        pick_method("factor", 0, 3)
    with pytest.raises(ValueError, match="rank must be at least 2 for method='swag', got 1"):
        pick_method("swag", 1, 3)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: SWAG(1), "rank must be at least 2"),
        (lambda: SWAG(3, floor=-1.0), "floor at least 0"),
        (lambda: FactorEM(0), "rank must be at least 1"),
        (lambda: FactorEM(3, warmup=1), "warmup must be at least 2"),
        (lambda: FactorEM(3, variant="other"), "variant"),
        (lambda: FactorEM(3, refresh=0), "refresh at least 1, got 3 and 0"),
        (lambda: FactorGradient(0), "rank must be at least 1"),
        (lambda: FactorGradient(3, warmup=1), "warmup at least 2"),
        (lambda: FactorGradient(3, learning_rate=0.0), "learning_rate must be positive"),
        (lambda: WindowAverage(), "n_rows and batch_size"),
        (lambda: WindowAverage(0, FullCovariance()), "length must be at least 1, got 0"),
        (lambda: FactorEM(5).start(3, torch.Generator(), torch.float64, CPU), "between 1 and the 3 columns"),
        (lambda: FactorEM(2).start(3, torch.Generator(), torch.float16, CPU), "float32 or float64"),
    ],
)
def test_settings_that_cannot_be(make, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()
