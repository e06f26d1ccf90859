"""How many topics the moments of pairs show."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.axes import Axes

from boxloop import topic_spectrum
from boxloop.data import draw_topics
from boxloop.numeric import generator


@pytest.mark.parametrize("k", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_number_of_topics(k):
    """Ten tables each. One topic too many has a chance of 5% each: more than 4 of 10, less than 1e-4."""
    found = []
    for seed in range(10):
        X = draw_topics(k, 40, generator(seed)).source(1500, (3, 14), generator(50 + seed))
        found.append(topic_spectrum(X, max_topics=k + 4, random_state=seed).n_components)
    assert min(found) == k
    assert sum(number > k for number in found) <= 4


def test_what_is_said():
    X = draw_topics(3, 30, generator(0)).source(2000, (2, 9), generator(1))
    found = topic_spectrum(X, max_topics=6)
    assert repr(found) == "TopicSpectrum: 3 of 6 eigenvalues stand out from noise"
    assert found.skipped > 0
    table = found.table()
    assert list(table.index) == [1, 2, 3, 4, 5, 6]
    assert np.isnan(table["p_value"].iloc[0])
    assert table["p_value"].iloc[1] == pytest.approx(0.05)
    assert np.all(np.diff(table["eigenvalue"]) <= 0)
    assert isinstance(found.plot(), Axes)
    again = topic_spectrum(X, max_topics=6)
    np.testing.assert_array_equal(found.null, again.null)


def test_dense_counts_and_weights():
    source = draw_topics(2, 20, generator(0)).source(800, 8, generator(1))
    dense = source.rows.to_dense().numpy()
    one, two = topic_spectrum(source, max_topics=4), topic_spectrum(dense, max_topics=4)
    np.testing.assert_allclose(one.values, two.values, rtol=1e-9)
    twice = topic_spectrum(np.concatenate([dense, dense]), max_topics=4)
    weighted = topic_spectrum(dense, max_topics=4, sample_weight=np.full(800, 2.0))
    np.testing.assert_allclose(weighted.values, twice.values, rtol=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_topics": 1}, "max_topics must be at least 2"),
        ({"draws": 5}, "draws=5 cannot show a p-value of 0.05: 19 can"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        topic_spectrum(draw_topics(2, 20, generator(0)).source(50, 8, generator(1)), **options)
