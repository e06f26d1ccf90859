"""Learning relevant features, section 5.1, at a small size."""

import numpy as np
import pytest
import torch
from scipy import ndimage
from scipy.stats import norm

from boxloop.numeric import generator
from papers.experiment import Options
from papers.halves import (
    FourConvolutions,
    Halves,
    Regression,
    Setting,
    compare_residuals,
    digits,
    disturb,
    experiment,
    fit_features,
    flat,
    judge_batches,
    judge_errors,
    judge_means,
    judge_spectra,
    left,
    linear_errors,
    rank_pixels,
    right,
    signed_weights,
    small_batches,
    squared_error,
)


@pytest.fixture(scope="module")
def report():
    return experiment(Options(quick=True))


@pytest.fixture(scope="module")
def noisy():
    """Images of two columns and two rows whose left half is the right one and noise: the distribution is known."""
    stream = generator(0)
    known = torch.randn((7000, 2, 1), generator=stream)
    other = 0.8 * known + 0.6 * torch.randn((7000, 2, 1), generator=stream)
    images = torch.cat([other, known], 2).numpy()
    return Halves("made up", images[:6000], images[6000:])


def test_halves_are_halves():
    images = np.arange(12.0, dtype=np.float32).reshape(1, 3, 4)
    assert left(images)[0, 0].tolist() == [0.0, 1.0]
    assert right(images)[0, 2].tolist() == [10.0, 11.0]


def test_nothing_moves_at_angle_zero():
    images = torch.rand((2, 9, 9), generator=generator(0))
    torch.testing.assert_close(disturb(images, 0.0, 0.0, generator(1)), images, atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("shape", [(15, 15), (15, 9)])
def test_turns_and_shifts_are_those_of_scipy(shape):
    """The chances are drawn again here, and the same map given to SciPy's interpolation."""
    images = torch.rand((1, *shape), generator=generator(0)).double()
    moved = disturb(images, 20.0, 2.0, generator(7))[0].numpy()
    chance = (2.0 * torch.rand((1, 3), generator=generator(7), dtype=torch.float64) - 1.0)[0].numpy()
    angle = np.radians(20.0) * chance[0]
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])  # rows first
    middle = (np.array(shape) - 1) / 2
    offset = middle - turn @ middle + 2.0 * chance[:0:-1]
    expected = ndimage.affine_transform(images[0].numpy(), turn, offset, order=1, mode="grid-constant")
    np.testing.assert_allclose(moved, expected, atol=1e-6)


def test_the_test_images_are_others_and_all_lie_between_0_and_1():
    turned, plain = digits(None, 900, 0)
    assert len(turned.train) == len(plain.train) == 900
    assert not {row.tobytes() for row in flat(plain.train)} & {row.tobytes() for row in flat(plain.test)}
    assert float(turned.train.min()) >= 0.0
    assert float(turned.train.max()) <= 1.0 + 1e-6


