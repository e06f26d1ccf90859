r"""Finite-window iterate averaging (Mandt, Hoffman and Blei, 2017, section 5; document 004, section 6.1.2).

The means of disjoint windows of the trajectory are what another method observes. Near the optimum of a loss with
Hessian A, at a constant learning rate, the mean of T iterates moves as

.. math:: A (\bar\theta_w - \theta^*) \approx -\tfrac1T \sum_{t \in w} \xi_t

once T is long against the time :math:`1 / (\epsilon \lambda_{\min}(A))` in which iterates forget: the learning rate
drops out. With the covariance C of the gradients of single rows, batches of S rows drawn with replacement give
:math:`\operatorname{Cov} \bar\theta_w = A^{-1} C A^{-1} / (T S)`; where the model is right C = A in units of the
log-likelihood, and the posterior's covariance :math:`A^{-1} / N` is that of windows of :math:`T = N / S` iterates:
one epoch. Without replacement the M = N / S batches of an epoch sum to the whole gradient: noise within an epoch is
correlated by :math:`-1 / (M - 1)`, and

.. math:: \operatorname{Cov} \bar\theta_w \approx \frac{M - T}{T} \cdot \frac{A^{-1} C A^{-1}}{N}, \qquad T \le M,

within one epoch, which is right at T = M / 2: half an epoch, two windows to each. (Whole epochs would have no noise
at first order. The document's Figure 6.2, 1000 rows in batches of 10 and windows of 50, is exactly this.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor

from boxloop.data import check_number
from boxloop.tree import Tree
from boxloop.weights.full import Full
from boxloop.weights.law import WeightLaw
from boxloop.weights.method import Follower, Method


def window_length(n_rows: int, batch_size: int, replacement: bool = False) -> int:
    r"""Iterates whose mean varies as the posterior does, for a linear model near its optimum.

    .. math:: T = N / S \ \text{(rows drawn with replacement)}, \qquad T = N / (2 S) \ \text{(reshuffled epochs)}

    It is a theory of a quadratic loss. What it asks, and a network does not promise:

    - a constant learning rate, with which the slowest direction forgets well within a window:
      :math:`\epsilon \lambda_{\min}(A) T \gg 1`. Otherwise windows of that direction are one long trajectory, and its
      spread is anything.
    - a model that is right: else the spread is the sandwich :math:`A^{-1} C A^{-1} / N`, that of an estimate over
      repeated data, and not the posterior's.
    - a rate that is small beside :math:`1 / \lambda_{\max}(A)`. Momentum :math:`\mu` drops out as the rate does, which
      is then :math:`\epsilon / (1 - \mu)` in all of this: SGD must be stable with room to spare at that rate.
    - a weight decay that is that of the prior.
    - without replacement: windows that begin with the epoch, and an even number of batches to it. Windows that straddle
      two epochs vary by up to a half more.

    Args:
        n_rows: N.
        batch_size: S.
        replacement: whether batches are drawn anew from all rows; False for reshuffled epochs, as of a ``DataLoader``.

    Returns:
        T, at least 1.

    Raises:
        ValueError: a batch of all rows, without replacement: its gradient has no noise.

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
            f"batches of {batch_size} of {n_rows} rows have no noise: iterates say nothing of spread"
        )
    return max(1, round(batches if replacement else batches / 2.0))


@dataclass(frozen=True)
class WindowState(Tree):
    """The mean of the window at hand (D,), vectors in it, vectors in all, and what the inner method knows."""

    mean: Tensor
    filled: int
    count: int
    inner: Any


@dataclass(frozen=True)
class Windowed:
    """Another method, shown the means of disjoint windows; an unfinished last window is not shown.

    Args:
        length: iterates a window; found by :func:`window_length` when None.
        inner: what observes the means.
        n_rows: rows that the network is trained on, for a length of None.
        batch_size: rows a step, for a length of None.
        replacement: whether batches are drawn with replacement, for a length of None.

    Example:
        >>> import torch
        >>> method = Windowed(None, Full(), n_rows=1000, batch_size=125)
        >>> method.window
        4
        >>> follower = method.start(1, torch.Generator(), torch.float64, torch.device("cpu"))
        >>> for value in range(10):
        ...     follower.observe(torch.tensor([value]).double())
        >>> law = follower.law()
        >>> follower.count, law.mean.item(), round(law.variance().item(), 3)
        (10, 3.5, 8.0)
    """

    length: int | None = None
    inner: Method = field(default_factory=Full)
    n_rows: int | None = None
    batch_size: int | None = None
    replacement: bool = False

    def __post_init__(self) -> None:
        if self.length is None and (self.n_rows is None or self.batch_size is None):
            raise ValueError("a window needs its length, or n_rows and batch_size to find it from")
        if self.window < 1:
            raise ValueError(f"a window has 1 iterate at least, got {self.window}")

    @property
    def window(self) -> int:
        """Iterates a window."""
        if self.length is not None or self.n_rows is None or self.batch_size is None:
            return self.length or 0
        return window_length(self.n_rows, self.batch_size, self.replacement)

    @property
    def least(self) -> int:
        """As many windows as the inner method needs vectors."""
        return self.window * self.inner.least

    def start(
        self, size: int, generator: Generator, dtype: torch.dtype, device: torch.device
    ) -> WindowFollower:
        """A follower that has seen nothing."""
        mean = torch.zeros(size, dtype=dtype, device=device)
        inner = self.inner.start(size, generator, dtype, device)
        return WindowFollower(self.window, inner, mean, 0, 0)

    def restore(self, state: WindowState, device: torch.device) -> WindowFollower:
        """Go on from a state."""
        inner = self.inner.restore(state.inner, device)
        return WindowFollower(self.window, inner, state.mean.clone().to(device), state.filled, state.count)


class WindowFollower:
    """The window at hand, and the follower of those before."""

    def __init__(self, window: int, inner: Follower, mean: Tensor, filled: int, count: int) -> None:
        self._window, self._inner = window, inner
        self._mean, self._filled, self._count = mean, filled, count

    @property
    def count(self) -> int:
        """Vectors seen, those of the unfinished window too."""
        return self._count

    @property
    def rank(self) -> int:
        """Of the inner method."""
        return self._inner.rank

    def observe(self, vector: Tensor) -> None:
        """Move the mean of the window; show it when the window is full."""
        self._count += 1
        self._filled += 1
        if self._filled == 1:
            self._mean.copy_(vector)
        else:
            self._mean.lerp_(vector, 1.0 / self._filled)
        if self._filled == self._window:
            self._inner.observe(self._mean)
            self._filled = 0

    def law(self) -> WeightLaw:
        """That of the means of full windows."""
        return self._inner.law()

    def state(self) -> WindowState:
        """A copy."""
        return WindowState(self._mean.clone(), self._filled, self._count, self._inner.state())
