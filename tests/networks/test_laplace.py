"""The posterior of the last layer: exact regression and Laplace's approximation, against autograd and laplace-torch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.func import functional_call, jacrev

from boxloop.networks import LastLayer, Predictor, last_layer_laplace


def network(outputs: int, *, bias: bool = True, seed: int = 0, hidden: int = 5) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, outputs, bias=bias)).double()
    net[0].requires_grad_(False)
    return net


def rows(n: int = 80, seed: int = 1) -> torch.Tensor:
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def classes(x: torch.Tensor, k: int = 3) -> torch.Tensor:
    noise = torch.randn(len(x), k, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    return (torch.cat([x, x[:, :1] * x[:, 1:2]], 1)[:, :k] + noise).argmax(1)


def log_posterior(net, layout, x, y, alpha, noise):
    """As a function of the vector, by nothing that the library computes."""

    def value(vector):
        out = functional_call(net, layout.unflatten(vector), (x,))
        if noise is None:
            fit = -nn.functional.cross_entropy(out, y, reduction="sum")
        else:
            fit = torch.distributions.Normal(out, noise).log_prob(y).sum()
        return fit + torch.distributions.Normal(0.0 * vector, alpha**-0.5).log_prob(vector).sum()

    return value


@pytest.mark.parametrize("kind", ["regression", "classification"])
@pytest.mark.parametrize("bias", [True, False])
def test_the_distribution_is_that_of_autograd(kind, bias):
    """Gradient zero at the mean, precision equal to the Hessian, evidence that of the quadratic."""
    net, x = network(3, bias=bias), rows()
    y = classes(x) if kind == "classification" else x.cumsum(1) + 0.3 * rows(seed=5)
    noise = None if kind == "classification" else torch.tensor([0.3, 0.7, 1.1]).double()
    found = last_layer_laplace(net, x, y, kind, 0.4, None if noise is None else noise.tolist())
    assert found.layout.names == (("2.weight", "2.bias") if bias else ("2.weight",))
    value = log_posterior(net, found.layout, x, y, 0.4, noise)
    mean = found.distribution.mean
    np.testing.assert_allclose(torch.func.grad(value)(mean), 0.0, atol=1e-8)
    curvature = -jacrev(jacrev(value))(mean)
    covariance = found.distribution.covariance().dense()[0]
    np.testing.assert_allclose(covariance @ curvature, torch.eye(len(mean)), atol=1e-9)
    evidence = value(mean) + 0.5 * len(mean) * math.log(2.0 * math.pi) - 0.5 * torch.logdet(curvature)
    assert found.log_evidence == pytest.approx(float(evidence), rel=1e-10)


@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_the_weights_may_stay_where_they_are(kind):
    net, x = network(3), rows()
    y = classes(x) if kind == "classification" else x
    found = last_layer_laplace(net, x, y, kind, 0.4, None if kind == "classification" else 0.5, mode=False)
    before = torch.cat([net[2].weight.detach().reshape(-1), net[2].bias.detach()])
    np.testing.assert_array_equal(found.distribution.mean, before)
    value = log_posterior(net, found.layout, x, y, 0.4, None if kind == "classification" else 0.5)
    curvature = -jacrev(jacrev(value))(before)
    np.testing.assert_allclose(
        found.distribution.covariance().dense()[0] @ curvature, torch.eye(len(before)), atol=1e-9
    )


def test_the_mode_is_that_of_logistic_regression():
    """scikit-learn leaves the intercept out of its penalty, so without one."""
    net, x = network(3, bias=False), rows(200)
    y = classes(x)
    found = last_layer_laplace(net, x, y, "classification", 0.5)
    peer = LogisticRegression(C=2.0, fit_intercept=False, tol=1e-10, max_iter=10_000)
    peer.fit(found.features(x).numpy(), y.numpy())
    np.testing.assert_allclose(found.distribution.mean.reshape(3, -1), peer.coef_, atol=1e-5)


def test_classes_that_can_be_distinguished_have_a_mode_all_the_same():
    x = rows(60)
    y = (x[:, 0] > 0).long()
    found = last_layer_laplace(nn.Linear(3, 2).double(), 50.0 * x, y, "classification", 1e-3)
    value = log_posterior(found.net, found.layout, 50.0 * x, y, 1e-3, None)
    np.testing.assert_allclose(torch.func.grad(value)(found.distribution.mean), 0.0, atol=1e-6)


def test_the_evidence_of_classes_is_near_that_of_quadrature():
    """One feature, two classes: Laplace errs by 0.5 / n or so; a dropped term would be off by over 0.5."""
    x = rows(50)[:, :1]
    y = (x[:, 0] + 0.7 * rows(50, seed=3)[:, 1] > 0).long()
    net = nn.Linear(1, 2, bias=False).double()
    found = last_layer_laplace(net, x, y, "classification", 0.5)
    value = log_posterior(net, found.layout, x, y, 0.5, None)
    axis = torch.linspace(-9.0, 9.0, 361).double()
    grid = torch.cartesian_prod(axis, axis)
    heights = torch.vmap(value)(grid).reshape(361, 361).numpy()
    whole = integrate.simpson(integrate.simpson(np.exp(heights - heights.max()), x=axis), x=axis)
    assert found.log_evidence == pytest.approx(math.log(whole) + heights.max(), abs=0.06)


def test_regression_finds_its_precisions():
    net, x = network(2), rows(300)
    y = (
        LastLayer.from_network(net).features(x)[:, :2] * 2.0
        + torch.tensor([0.3, 0.01]) * rows(300, seed=4)[:, :2]
    )
    found = last_layer_laplace(net, x, y, "regression")
    np.testing.assert_allclose(found.noise, [0.3, 0.01], rtol=0.15)
    best = found.log_evidence
    for change in (0.8, 1.25):
        other = last_layer_laplace(net, x, y, "regression", None, [change * float(v) for v in found.noise])
        assert other.log_evidence < best


def test_classes_find_their_precision():
    """The one of highest evidence, which stays what it is where the weights stay where they are."""
    x, net = rows(), network(3)
    found = last_layer_laplace(net, x, classes(x), "classification")
    alpha = float(found.alpha[0])
    for factor in (0.7, 1.4):
        other = last_layer_laplace(net, x, classes(x), "classification", factor * alpha)
        assert other.log_evidence < found.log_evidence
    still = last_layer_laplace(net, x, classes(x), "classification", mode=False)
    assert float(still.alpha[0]) == alpha


def test_a_frozen_bias_is_an_offset():
    net, x = network(1), rows()
    y = x.sum(1)
    net[2].bias.requires_grad_(False)
    found = last_layer_laplace(net, x, y, "regression", 0.4, 0.5)
    assert found.layout.names == ("2.weight",)
    value = log_posterior(net, found.layout, x, y[:, None], 0.4, 0.5)
    np.testing.assert_allclose(torch.func.grad(value)(found.distribution.mean), 0.0, atol=1e-8)


def test_rows_in_pieces_and_flags_as_they_were():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1)).double()
    net.train()
    net[0].eval()
    last, x = LastLayer.from_network(net), rows(50)
    whole = torch.cat([part for _, part in last.feature_chunks(x)])
    parts = torch.cat([part for _, part in last.feature_chunks(x, 7)])
    np.testing.assert_allclose(parts, whole, rtol=1e-12)
    assert [module.training for module in net] == [False, True, True, True]
    assert net.training
    assert int(net[1].num_batches_tracked) == 0


def test_single_precision_stays_so():
    net, x = network(2).float(), rows()
    found = last_layer_laplace(net, x.numpy(), x[:, :2].numpy(), "regression", 0.4, 0.5)
    assert found.distribution.mean.dtype == torch.float32
    double = last_layer_laplace(net.double(), x, x[:, :2], "regression", 0.4, 0.5)
    np.testing.assert_allclose(found.distribution.mean, double.distribution.mean, rtol=1e-3, atol=1e-4)


def test_half_precision_is_kept_in_single():
    found = last_layer_laplace(network(1).bfloat16(), rows(), rows()[:, 0], "regression", 1.0, 1.0)
    assert found.distribution.mean.dtype == torch.float32
    assert found.distribution.is_finite()


def test_it_is_a_part_for_predictions():
    """Draws through the network have the variance that the features imply: 4.5 errors, alarms 1e-4."""
    net, x = network(1), rows()
    found = last_layer_laplace(net, x, x[:, 0], "regression", 0.4, 0.5)
    (part,) = found.components()
    assert part.weight == 1.0
    draws = part.distribution.draw(20_000, torch.Generator().manual_seed(0))
    out = torch.vmap(lambda v: functional_call(net, part.layout.unflatten(v), (x[:4],)))(draws)[..., 0]
    phi = found.features(x[:4])
    variance = ((phi @ part.distribution.covariance().dense()[0]) * phi).sum(1)
    assert float(((out.var(0) / variance - 1.0) / (2.0 / 20_000) ** 0.5).abs().max()) < 4.5
    assert (
        float(((out.mean(0) - phi @ part.distribution.mean) / (variance / 20_000) ** 0.5).abs().max()) < 4.5
    )


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (nn.Sequential(nn.Linear(3, 2), nn.Softmax(1)), "remove what follows the layer"),
        (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), "an nn.Linear there"),
        (nn.Linear(3, 2000), "at most 4096"),
    ],
)
def test_networks_that_do_not_end_in_a_linear_layer(net, message):
    with pytest.raises(ValueError, match=message):
        last_layer_laplace(net.double(), rows(), classes(rows(), 2), "classification", 1.0)


class Twice(nn.Module):
    """Uses its layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(self.layer(x))


