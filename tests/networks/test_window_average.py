"""Finite-window iterate averaging: the length that theory gives, tried on linear regression."""

import pytest
import torch
from torch import Tensor

from boxloop.networks import FullCovariance, WindowAverage, window_length
from networks.trajectories import dense, followed

ROWS, BATCH, RATE = 2000, 4, 0.1


@pytest.mark.parametrize(
    ("rows", "batch", "replacement", "length"),
    [(1000, 10, False, 50), (1000, 10, True, 100), (7, 2, True, 4), (3, 2, False, 1), (10, 20, True, 1)],
)
def test_one_epoch_with_replacement_half_a_one_without(
    rows: int, batch: int, replacement: bool, length: int
) -> None:
    assert window_length(rows, batch, replacement) == length
    assert WindowAverage(None, FullCovariance(), rows, batch, replacement).window == length


def test_whole_batches_have_no_noise() -> None:
    with pytest.raises(ValueError, match="no noise"):
        window_length(100, 100)
    with pytest.raises(ValueError, match="at least 1"):
        window_length(100, 0)


@pytest.fixture(
    scope="module",
    params=[(True, 0.0), (False, 0.0), (True, 0.8), (False, 0.8)],
    ids=["replacement", "reshuffled", "replacement, momentum", "reshuffled, momentum"],
)
def walks(request: pytest.FixtureRequest) -> tuple[bool, Tensor, Tensor]:
    """300 runs of SGD near the optimum of a linear regression, (runs, steps, 2), and its posterior's covariance.

    With momentum the rate is so much smaller that rate / (1 - momentum) is the same.

    The noise is +1 or -1, so that the gradients of rows vary as the Hessian says to a part in a hundred.
    """
    draws = torch.Generator().manual_seed(0)
    mixing = torch.linalg.cholesky(torch.tensor([[1.0, 0.5], [0.5, 1.0]]).double())
    x = torch.randn(ROWS, 2, generator=draws).double() @ mixing.mT
    y = x @ torch.tensor([1.0, -2.0]).double() + 2.0 * torch.randint(2, (ROWS,), generator=draws) - 1.0
    theta = torch.linalg.lstsq(x, y[:, None]).solution[:, 0].expand(300, 2)
    replacement, momentum = request.param
    path, speed = [], torch.zeros_like(theta)
    for _ in range(6):
        if replacement:
            order = torch.randint(ROWS, (300, ROWS), generator=draws)
        else:
            order = torch.rand(300, ROWS, generator=draws).argsort(1)
        for batch in order.split(BATCH, dim=1):
            gap = (x[batch] @ theta[:, :, None])[..., 0] - y[batch]
            speed = momentum * speed - RATE * (1.0 - momentum) * (gap[..., None] * x[batch]).mean(1)
            theta = theta + speed
            path.append(theta)
    steps = torch.stack(path[ROWS // BATCH :], 1)
    return replacement, steps, torch.linalg.inv(x.mT @ x)


def window_variance(steps: Tensor, length: int) -> Tensor:
    whole = steps[:, : steps.shape[1] // length * length]
    means = whole.reshape(len(steps), -1, length, 2).mean(2).reshape(-1, 2)
    return torch.cov(means.mT)


def error(found: Tensor, right: Tensor) -> float:
    return float((found - right).norm() / right.norm())


def test_windows_of_that_length_vary_as_the_posterior(walks: tuple[bool, Tensor, Tensor]) -> None:
    """1500 independent epochs: an entry of the covariance is off by 4% at one error, and 6% by windows' ends.

    The bound of 25% is five errors: false alarm below 1e-5, were the seed not fixed.
    """
    replacement, steps, right = walks
    length = window_length(ROWS, BATCH, replacement)
    assert error(window_variance(steps, length), right) < 0.25
    for other in (1, length // 5, 2 * length):
        assert error(window_variance(steps, other), right) > 0.35, other


def test_a_follower_sees_what_the_theory_speaks_of(walks: tuple[bool, Tensor, Tensor]) -> None:
    replacement, steps, _ = walks
    method = WindowAverage(None, FullCovariance(), ROWS, BATCH, replacement)
    distribution = followed(method, steps[0]).distribution()
    torch.testing.assert_close(
        dense(distribution), window_variance(steps[:1], method.window), rtol=1e-9, atol=1e-18
    )
