r"""How good probabilities of classes are: log score, Brier score, accuracy and calibration, with standard errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from boxloop.criticise.outcomes import checked_probability
from boxloop.criticise.paired import Difference, difference
from boxloop.criticise.reliability import BINS, Reliability, reliability
from boxloop.data import make_frame
from boxloop.numeric import RandomState, format_with_error, generator, mean_and_error, single_threaded, spawn

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ClassificationScores:
    r"""Scores of probabilities of n rows, row by row, so that two predictors can be compared in pairs.

    Args:
        log_score: :math:`\log p_y`, (n,), larger is better; minus infinity where the label was ruled out.
        brier: :math:`\sum_c (p_c - 1_{c = y})^2`, (n,), smaller is better. With two classes scikit-learn's
            ``brier_score_loss`` is half of its mean.
        right: whether the likeliest class is the label, (n,).
        reliability: of the likeliest class in bins of equal width, with the calibration error.
        adaptive: the same in bins of equal count.

    Example:
        >>> found = classification_scores([[0.5, 0.5], [0.25, 0.75]], [0, 1])
        >>> found.accuracy, found.brier.tolist()
        (1.0, [0.5, 0.125])
    """

    log_score: Array
    brier: Array
    right: NDArray[np.bool_]
    reliability: Reliability
    adaptive: Reliability

    @property
    def n_rows(self) -> int:
        """n."""
        return len(self.brier)

    @property
    def accuracy(self) -> float:
        """Share of rows whose likeliest class is the label."""
        return float(self.right.mean())

    @property
    def impossible(self) -> int:
        """Rows whose label had no probability at all."""
        return int(np.isneginf(self.log_score).sum())

    def table(self) -> Any:
        """One line a score: its value, its standard error, and what chance gives where that is not zero."""
        facts = {
            "log score": mean_and_error(self.log_score),
            "Brier score": mean_and_error(self.brier),
            "accuracy": mean_and_error(self.right.astype(float)),
            "calibration error": (self.reliability.calibration_error, self.reliability.standard_error),
            "calibration error, equal counts": (
                self.adaptive.calibration_error,
                self.adaptive.standard_error,
            ),
        }
        nothing = float("nan")
        chance = [(nothing, nothing, nothing)] * 3
        chance += [(one.chance, one.chance_high, one.p_value) for one in (self.reliability, self.adaptive)]
        return make_frame(
            {
                "value": [value for value, _ in facts.values()],
                "standard_error": [error for _, error in facts.values()],
                "chance": [one for one, _, _ in chance],
                "chance_high": [one for _, one, _ in chance],
                "p_value": [one for _, _, one in chance],
            },
            list(facts),
        )

    def less(self, other: ClassificationScores) -> dict[str, Difference]:
        """These scores less another predictor's on the same rows, paired.

        Args:
            other: of the same rows.

        Returns:
            By name: ``log score``, ``Brier score``, ``accuracy``.
        """
        pairs = {
            "log score": (self.log_score, other.log_score),
            "Brier score": (self.brier, other.brier),
            "accuracy": (self.right.astype(float), other.right.astype(float)),
        }
        return {name: difference(a, b) for name, (a, b) in pairs.items()}

    def plot(self, ax: Axes | None = None) -> Axes:
        """The reliability diagram, with the band that chance allows.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.

        Returns:
            The axes.

        Example:
            >>> classification_scores([0.9, 0.2, 0.6], [1, 0, 1]).plot().get_ylabel()
            'share of rows where it was so'
        """
        return self.reliability.plot(ax)

    def __str__(self) -> str:
        score, error = mean_and_error(self.log_score)
        brier, spread = mean_and_error(self.brier)
        said = f"; {self.impossible} label(s) ruled out" if self.impossible else ""
        return (
            f"{self.n_rows} rows: log score {format_with_error(score, error)}, "
            f"Brier score {format_with_error(brier, spread)}, "
            f"accuracy {self.accuracy:.3f}{said}\n{self.reliability}"
        )


@single_threaded
def classification_scores(
    probability: Any,
    y: Any,
    *,
    bins: int = BINS,
    floor: float = 0.0,
    repeats: int | None = None,
    random_state: RandomState = 0,
) -> ClassificationScores:
    r"""Scores of probabilities of classes.

    .. math:: \log p_{i y_i}, \qquad \sum_c (p_{ic} - 1_{c = y_i})^2

    Both are proper: no other probabilities have a better mean than the true ones (Gneiting and Raftery 2007).

    Args:
        probability: (n, C), rows summing to 1; or (n,), of the second of two classes.
        y: number of each row's class, (n,), from 0.
        bins: of the calibration errors.
        floor: probabilities below it are raised to it in the log score, for methods that give 0.
        repeats: labellings behind chance; by the number of rows when None.
        random_state: of them.

    Returns:
        :class:`ClassificationScores`.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> p = rng.uniform(0.05, 0.95, size=1000)
        >>> found = classification_scores(p, rng.random(1000) < p)
        >>> found.table().index.tolist()[:3]
        ['log score', 'Brier score', 'accuracy']
        >>> found.reliability.p_value > 0.01
        True
    """
    p, codes = checked_probability(probability, y)
    if not 0.0 <= floor < 1.0:
        raise ValueError(f"floor must be a probability, got {floor}")
    own = p[np.arange(len(p)), codes]
    with np.errstate(divide="ignore"):
        log_score = np.log(np.maximum(own, floor))
    square = (p * p).sum(1) - 2.0 * own + 1.0
    one, other = spawn(generator(random_state), 2)
    return ClassificationScores(
        log_score,
        square,
        p.argmax(1) == codes,
        reliability(p, codes, bins=bins, repeats=repeats, random_state=one),
        reliability(p, codes, bins=bins, equal="count", repeats=repeats, random_state=other),
    )