def test_bad_input_is_reported():
    net, x = network(2).double(), rows()
    with pytest.raises(ValueError, match="call its last layer once"):
        last_layer_laplace(Twice().double(), x, x, "regression")
    with pytest.raises(ValueError, match="80 rows and y has 79"):
        last_layer_laplace(net, x, x[:79, :2], "regression")
    with pytest.raises(ValueError, match="finite number"):
        last_layer_laplace(net, x, x, "regression")
    with pytest.raises(ValueError, match="finite number"):
        last_layer_laplace(net, x, x[:, :2] / 0.0, "regression")
    with pytest.raises(ValueError, match="kind must be"):
        last_layer_laplace(net, x, x[:, :2], "ranking")
    with pytest.raises(ValueError, match="leave it out"):
        last_layer_laplace(net, x, classes(x, 2), "classification", 1.0, 0.1)
    with pytest.raises(ValueError, match="from 0 to 1"):
        last_layer_laplace(net, x, classes(x, 3), "classification", 1.0)
    with pytest.raises(ValueError, match="class numbers"):
        last_layer_laplace(net, x, x[:, 0], "classification", 1.0)
    with pytest.raises(ValueError, match="one output per class"):
        last_layer_laplace(network(1), x, classes(x, 2), "classification", 1.0)
    with pytest.raises(ValueError, match="prior_precision must be positive"):
        last_layer_laplace(net, x, x[:, :2], "regression", 0.0)
    with pytest.raises(ValueError, match="noise must be one number or 2 numbers"):
        last_layer_laplace(net, x, x[:, :2], "regression", 1.0, [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="must have rows"):
        last_layer_laplace(net, x[:0], x[:0, :2], "regression")
    net[2].weight.requires_grad_(False)
    with pytest.raises(ValueError, match="frozen"):
        last_layer_laplace(net, x, x[:, :2], "regression")


@pytest.mark.parametrize("kind", ["regression", "classification"])
@pytest.mark.filterwarnings("ignore")
def test_laplace_torch_finds_the_same(kind):
    """The same covariance at the same weights; it computes in float32."""
    laplace = pytest.importorskip("laplace", reason="laplace-torch is not installed")
    net, x = network(3), rows()
    y = classes(x) if kind == "classification" else x
    found = last_layer_laplace(net, x, y, kind, 0.4, None if kind == "classification" else 0.5, mode=False)
    more = {} if kind == "classification" else {"sigma_noise": 0.5}
    peer = laplace.Laplace(
        net, kind, subset_of_weights="last_layer", hessian_structure="full", prior_precision=0.4, **more
    )
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=20)
    peer.fit(loader)
    np.testing.assert_allclose(found.distribution.mean, peer.mean.detach(), rtol=1e-12)
    covariance = found.distribution.covariance().dense()[0]
    np.testing.assert_allclose(covariance, peer.posterior_covariance.detach(), rtol=1e-5, atol=1e-6)


def test_a_predictor_takes_it():
    """Means and deviations of 4000 draws through the network: 4.5 errors of 4 rows, false alarms below 1e-4."""
    net, x = network(1), rows()
    found = last_layer_laplace(net, x, x[:, 0], "regression", 0.4, 0.5)
    said = Predictor(found.components(), "regression", n_draws=4000, noise=0.5).predict(x[:4])
    phi = found.features(x[:4])
    std = ((phi @ found.distribution.covariance().dense()[0]) * phi).sum(1).sqrt().numpy()
    mean = (phi @ found.distribution.mean).numpy()
    assert np.abs((np.asarray(said.mean).reshape(-1) - mean) / std).max() < 4.5 / 4000**0.5
    assert np.abs(np.asarray(said.epistemic_std).reshape(-1) / std - 1.0).max() < 4.5 / 8000**0.5
