"""Linear models by SGD on tables of the document, ten folds at once (004, section 6.2)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import KFold
from torch import Generator, Tensor

from boxloop.data import load_dataset
from boxloop.fit import FactorStream, GradientStream
from boxloop.numeric import ConditionError, generator, spawn
from boxloop.weights import RegressionMoments, WeightLaw, linear_regression
from papers.sgd_linear import Descent, Tables, descend

Array = NDArray[np.float64]

FILE = "uci_regression_004.npz"
SETS = {"energy": "Energy Efficiency", "boston": "Boston Housing", "concrete": "Concrete", "yacht": "Yacht"}
FOLDS, RANK, WARMUP, DRAWS, SGA_RATE = 10, 3, 100, 30, 1e-3
DECAY = 0.001
PRETRAINED, SWA, EM, SGA = "pre-trained", "SWA", "online EM (document)", "online gradient (document)"
OURS, EXACT = "online EM (boxloop)", "exact posterior mean"
METHODS = (PRETRAINED, SWA, EM, SGA, OURS, EXACT)


@dataclass(frozen=True)
class Table:
    """One data set: name, inputs (n, d) and outputs (n,)."""

    name: str
    x: Tensor
    y: Tensor


def tables(folder: Path | None) -> tuple[list[Table], bool]:
    """The document's four sets, or scikit-learn's diabetes; and whether they are the document's."""
    if folder is not None and (folder / FILE).exists():
        with np.load(folder / FILE) as file:
            found = [
                Table(name, *(_tensor(file[f"{key}_{part}"]) for part in "Xy")) for key, name in SETS.items()
            ]
        return found, True
    table = load_dataset("diabetes")
    return [Table("Diabetes", _tensor(table.rows), _tensor(table.target))], False


def _tensor(values: NDArray[np.generic]) -> Tensor:
    return torch.from_numpy(np.asarray(values, dtype=np.float64))


@dataclass(frozen=True)
class Folds:
    """Training and test rows of every fold, inputs standardised by the training rows, a column of ones last."""

    train: Tables
    test: list[tuple[Tensor, Tensor]]


def folded(table: Table, seed: int, most: int = FOLDS) -> Folds:
    """The first of ten folds of rows in random order."""
    train: list[tuple[Tensor, Tensor]] = []
    test: list[tuple[Tensor, Tensor]] = []
    cuts = KFold(FOLDS, shuffle=True, random_state=seed).split(table.x)
    for fit, held in islice(cuts, most):
        middle, spread = table.x[fit].mean(0), table.x[fit].std(0, correction=0)
        unit = torch.where(spread > 0.0, spread, 1.0)
        for rows, part in ((fit, train), (held, test)):
            x = (table.x[rows] - middle) / unit
            part.append((torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], 1), table.y[rows]))
    return Folds(Tables.padded(train), test)


@dataclass(frozen=True)
class Trained:
    """Weights of every fold by method, each (f, d + 1), and how wide the laws behind them are.

    Args:
        weights: by method.
        failed: folds whose law could not be learned, by method; their weights are NaN.
    """

    weights: dict[str, Tensor]
    failed: dict[str, int]


def trained(folds: Folds, seed: int) -> Trained:
    """Pre-train 500 epochs at rate 0.001, collect 100 at rate 0.1, and learn a law of what was collected."""
    f, n, d = folds.train.x.shape
    streams = [spawn(generator(seed * 1009 + fold), 3) for fold in range(f)]
    batch = -(-n // 10)
    descending = [each[0] for each in streams]
    unit = torch.stack([torch.rand(d, generator=s, dtype=torch.float64) for s in descending])
    first = (2.0 * unit - 1.0) * (d - 1) ** -0.5  # what torch.nn.Linear starts from
    start, _ = descend(folds.train, first, Descent(0.001, DECAY, batch, 500), descending, keep=False)
    _, path = descend(folds.train, start, Descent(0.1, DECAY, batch, 100), descending)
    weights = {PRETRAINED: start, SWA: path.mean(1), EXACT: _exact(folds)}
    failed = {}
    for name in (EM, SGA, OURS):
        found = [_ensemble(name, rows, each[1], each[2]) for rows, each in zip(path, streams, strict=True)]
        weights[name] = torch.stack(found)
        failed[name] = int(weights[name].isnan().any(1).sum())
    return Trained({name: weights[name] for name in METHODS}, failed)


def _stream(name: str, d: int, starting: Generator) -> FactorStream | GradientStream:
    if name == SGA:
        return GradientStream.start(
            d, RANK, starting, learning_rate=SGA_RATE, dtype=torch.float64, warmup=WARMUP, variant="paper"
        )
    variant: Literal["paper", "exact"] = "paper" if name == EM else "exact"
    return FactorStream.start(d, RANK, starting, dtype=torch.float64, warmup=WARMUP, variant=variant)


def _ensemble(name: str, rows: Tensor, starting: Generator, drawing: Generator) -> Tensor:
    """The mean of 30 weights drawn from a law; for a linear model it predicts what they do on average (eq. 6.6)."""
    stream = _stream(name, rows.shape[1], starting)
    try:
        for row in rows:
            stream.observe(row)
    except ConditionError:
        return torch.full_like(rows[0], torch.nan)
    model = stream.model()
    law = WeightLaw(model.mean, model.loadings, model.noise.clamp(min=0.0))
    return law.draw(DRAWS, drawing).mean(0)


def _exact(folds: Folds) -> Tensor:
    """Means of the exact posterior at the precisions of the highest evidence, a column of ones among the inputs."""
    found = []
    for x, y, n in zip(folds.train.x, folds.train.y, folds.train.count, strict=True):
        found.append(linear_regression(RegressionMoments.of(x[:n], y[:n, None]))[0].mean[0])
    return torch.stack(found)


def errors(folds: Folds, weights: Tensor) -> Array:
    """Mean squared error of every fold, (f,)."""
    found = [float((x @ w - y).square().mean()) for (x, y), w in zip(folds.test, weights, strict=True)]
    return np.asarray(found)
