"""Numbers and classes that are predicted: against SciPy's mixtures and closed forms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import softmax

from boxloop.networks import (
    ClassificationPrediction,
    DrawAllocation,
    RegressionPrediction,
    as_logits,
    look_like_probabilities,
    mixture_quantile,
)
from contract.scores import assert_scores

RNG = np.random.default_rng(0)
STRATA = DrawAllocation.allocate_proportionally([0.6, 0.4], [False, False], 7)
NOISE = np.array([0.5, 2.0])


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Each test draws the same, whichever ran before it."""
    RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state


def numbers(n: int = 6) -> RegressionPrediction:
    return RegressionPrediction(RNG.normal(size=(7, n, 2)) * 3.0, STRATA, NOISE)


def labels(n: int = 6, sharp: float = 2.0) -> ClassificationPrediction:
    return ClassificationPrediction(sharp * RNG.normal(size=(7, n, 3)), STRATA)


def test_density_is_scipys_mixture() -> None:
    found, y = numbers(), RNG.normal(size=(6, 2))
    density = sum(
        w * stats.norm(centre, NOISE).pdf(y).prod(1)
        for w, centre in zip(STRATA.weight, found.outputs, strict=True)
    )
    np.testing.assert_allclose(found.log_prob(y), np.log(density), rtol=1e-10)
    np.testing.assert_allclose(found.log_prob(torch.from_numpy(y)), np.log(density), rtol=1e-10)


def test_density_integrates_to_one() -> None:
    found = replace(numbers(1), outputs=RNG.normal(size=(7, 1, 1)), noise=np.array([0.5]))
    grid = np.linspace(-12.0, 12.0, 4001)
    wide = replace(found, outputs=found.outputs.repeat(len(grid), 1))
    assert np.trapezoid(np.exp(wide.log_prob(grid)), grid) == pytest.approx(1.0, rel=1e-10)


def test_far_observations_have_a_finite_density() -> None:
    assert np.isfinite(numbers().log_prob(np.full((6, 2), 1e6))).all()


def test_deviation_is_spread_and_noise() -> None:
    """Against draws of observations from the mixture. False-alarm rate 1e-6."""
    m, n = 4000, 3
    outputs = RNG.normal(size=(m, n, 2)) * np.array([1.0, 2.0]) + np.arange(3.0)[:, None]
    found = RegressionPrediction(outputs, DrawAllocation.allocate_proportionally([1.0], [False], m), NOISE)
    y = outputs + NOISE * RNG.normal(size=outputs.shape)
    square = (y - found.mean) ** 2
    z = (square.mean(0) - found.std**2) / (square.std(0) / m**0.5)
    assert_scores(torch.from_numpy(z))
    np.testing.assert_allclose(found.std**2, found.epistemic_std**2 + NOISE**2, rtol=1e-12)
    assert (found.std > np.maximum(found.epistemic_std, NOISE)).all()


def test_spread_is_that_of_a_mixture() -> None:
    within, between = 0.5, 3.0
    outputs = np.concatenate(
        [-between + within * RNG.normal(size=(500, 1)), between + within * RNG.normal(size=(500, 1))]
    )
    found = RegressionPrediction(
        outputs, DrawAllocation.allocate_proportionally([0.5, 0.5], [False, False], 1000)
    )
    z = (found.epistemic_std**2 - (within**2 + between**2)) / (
        2.0 * found.epistemic_std * found.epistemic_std_error
    )
    assert_scores(torch.from_numpy(z))  # false-alarm rate 1e-6
    assert found.standard_error[0] == pytest.approx(within / 1000**0.5, rel=0.2)


def test_errors_are_what_repetitions_show() -> None:
    """The standard errors of mean and spread, against their spread over repetitions. False-alarm rate 1e-6."""
    repeats, m = 3000, 200
    found = RegressionPrediction(
        RNG.normal(size=(m, repeats)), DrawAllocation.allocate_proportionally([1.0], [False], m)
    )
    for value, error in (
        (found.mean, found.standard_error),
        (found.epistemic_std, found.epistemic_std_error),
    ):
        actual = value.std()
        assert error.mean() == pytest.approx(
            actual, rel=0.07
        )  # an s.d. of 3000 values: within five of its errors
    assert_scores(torch.tensor([found.mean.mean() / (found.mean.std() / repeats**0.5)]))