def test_the_network_starts_from_its_own_stream():
    before = torch.get_rng_state()
    one, two = (FourConvolutions((8, 4), 5, 4, generator(3)) for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    rows = torch.rand((6, 32), generator=generator(0))
    assert torch.equal(one(rows), two(rows))
    assert one(rows).shape == (6, 5)
    assert float(one(1e3 * rows).detach().abs().max()) <= 1.0


@pytest.mark.slow
def test_least_squares_by_the_network_approach_the_best_there_is(noisy):
    """Noise of variance 0.36 is left at best; 1000 images of 2 pixels, so its error is 0.36 sqrt(2 / 2000) = 0.0114."""
    network = Regression(8, 15, 64, 3e-3, torch.device("cpu"))
    known, wanted, new = flat(right(noisy.train)), flat(left(noisy.train)), flat(right(noisy.test))
    found = squared_error(left(noisy.test), network.predict(known, wanted, new, noisy.half, 0))
    assert 0.36 - 4.5 * 0.0114 < found["mse"] < 0.5
    base = linear_errors(noisy)
    assert base["ridge"]["mse"] == pytest.approx(0.36, abs=4.5 * 0.0114)  # false alarm 1e-5
    assert base["column means"]["mse"] == pytest.approx(1.0, abs=4.5 * (2 / 2000) ** 0.5)


@pytest.mark.slow
def test_a_known_distribution_is_found_calibrated(noisy):
    """Normal noise about a linear mean: 68% and 95% of residuals, uniform ranks, few negative variances.

    Nine variables hold the two linear and three quadratic ones, by which a variance is right.
    """
    found = fit_features(noisy.train, 10, 0, Setting(8, 15, 5e-3, device="cpu"))
    facts = compare_residuals(found, noisy, 400)
    assert facts["within 1"] == pytest.approx(2 * norm.cdf(1) - 1, abs=0.06)
    assert facts["within 2"] == pytest.approx(2 * norm.cdf(2) - 1, abs=0.04)
    assert facts["mean variance"] == pytest.approx(facts["mean square of residuals"], rel=0.15)
    assert facts["negative variances"] < 0.05
    rank = rank_pixels(found, noisy.test, noisy.train, 200, 0)
    assert rank["distance"] < 0.08
    new, pool = (torch.from_numpy(flat(part)) for part in (right(noisy.test), left(noisy.train)))
    with torch.no_grad():
        inferred = (signed_weights(found.model_, new, pool) @ pool.double()).numpy()
    predicted = found.predict(right(noisy.test)).reshape(inferred.shape)
    slope = (inferred * predicted).sum() / (
        predicted**2
    ).sum()  # a tenth of the rows was held out from the fit
    assert slope == pytest.approx(1.0, abs=0.03)
    share = np.asarray(rank["reliability"])[:, 3]
    assert share.sum() == pytest.approx(1.0)


def test_wrong_distributions_are_caught(noisy):
    """The same fit judged on halves that it does not belong to: residuals too large, ranks at the ends."""
    found = fit_features(noisy.train, 9, 0, Setting(8, 15, 5e-3, device="cpu"))
    wrong = Halves("wrong", noisy.train, np.concatenate([3.0 * left(noisy.test), right(noisy.test)], 2))
    facts, rank = compare_residuals(found, wrong, 200), rank_pixels(found, wrong.test, noisy.train, 200, 0)
    assert facts["mean square of residuals"] > 2.0 * facts["mean variance"]
    count = np.asarray(rank["histogram"])
    assert count[[0, -1]].sum() > 0.4 * count.sum()


def test_error_bars_of_the_mean_hold_for_features_that_are_given(report):
    """z of 3 pairs of parts, root mean square: 1 if they do; what learning features costs is not in them."""
    found = report.curves["refits"]
    assert 0.75 < found["features given"]["spread"] < 1.25
    assert found["features learned anew"]["spread"] > found["features given"]["spread"]


def test_batches_that_are_too_small_show_what_is_not_there(report):
    found = report.curves["small batches"]
    assert found["loss"] > 1.3 * found["batch loss"]
    assert found["gradient"]["too few"] < 1e-8 < found["gradient"]["enough"]
    turned, _ = digits(None, 400, 0)
    enough = small_batches(turned, 4, 0, Setting(4, 2, device="cpu"))
    assert enough["batch"] == 8


@pytest.mark.parametrize("rate", [0.3, 10.0])
def test_variables_lost_in_training_count_as_lost_relevance(rate):
    """Rates so high that features saturate, all of them or some: constants have no variables."""
    turned, _ = digits(None, 400, 0)
    facts = small_batches(turned, 6, 0, Setting(4, 3, rate=rate, device="cpu"))
    assert facts["variables"] < 4
    assert 4.5 < facts["batch loss"] <= facts["loss"] <= 5.0
    if not facts["variables"]:
        assert facts["losses in training"][-1] == facts["batch loss"] == facts["loss"] == 5.0


def test_a_training_that_collapsed_is_reported_as_such():
    facts = {"batch": 12, "batch loss": 5.0, "losses in training": [2.0, 4.98], "loss": 5.0, "variables": 1}
    facts |= {"rows": {"enough": 60, "too few": 4}, "gradient": {"enough": 0.2, "too few": 0.0}}
    line = judge_batches(facts, 6)[0]
    assert line.verdict == "not reproduced"
    assert (
        line.ours
        == "training collapsed: loss 5.0 of 5 in its last pass; 5.0 in a batch, 5.0 on all rows, of 5"
    )
    assert "1 of 5 variables are left" in line.reason
    line = judge_batches({**facts, "losses in training": [4.9, 2.0], "batch loss": 2.0, "loss": 4.5}, 6)[0]
    assert (line.verdict, line.ours) == (
        "reproduced in distribution",
        "2.0 in a batch, 4.5 on all rows, of 5",
    )
    assert "collapsed" not in line.reason


def test_the_verdicts_follow_the_numbers():
    base = {"column means": {"mse": 1.0, "error": 0.01}, "ridge": {"mse": 0.55, "error": 0.01}}
    for mse, verdict in (
        (0.5, "reproduced in distribution"),
        (0.56, "not reproduced"),
        (0.7, "not reproduced"),
    ):
        (line,) = judge_errors({50: {"mse": mse, "error": 0.01}}, base, "as they are", True)
        assert line.verdict == verdict
        assert "0.0313" in line.paper
    low = {"correlation": [0.9, 0.5, 0.1], "held out": [0.9, 0.5, 0.1], "significant": 3}
    high = {"correlation": [0.9, 0.6, 0.5, 0.4, 0.1], "held out": [0.9, 0.6, 0.5, 0.4, 0.1], "significant": 5}
    assert judge_spectra({4: low, 6: high}).verdict == "reproduced in distribution"
    assert (
        judge_spectra({4: low, 6: {**high, "correlation": [0.9, 0.5, 0.05, 0.0, 0.0]}}).verdict
        == "not reproduced"
    )
    z = {"spread": 2.0, "error": 0.1, "pairs": 3, "within 1": 0.4, "within 2": 0.7, "standard error": 0.1}
    assert judge_means({"features given": z}, 4)[0].verdict == "target missed"


def test_all_is_reported_and_drawn(report, tmp_path):
    names = {path.name for path in report.write(tmp_path)}
    assert {"halves.json", "halves.md", "halves-digits.png", "halves-calibration.png"} <= names
    assert set(report.curves["others"]) == {"column means", "ridge", "random forest", "network"}
    assert len(report.findings) == 12
