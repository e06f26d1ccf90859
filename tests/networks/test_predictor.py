"""A predictor from a posterior: settings, kinds, what it warns of."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import softmax

from boxloop.networks import (
    ClassificationPrediction,
    Component,
    Predictor,
    RegressionPrediction,
    WeightPosterior,
    WeightWarning,
)
from contract.scores import assert_scores
from networks.small_networks import filled, mlp, part_of, rows


class Given:
    """A posterior that is known."""

    def __init__(self, *parts: Component) -> None:
        self._parts = parts

    def components(self) -> tuple[Component, ...]:
        return self._parts


def test_a_linear_net_has_the_closed_form() -> None:
    """Mean x'm, spread² x'Sx, deviation² x'Sx + noise², within Monte Carlo error. False-alarm rate 1e-6."""
    net = filled(nn.Linear(3, 1)).double()
    part, x = part_of(net, 0.5), rows(8, 3)
    found = Predictor.from_posterior(Given(part), "regression", 4000, noise=0.7, random_state=4).predict(x)
    design = torch.cat([x, torch.ones(8, 1).double()], 1)
    variance = ((design @ part.distribution.covariance().dense()[0]) * design).sum(1).numpy()
    z = (found.mean[:, 0] - (design @ part.distribution.mean).numpy()) / found.standard_error[:, 0]
    wide = (found.epistemic_std[:, 0] - np.sqrt(variance)) / found.epistemic_std_error[:, 0]
    assert_scores(torch.from_numpy(np.concatenate([z, wide])))
    total = np.sqrt(variance + 0.49)
    error = found.epistemic_std_error[:, 0] * found.epistemic_std[:, 0] / total
    assert_scores(torch.from_numpy((found.std[:, 0] - total) / error))


def test_kinds() -> None:
    part, x = part_of(mlp(outputs=3)), rows(5, 3)
    numbers = Predictor.from_posterior(Given(part), "regression", 4).predict(x)
    labels = Predictor.from_posterior(Given(part), "classification", 4, temperature=2.0).predict(x)
    assert isinstance(numbers, RegressionPrediction)
    assert isinstance(labels, ClassificationPrediction)
    np.testing.assert_array_equal(numbers.outputs, labels.outputs)
    each = softmax(torch.from_numpy(labels.outputs) / 2.0, -1)
    np.testing.assert_allclose(labels.probability, each.mean(0).numpy(), rtol=1e-10)
    assert numbers.mean.dtype == labels.probability.dtype == np.float64
    for got in (numbers.mean, labels.probability, labels.entropy, numbers.epistemic_std):
        assert type(got) is np.ndarray


def test_the_same_networks_every_time() -> None:
    part, x = part_of(mlp()), rows(5, 3)
    predictor = Predictor.from_posterior(Given(part), "regression", 4, random_state=np.random.default_rng(0))
    np.testing.assert_array_equal(predictor.predict(x).outputs, predictor.predict(x).outputs)
    np.testing.assert_allclose(
        predictor.predict(x[2:]).outputs, predictor.predict(x).outputs[:, 2:], rtol=1e-12
    )
    other = Predictor.from_posterior(Given(part), "regression", 4, random_state=1)
    assert np.abs(other.predict(x).outputs - predictor.predict(x).outputs).max() > 0.0


def test_a_posterior_from_a_trajectory() -> None:
    net = mlp()
    posterior = WeightPosterior(net, "swa", random_state=0)
    posterior.observe()
    found = Predictor.from_posterior(posterior, "regression", noise=1.0).predict(rows(5, 3))
    with torch.no_grad():
        said = net.eval()(rows(5, 3)).numpy()
    np.testing.assert_allclose(found.mean, said, rtol=1e-12)
    np.testing.assert_array_equal(found.epistemic_std, 0.0)
    np.testing.assert_array_equal(found.epistemic_std_error, 0.0)
    np.testing.assert_array_equal(found.std, 1.0)


