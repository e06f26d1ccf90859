"""What a predictor looks at before and after networks are run."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from boxloop.numeric import join_words
from boxloop.weights.classes import ends_in_sigmoid, look_like_probabilities
from boxloop.weights.functional import batch_norms
from boxloop.weights.method import Part, warn

Array = NDArray[np.float64]


def refuse_old_statistics(parts: Sequence[Part]) -> None:
    """Networks whose running statistics nobody has said anything about.

    Raises:
        ValueError: one that has some.
    """
    kinds = {type(norm).__name__ for part in parts for norm in batch_norms(part.net).values()}
    if kinds:
        raise ValueError(
            f"the statistics of {join_words(sorted(kinds))} are those of other weights: give refresh= inputs of the "
            "training rows (or call fresh()) to gather them under every draw, or refresh='net' to keep those of the "
            "network"
        )


def look_at(outputs: Array, kind: str, parts: Sequence[Part]) -> None:
    """Warn of outputs that are not finite, and of probabilities where logits should be.

    Args:
        outputs: of every draw, (m, n, ...).
        kind: ``regression`` or ``classification``.
        parts: whose networks gave them.
    """
    whole = np.atleast_1d(np.isfinite(outputs).reshape(len(outputs), -1).all(1))
    if not whole.all():
        said = f"{int((~whole).sum())} of {len(whole)} networks give outputs that are not finite"
        warn(f"{said}: look for such inputs, or lower the scale")
    elif kind == "classification" and (
        look_like_probabilities(outputs) or any(ends_in_sigmoid(part.net) for part in parts)
    ):
        warn("outputs are probabilities, not logits: give the network without its softmax or sigmoid")


def noise_for(given: ArrayLike | None, shape: tuple[int, ...]) -> Array | None:
    """Noise of each output, in their shape.

    Args:
        given: one number, or one for each output, in their shape or in a row.
        shape: of the outputs of a row.

    Raises:
        ValueError: another number of them.
    """
    if given is None:
        return None
    noise = np.asarray(given, dtype=np.float64)
    if noise.size == 1:
        return np.broadcast_to(noise.reshape(()), shape)
    if noise.shape not in (shape, (math.prod(shape),)):
        raise ValueError(f"noise has shape {noise.shape} for outputs of shape {shape}")
    return noise.reshape(shape)
