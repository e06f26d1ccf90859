"""Problems with known answers for Z- and M-estimation."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from boxloop.data import ArraySource


def regression_rows(n: int = 300, seed: int = 0) -> np.ndarray:
    """Two columns and an outcome whose noise grows with the first of them: the usual errors are wrong."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    y = 1.0 + x @ [2.0, -1.0] + (0.3 + np.abs(x[:, 0])) * rng.normal(size=n)
    return np.column_stack([x, y])


def logit_rows(n: int = 500, seed: int = 0) -> np.ndarray:
    """Two columns and a zero or one."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    y = rng.random(n) < 1.0 / (1.0 + np.exp(-(0.5 + x @ [1.0, -2.0])))
    return np.column_stack([x, y])


def logit_score(theta: Tensor, rows: Tensor) -> Tensor:
    """The score of logistic regression with an intercept."""
    design = torch.cat([torch.ones_like(rows[:, :1]), rows[:, :-1]], dim=1)
    return design * (rows[:, -1] - torch.sigmoid(design @ theta))[:, None]


def logit_density(theta: Tensor, rows: Tensor) -> Tensor:
    """Its log-likelihood, row by row."""
    design = torch.cat([torch.ones_like(rows[:, :1]), rows[:, :-1]], dim=1)
    value = design @ theta
    return rows[:, -1] * value - torch.nn.functional.softplus(value)


class Chunked(ArraySource):
    """An array that is handed out in tiles of 17 rows."""

    def chunks(self, size=None):
        yield from super().chunks(17)


def chunked(rows: np.ndarray, weight: np.ndarray | None = None) -> Chunked:
    return Chunked(torch.from_numpy(rows), None if weight is None else torch.from_numpy(weight).double())


def near(one: object, other: object, rtol: float = 1e-8) -> None:
    torch.testing.assert_close(
        torch.from_numpy(np.asarray(one, dtype=np.float64).copy()),
        torch.from_numpy(np.asarray(other, dtype=np.float64).copy()),
        rtol=rtol,
        atol=1e-12,
    )