def test_mixtures_weigh_their_parts() -> None:
    """Parts of 0.9 and 0.1 with two constant nets: the mean is exact, and the spread that of a coin."""
    nets = [filled(nn.Linear(3, 1)).double() for _ in range(2)]
    for net, value in zip(nets, (0.0, 10.0), strict=True):
        with torch.no_grad():
            net.weight.zero_()
            net.bias.fill_(value)
    parts = [part_of(net, 0.0, weight=w) for net, w in zip(nets, (0.9, 0.1), strict=True)]
    found = Predictor.from_posterior(Given(*parts), "regression", 7).predict(rows(2, 3))
    np.testing.assert_allclose(found.mean, 1.0, rtol=1e-12)
    np.testing.assert_allclose(found.epistemic_std, 3.0, rtol=1e-12)
    np.testing.assert_array_equal(found.standard_error, 0.0)


def test_noise_from_rows() -> None:
    part, x = part_of(mlp(outputs=2), 0.0), rows(200, 3)
    predictor = Predictor.from_posterior(Given(part), "regression")
    mean = predictor.predict(x).mean
    y = mean + np.array([0.5, 2.0]) * np.random.default_rng(0).normal(size=mean.shape)
    found = predictor.estimate_noise(x, y)
    np.testing.assert_allclose(found.noise, np.sqrt(((y - mean) ** 2).mean(0)), rtol=1e-12)
    np.testing.assert_allclose(found.predict(x).noise, found.noise)
    assert predictor.noise is None
    with pytest.raises(ValueError, match="predicted exactly"):
        predictor.estimate_noise(x, mean)
    with pytest.raises(ValueError, match="needs kind='regression'"):
        Predictor.from_posterior(Given(part), "classification").estimate_noise(x, y)


def test_noise_of_each_output() -> None:
    part, x = part_of(mlp(outputs=2)), rows(5, 3)
    found = Predictor.from_posterior(Given(part), "regression", noise=[0.1, 0.2]).predict(x)
    np.testing.assert_allclose(found.std**2 - found.epistemic_std**2, [[0.01, 0.04]] * 5, rtol=1e-8)
    with pytest.raises(ValueError, match=r"noise has shape \(3,\), but the outputs have shape \(2,\)"):
        Predictor.from_posterior(Given(part), "regression", noise=[0.1, 0.2, 0.3]).predict(x)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "ranking"}, "kind must be"),
        ({"draws": 1}, "draws must be at least 2 .* got 1"),
        ({"draws": 2.5}, "draws must be a whole number, got 2.5"),
        ({"noise": 0.0}, "above 0"),
        ({"noise": -1.0}, "above 0"),
        ({"noise": float("nan")}, "above 0"),
        ({"scale": -1.0}, "scale must be"),
        ({"temperature": 0.0}, "temperature must be"),
        ({"kind": "classification", "noise": 1.0}, "noise applies to regression only"),
        ({"random_state": "a"}, "random_state"),
    ],
)
def test_settings_that_cannot_be(settings: dict, words: str) -> None:
    given = {"kind": "regression", **settings}
    with pytest.raises(ValueError, match=words):
        Predictor.from_posterior(Given(part_of(mlp())), given.pop("kind"), given.pop("draws", 4), **given)


def test_outputs_that_are_not_finite_are_reported() -> None:
    predictor = Predictor.from_posterior(Given(part_of(mlp())), "regression", 4)
    x = rows(5, 3)
    x[2] = torch.nan
    with pytest.warns(WeightWarning, match="4 of 4 networks have outputs that are not finite"):
        found = predictor.predict(x)
    assert np.isnan(found.mean[2]).all()
    assert np.isfinite(np.delete(found.mean, 2, 0)).all()


def test_a_softmax_that_was_taken_is_reported() -> None:
    net = filled(nn.Sequential(nn.Linear(3, 4), nn.Softmax(-1))).double()
    with pytest.warns(WeightWarning, match="probabilities, not logits"):
        Predictor.from_posterior(Given(part_of(net)), "classification", 4).predict(rows(5, 3))
    log = filled(nn.Sequential(nn.Linear(3, 4), nn.LogSoftmax(-1))).double()
    found = Predictor.from_posterior(Given(part_of(log)), "classification", 4).predict(rows(5, 3))
    np.testing.assert_allclose(found.probability, np.exp(found.outputs).mean(0), rtol=1e-10)


