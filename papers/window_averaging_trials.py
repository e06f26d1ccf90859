r"""Means of windows of SGD as draws from a posterior: how long a window must be (document 004, figure 6.2).

Near the optimum of a mean loss with Hessian H, the mean of w successive vectors wanders about it by

.. math:: \bar\theta - \hat\theta \approx -H^{-1} \, \frac1w \sum_{t=1}^{w} \epsilon_t

where :math:`\epsilon_t` is the noise of a gradient from b of N rows, as long as w is several times the steps that SGD
remembers, :math:`1 / (\eta \lambda_{\min}(H))`. The learning rate drops out. With rows drawn anew the w b rows of a
window have a mean gradient of variance C / (w b), and the posterior that of C / N: **w = N / b**, one epoch. Shuffled
rows are a sample without replacement, whose variance is smaller by 1 - w b / N: solving gives **w = N / (2 b)**, half
an epoch, and a whole one leaves next to nothing. The document's window of 50, with batches of 10 of 1000 rows, is this
half.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boxloop.weights import window_length
from papers.sgd_linear import Descent, descend
from papers.sgd_posterior_trials import ROWS, Distances, Problem, distances

BATCH, WINDOW, RATE, DECAY, EPOCHS = 10, 50, 0.1, 0.001, 100
WINDOWS = (1, 5, 10, 25, 50, 100, 200, 500)
OTHERS = ((0.1, 5), (0.1, 20), (0.1, 50), (0.05, 10), (0.02, 10), (0.01, 10))
"""Other learning rates and batches, at the windows that the rule gives them."""
FEW = ((0.1, 20), (0.02, 10))
"""Those of a quick run."""


@dataclass(frozen=True)
class Walk:
    """One way of going down, and what its windows give.

    Args:
        how: rate, batch and replacement.
        found: distances by length of window.
    """

    how: Descent
    found: dict[int, Distances]


def rule(batch: int, replacement: bool) -> int:
    """The length of a window whose means have the spread of the posterior."""
    return window_length(ROWS, batch, replacement)


def averaged(path: Tensor, window: int) -> Tensor:
    """Means of disjoint windows, (s, t, d) -> (s, t // window, d)."""
    s, t, d = path.shape
    return path[:, : t // window * window].reshape(s, t // window, window, d).mean(2)


def walked(problem: Problem, how: Descent, windows: tuple[int, ...]) -> tuple[Walk, Tensor]:
    """Collect once and cut into windows of all lengths; the vectors too."""
    _, path = descend(problem.tables, problem.start, how, problem.streams)
    return Walk(how, {w: distances(problem, averaged(path, w)) for w in windows}), path


def descents() -> dict[str, Descent]:
    """The document's, and the same with rows drawn anew."""
    return {
        "shuffled": Descent(RATE, DECAY, BATCH, EPOCHS),
        "drawn anew": Descent(RATE, DECAY, BATCH, EPOCHS, replacement=True),
    }


def others(problem: Problem, pairs: tuple[tuple[float, int], ...] = OTHERS) -> list[Walk]:
    """Other rates and batches, shuffled and drawn anew, each at its window."""
    found = []
    for rate, batch in pairs:
        for replacement in (False, True):
            how = Descent(rate, DECAY, batch, EPOCHS, replacement)
            found.append(walked(problem, how, (rule(batch, replacement),))[0])
    return found


def memory(problem: Problem, rate: float) -> float:
    """Steps that SGD remembers in the slowest direction, the mean over trials."""
    x = problem.tables.x
    slowest = torch.linalg.eigvalsh(x.mT @ x / x.shape[1])[:, 0]
    return float((1.0 / (2.0 * rate * slowest)).mean())
