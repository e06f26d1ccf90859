r"""Which canonical variables are real: their correlations on rows that took no part in finding them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Generator, Tensor

from boxloop.data import check_count, check_kind, check_level, check_source, make_frame
from boxloop.numeric import RandomState, generator, seed, single_threaded
from boxloop.twoview.canonical import RelevanceModel
from boxloop.twoview.permuted import combined, exchanged
from boxloop.twoview.rows import Columns, chosen_rows
from boxloop.types import Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

MOST_ROWS = 100_000
"""Most rows that are judged: the error of a correlation is then 0.003 at most."""

OVERFITTED = 0.8
"""Held-out relevance, as a share of that on the training rows, below which the training rows are said to be learned."""


@dataclass(frozen=True, eq=False, repr=False)
class Significance:
    """Canonical variables on rows that did not train them, most relevant first.

    Args:
        correlation: held-out correlations, (r,).
        error: their standard errors, (r,).
        training: correlations on the training rows, (r,).
        p_value: chance of so large a correlation between unrelated variables, (r,).
        total_error: standard error of ``total``.
        n_rows: rows judged.
        folds: of cross-fitting; 0 where rows were held out.
        level: false-discovery rate at which a variable is significant.
        complete: whether the features have no more variables than these.
    """

    correlation: Array
    error: Array
    training: Array
    p_value: Array
    total_error: float
    n_rows: int
    folds: int
    level: float
    complete: bool = False

    @property
    def relevance(self) -> Array:
        """Squared held-out correlations, (r,); 0 where the sign turned."""
        return np.asarray(self.correlation.clip(0.0, 1.0) ** 2)

    @property
    def relevance_error(self) -> Array:
        """Standard errors of ``relevance``, (r,), to first order: 0 where it is 0."""
        return np.asarray(2.0 * self.correlation.clip(0.0, 1.0) * self.error)

    @property
    def total(self) -> float:
        """Sum of held-out relevances."""
        return float(self.relevance.sum())

    @property
    def adjusted(self) -> Array:
        """False-discovery rates (Benjamini and Hochberg 1995), (r,)."""
        return np.asarray(stats.false_discovery_control(self.p_value))

    @property
    def significant(self) -> NDArray[np.bool_]:
        """Which variables are, (r,)."""
        return np.asarray(self.adjusted <= self.level)

    @property
    def n_significant(self) -> int:
        """How many are."""
        return int(self.significant.sum())

    @property
    def sufficient(self) -> bool:
        """Whether there are variables enough: the last is no longer significant, or the features have no more."""
        return self.complete or not bool(self.significant[-1])

    @property
    def overfitted(self) -> bool:
        """Whether training rows show far more relevance than others, beyond two errors."""
        trained = float((self.training**2).sum())
        return self.total + 2.0 * self.total_error < OVERFITTED * trained

    @property
    def verdict(self) -> str:
        """In words: how many variables are significant, whether there are enough, whether the fit learned its rows."""
        r, found = len(self.correlation), self.n_significant
        if found == 0:
            words = f"none of {r} variables is significant: no dependence between the views is seen"
        elif not self.sufficient:
            words = (
                f"the last of {r} variables is still significant ({found} of {r} are): more are likely to be "
                "relevant, raise n_features"
            )
        elif self.complete and self.significant[-1]:
            words = f"{found} of {r} variables are significant: these features have no more, others may"
        else:
            words = f"{found} of {r} variables are significant: n_features is large enough"
        if self.overfitted:
            words += (
                f"; relevances add up to {float((self.training**2).sum()):.3g} on the training rows and to "
                f"{self.total:.3g} on others: the fit has learned its rows, use more rows or simpler features"
            )
        return words

    def _columns(self) -> dict[str, Any]:
        return {
            "relevance": self.relevance,
            "relevance error": self.relevance_error,
            "training relevance": self.training**2,
            "correlation": self.correlation,
            "error": self.error,
            "p_value": self.p_value,
            "adjusted": self.adjusted,
        }

    def table(self) -> Any:
        """One line a variable, as a pandas frame."""
        columns = {**self._columns(), "significant": self.significant}
        return make_frame(columns, list(range(1, len(self.correlation) + 1)))

    def plot(self, ax: Axes | None = None) -> Axes:
        """Held-out relevances with one and two errors, beside those of the training rows.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.
        """
        from boxloop.figures import relevance_spectrum

        return relevance_spectrum(
            self.relevance, self.relevance_error, ax, training=self.training**2, marked=self.significant
        )

    def __str__(self) -> str:
        columns = self._columns()
        rows = [["", *columns]]
        rows += [
            [str(j + 1), *(f"{values[j]:.4g}" for values in columns.values())]
            for j in range(len(self.correlation))
        ]
        width = [max(map(len, column)) for column in zip(*rows)]
        lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, width)) for row in rows]
        how = f"cross-fitted in {self.folds} folds" if self.folds else "held out"
        return "\n".join([*lines, f"On {self.n_rows} rows {how}: {self.verdict}."])

    __repr__ = __str__


@single_threaded
def significance(
    model: RelevanceModel,
    source: Source,
    *,
    permutations: int = 999,
    level: float = 0.05,
    most_rows: int = MOST_ROWS,
    random_state: RandomState = 0,
) -> Significance:
    r"""Judge canonical variables on rows that took no part in the fit.

    .. math:: \hat\rho_i = \frac{\overline{u_i v_i}}{s_{u} s_{v}}, \qquad
        \mathrm{se}^2 = \sum_n \frac{w_n^2}{W^2} \left(
        \tilde u_n \tilde v_n - \tfrac12 \hat\rho \, (\tilde u_n^2 + \tilde v_n^2) \right)^2

    with u and v centred, and in units of their deviations under the tilde (delta method). The hypothesis behind a
    p-value is that the two functions of a pair, as they were learned, are unrelated; see
    :mod:`boxloop.twoview.permuted`. Rows must be independent of each other, each counting as one observation
    whatever its weight, and must not have chosen when training stopped: for fixed features see
    :func:`~boxloop.twoview.crossfit.cross_fitted`, which holds out all rows in turn.

    Args:
        model: features and canonical variables.
        source: other rows, which hold both views.
        permutations: random orders behind the p-values, which are at least ``1 / (permutations + 1)``.
        level: false-discovery rate at which a variable is significant.
        most_rows: rows judged, at most about so many; beyond them a random choice.
        random_state: of the orders.

    Returns:
        Held-out correlations, errors and p-values, with a verdict in words.

    Raises:
        ValueError: fewer than four rows with weight; no variables.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> from boxloop.twoview import LinearView, RelevanceModel, ViewPair
        >>> x, noise = torch.randn(2, 400, 2, generator=torch.Generator().manual_seed(1)).double()
        >>> rows = torch.cat([x, torch.stack([x[:, 0] + noise[:, 0], noise[:, 1]], 1)], 1)
        >>> still = LinearView(torch.zeros(2).double(), torch.ones(2).double())
        >>> model = RelevanceModel.solve(ViewPair(still, still), ArraySource(rows[:200]), most=2)
        >>> significance(model, ArraySource(rows[200:])).verdict
        '1 of 2 variables are significant: n_features is large enough'
    """
    check_kind(model, "model", RelevanceModel, "RelevanceModel.solve(pair, source, most) makes one")
    check_source(source, "source")
    check_request(model.canonical.correlation.shape[0], permutations, level)
    chance, key = min(1.0, most_rows / source.n_rows), seed(random_state)

    def variables(rows: Tensor, weight: Tensor, start: int) -> Columns:
        keep = chosen_rows(weight, start, chance, key)
        return Columns.of((*model.both(rows[keep]), weight[keep]))

    with torch.no_grad():
        u, v, weight = source.reduce_at(variables).concatenate()
        if len(u) < 4:
            raise ValueError(f"{len(u)} rows with weight are too few to judge anything: give at least 4")
        scored = Scores(u, v, weight.double(), torch.zeros(len(u), dtype=torch.int64, device=u.device))
        found = scored.judged(
            [scored], model.canonical.correlation, permutations, level, 0, generator(random_state)
        )
        return replace(found, complete=len(found.correlation) >= model.pair.possible)


def check_request(r: int, permutations: int, level: float) -> None:
    """Refuse what gives no answer."""
    if r < 1:
        raise ValueError("there are no canonical variables to judge: one of the views is constant")
    check_level(level)
    check_count(permutations, "permutations")
    if permutations < 1.0 / level - 1.0 - 1e-9:
        raise ValueError(
            f"permutations={permutations} cannot show a p-value of {level:g}: {int(np.ceil(1 / level - 1))} can"
        )


@dataclass(frozen=True)
class Scores:
    """Canonical variables of rows that did not train them.

    Args:
        u: (n, r).
        v: (n, r).
        weight: (n,), positive.
        fold: which of several trained models gave the row its scores, (n,).
    """

    u: Tensor
    v: Tensor
    weight: Tensor
    fold: Tensor

    def centred(self) -> tuple[Tensor, Tensor]:
        """u and v less the means of their folds."""
        u, v = self.u.clone(), self.v.clone()
        for f in self.fold.unique():
            mine = self.fold == f
            share = self.weight[mine] / self.weight[mine].sum()
            u[mine] -= share @ u[mine]
            v[mine] -= share @ v[mine]
        return u, v

    def correlations(self) -> tuple[Tensor, Tensor, Tensor]:
        """Correlations within folds (r,), their errors (r,), the error of the sum of their squares."""
        u, v = self.centred()
        share = (self.weight / self.weight.sum())[:, None]
        u, v = (z / (share * z.square()).sum(0).sqrt().clamp(min=1e-150) for z in (u, v))
        rho = (share * u * v).sum(0).clamp(-1.0, 1.0)
        influence = share * (u * v - 0.5 * rho * (u.square() + v.square()))
        whole = influence @ (2.0 * rho.clamp(min=0.0))
        return rho, influence.square().sum(0).sqrt(), whole.square().sum().sqrt()

    def tested(self, count: int, stream: Generator) -> Tensor:
        """Studentised covariances of all rows, as they are and exchanged, (1 + count, r)."""
        return exchanged(self.u, self.v, self.weight, count, stream)

    def judged(
        self,
        parts: list[Scores],
        training: Tensor,
        permutations: int,
        level: float,
        folds: int,
        stream: Generator,
    ) -> Significance:
        """Correlations of these rows, p-values of parts each of which is tested by itself."""
        rho, error, whole = (t.cpu().numpy() for t in self.correlations())
        tests = [part.tested(permutations, stream) for part in parts]
        chance = combined(tests, [float(part.weight.sum()) for part in parts])
        trained = training.cpu().numpy()
        return Significance(rho, error, trained, chance, float(whole), len(self.u), folds, level)