class Squashed(nn.Module):
    """A sigmoid that is no module."""

    def __init__(self, steep: float) -> None:
        super().__init__()
        self.layer, self.steep = nn.Linear(3, 1), steep

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.steep * self.layer(x))


@pytest.mark.parametrize(
    "net",
    [nn.Sequential(nn.Linear(3, 1), nn.Sequential(nn.Sigmoid())), Squashed(9.0)],
    ids=["module", "call"],
)
def test_a_sigmoid_that_was_taken_is_reported(net: nn.Module) -> None:
    with pytest.warns(WeightWarning, match="probabilities, not logits: remove the softmax or sigmoid"):
        Predictor.from_posterior(Given(part_of(filled(net).double())), "classification", 4).predict(
            rows(40, 3)
        )


def test_logits_that_happen_to_lie_between_0_and_1_are_logits() -> None:
    net = filled(nn.Sequential(nn.Linear(3, 1), nn.Sigmoid(), nn.Linear(1, 1))).double()
    net[2].weight.data.fill_(0.2)
    net[2].bias.data.fill_(0.4)
    found = Predictor.from_posterior(Given(part_of(net, 1e-3)), "classification", 4).predict(rows(400, 3))
    assert 0.0 < found.outputs[..., 1].min() < found.outputs[..., 1].max() < 1.0


@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_observations_in_bfloat16_are_taken_as_those_in_float16(kind: str) -> None:
    x, y = rows(30, 3), rows(30, 1, seed=1)
    y = y.sign() if kind == "regression" else (y > 0.0).double()
    predictor = Predictor.from_posterior(Given(part_of(mlp())), kind, 6)
    found, wanted = (predictor.tune(x, y.to(dtype)) for dtype in (torch.bfloat16, torch.float16))
    assert found.scale == wanted.scale
    assert found.predict(x).log_prob(y.bfloat16()).tolist() == wanted.predict(x).log_prob(y.half()).tolist()


def test_noise_of_each_output_in_a_row_or_in_their_shape() -> None:
    net = filled(nn.Sequential(nn.Linear(3, 4), nn.Unflatten(1, (2, 2)))).double()
    noise = np.array([[0.1, 0.2], [0.3, 0.4]])
    for given in (noise, noise.ravel()):
        found = Predictor.from_posterior(Given(part_of(net)), "regression", 4, noise=given).predict(
            rows(5, 3)
        )
        np.testing.assert_array_equal(found.noise, noise)
    with pytest.raises(ValueError, match=r"noise has shape \(1, 4\), but the outputs have shape \(2, 2\)"):
        Predictor.from_posterior(Given(part_of(net)), "regression", 4, noise=noise.reshape(1, 4)).predict(
            rows(5, 3)
        )


def test_tuning_says_once_that_draws_go_one_by_one() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) if x.sum() + self.layer.bias.sum() > 0 else 2.0 * self.layer(x)

    net = filled(Branching()).double()
    predictor = Predictor.from_posterior(Given(part_of(net)), "regression", 4, noise=1.0)
    with pytest.warns(WeightWarning) as record:
        found = predictor.tune(rows(50, 3), rows(50, 1, seed=1), scales=[0.0, 1.0, 2.0], refine=0)
    assert sum("one by one" in str(one.message) for one in record) == 1
    assert found.use_vmap is False


def test_words() -> None:
    part = part_of(mlp(outputs=2))
    assert (
        str(Predictor.from_posterior(Given(part), "regression"))
        == "Predictor: regression, 30 networks, scale 1, noise unknown"
    )
    assert "noise 0.5, 2" in repr(Predictor.from_posterior(Given(part), "regression", noise=[0.5, 2.0]))
    assert "1 networks, scale 0, temperature 1" in str(
        Predictor.from_posterior(Given(part), "classification", scale=0.0)
    )
