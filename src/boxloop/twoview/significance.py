r"""Which canonical variables are real: their correlations on rows that took no part in finding them, with p-values.

A p-value compares a studentised correlation with those of rows whose partners are permuted at random:

.. math:: t(\pi) = \frac{1}{1 - \rho(\pi)^2} \, \frac{\sum_n a_n b_{\pi(n)}}{\sqrt{\sum_n a_n^2 \, b_{\pi(n)}^2}},
    \qquad a_n = w_n (u_n - \bar u), \; b_n = v_n - \bar v

DiCiccio and Romano (2017), "Robust permutation tests for correlation and regression coefficients", JASA 112. Where u
and v are independent, the true order is as likely as any other to give the largest t; where they are merely
uncorrelated, the division by an estimate of the error makes that true for many rows. The first factor, with the
correlation :math:`\rho`, is 1 for unrelated views, and ranks strong correlations of few rows above all others: the
error of a correlation falls as it rises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Generator, Tensor

from boxloop.data import ConcatenatedRows, check_count, check_kind, check_level, check_source, make_frame
from boxloop.numeric import RandomState, generator, product, scrambled, seed, single_threaded
from boxloop.twoview.canonical import CanonicalVariables, RelevanceModel
from boxloop.twoview.fit import (
    FeatureFunction,
    assign_folds,
    centre_features,
    check_fit_arguments,
    sum_moments_by_fold,
)
from boxloop.twoview.views import ViewPair
from boxloop.types import Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

MOST_ROWS = 100_000
"""Largest number of rows to evaluate on: the error of a correlation is then 0.003 at most."""

OVERFITTED = 0.8
"""Held-out relevance, as a share of that on the training rows, below which the fit counts as overfitted."""

DIRECT = 2048
"""Largest number of rows permuted one order at a time; for more, all rotations follow from one Fourier transform."""

BLOCK = 1 << 22
"""Values permuted at a time."""

TIE = 1e-9
"""Totals of normal scores as close as this differ by rounding."""


@dataclass(frozen=True, eq=False, repr=False)
class Significance:
    """Canonical variables on rows that did not train them, most relevant first.

    Args:
        correlation: held-out correlations, (r,).
        standard_error: of these, (r,).
        training_correlation: correlations on the training rows, (r,).
        p_value: probability of so large a correlation between unrelated variables, (r,).
        total_error: standard error of ``total``.
        n_rows: number of held-out rows.
        folds: of cross-fitting; 0 where rows were held out.
        level: false-discovery rate at which a variable is significant.
        complete: whether the features have no more variables than these.
    """

    correlation: Array
    standard_error: Array
    training_correlation: Array
    p_value: Array
    total_error: float
    n_rows: int
    folds: int
    level: float
    complete: bool = False

    @property
    def relevance(self) -> Array:
        """Squared held-out correlations, (r,); 0 where the correlation is negative."""
        return np.asarray(self.correlation.clip(0.0, 1.0) ** 2)

    @property
    def relevance_error(self) -> Array:
        """Standard errors of ``relevance``, (r,), to first order: 0 where it is 0."""
        return np.asarray(2.0 * self.correlation.clip(0.0, 1.0) * self.standard_error)

    @property
    def total(self) -> float:
        """Sum of held-out relevances."""
        return float(self.relevance.sum())

    @property
    def adjusted_p_value(self) -> Array:
        """P-values adjusted for their number (Benjamini and Hochberg 1995), (r,)."""
        return np.asarray(stats.false_discovery_control(self.p_value))

    @property
    def significant(self) -> NDArray[np.bool_]:
        """Which variables are significant, (r,)."""
        return np.asarray(self.adjusted_p_value <= self.level)

    @property
    def n_significant(self) -> int:
        """Number of significant variables."""
        return int(self.significant.sum())

    @property
    def sufficient(self) -> bool:
        """Whether there are enough variables: the last is not significant, or the features have no more."""
        return self.complete or not bool(self.significant[-1])

    @property
    def overfitted(self) -> bool:
        """Whether the relevance on training rows far exceeds that on held-out rows, beyond two standard errors."""
        trained = float((self.training_correlation**2).sum())
        return self.total + 2.0 * self.total_error < OVERFITTED * trained

    @property
    def verdict(self) -> str:
        """How many variables are significant, whether there are enough, and whether the fit is overfitted."""
        r, count = len(self.correlation), self.n_significant
        if count == 0:
            words = f"none of {r} variables is significant: no dependence between the views was found"
        elif not self.sufficient:
            words = (
                f"the last of {r} variables is still significant ({count} of {r} are): more are likely to be "
                "relevant, raise n_features"
            )
        elif self.complete and self.significant[-1]:
            words = f"{count} of {r} variables are significant: these features have no more, others may"
        else:
            words = f"{count} of {r} variables are significant: n_features is large enough"
        if self.overfitted:
            trained = float((self.training_correlation**2).sum())
            words += (
                f"; relevances sum to {trained:.3g} on the training rows and to {self.total:.3g} on held-out rows: "
                "the fit is overfitted, use more rows or simpler features"
            )
        return words

    def _table_columns(self) -> dict[str, Any]:
        return {
            "relevance": self.relevance,
            "relevance error": self.relevance_error,
            "training relevance": self.training_correlation**2,
            "correlation": self.correlation,
            "standard error": self.standard_error,
            "p_value": self.p_value,
            "adjusted": self.adjusted_p_value,
        }

    def table(self) -> Any:
        """One row per variable, as a pandas frame."""
        columns = {**self._table_columns(), "significant": self.significant}
        return make_frame(columns, list(range(1, len(self.correlation) + 1)))

    def plot(self, ax: Axes | None = None) -> Axes:
        """Held-out relevances with one and two standard errors, beside those of the training rows.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.
        """
        from boxloop.figures import relevance_spectrum

        return relevance_spectrum(
            self.relevance,
            self.relevance_error,
            ax,
            training=self.training_correlation**2,
            marked=self.significant,
        )

    def __str__(self) -> str:
        columns = self._table_columns()
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
def held_out_significance(
    model: RelevanceModel,
    source: Source,
    *,
    permutations: int = 999,
    level: float = 0.05,
    most_rows: int = MOST_ROWS,
    random_state: RandomState = 0,
) -> Significance:
    r"""Correlations of canonical variables on held-out rows, with standard errors and p-values.

    .. math:: \hat\rho_i = \frac{\overline{u_i v_i}}{s_{u} s_{v}}, \qquad
        \mathrm{se}^2 = \sum_n \frac{w_n^2}{W^2} \left(
        \tilde u_n \tilde v_n - \tfrac12 \hat\rho \, (\tilde u_n^2 + \tilde v_n^2) \right)^2

    with u and v centred, and in units of their standard deviations under the tilde (delta method). The null hypothesis
    of a p-value is that the two functions of a pair, as they were learned, are unrelated. Rows must be independent of
    each other, each counting as one observation whatever its weight, and must not have stopped the training: for fixed
    features see :func:`cross_fitted_significance`, which holds out all rows in turn.

    Args:
        model: features and canonical variables.
        source: other rows, which hold both views.
        permutations: number of permutations behind the p-values, which are at least ``1 / (permutations + 1)``.
        level: false-discovery rate at which a variable is significant.
        most_rows: largest number of rows, approximately; of more rows a random sample is taken.
        random_state: of the permutations.

    Returns:
        Held-out correlations, standard errors and p-values, with a verdict in words.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> from boxloop.twoview import LinearView, RelevanceModel, ViewPair
        >>> x, noise = torch.randn(2, 400, 2, generator=torch.Generator().manual_seed(1)).double()
        >>> rows = torch.cat([x, torch.stack([x[:, 0] + noise[:, 0], noise[:, 1]], 1)], 1)
        >>> linear = LinearView(torch.zeros(2).double(), torch.ones(2).double())
        >>> model = RelevanceModel.solve(ViewPair(linear, linear), ArraySource(rows[:200]), most=2)
        >>> held_out_significance(model, ArraySource(rows[200:])).verdict
        '1 of 2 variables are significant: n_features is large enough'
    """
    check_kind(model, "model", RelevanceModel, "RelevanceModel.solve(pair, source, most) makes one")
    check_source(source, "source")
    _check_permutations(model.canonical.correlation.shape[0], permutations, level)
    share, key = min(1.0, most_rows / source.n_rows), seed(random_state)

    def evaluate_tile(rows: Tensor, weight: Tensor, start: int) -> ConcatenatedRows:
        mask = draw_sample_mask(weight, start, share, key)
        return ConcatenatedRows.of(torch.cat([*model.both(rows[mask]), weight[mask].double()[:, None]], 1))

    with torch.no_grad():
        evaluated = source.reduce_at(evaluate_tile).concatenate()
        (u, v), weight = evaluated[:, :-1].chunk(2, 1), evaluated[:, -1]
        if len(u) < 4:
            raise ValueError(f"{len(u)} rows with weight are too few to test anything: give at least 4")
        scores = VariableScores(u, v, weight, torch.zeros_like(weight))
        significance = _test_variables(
            scores, [scores], model.canonical.correlation, permutations, level, 0, generator(random_state)
        )
        return replace(significance, complete=len(significance.correlation) >= model.pair.max_variables)


@single_threaded
def cross_fitted_significance(
    pair: ViewPair,
    source: Source,
    most: int,
    ridge: float = 0.0,
    *,
    folds: int = 5,
    permutations: int = 999,
    level: float = 0.05,
    most_rows: int = MOST_ROWS,
    random_state: RandomState = 0,
) -> Significance:
    r"""Test the canonical variables of features that are not learned, on all rows, by cross-fitting.

    Correlations and standard errors are those of :func:`held_out_significance`, within folds: the rows of each fold are
    scored by variables of all other folds. Moment sums add over folds, so one pass sums those of each fold, the
    variables of any union of folds are a small singular value decomposition, and a second pass scores the rows.

    P-values cannot come from these scores: the rows on which one fold is tested have trained the variables of the
    others, and permutations within folds would call one variable in eight significant at a level of one in twenty where
    there is nothing to find. So fold f is *tested* by variables of the folds before it alone. Given those folds its
    permutation test is exact, hence the tests of folds are independent, and their normal scores add (Stouffer). What is
    tested is the i-th variable that part of the rows finds: of few rows, a relevant one may come in a later place.

    Args:
        pair: fixed features of both views.
        source: all rows, which hold both views and are independent of each other.
        most: largest number of variables.
        ridge: as in the fit.
        folds: how many; more train better and take longer. The first is never tested on.
        permutations: number of permutations behind the p-values, which are at least ``1 / (permutations + 1)``.
        level: false-discovery rate at which a variable is significant.
        most_rows: largest number of rows to test on, approximately; of more rows a random sample is taken. All train.
        random_state: of folds and permutations; the fold of a row depends on its number alone.

    Returns:
        As of :func:`held_out_significance`; ``training_correlation`` is of all rows. The standard errors take the
        variables of each fold as given, and folds as independent: where rows are few relative to features, or relations
        weak, the standard deviation over data sets is larger (1.9 times for 40 rows of 3 and 2 unrelated columns, 1.0
        for 1000 rows with a correlation of 0.3).

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> from boxloop.twoview import LinearView, ViewPair
        >>> x, noise = torch.randn(2, 300, 2, generator=torch.Generator().manual_seed(0)).double()
        >>> rows = torch.cat([x, torch.stack([x[:, 0] + noise[:, 0], noise[:, 1]], 1)], 1)
        >>> linear = LinearView(torch.zeros(2).double(), torch.ones(2).double())
        >>> cross_fitted_significance(ViewPair(linear, linear), ArraySource(rows), 2).verdict
        '1 of 2 variables are significant: n_features is large enough'
    """
    check_fit_arguments(pair, source, most, ridge)
    if pair.trainable():
        raise ValueError("learned features have seen every row they were trained on: hold rows out instead")
    if folds < 2:
        raise ValueError(f"folds={folds}: rows are held out in turn, give at least 2 folds")
    if source.n_rows < 4 * folds:
        raise ValueError(f"{source.n_rows} rows are too few for {folds} folds: give at least {4 * folds}")
    key, k = seed(random_state), pair.left.n_features
    with torch.no_grad():
        features = centre_features(pair, source)
        parts = sum_moments_by_fold(features, source, folds, key)
        total = sum(parts[1:], parts[0])
        full = CanonicalVariables.solve(total, k, most, ridge)
        r = full.correlation.shape[0]
        _check_permutations(r, permutations, level)
        others = [_pad_variables(CanonicalVariables.solve(total - part, k, most, ridge), r) for part in parts]
        before = list(accumulate(parts, add))[:-1]
        earlier = [_pad_variables(CanonicalVariables.solve(part, k, most, ridge), r) for part in before]
        by_others, by_earlier = _score_rows(features, source, others, earlier, folds, key, most_rows)
        tests = [by_earlier.select(by_earlier.fold == f) for f in by_earlier.fold.unique()]
        significance = _test_variables(
            by_others, tests, full.correlation, permutations, level, folds, generator(key)
        )
        return replace(significance, complete=r >= pair.max_variables or r < most)


def _check_permutations(r: int, permutations: int, level: float) -> None:
    """Refuse to test nothing, and permutations too few for the level."""
    if r < 1:
        raise ValueError("there are no canonical variables to test: one of the views is constant")
    check_level(level)
    check_count(permutations, "permutations")
    if permutations < 1.0 / level - 1.0 - 1e-9:
        raise ValueError(
            f"permutations={permutations} cannot give a p-value of {level:g}: {int(np.ceil(1 / level - 1))} can"
        )


def _pad_variables(canonical: CanonicalVariables, r: int) -> CanonicalVariables:
    """Exactly r variables: those that few rows do not determine are zero."""
    short, pad = r - canonical.correlation.shape[0], torch.nn.functional.pad
    return CanonicalVariables(
        canonical.left_mean,
        canonical.right_mean,
        pad(canonical.left, (0, short)),
        pad(canonical.right, (0, short)),
        pad(canonical.correlation, (0, short)),
    )


def _score_rows(
    features: FeatureFunction,
    source: Source,
    others: list[CanonicalVariables],
    earlier: list[CanonicalVariables],
    folds: int,
    key: int,
    most: int,
) -> tuple[VariableScores, VariableScores]:
    """Scores of the rows by variables of all other folds, and by those of the folds before theirs, in one pass."""
    share = min(1.0, most / source.n_rows)

    def score_tile(rows: Tensor, weight: Tensor, start: int) -> ConcatenatedRows:
        """u and v by all other folds, u and v by earlier folds, the weight, and the fold."""
        mask = draw_sample_mask(weight, start, share, key)
        fold = assign_folds(start, start + len(weight), folds, key).to(rows.device)[mask]
        fold, order = fold.sort(stable=True)
        f, g = (part[order] for part in features(rows[mask]))
        scores = f.new_zeros(len(f), 4, len(others[0].correlation))
        for j in range(folds):
            inside = fold == j
            for i, fit in enumerate([others[j], earlier[j - 1]] if j else [others[j]]):
                scores[inside, 2 * i] = product(f[inside] - fit.left_mean, fit.left)
                scores[inside, 2 * i + 1] = product(g[inside] - fit.right_mean, fit.right)
        labels = torch.stack([weight[mask][order].double(), fold.double()], 1)
        return ConcatenatedRows.of(torch.cat([scores.flatten(1), labels], 1))

    scored = source.reduce_at(score_tile).concatenate()
    scores, (weight, fold) = scored[:, :-2].reshape(len(scored), 4, -1), scored[:, -2:].unbind(1)
    by_others = VariableScores(scores[:, 0], scores[:, 1], weight, fold)
    return by_others, VariableScores(scores[:, 2], scores[:, 3], weight, fold).select(fold > 0)


def draw_sample_mask(weight: Tensor, start: int, share: float, key: int) -> Tensor:
    """Mask of a random sample of the rows with weight of a tile, by their numbers alone, whatever the tiles."""
    mask = weight > 0.0
    if share < 1.0:
        number = np.arange(start, start + len(weight), dtype=np.uint64)
        word = scrambled(number, key ^ 0x5DEECE66D)
        mask &= torch.from_numpy(word / 2.0**64 < share).to(mask.device)
    return mask


@dataclass(frozen=True)
class VariableScores:
    """Canonical variables of rows that did not train them."""

    u: Tensor  # (n, r)
    v: Tensor  # (n, r)
    weight: Tensor  # (n,), positive
    fold: Tensor  # which of several fits gave the row its scores, (n,)

    def select(self, mask: Tensor) -> VariableScores:
        """Some of the rows."""
        return VariableScores(self.u[mask], self.v[mask], self.weight[mask], self.fold[mask])

    def centre_within_folds(self) -> tuple[Tensor, Tensor]:
        """u and v less the means of their folds."""
        u, v = self.u.clone(), self.v.clone()
        for f in self.fold.unique():
            inside = self.fold == f
            share = self.weight[inside] / self.weight[inside].sum()
            u[inside] -= share @ u[inside]
            v[inside] -= share @ v[inside]
        return u, v

    def compute_correlations(self) -> tuple[Tensor, Tensor, Tensor]:
        """Correlations within folds (r,), their standard errors (r,), and that of the sum of their squares."""
        u, v = self.centre_within_folds()
        share = (self.weight / self.weight.sum())[:, None]
        u, v = (z / (share * z.square()).sum(0).sqrt().clamp(min=1e-150) for z in (u, v))
        rho = (share * u * v).sum(0).clamp(-1.0, 1.0)
        influence = share * (u * v - 0.5 * rho * (u.square() + v.square()))
        total = influence @ (2.0 * rho.clamp(min=0.0))
        return rho, influence.square().sum(0).sqrt(), total.square().sum().sqrt()


def _test_variables(
    scores: VariableScores,
    tests: list[VariableScores],
    training: Tensor,
    permutations: int,
    level: float,
    folds: int,
    stream: Generator,
) -> Significance:
    """Correlations of some rows, and p-values from groups of rows that are tested independently."""
    rho, error, total = (t.cpu().numpy() for t in scores.compute_correlations())
    statistics = [
        studentise_permutations(group.u, group.v, group.weight, permutations, stream) for group in tests
    ]
    p_value = combine_p_values(statistics, [float(group.weight.sum()) for group in tests])
    trained = training.cpu().numpy()
    return Significance(rho, error, trained, p_value, float(total), len(scores.u), folds, level)


def studentise_permutations(u: Tensor, v: Tensor, weight: Tensor, count: int, stream: Generator) -> Tensor:
    """Studentised covariances of u with v in its own order, then in ``count`` random orders; 0 for constants."""
    share = weight / weight.sum()
    u, b = u - share @ u, v - v.mean(0)  # no order changes a mean of v without weights, which stay with u
    a = weight[:, None] * u
    own = torch.stack([(a * b).sum(0), (a * b).square().sum(0)])[:, None]
    permute = sum_over_rotations if len(a) > max(DIRECT, count) else sum_over_permutations
    total, square = torch.cat([own, permute(a, b, count, stream)], 1)
    size = square.clamp(min=0.0).sqrt()
    rho = total / ((a * u).sum(0) * (weight.sum() * b.square().mean(0))).sqrt().clamp(min=1e-300)
    rest = (1.0 - rho.square()).clamp(min=1e-12)
    floor = 1e-12 * (a.square().sum(0) * b.square().sum(0)).sqrt()  # what rounding leaves of a constant
    return torch.where(size > floor, total / (size * rest), 0.0)


def sum_over_permutations(a: Tensor, b: Tensor, count: int, stream: Generator) -> Tensor:
    """Sums of a b and of their squares with b in random orders, (2, count, r)."""
    n, r = a.shape
    step = max(1, BLOCK // (n * r))
    parts = []
    for start in range(0, count, step):
        size = (min(step, count - start), n)
        order = torch.rand(size, generator=stream, dtype=torch.float64).argsort(1).to(b.device)
        permuted, fixed = b.mT.contiguous()[:, order], a.mT[:, :, None]  # (r, count, n) and (r, n, 1)
        sums = torch.cat([torch.bmm(permuted, fixed), torch.bmm(permuted.square(), fixed.square())], 2)
        parts.append(sums.permute(2, 1, 0))
    return torch.cat(parts, 1)


def sum_over_rotations(a: Tensor, b: Tensor, count: int, stream: Generator) -> Tensor:
    """The same sums after one random order of all rows, with b then rotated by ``count`` different steps.

    Rotations form a group, so the test is as exact as with all orders, and one Fourier transform of each variable
    gives the sums of every rotation.
    """
    n = len(a)
    order = torch.randperm(n, generator=stream).to(a.device)
    steps = (1 + torch.randperm(n - 1, generator=stream)[:count]).to(a.device)
    parts = []
    for j in range(a.shape[1]):
        x, y = a[order, j], b[order, j]
        left, right = torch.stack([x, x.square()]), torch.stack([y, y.square()])
        spectrum = torch.fft.rfft(left).conj() * torch.fft.rfft(right)
        parts.append(torch.fft.irfft(spectrum, n)[:, steps])
    return torch.stack(parts, 2)


def combine_p_values(groups: Sequence[Tensor], size: Sequence[float]) -> Array:
    r"""P-values of several groups of rows together, from statistics (1 + N, r) per group, their own order first.

    In each group the statistics become normal scores of their ranks, which add with weights
    :math:`\sqrt{\text{size}}` (Stouffer). Given all that was seen before a group, every order of its statistics was
    equally likely: so it is for the totals, and

    .. math:: p = \frac{1 + \#\{b : T_b \ge T_0\}}{1 + N}

    is uniform where nothing depends on anything.
    """
    total = np.zeros(tuple(groups[0].shape))
    for statistics, weight in zip(groups, size, strict=True):
        rank = stats.rankdata(statistics.cpu().numpy(), axis=0)
        total += weight**0.5 * stats.norm.ppf((rank - 0.5) / len(rank))
    beaten = (total[1:] >= total[0] - TIE * sum(size) ** 0.5).sum(0)
    return np.asarray((1.0 + beaten) / len(total))
