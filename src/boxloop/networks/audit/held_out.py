"""Scores of a posterior's predictions on held-out rows, beside those of its mean network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from boxloop.concerns import Concern, Level
from boxloop.criticise import (
    ClassificationScores,
    Difference,
    RegressionScores,
    classification_scores,
    regression_scores,
)
from boxloop.data import make_frame
from boxloop.networks.prediction import (
    ClassificationPrediction,
    RegressionPrediction,
    check_classes,
    check_targets,
)
from boxloop.networks.predictor import Predictor

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]
Scores = RegressionScores | ClassificationScores

LEVELS = (0.5, 0.8, 0.95)
RATE = 0.01
"""False-alarm rate of the tests of coverage and calibration."""
SIGNIFICANT = 2.0
"""Standard errors from which a difference of scores counts."""
LARGE_GAP = 0.05
"""Difference between nominal and observed probability that is bad."""


@dataclass(frozen=True)
class HeldOutScores:
    """Scores on held-out rows.

    Args:
        posterior: scores of the average over networks.
        mean: of the mean network, with the same noise or temperature.
        epistemic: root mean square epistemic standard deviation for regression; mean mutual information for classes.
    """

    posterior: Scores
    mean: Scores
    epistemic: float

    @property
    def differences(self) -> dict[str, Difference]:
        """Scores of the posterior minus those of the mean network, paired by row."""
        one, other = self.posterior, self.mean
        if isinstance(one, RegressionScores) and isinstance(other, RegressionScores):
            return one.difference(other)
        assert isinstance(one, ClassificationScores)
        assert isinstance(other, ClassificationScores)
        return one.difference(other)

    @property
    def concerns(self) -> tuple[Concern, ...]:
        """One about the log score relative to the mean network, one about calibration."""
        is_regression = isinstance(self.posterior, RegressionScores)
        calibration = _check_coverage(self.posterior) if is_regression else _check_reliability(self.posterior)
        return (self._check_gain(), calibration)

    def table(self) -> Any:
        """A frame with one row per score: posterior, mean network, difference and its paired standard error."""
        differences = self.differences
        own, mean = _mean_scores(self.posterior), _mean_scores(self.mean)
        return make_frame(
            {
                "posterior": [own[name] for name in differences],
                "mean network": [mean[name] for name in differences],
                "difference": [one.value for one in differences.values()],
                "standard_error": [one.standard_error for one in differences.values()],
            },
            list(differences),
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Coverage or reliability of both, with the band expected by chance."""
        from boxloop.figures import coverage_of, reliability_diagram

        both = {"posterior": self.posterior, "mean network": self.mean}
        if isinstance(self.posterior, RegressionScores):
            transforms = {
                name: scores.transform
                for name, scores in both.items()
                if isinstance(scores, RegressionScores)
            }
            return coverage_of(transforms, ax, title="Coverage of held-out rows")
        curves = {
            name: scores.reliability.curve()
            for name, scores in both.items()
            if isinstance(scores, ClassificationScores)
        }
        return reliability_diagram(curves, ax, title="Reliability on held-out rows")

    def _check_gain(self) -> Concern:
        gain = self.differences["log score"]
        why = (
            f"On {self.posterior.n_rows} held-out rows the mean log score differs from that of the mean network by "
            f"{gain}"
        )
        if gain.z < -SIGNIFICANT:
            remedy = "tune the scale on validation rows, or use the mean network (method='swa')"
            return Concern("bad", "Predictions", why, remedy)
        if not gain.z > SIGNIFICANT:
            why += ", which is not significant"
        return Concern("good", "Predictions", why)


def score_held_out(predictor: Predictor, X: Any, y: Any, *, seed: int) -> HeldOutScores:
    """Score a predictor, and the same with the mean network alone."""
    prediction, mean = predictor.predict(X), predictor.with_scale(0.0).predict(X)
    if isinstance(prediction, ClassificationPrediction):
        epistemic = float(prediction.mutual_information.mean())
    else:
        epistemic = float(np.sqrt(np.mean(prediction.epistemic_std**2)))
    return HeldOutScores(_score(prediction, y, seed), _score(mean, y, seed), epistemic)


def _score(prediction: Any, y: Any, seed: int) -> Scores:
    if isinstance(prediction, RegressionPrediction):
        m, n = prediction.outputs.shape[:2]
        observed = check_targets(y, prediction.mean.shape)
        noise = np.broadcast_to(np.asarray(prediction.noise), prediction.mean.shape).reshape(n, -1)
        draws = prediction.outputs.reshape(m, n, -1)
        return regression_scores(observed, std=noise, draws=draws, weight=prediction.allocation.weight)
    classes = check_classes(y, prediction.outputs.shape[1:])
    return classification_scores(prediction.probability, classes, random_state=seed)


def _mean_scores(scores: Scores) -> dict[str, float]:
    """Mean scores by name, the outputs of a row summed."""
    if isinstance(scores, RegressionScores):
        rows = {"log score": scores.log_score, "CRPS": scores.crps, "squared error": scores.squared_error}
        return {name: float(values.sum(1).mean()) for name, values in rows.items()}
    return {
        "log score": float(scores.log_score.mean()),
        "Brier score": float(scores.brier.mean()),
        "accuracy": scores.accuracy,
    }


def _check_coverage(scores: Any) -> Concern:
    lines = scores.coverage(LEVELS).to_dict("records")
    worst = min(lines, key=lambda line: line["p_value"])
    if worst["p_value"] * len(lines) >= RATE:
        shares = ", ".join(
            f"{line['inside']:.1%} in {line['level']:.0%} intervals" for line in lines[: len(LEVELS)]
        )
        return Concern(
            "good",
            "Coverage",
            f"The {scores.n_rows} held-out rows lie in their intervals as often as they should: {shares}",
        )
    gap = worst["inside"] - worst["level"]
    output = "" if len(scores.names) == 1 else f" of {worst['output']}"
    why = (
        f"The {worst['level']:.0%} intervals{output} contain {worst['inside']:.1%} of held-out rows, "
        f"{abs(worst['z']):.1f} standard errors too {'few' if gap < 0.0 else 'many'}"
    )
    level: Level = "bad" if -gap > LARGE_GAP else "doubtful"
    return Concern(level, "Coverage", why, "tune noise and scale on validation rows")


def _check_reliability(scores: Any) -> Concern:
    reliability = scores.reliability
    why = (
        f"The calibration error is {reliability.calibration_error:.3f} ± {reliability.standard_error:.3f}; a "
        f"calibrated model would have {reliability.chance:.3f}, and at most {reliability.chance_high:.3f}"
    )
    if reliability.p_value >= RATE:
        return Concern("good", "Calibration", why)
    level: Level = "bad" if reliability.calibration_error - reliability.chance > LARGE_GAP else "doubtful"
    return Concern(level, "Calibration", why, "tune temperature and scale on validation rows")
