"""What a stream refuses, and what it survives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from boxloop.fit import FactorStream
from fit.factor_stream_cases import D, draws, same, stream_of, vectors


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (torch.zeros(D + 1), "shape"),
        (torch.zeros(2, D - 1), "shape"),
        (torch.zeros(1, 1, D), "shape"),
        (torch.zeros(0, D), "shape"),
        (torch.tensor(1.0), "shape"),
        (torch.zeros(D, dtype=torch.int64), "real numbers"),
        (np.array(["a"] * D), "real numbers, got an array of <U1"),
        (torch.zeros(D).index_fill(0, torch.tensor(4), torch.nan), "Entry 4 .* nan"),
        (torch.zeros(3, D).index_fill(1, torch.tensor(7), -torch.inf), "Entry 7 .* -inf"),
    ],
)
@pytest.mark.parametrize("refresh", [1, 8])
def test_a_bad_observation_is_refused_and_nothing_changes(values: Tensor, says: str, refresh: int) -> None:
    stream, other = (stream_of(refresh=refresh) for _ in range(2))
    for theta in vectors(n=60):
        stream.observe(theta)
        other.observe(theta)
    with pytest.raises(ValueError, match=says):
        stream.observe(values)
    assert same(stream, other)


def test_arrays_and_lists_are_read_as_tensors_are() -> None:
    stream, other = stream_of(), stream_of()
    for place, theta in enumerate(vectors(n=20)):
        stream.observe(theta)
        other.observe(theta.tolist() if place % 2 else theta.numpy())
    assert same(stream, other)


def test_squares_that_overflow_are_refused() -> None:
    stream = stream_of(dtype=torch.float32)
    with pytest.raises(ValueError, match="overflow"):
        stream.observe(torch.full((D,), 1e30))
    assert stream.count == 0


def test_an_interrupted_observation_is_not_built_upon(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = stream_of()
    for theta in vectors(n=60):
        stream.observe(theta)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("boxloop.fit.factor_stream.update_small_matrices", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stream.observe(vectors()[0])
    for use in (stream.model, stream.state, lambda: stream.observe(vectors()[0])):
        with pytest.raises(RuntimeError, match="interrupted"):
            use()


@pytest.mark.parametrize("refresh", [1, 16])
def test_constant_columns_and_a_late_start_stay_finite(refresh: int) -> None:
    rows = vectors()
    rows[:, 3] = 5.0
    rows[:150, 8] = -1.0
    stream = stream_of(dtype=torch.float32, refresh=refresh)
    for theta in rows:
        stream.observe(theta)
    model = stream.model()
    assert model.is_finite()
    assert bool((model.noise > 0.0).all())
    assert float(model.loadings[3].abs().max()) == 0.0


def test_a_warm_up_of_equal_vectors_is_named() -> None:
    stream = stream_of(warmup=3)
    for _ in range(2):
        stream.observe(torch.ones(D))
    with pytest.raises(ValueError, match="identical"):
        stream.observe(torch.ones(D))


def test_strided_half_and_double_precision_vectors_are_read_as_they_are() -> None:
    plain, strided = stream_of(dtype=torch.float32), stream_of(dtype=torch.float32)
    wide = torch.zeros(80, 2 * D, dtype=torch.float64)
    wide[:, ::2] = vectors(n=80).bfloat16()
    for theta in wide:
        plain.observe(theta[::2].bfloat16())
        strided.observe(theta[::2])
    assert same(plain, strided)


@pytest.mark.parametrize("variant", ["exact", "paper"])
@pytest.mark.parametrize("batch", [1, 5])
def test_vectors_far_from_zero_keep_their_variance_in_float32(variant: str, batch: int) -> None:
    """The square of the first vector, which has no share in it, is 1e10 times the variance."""
    stream = stream_of(dtype=torch.float32, variant=variant, warmup=10)
    rows = (1e3 + 1e-2 * torch.randn(30 * batch, D, generator=draws(3))).float()
    for part in rows.split(batch):
        stream.observe(part)
    variance = rows.double().var(0, correction=0).float()
    if variant == "exact":
        torch.testing.assert_close(stream.state().square, variance, rtol=0.02, atol=0.0)
    assert float(stream.state().square.max()) < 2.0 * float(variance.max())


@pytest.mark.parametrize("refresh", [1, 4, 16])
@pytest.mark.parametrize(
    ("dtype", "columns"), [(torch.float32, 1000), (torch.float32, 10**6), (torch.float64, 1000)]
)
def test_vectors_on_a_line_have_its_variance(dtype: torch.dtype, columns: int, refresh: int) -> None:
    """One factor explains all, 1e9 times the noise: rounding is as large as all that the others see."""
    stream = FactorStream.start(columns, 10, draws(0), warmup=3, refresh=refresh, dtype=dtype)
    base, n = torch.randn(columns, generator=draws(1)).to(dtype), 60
    for t in range(n):
        stream.observe(base + 1e-3 * t)
    model = stream.model()
    along = model.loadings.double().sum(0).square().sum() + model.noise.double().sum()
    assert float(along) / columns**2 == pytest.approx(1e-6 * (n * n - 1) / 12, rel=1e-3)
    assert float(model.noise.double().sum()) < 1e-3 * 1e-6 * columns * n * n / 12


def test_weights_that_require_gradients_are_read_only() -> None:
    theta = vectors()[0].requires_grad_()
    stream = stream_of()
    stream.observe(theta)
    assert not stream.state().mean.requires_grad


@pytest.mark.parametrize(
    "options",
    [
        {"variant": "other"},
        {"warmup": 1},
        {"refresh": 0},
        {"floor": 1.0},
        {"dtype": torch.float16},
        {"variant": "paper", "expand": True},
        {"variant": "paper", "refresh": 2},
    ],
)
def test_bad_settings_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        stream_of(**options)
    for rank in (0, D + 1):
        with pytest.raises(ValueError, match="rank"):
            FactorStream.start(D, rank, draws(0))


def test_a_model_needs_two_observations() -> None:
    stream = stream_of()
    stream.observe(vectors()[0])
    with pytest.raises(ValueError, match="two observations"):
        stream.model()
