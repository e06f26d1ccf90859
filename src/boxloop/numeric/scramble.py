"""Random words by place, and not by the order in which they are asked for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]


def scrambled(place: Words, key: int) -> Words:
    """A random 64-bit word for each place: SplitMix64 (Steele, Lea and Flood 2014).

    Example:
        >>> import numpy as np
        >>> scrambled(np.arange(1, dtype=np.uint64), 0)
        array([16294208416658607535], dtype=uint64)
    """
    with np.errstate(over="ignore"):
        word = (place + np.uint64(key % 2**64) * np.uint64(0xD1342543DE82EF95) + np.uint64(1)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(word ^ (word >> np.uint64(31)))
