r"""How many topics: eigenvalues of the pair moment beside those of documents with fewer topics.

Of k topics the moment of pairs of distinct words has k positive eigenvalues and noise around zero. Whether the j-th is
more than noise is seen on documents of the same lengths drawn from the j - 1 topics that the moments show (a parametric
bootstrap; documents of a single topic, as in the parallel analysis of Horn 1965, have too little noise). The first
eigenvalue that does not stand out ends the count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from boxloop.data import ConcatenatedRows, Topics, check_count, check_level, make_frame, open_source
from boxloop.fit import DocumentMoments, find_largest_eigenvalues, spectral
from boxloop.numeric import generator, single_threaded

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class TopicSpectrum:
    """Eigenvalues of the pair moment of words, beside those of documents with fewer topics.

    Args:
        values: the largest, in decreasing order, (r,); words are scaled so that the first is near 1.
        null: the second eigenvalue of documents of one topic, the third of those of two, and so on, (tested, draws).
        level: probability of counting a topic too many.
        skipped: documents of fewer than three words, left out.
    """

    values: Array
    null: Array
    level: float
    skipped: int

    @property
    def p_values(self) -> Array:
        """P-values of the second eigenvalue, the third, ... as far as they were tested."""
        tested = self.values[1 : 1 + len(self.null), None]
        return np.asarray((1.0 + (self.null >= tested).sum(1)) / (1.0 + self.null.shape[1]))

    @property
    def n_components(self) -> int:
        """Topics that stand out, at least one."""
        return 1 + int((self.p_values <= self.level).sum())

    def table(self) -> Any:
        """One line for each eigenvalue, as a frame; NaN where nothing was tested."""
        rest = np.full(len(self.values) - 1 - len(self.null), np.nan)

        def pad_column(tested: Array) -> Array:
            return np.concatenate([[np.nan], tested, rest])

        columns: dict[str, Any] = {
            "eigenvalue": self.values,
            "noise mean": pad_column(self.null.mean(1)),
            "noise max": pad_column(self.null.max(1)),
            "p_value": pad_column(self.p_values),
        }
        return make_frame(columns, list(range(1, len(self.values) + 1)))

    def plot(self, ax: Axes | None = None) -> Axes:
        """Eigenvalues, the band of noise, and a line where topics end.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.
        """
        from boxloop.figures import spectrum

        return spectrum(self.values, self.null, self.n_components, ax)

    def __repr__(self) -> str:
        return f"TopicSpectrum: {self.n_components} of {len(self.values)} eigenvalues stand out from noise"


@single_threaded
def topic_spectrum(
    X: Any,
    max_topics: int = 20,
    *,
    draws: int = 19,
    level: float = 0.05,
    random_state: Any = 0,
    sample_weight: Any = None,
) -> TopicSpectrum:
    r"""How many topics a mixture of documents has, from pairs of words alone.

    .. math:: M_2 = E[x_1 x_2^\top] = \sum_h \pi_h \beta_h \beta_h^\top, \qquad \mathrm{rank}\, M_2 = k.

    Args:
        X: word counts (n, b), sparse or dense, or a path; documents of fewer than three words are left out.
        max_topics: number of eigenvalues.
        draws: samples of documents for each eigenvalue that is tested; p-values are at least ``1 / (draws + 1)``.
        level: probability of counting a topic too many.
        random_state: seed or generator.
        sample_weight: one non-negative weight per document.

    Returns:
        A :class:`TopicSpectrum`; its ``n_components`` is the number of topics.

    Example:
        >>> from boxloop import topic_spectrum
        >>> from boxloop.data import draw_topics
        >>> from boxloop.numeric import generator
        >>> X = draw_topics(3, 30, generator(0)).source(3000, 8, generator(2))
        >>> topic_spectrum(X, max_topics=6).n_components
        3
    """
    stream = generator(random_state)
    source = open_source(X, sample_weight)
    check_count(max_topics, "max_topics", 2)
    check_count(draws, "draws")
    check_level(level)
    if draws < 1.0 / level - 1.0 - 1e-9:
        raise ValueError(
            f"draws={draws} cannot show a p-value of {level:g}: {int(np.ceil(1 / level - 1))} can"
        )
    moments = DocumentMoments.measure(source)
    width = min(max_topics, source.n_columns)
    shares = source.reduce(
        lambda rows, weight: ConcatenatedRows.of(moments.document_weights(rows, weight)[0])
    )
    lengths = shares.concatenate().long().cpu()
    values = _largest_eigenvalues(moments, width, stream)
    null: list[Array] = []
    for j in range(1, int((values > 0.0).sum())):
        found = spectral(source, j, stream)
        fewer = Topics(found.weights.cpu(), found.probabilities.cpu())
        drawn = (fewer.source(len(lengths), lengths, stream) for _ in range(draws))
        null.append(
            np.array(
                [_largest_eigenvalues(DocumentMoments.measure(noise), j + 1, stream)[j] for noise in drawn]
            )
        )
        if (1 + (null[-1] >= values[j]).sum()) / (1 + draws) > level:
            break
    return TopicSpectrum(values, np.array(null).reshape(-1, draws), level, moments.skipped)


def _largest_eigenvalues(documents: DocumentMoments, width: int, stream: torch.Generator) -> Array:
    values, _ = find_largest_eigenvalues(documents, width, stream)
    return np.asarray(values[:width].cpu().numpy())
