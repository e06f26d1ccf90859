r"""Scale of the covariance, with noise or temperature, by held-out rows that may be few.

.. math:: \max_{c, T}\; \sum_r \log p(y_r \mid x_r; c, T)
          - \frac{(\log c)^2}{2 s_c^2} - \frac{(\log T)^2}{2 s_T^2}

A dozen rows that are all classified well would have the coldest temperature there is: the penalties, log-normal priors
around 1, outweigh a dozen rows and vanish beside a thousand.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from boxloop.weights.likely import likely_noise, likely_temperature
from boxloop.weights.predictor import Predictor
from boxloop.weights.tuning import SCALES, tune

Array = NDArray[np.float64]

SCALE_SPREAD = math.log(2.0)
"""Standard deviation of the logarithm of the scale, before any row is seen."""


def tuned(predictor: Predictor, x: Tensor, y: Tensor) -> Predictor:
    """A predictor with scale, and noise or temperature, of the highest penalised log score.

    Args:
        predictor: as the posterior gives it.
        x: rows held out, (n, d).
        y: what belongs to them, (n, q), or classes, (n,).
    """
    seen = y.cpu().numpy()
    first = replace(predictor, noise=None).predict(x[:1])
    made = replace(predictor, together=first.together)

    def profile(scale: float) -> tuple[Array, Array]:
        found = made.at_scale(scale).predict(x)
        if made.kind == "regression":
            value, rows = likely_noise(found.mean, found.spread, seen)
        else:
            value, rows = likely_temperature(found.outputs, found.strata.weight, seen)
        return value, rows - 0.5 * (math.log(scale) / SCALE_SPREAD) ** 2 / len(rows)

    what = "noise" if made.kind == "regression" else "temperature"
    best = tune(what, profile, None, [scale for scale in SCALES if scale > 0.0], refine=6)
    kept = replace(made.at_scale(best.scale), tuning=best)
    if what == "noise":
        # The variance of Student's law: that of the noise is known from n rows alone.
        return replace(kept, noise=best.value * math.sqrt(len(seen) / (len(seen) - 2.0)))
    return replace(kept, temperature=float(best.value[0]))
