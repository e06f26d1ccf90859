r"""Whether probabilities of classes are as often right as they say: calibration error and reliability curve.

A calibration error averages absolute values, so that chance alone makes it positive: probabilities that are exactly
right have one too. Here it stands beside what chance would give, by drawing labels from the probabilities themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from boxloop.criticise.outcomes import checked_probability
from boxloop.criticise.pairs import checked_count
from boxloop.data import make_frame
from boxloop.numeric import RandomState, generator, single_threaded

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

BINS = 15
"""As many as Guo et al. (2017) take."""
WORK = 20_000_000
FEWEST, MOST = 200, 2000
"""Labellings that chance is judged by: as many as keep to so much work, between these."""


@dataclass(frozen=True)
class Reliability:
    """How often probabilities were right, bin by bin, and by how much they miss.

    Args:
        edges: of the bins, (b + 1,).
        count: rows in each, (b,).
        confidence: mean probability in each, (b,); NaN where there is no row.
        share: of rows in each whose event took place, (b,).
        low: 2.5 % point of the share if the probabilities were right, (b,).
        high: 97.5 % point, (b,).
        calibration_error: mean over rows of the absolute difference of share and confidence of a row's bin.
        standard_error: of it, by the infinitesimal jackknife.
        chance: its mean if the probabilities were right.
        chance_high: its 95 % point then.
        p_value: share of labellings drawn from the probabilities with as large an error.
        event: what the probabilities are of.

    Example:
        >>> import numpy as np
        >>> p = np.array([[0.9, 0.1]] * 8 + [[0.4, 0.6]] * 2)
        >>> found = reliability(p, [0] * 7 + [1] + [1, 0], bins=2)
        >>> found.count.tolist(), round(found.calibration_error, 4)
        ([0, 10], 0.04)
    """

    edges: Array
    count: NDArray[np.int64]
    confidence: Array
    share: Array
    low: Array
    high: Array
    calibration_error: float
    standard_error: float
    chance: float
    chance_high: float
    p_value: float
    event: str = "the likeliest class"

    @property
    def largest(self) -> float:
        """The largest difference of share and confidence in any bin."""
        return float(np.nanmax(np.abs(self.share - self.confidence)))

    def table(self) -> Any:
        """One line a bin that holds a row."""
        kept = self.count > 0
        return make_frame(
            {
                "from": self.edges[:-1][kept].tolist(),
                "to": self.edges[1:][kept].tolist(),
                "rows": self.count[kept].tolist(),
                "said": self.confidence[kept].tolist(),
                "happened": self.share[kept].tolist(),
                "chance low": self.low[kept].tolist(),
                "chance high": self.high[kept].tolist(),
            }
        )

    def __str__(self) -> str:
        return (
            f"calibration error {self.calibration_error:.4f} ± {self.standard_error:.4f} "
            f"({self.event}, {int(self.count.sum())} rows); chance alone gives {self.chance:.4f}, "
            f"up to {self.chance_high:.4f}; p = {self.p_value:.2g}"
        )

    def plot(self, ax: Axes | None = None, *, name: str = "observed") -> Axes:
        """What happened against what was said, with the band that chance allows and the rows of every bin.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.
            name: of the curve.

        Returns:
            The axes.

        Example:
            >>> reliability([0.9, 0.2, 0.6], [1, 0, 1]).plot().get_xlabel()
            'probability said'
        """
        from boxloop.figures import reliability_diagram

        title = f"Reliability of {self.event}"
        return reliability_diagram({name: self.lines()}, ax, title=title)

    def lines(self) -> tuple[Array, Array, Array, Array, Array]:
        """What a picture needs: said, happened, rows, and the band's two edges, of bins that hold a row."""
        kept = self.count > 0
        parts = (self.confidence, self.share, self.count.astype(float), self.low, self.high)
        said, happened, rows, low, high = (part[kept] for part in parts)
        return said, happened, rows, low, high


