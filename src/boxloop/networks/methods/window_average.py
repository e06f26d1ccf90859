r"""Averages over windows of iterates (Mandt, Hoffman and Blei, 2017, section 5; Brownlie, 2021, section 6.1.2).

Near the optimum of a loss with Hessian A, at a
constant learning rate, the mean of T iterates varies as

.. math:: A (\bar\theta_w - \theta^*) \approx -\tfrac1T \sum_{t \in w} \xi_t

once T is long against the autocorrelation time :math:`1 / (\epsilon \lambda_{\min}(A))` of the iterates: the learning
rate cancels. With the covariance C of the gradients of single rows, batches of S rows drawn with replacement give
:math:`\operatorname{Cov} \bar\theta_w = A^{-1} C A^{-1} / (T S)`. Where the model is right, C = A in units of the
log-likelihood, and windows of :math:`T = N / S` iterates, one epoch, have the posterior's covariance
:math:`A^{-1} / N`. Without replacement the M = N / S batches of an epoch sum to the full gradient, noise within an
epoch has correlation :math:`-1 / (M - 1)`, and

.. math:: \operatorname{Cov} \bar\theta_w \approx \frac{M - T}{T} \cdot \frac{A^{-1} C A^{-1}}{N}, \qquad T \le M,

within one epoch, which is right at T = M / 2: two windows per epoch. (Whole epochs would have no noise at first order.
Brownlie's Figure 6.2, 1000 rows in batches of 10 and windows of 50, is exactly this case.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor

from boxloop.data import check_number
from boxloop.networks.distribution import Method, RunningEstimate, WeightDistribution
from boxloop.networks.methods.sample_moments import FullCovariance
from boxloop.tree import Tree


def window_length(n_rows: int, batch_size: int, replacement: bool = False) -> int:
    r"""The window length at which averages vary as the posterior does, for a linear model near its optimum.

    .. math:: T = N / S \ \text{(rows drawn with replacement)}, \qquad T = N / (2 S) \ \text{(reshuffled epochs)}

    The theory assumes a quadratic loss (Mandt, Hoffman and Blei, 2017, section 5), and conditions that a network does
    not guarantee:

    - a constant learning rate, at which even the slowest direction decorrelates well within a window:
      :math:`\epsilon \lambda_{\min}(A) T \gg 1`. Otherwise the variance in that direction is arbitrary.
    - a well-specified model: otherwise the covariance is the sandwich :math:`A^{-1} C A^{-1} / N`, that of an estimate
      over repeated data, not the posterior's.
    - a rate that is small beside :math:`1 / \lambda_{\max}(A)`. Momentum :math:`\mu` cancels as the rate does, which is
      then :math:`\epsilon / (1 - \mu)` throughout; SGD must be clearly stable at that rate.
    - the weight decay that corresponds to the prior.
    - without replacement: windows that begin with the epoch, and an even number of batches per epoch. Windows across
      two epochs have up to 1.5 times the variance.

    Args:
        n_rows: N.
        batch_size: S.
        replacement: whether batches are drawn with replacement; False for reshuffled epochs, as of a ``DataLoader``.

    Returns:
        T, at least 1.

    Example:
        >>> window_length(1000, 10), window_length(1000, 10, replacement=True)
        (50, 100)
    """
    for name, value in (("n_rows", n_rows), ("batch_size", batch_size)):
        if not check_number(value, name) >= 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    batches = n_rows / batch_size
    if not replacement and batches <= 1.0:
        raise ValueError(
            f"batch_size={batch_size} must be below n_rows={n_rows}: gradients of all rows have no noise, so the "
            "iterates have no variance."
        )
    return max(1, round(batches if replacement else batches / 2.0))


@dataclass(frozen=True)
class WindowState(Tree):
    """The mean of the current window (D,), its vectors, all vectors, and the state of the inner method."""

    mean: Tensor
    filled: int
    count: int
    inner: Any


@dataclass(frozen=True)
class WindowAverage:
    """Another method applied to the means of disjoint windows; an unfinished last window is ignored.

    Args:
        length: iterates per window; :func:`window_length` if None.
        inner: the method that observes the means.
        n_rows: rows of the training set, for ``length=None``.
        batch_size: rows per step, for ``length=None``.
        replacement: whether batches are drawn with replacement, for ``length=None``.

    Example:
        >>> import torch
        >>> method = WindowAverage(None, FullCovariance(), n_rows=1000, batch_size=125)
        >>> method.window
        4
        >>> estimate = method.start(1, torch.Generator(), torch.float64, torch.device("cpu"))
        >>> for value in range(10):
        ...     estimate.observe(torch.tensor([value]).double())
        >>> found = estimate.distribution()
        >>> estimate.count, found.mean.item(), round(found.variance().item(), 3)
        (10, 3.5, 8.0)
    """

    length: int | None = None
    inner: Method = field(default_factory=FullCovariance)
    n_rows: int | None = None
    batch_size: int | None = None
    replacement: bool = False

    def __post_init__(self) -> None:
        if self.length is None and (self.n_rows is None or self.batch_size is None):
            raise ValueError("A window average needs length, or both n_rows and batch_size.")
        if self.window < 1:
            raise ValueError(f"length must be at least 1, got {self.window}")

    @property
    def window(self) -> int:
        """Iterates per window."""
        if self.length is not None or self.n_rows is None or self.batch_size is None:
            return self.length or 0
        return window_length(self.n_rows, self.batch_size, self.replacement)

    @property
    def min_vectors(self) -> int:
        """As many windows as the inner method needs vectors."""
        return self.window * self.inner.min_vectors

    def start(
        self, size: int, generator: Generator, dtype: torch.dtype, device: torch.device
    ) -> RunningWindows:
        """A running estimate without observations."""
        mean = torch.zeros(size, dtype=dtype, device=device)
        inner = self.inner.start(size, generator, dtype, device)
        return RunningWindows(self.window, inner, mean, 0, 0)

    def restore(self, state: WindowState, device: torch.device) -> RunningWindows:
        """Continue from a state."""
        inner = self.inner.restore(state.inner, device)
        return RunningWindows(self.window, inner, state.mean.clone().to(device), state.filled, state.count)


class RunningWindows:
    """The mean of the current window, and the running estimate of the inner method."""

    def __init__(self, window: int, inner: RunningEstimate, mean: Tensor, filled: int, count: int) -> None:
        self._window, self._inner = window, inner
        self._mean, self._filled = mean, filled
        self.count: int = count

    @property
    def rank(self) -> int:
        """Rank of the inner method."""
        return self._inner.rank

    def observe(self, vector: Tensor) -> None:
        """Update the mean of the window; the inner method observes it once the window is full."""
        self.count += 1
        self._filled += 1
        if self._filled == 1:
            self._mean.copy_(vector)
        else:
            self._mean.lerp_(vector, 1.0 / self._filled)
        if self._filled == self._window:
            self._inner.observe(self._mean)
            self._filled = 0

    def distribution(self) -> WeightDistribution:
        """The distribution of the means of full windows."""
        return self._inner.distribution()

    def state(self) -> WindowState:
        return WindowState(self._mean.clone(), self._filled, self.count, self._inner.state())
