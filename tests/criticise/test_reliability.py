"""Scores of probabilities against scikit-learn and closed forms; calibration errors against chance."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.calibration import calibration_curve
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

from boxloop.criticise import classification_scores, reliability
from boxloop.figures import png, reliability_diagram


def drawn(p: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return (rng.random((len(p), 1)) > p.cumsum(1)[:, :-1]).sum(1)


def some(n: int, seed: int, alpha: float = 1.0, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet([alpha] * classes, size=n)
    return p, drawn(p, rng)


def test_scores_are_scikit_learn_s():
    p, y = some(300, 0)
    found = classification_scores(torch.from_numpy(p), torch.from_numpy(y))
    assert -found.log_score.mean() == pytest.approx(log_loss(y, p), rel=1e-12)
    assert found.brier.mean() == pytest.approx(brier_score_loss(y, p), rel=1e-12)
    assert found.accuracy == pytest.approx(accuracy_score(y, p.argmax(1)))
    two = p[:, 0]
    binary = classification_scores(two, y == 0)
    assert binary.brier.mean() == pytest.approx(2.0 * brier_score_loss(y == 0, two), rel=1e-12)
    assert -binary.log_score.mean() == pytest.approx(log_loss(y == 0, two), rel=1e-12)


def test_curves_are_scikit_learn_s():
    p, y = some(500, 1, classes=2)
    for equal, strategy in (("width", "uniform"), ("count", "quantile")):
        found = reliability(p, y, bins=10, equal=equal, event=1)
        share, said = calibration_curve(y, p[:, 1], n_bins=10, strategy=strategy)
        kept = found.count > 0
        if equal == "width":
            np.testing.assert_allclose(found.frequency[kept], share, rtol=1e-12)
            np.testing.assert_allclose(found.confidence[kept], said, rtol=1e-12)
        else:
            assert found.count.tolist() == pytest.approx([50] * 10, abs=1)
            np.testing.assert_allclose(found.confidence, said, atol=0.02)


def test_the_error_by_hand():
    """Bins [0, 1/2) and [1/2, 1]: 1 of 2 at 0.25 and 0.45, 3 of 4 at 0.6 and 0.9."""
    p, y = [0.25, 0.45, 0.6, 0.6, 0.9, 0.9], [0, 1, 1, 0, 1, 1]
    found = reliability(p, y, bins=2, event=1)
    np.testing.assert_allclose(found.frequency, [0.5, 0.75])
    np.testing.assert_allclose(found.confidence, [0.35, 0.75])
    assert found.calibration_error == pytest.approx(2 * 0.15 / 6)
    assert found.largest == pytest.approx(0.15)


def test_chance_is_that_of_binomials():
    """One bin, one probability: |Binomial(n, p) / n - p| exactly. Of 20,000 labellings, |z| < 4.5: 7e-6."""
    n, p = 25, 0.7
    found = reliability(np.full(n, p), np.ones(n), bins=1, event=1, repeats=20_000)
    count = np.arange(n + 1)
    mass, error = stats.binom.pmf(count, n, p), np.abs(count / n - p)
    mean = float(mass @ error)
    spread = float(mass @ error**2 - mean**2) ** 0.5
    assert abs(found.chance - mean) < 4.5 * spread / 20_000**0.5
    tail = float(mass[error >= abs(1.0 - p) - 1e-9].sum())
    assert abs(found.p_value - tail) < 4.5 * (tail / 20_000) ** 0.5 + 1e-4
    assert found.low[0] == stats.binom.ppf(0.025, n, p) / n
    assert found.high[0] == stats.binom.ppf(0.975, n, p) / n


def test_true_probabilities_have_an_error_and_it_is_what_chance_gives():
    """60 data sets: their mean error is that of chance; p-values are uniform. Tests at 1e-4 each."""
    for equal in ("width", "count"):
        found = [
            reliability(*some(400, seed), equal=equal, repeats=500, random_state=seed) for seed in range(60)
        ]
        errors = np.array([one.calibration_error for one in found])
        chance = np.array([one.chance for one in found])
        assert errors.min() > 0.01
        assert abs((errors - chance).mean()) < 4.0 * (errors - chance).std() / 60**0.5
        assert stats.kstest([one.p_value for one in found], "uniform").pvalue > 1e-4


def test_the_standard_error_is_that_of_other_rows():
    """Overconfident probabilities: the spread over 300 data sets within 4 errors of a standard deviation (6e-5)."""
    found = []
    for seed in range(300):
        p, y = some(1000, seed, alpha=0.5)
        sharp = p**3 / (p**3).sum(1, keepdims=True)
        found.append(reliability(sharp, y, repeats=1))
    spread = np.std([one.calibration_error for one in found], ddof=1)
    said = np.mean([one.standard_error for one in found])
    assert abs(spread / said - 1.0) < 4.0 / (2 * 299) ** 0.5


def test_the_standard_error_keeps_the_sign_of_every_bin():
    """Too timid below one half, too sure above: the error is the mean of -(h - p) and (h - p) by bin."""
    p, y = np.array([0.2] * 20 + [0.9] * 20), np.array([1] * 12 + [0] * 8 + [1] * 10 + [0] * 10)
    found = reliability(p, y, bins=2, event=1)
    signed = np.concatenate([(y - p)[:20], -(y - p)[20:]])
    assert found.calibration_error == pytest.approx(signed.mean())
    assert found.standard_error == pytest.approx(signed.std(ddof=1) / 40**0.5)


def test_probabilities_that_are_too_sure_are_found_out():
    p, y = some(1000, 0, alpha=0.5)
    sharp = p**3 / (p**3).sum(1, keepdims=True)
    found = classification_scores(sharp, y)
    assert found.reliability.p_value < 0.001
    assert found.reliability.calibration_error > found.reliability.chance_high
    less = found.difference(classification_scores(p, y))
    assert less["log score"].z < -4.0
    assert less["Brier score"].z > 4.0
    assert less["accuracy"].value == 0.0


def test_equal_probabilities_stay_in_one_bin():
    p = np.array([0.5] * 50 + [0.9] * 10 + [1.0] * 40)
    found = reliability(p, np.ones(100), equal="count", event=1, bins=10)
    assert found.count.tolist() == [50, 10, 40]
    assert found.confidence.tolist() == pytest.approx([0.5, 0.9, 1.0])
    same = reliability(np.full(9, 0.3), np.zeros(9), equal="count", event=1)
    assert same.count.tolist() == [9]


def test_labels_that_were_ruled_out():
    found = classification_scores([[1.0, 0.0], [0.5, 0.5]], [1, 0])
    assert found.n_impossible == 1
    assert found.log_score.mean() == -np.inf
    assert "1 label(s) had probability 0" in str(found)
    floored = classification_scores([[1.0, 0.0], [0.5, 0.5]], [1, 0], floor=1e-6)
    assert floored.log_score[0] == pytest.approx(np.log(1e-6))


def test_the_same_seed_gives_the_same_numbers_and_the_caller_s_stream_is_not_touched():
    p, y = some(200, 3)
    before = torch.get_rng_state()
    one, same, other = (reliability(p, y, random_state=seed) for seed in (1, 1, 2))
    assert one.chance == same.chance != other.chance
    assert torch.equal(before, torch.get_rng_state())


def test_tables_words_and_pictures():
    p, y = some(200, 4)
    found = classification_scores(p, y)
    table = found.table()
    assert table.loc["calibration error", "value"] == found.reliability.calibration_error
    assert table.loc["calibration error", "chance"] == found.reliability.chance
    assert np.isnan(table.loc["Brier score", "chance"])
    assert "by chance" in str(found)
    bins = found.reliability.table()
    assert bins["rows"].sum() == 200
    assert png(found.plot()).startswith(b"\x89PNG")
    both = {"$a$": found.reliability.curve(), "b": found.adaptive.curve()}
    assert len(reliability_diagram(both).lines) == 3
    empty = tuple(np.zeros(0) for _ in range(5))
    assert png(reliability_diagram({"none": empty})).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("p", "y", "said"),
    [
        ([[0.5, 0.6]], [0], "sum 1"),
        ([[1.5, -0.5]], [0], "not negative"),
        ([[1.0]], [0], "two classes"),
        ([[0.5, 0.5]], [2], "numbers of classes from 0 to 1"),
        ([[0.5, 0.5]], [0.5], "numbers of classes"),
        ([[0.5, 0.5]], [0, 1], "one label"),
        ([[np.nan, 0.5]], [0], "not finite"),
    ],
)
def test_what_cannot_be_judged_is_said(p, y, said):
    with pytest.raises(ValueError, match=said):
        classification_scores(p, y)


def test_bad_settings_are_said():
    p, y = some(10, 0)
    with pytest.raises(ValueError, match="'width', 'count'"):
        reliability(p, y, equal="mass")
    with pytest.raises(ValueError, match="bins"):
        reliability(p, y, bins=0)
    with pytest.raises(ValueError, match="event"):
        reliability(p, y, event=4)
    with pytest.raises(ValueError, match="floor"):
        classification_scores(p, y, floor=2.0)


def test_bins_of_equal_count_hold_their_lower_edge():
    """Edges are probabilities that rows have: such a row belongs to the bin that starts there."""
    rng = np.random.default_rng(5)
    said = rng.integers(1, 20, 400) / 20.0
    found = reliability(said, rng.random(400) < said, bins=5, equal="count", event=1)
    edges = found.edges
    assert (edges[0], edges[-1]) == (0.0, 1.0)
    assert np.isin(edges[1:-1], said).all()
    inside = [int(((low <= said) & (said < high)).sum()) for low, high in itertools.pairwise(edges)]
    assert list(found.count) == inside
    assert min(inside) > 0