@single_threaded
def reliability(
    probability: Any,
    y: Any,
    *,
    bins: int = BINS,
    equal: Literal["width", "count"] = "width",
    event: int | None = None,
    repeats: int | None = None,
    random_state: RandomState = 0,
) -> Reliability:
    r"""Expected calibration error and reliability curve, beside what chance alone would give.

    .. math:: \mathrm{ECE} = \sum_b \frac{n_b}{n}
        \left| \tfrac{1}{n_b} \sum_{i \in b} h_i - \tfrac{1}{n_b} \sum_{i \in b} p_i \right|

    Naeini, Cooper and Hauskrecht (2015); Guo et al. (2017). :math:`p_i` is the largest probability of a row and
    :math:`h_i` whether that class is the label; or those of one class by request. As it averages absolute values it
    is above zero for true probabilities as well (Bröcker 2012): its law then is found by drawing
    :math:`h_i \sim \mathrm{Bernoulli}(p_i)`.

    Args:
        probability: of the classes, (n, C), rows summing to 1; or of the second of two, (n,).
        y: number of each row's class, (n,), from 0.
        bins: how many.
        equal: ``width``, of the same length between 0 and 1; ``count``, of about as many rows each (adaptive, Nguyen
            and O'Connor 2015), where equal probabilities stay together.
        event: the class whose probability is judged; the likeliest of each row when None.
        repeats: labellings behind chance; by the number of rows when None.
        random_state: of them.

    Returns:
        :class:`Reliability`.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> p = rng.dirichlet([1.0, 1.0, 1.0], size=2000)
        >>> labels = (rng.random((2000, 1)) > p.cumsum(1)).sum(1)
        >>> found = reliability(p, labels)
        >>> found.p_value > 0.01, found.calibration_error < 0.05
        (True, True)
    """
    p, codes = checked_probability(probability, y)
    checked_count(bins, "bins", 1)
    if event is None:
        at = p.argmax(1)
        said, hit = p[np.arange(len(p)), at], (at == codes).astype(float)
    else:
        if not 0 <= event < p.shape[1]:
            raise ValueError(f"event must be the number of a class from 0 to {p.shape[1] - 1}, got {event}")
        said, hit = p[:, event], (codes == event).astype(float)
    edges, place = _binned(said, bins, equal)
    return _judged(said, hit, edges, place, repeats, random_state, event)


def _binned(said: Array, bins: int, equal: str) -> tuple[Array, NDArray[np.int64]]:
    """Edges of bins, and the bin of every row."""
    if equal == "width":
        edges = np.linspace(0.0, 1.0, bins + 1)
        return edges, np.minimum((said * bins).astype(np.int64), bins - 1)
    if equal == "count":
        inner = np.unique(np.quantile(said, np.arange(1, bins) / bins, method="higher"))
        inner = inner[(inner > said.min()) & (inner <= said.max())]
        return np.concatenate([[0.0], inner, [1.0]]), np.searchsorted(inner, said, side="right")
    raise ValueError(f"equal must be 'width' or 'count', got {equal!r}")


def _judged(
    said: Array,
    hit: Array,
    edges: Array,
    place: NDArray[np.int64],
    repeats: int | None,
    random_state: RandomState,
    event: int | None,
) -> Reliability:
    n, bins = len(said), len(edges) - 1
    count = np.bincount(place, minlength=bins)
    total, happened = np.bincount(place, said, bins), np.bincount(place, hit, bins)
    gap = happened - total
    value = float(np.abs(gap).sum() / n)
    # The error is the mean of these wherever signs hold: their spread is the jackknife's, without its n refits.
    part = np.sign(gap)[place] * (hit - said)
    spread = float(part.std(ddof=1)) / n**0.5 if n > 1 else float("nan")
    drawn = _by_chance(said, place, bins, repeats, random_state)
    errors = np.abs(drawn - total).sum(1) / n
    with np.errstate(invalid="ignore", divide="ignore"):
        low, high = np.quantile(drawn, [0.025, 0.975], axis=0) / count
        confidence, share = total / count, happened / count
    extreme = int((errors >= value - 1e-12).sum())
    return Reliability(
        edges=edges,
        count=count,
        confidence=confidence,
        share=share,
        low=low,
        high=high,
        calibration_error=value,
        standard_error=spread,
        chance=float(errors.mean()),
        chance_high=float(np.quantile(errors, 0.95)),
        p_value=(1 + extreme) / (1 + len(errors)),
        event="the likeliest class" if event is None else f"class {event}",
    )


def _by_chance(
    said: Array, place: NDArray[np.int64], bins: int, repeats: int | None, random_state: RandomState
) -> Array:
    """Events in every bin, (repeats, bins), where each takes place with the probability said."""
    wanted = int(np.clip(WORK // len(said), FEWEST, MOST)) if repeats is None else repeats
    checked_count(wanted, "repeats", 1)
    stream = generator(random_state)
    order = np.argsort(place, kind="stable")
    chance = torch.from_numpy(said[order].astype(np.float32))
    ends = np.bincount(place, minlength=bins).cumsum()
    found = np.empty((wanted, bins))
    for row in range(wanted):
        hits = torch.rand(len(said), generator=stream) < chance
        running = np.concatenate([[0], np.cumsum(hits.numpy(), dtype=np.int64)])
        found[row] = np.diff(running[ends], prepend=0)
    return found