@pytest.mark.parametrize("q", [1e-6, 0.05, 0.5, 0.9, 1.0 - 1e-6])
def test_quantiles_are_roots_of_the_distribution_function(q: float) -> None:
    found = numbers(200)
    at = found.quantile(q)
    below = np.tensordot(STRATA.weight, stats.norm.cdf(at, found.outputs, NOISE), 1)
    np.testing.assert_allclose(below, q, rtol=1e-9, atol=1e-13)


def test_quantiles_of_one_gaussian_are_scipys() -> None:
    found = RegressionPrediction(
        np.array([[[3.0]]]), DrawAllocation.allocate_proportionally([1.0], [True], 1), np.array([2.0])
    )
    for q in (0.01, 0.3, 0.99):
        assert found.quantile(q)[0, 0] == pytest.approx(stats.norm(3.0, 2.0).ppf(q), rel=1e-12)


def test_quantiles_between_far_modes() -> None:
    centres = np.array([[-1e6], [1e6]])
    for q, around in ((0.25, -1e6), (0.75, 1e6)):
        found = mixture_quantile(q, centres, np.full(2, 0.5), np.ones(1))
        np.testing.assert_allclose(found, around, atol=1e-3)
    middle = mixture_quantile(0.5, centres, np.full(2, 0.5), np.ones(1))
    assert abs(float(middle[0])) <= 1e6


def test_intervals_hold_what_they_should() -> None:
    found = numbers(50)
    low, high = found.interval(0.8)
    inside = stats.norm.cdf(high, found.outputs, NOISE) - stats.norm.cdf(low, found.outputs, NOISE)
    np.testing.assert_allclose(np.tensordot(STRATA.weight, inside, 1), 0.8, rtol=1e-9)
    for level in (0.0, 1.0, -1.0):
        with pytest.raises(ValueError, match="between 0 and 1"):
            found.interval(level)
    with pytest.raises(ValueError, match="between 0 and 1"):
        found.quantile(1.0)


def test_noise_that_is_not_known_is_asked_for() -> None:
    found = replace(numbers(), noise=None)
    assert found.epistemic_std.shape == (6, 2)
    assert "noise unknown" in str(found)
    for ask in (
        lambda: found.std,
        lambda: found.log_prob(np.zeros((6, 2))),
        lambda: found.quantile(0.5),
    ):
        with pytest.raises(ValueError, match="noise of the observations is unknown: pass noise="):
            ask()


def test_observations_of_another_shape_are_refused() -> None:
    found = numbers()
    for y in (np.zeros(6), np.zeros((2, 6)), np.zeros((6, 1)), np.zeros((5, 2))):
        with pytest.raises(ValueError, match="y has shape"):
            found.log_prob(y)
    with pytest.raises(ValueError, match="must be finite"):
        found.log_prob(np.full((6, 2), np.nan))
    one = RegressionPrediction(found.outputs[..., :1], STRATA, NOISE[:1])
    np.testing.assert_array_equal(one.log_prob(np.zeros(6)), one.log_prob(np.zeros((6, 1))))
    flat = RegressionPrediction(found.outputs[..., 0], STRATA, np.array(0.5))
    np.testing.assert_array_equal(flat.log_prob(np.zeros((6, 1))), one.log_prob(np.zeros(6)))


def test_outputs_of_any_shape() -> None:
    image = RegressionPrediction(RNG.normal(size=(7, 3, 2, 4)), STRATA, np.array(0.5))
    flat = RegressionPrediction(image.outputs.reshape(7, 3, 8), STRATA, np.full(8, 0.5))
    y = RNG.normal(size=(3, 2, 4))
    np.testing.assert_allclose(image.log_prob(y), flat.log_prob(y.reshape(3, 8)), rtol=1e-12)
    np.testing.assert_allclose(image.quantile(0.2).reshape(3, 8), flat.quantile(0.2), rtol=1e-12)
    assert image.std.shape == (3, 2, 4)


