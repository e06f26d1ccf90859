"""Predictions of a posterior on rows held out, beside those of its mean network alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from boxloop.concerns import Concern
from boxloop.criticise import (
    ClassificationScores,
    Difference,
    RegressionScores,
    classification_scores,
    regression_scores,
)
from boxloop.data import make_frame
from boxloop.weights.classes import ClassificationPrediction, classes
from boxloop.weights.prediction import RegressionPrediction, targets
from boxloop.weights.predictor import Predictor

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]
Scores = RegressionScores | ClassificationScores

LEVELS = (0.5, 0.8, 0.95)
RATE = 0.01
"""False alarms of predictions that are right."""
SURE = 2.0
LARGE = 0.05
"""Gap between said and happened that matters."""


@dataclass(frozen=True)
class HeldOut:
    """Scores on held-out rows.

    Args:
        posterior: of the average over networks.
        mean: of the mean network alone, with the same noise or temperature.
        spread: root mean square over rows of the part of the deviation that is due to the weights, where numbers are
            predicted; mean mutual information where classes are.
    """

    posterior: Scores
    mean: Scores
    spread: float

    @property
    def less(self) -> dict[str, Difference]:
        """Scores of the posterior less those of the mean network, row by row."""
        return _less(self.posterior, self.mean)

    @property
    def worries(self) -> tuple[Concern, ...]:
        """Of the log score against the mean network's, and of calibration."""
        return (self._gain(), self._calibrated())

    def table(self) -> Any:
        """One line a score: posterior, mean network, difference and its paired standard error."""
        found = self.less
        both = [_means(scores) for scores in (self.posterior, self.mean)]
        return make_frame(
            {
                "posterior": [both[0][name] for name in found],
                "mean network": [both[1][name] for name in found],
                "difference": [one.value for one in found.values()],
                "standard_error": [one.standard_error for one in found.values()],
            },
            list(found),
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Coverage or reliability of both, with the band that chance allows.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.

        Returns:
            The axes.
        """
        from boxloop.figures import coverage_of, reliability_diagram

        both = {"posterior": self.posterior, "mean network": self.mean}
        if isinstance(self.posterior, RegressionScores):
            lines = {
                name: scores.transform
                for name, scores in both.items()
                if isinstance(scores, RegressionScores)
            }
            return coverage_of(lines, ax, title="Coverage of held-out rows")
        curves = {
            name: scores.reliability.curve()
            for name, scores in both.items()
            if isinstance(scores, ClassificationScores)
        }
        return reliability_diagram(curves, ax, title="Reliability on held-out rows")

    def _gain(self) -> Concern:
        gain = self.less["log score"]
        why = f"log score a row {gain} against the mean network alone ({self.posterior.n_rows} rows held out)"
        if gain.z < -SURE:
            return Concern(
                "bad", "Predictions", why, "tune the scale on validation rows, or use the mean network"
            )
        if not gain.z > SURE:
            why += ": no difference that these rows show"
        return Concern("good", "Predictions", why)

    def _calibrated(self) -> Concern:
        if isinstance(self.posterior, RegressionScores):
            return _covered(self.posterior)
        return _reliable(self.posterior)


def held_out(predictor: Predictor, X: Any, y: Any, *, seed: int) -> HeldOut:
    """Judge a predictor, and the same one without spread.

    Args:
        predictor: with noise, where it predicts numbers.
        X: rows that were not trained on.
        y: their outputs, or classes.
        seed: of the labels behind chance.
    """
    found = [one.predict(X) for one in (predictor, predictor.at_scale(0.0))]
    return HeldOut(_scores(found[0], y, seed), _scores(found[1], y, seed), _spread(found[0]))


def _scores(found: Any, y: Any, seed: int) -> Scores:
    if isinstance(found, RegressionPrediction):
        m, n = found.outputs.shape[:2]
        seen = targets(y, found.mean.shape)
        noise = np.broadcast_to(np.asarray(found.noise), found.mean.shape).reshape(n, -1)
        draws = found.outputs.reshape(m, n, -1)
        return regression_scores(seen, std=noise, draws=draws, weight=found.strata.weight)
    return classification_scores(found.probability, classes(y, found.outputs.shape[1:]), random_state=seed)


def _spread(found: Any) -> float:
    if isinstance(found, ClassificationPrediction):
        return float(found.mutual_information.mean())
    return float(np.sqrt(np.mean(found.spread**2)))


def _less(one: Scores, other: Scores) -> dict[str, Difference]:
    if isinstance(one, RegressionScores) and isinstance(other, RegressionScores):
        return one.difference(other)
    if isinstance(one, ClassificationScores) and isinstance(other, ClassificationScores):
        return one.difference(other)
    raise TypeError("scores of numbers are not compared with scores of classes")


def _means(scores: Scores) -> dict[str, float]:
    """As :func:`_less` names them; outputs of a row are summed."""
    if isinstance(scores, RegressionScores):
        rows = {"log score": scores.log_score, "CRPS": scores.crps, "squared error": scores.squared_error}
        return {name: float(values.sum(1).mean()) for name, values in rows.items()}
    return {
        "log score": float(scores.log_score.mean()),
        "Brier score": float(scores.brier.mean()),
        "accuracy": scores.accuracy,
    }


def _covered(scores: RegressionScores) -> Concern:
    lines = scores.coverage(LEVELS).to_dict("records")
    worst = min(lines, key=lambda line: line["p_value"])
    told = ", ".join(f"{line['inside']:.3f} in {line['level']:.0%}" for line in lines[: len(LEVELS)])
    if worst["p_value"] * len(lines) >= RATE:
        return Concern(
            "good", "Coverage", f"as far as {scores.n_rows} rows tell, intervals are right: {told}"
        )
    gap = worst["inside"] - worst["level"]
    few = gap < 0.0
    where = "" if len(scores.names) == 1 else f" of {worst['output']}"
    why = (
        f"{worst['level']:.0%} intervals{where} hold {worst['inside']:.1%} of held-out rows, {abs(worst['z']):.1f} "
        f"standard errors too {'few' if few else 'many'}"
    )
    bad = few and -gap > LARGE
    return Concern("bad" if bad else "doubtful", "Coverage", why, "tune noise and scale on validation rows")


def _reliable(scores: ClassificationScores) -> Concern:
    found = scores.reliability
    why = (
        f"calibration error {found.calibration_error:.3f} ± {found.standard_error:.3f}, where chance alone gives "
        f"{found.chance:.3f}, up to {found.chance_high:.3f}"
    )
    if found.p_value >= RATE:
        return Concern("good", "Calibration", why)
    bad = found.calibration_error - found.chance > LARGE
    return Concern(
        "bad" if bad else "doubtful", "Calibration", why, "tune temperature and scale on validation rows"
    )