def test_probabilities_are_means_of_softmax() -> None:
    found = replace(labels(), temperature=1.7)
    each = softmax(found.outputs / 1.7, axis=-1)
    mean = np.tensordot(STRATA.weight, each, 1)
    np.testing.assert_allclose(found.probability, mean, rtol=1e-10)
    np.testing.assert_allclose(found.probability.sum(1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(found.entropy, stats.entropy(mean, axis=1), rtol=1e-10)
    own = np.tensordot(STRATA.weight, stats.entropy(each, axis=2), 1)
    np.testing.assert_allclose(found.expected_entropy, own, rtol=1e-10)
    np.testing.assert_allclose(found.mutual_information, found.entropy - own, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(found.standard_error, STRATA.standard_error(each), rtol=1e-10)
    y = np.array([0, 1, 2, 0, 1, 2])
    np.testing.assert_allclose(found.log_prob(y), np.log(mean[np.arange(6), y]), rtol=1e-10)
    np.testing.assert_array_equal(found.predict(), mean.argmax(1))


@pytest.mark.parametrize("sharp", [1e-9, 1.0, 30.0, 1e4])
def test_mutual_information_is_within_its_bounds(sharp: float) -> None:
    found = labels(200, sharp)
    assert (found.mutual_information >= 0.0).all()
    assert (found.mutual_information <= np.log(3.0) + 1e-12).all()
    assert (found.entropy <= np.log(3.0) + 1e-12).all()
    assert (found.mutual_information > 1e-3).mean() > (0.5 if sharp >= 1.0 else -1.0)


def test_one_network_agrees_with_itself() -> None:
    point = ClassificationPrediction(
        labels().outputs[:1], DrawAllocation.allocate_proportionally([1.0], [True], 9)
    )
    np.testing.assert_array_equal(point.mutual_information, 0.0)
    np.testing.assert_array_equal(point.mutual_information_error, 0.0)
    np.testing.assert_array_equal(point.standard_error, 0.0)


def test_errors_of_information_are_what_repetitions_show() -> None:
    repeats, m = 2000, 60
    logits = np.repeat(np.array([[1.0, 0.0, -1.0]]), repeats, 0) + RNG.normal(size=(m, repeats, 3))
    found = ClassificationPrediction(logits, DrawAllocation.allocate_proportionally([1.0], [False], m))
    assert found.mutual_information_error.mean() == pytest.approx(found.mutual_information.std(), rel=0.08)
    assert found.standard_error.mean(0) == pytest.approx(found.probability.std(0), rel=0.08)


def test_a_single_output_is_the_logit_of_class_one() -> None:
    one = RNG.normal(size=(7, 6, 1))
    for outputs in (one, one[..., 0]):
        found = ClassificationPrediction(as_logits(outputs), STRATA)
        np.testing.assert_allclose(
            found.probability[:, 1],
            np.tensordot(STRATA.weight, 1.0 / (1.0 + np.exp(-one[..., 0])), 1),
            rtol=1e-10,
        )
    with pytest.raises(ValueError, match="logits"):
        as_logits(np.zeros((7, 6, 2, 2)))


def test_classes_that_are_none() -> None:
    found = labels()
    for y, words in (
        ([0, 1], "shape"),
        ([0.5] * 6, "class numbers from 0 to 2"),
        ([3] * 6, "class numbers from 0 to 2"),
    ):
        with pytest.raises(ValueError, match=words):
            found.log_prob(y)
    for y in ([-1] * 6, ["a"] * 6, [np.nan] * 6):
        with pytest.raises(ValueError, match="class numbers from 0 to 2"):
            found.log_prob(y)
    np.testing.assert_array_equal(found.log_prob(np.zeros((6, 1))), found.log_prob(torch.zeros(6).long()))


def test_probabilities_are_reported_from_logits() -> None:
    found = labels()
    assert look_like_probabilities(softmax(found.outputs, axis=-1))
    assert not look_like_probabilities(found.outputs)


def test_words() -> None:
    assert str(numbers()).startswith("6 rows, 7 networks. RMS standard deviations: weights")
    assert repr(labels()).startswith("6 rows, 3 classes, 7 networks: mean entropy")
