"""Two views, and posteriors over weights, in a place."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from boxloop import networks, twoview
from boxloop.data import ArraySource
from boxloop.numeric import generator
from boxloop.twoview import ViewPair
from gpu.places import Case


def tensor(rows: Any, device: str) -> Tensor:
    return torch.as_tensor(np.asarray(rows)).double().to(device)


def rows(device: str, n: int = 300) -> Tensor:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 2))
    return tensor(np.column_stack([x, x[:, 0] + rng.normal(size=n), rng.normal(size=n)]), device)


def pair(device: str) -> ViewPair:
    still = twoview.LinearView(tensor([0.0, 0.0], device), tensor([1.0, 1.0], device))
    return ViewPair(still, still)


def losses(device: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    table = rows(device)
    for singular in (False, True):
        for options in ({}, {"ridge": 0.1}, {"constant": "learned"}):
            left, right = table[:, :2].clone(), table[:, 2:].clone()
            if singular:
                left[:, 1] = left[:, 0]
            left, right = left.requires_grad_(), right.requires_grad_()
            value = twoview.relevance_loss(left, right, **options)
            one, two = torch.autograd.grad(value, (left, right))
            name = f"{singular} {options}"
            found |= {f"loss {name}": value, f"left {name}": one, f"right {name}": two}
    return found


def fitted(device: str) -> dict[str, Any]:
    source, both = ArraySource(rows(device)), pair(device)
    ridge = twoview.choose_ridge(both, source, 2)
    fit = twoview.fit_fixed_features(both, source, 2, ridge)
    model = twoview.RelevanceModel.solve(both, source, most=2)
    conditional = twoview.ConditionalDistribution(model, source)
    given = tensor([[0.5, -0.5], [1.0, 0.0]], device)
    found, ratio = conditional.expect(None, given), twoview.density_ratio(conditional, given, given)
    products = source.reduce(lambda tile, weight: twoview.MomentSums.of(both, tile, weight))
    test = twoview.held_out_significance(model, source, permutations=19)
    crossed = twoview.cross_fitted_significance(both, source, 2, permutations=19)
    return {
        "ridge": ridge,
        "correlation": fit.model.canonical.correlation,
        "right": fit.infer_right(given),
        "left": fit.infer_left(given),
        "mean": found.mean,
        "error": found.standard_error,
        "deviation": found.deviation,
        "ratio": ratio.value,
        "ratio error": ratio.standard_error,
        "channel": twoview.conditional_distance(model.canonical, products),
        "p": test.p_value,
        "crossed": crossed.correlation,
        "mass": twoview.diagnose(conditional, n_given=20).negative_mass,
    }


def finite(device: str) -> dict[str, Any]:
    table = tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [1.0, 1.0], [2.0, 1.0]], device)
    die, coin = twoview.FiniteView(tensor(range(3), device)), twoview.FiniteView(tensor(range(2), device))
    model = twoview.RelevanceModel.solve(ViewPair(die, coin), ArraySource(table), most=1)
    return {"correlation": model.canonical.correlation}


def channels(device: str) -> dict[str, Any]:
    table = tensor(np.random.default_rng(0).normal(size=(6, 4)), device)
    noise = twoview.Composed((twoview.GaussianNoise(0.5), twoview.PixelShuffle((2, 2), 0.5, 0.1)))
    first, second = twoview.TimeShift(2)(table)
    view = twoview.FourierView.start(
        tensor(np.zeros(4), device), tensor(np.ones(4), device), 8, 1.0, generator(0)
    )
    x, y = twoview.self_views(table, twoview.GaussianNoise(1.0), random_state=0)
    return {
        "noise": noise(table, generator(0, device)),
        "first": first,
        "second": second,
        "fourier": view(table),
        "x": x,
        "y": y,
    }


def net(device: str) -> nn.Sequential:
    made = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    with torch.no_grad():
        for i, value in enumerate(made.parameters()):
            value.copy_(torch.linspace(-1.0, 1.0, value.numel()).reshape(value.shape) * (0.5 + 0.1 * i))
    return made.to(device)


def followed(method: Any) -> Case:
    def case(device: str) -> dict[str, Any]:
        table = rows(device)
        x, y = table[:, :2], table[:, 2:3]
        made = net(device)
        optimiser = torch.optim.SGD(made.parameters(), lr=0.05)
        posterior = networks.WeightPosterior(made, method, rank=2, random_state=0)
        for step in range(24):
            loss = (made(x[step::24]) - y[step::24]).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            posterior.observe(loss)
        distribution = posterior.distribution()
        found = networks.Predictor.from_posterior(
            posterior, "regression", 6, noise=0.5, random_state=0
        ).predict(x[:5])
        return {
            "mean": distribution.mean,
            "variance": distribution.variance(),
            "drawn": posterior.draw(3, random_state=1),
            "predicted": found.mean,
            "epistemic_std": found.epistemic_std,
        }

    return case


def trained(device: str) -> dict[str, Any]:
    table = rows(device)
    batches = [(table[i::4, :2], table[i::4, 2:3]) for i in range(4)]
    members = []
    for _ in range(2):
        made = net(device)
        posterior = networks.WeightPosterior(made, "swag", rank=2, random_state=0)
        optimiser = torch.optim.SGD(made.parameters(), lr=0.05)
        done = networks.fit(posterior, batches, nn.functional.mse_loss, optimiser, epochs=4, burn_in=1)
        members.append(posterior)
    both = networks.MultiPosterior(members)
    return {"losses": done.losses, "drawn": both.draw(4, random_state=0)}


def last(device: str) -> dict[str, Any]:
    table = rows(device)
    x, y = table[:, :2], table[:, 2:3]
    found = networks.last_layer_laplace(net(device), x, y, "regression", prior_precision=1.0, noise=0.5)
    label = (y[:, 0] > 0).long()
    made = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    with torch.no_grad():
        for value in made.parameters():
            value.copy_(torch.linspace(-1.0, 1.0, value.numel()).reshape(value.shape))
    other = networks.last_layer_laplace(made.to(device), x, label, "classification", prior_precision=1.0)
    return {
        "mean": found.distribution.mean,
        "variance": found.distribution.variance(),
        "evidence": found.log_evidence,
        "classes": other.distribution.mean,
        "classes variance": other.distribution.variance(),
    }


def audited(device: str) -> dict[str, Any]:
    table = rows(device, 120)
    x, y = table[:, :2], table[:, 2:3]
    made = net(device)
    optimiser = torch.optim.SGD(made.parameters(), lr=0.02)
    posterior = networks.WeightPosterior(made, "full", random_state=0)
    for step in range(300):
        loss = (made(x[step % 4 : 80 : 4]) - y[step % 4 : 80 : 4]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        posterior.observe(loss)
    found = networks.audit(
        posterior,
        x[:80],
        y[:80],
        x[80:],
        y[80:],
        kind="regression",
        prior_precision=1.0,
        noise=1.0,
        optimiser=optimiser,
        n_draws=10,
        chains=2,
        chain_draws=10,
    )
    assert found.trajectory is not None
    return {"ess": found.trajectory.ess, "level": [found.level, *(one.what for one in found.concerns)]}


def regressed(device: str) -> dict[str, Any]:
    table = rows(device)
    sums = networks.RegressionMoments.from_rows(table[:, :2], table[:, 2:])
    found, _ = networks.linear_regression(sums)
    streamed, centre = networks.regression_moments(ArraySource(table), 2)
    other, _ = networks.linear_regression(streamed, centre=centre)
    return {"mean": found.mean, "beta": found.beta, "evidence": other.log_evidence}


CASES: dict[str, Case] = {
    "relevance_loss": losses,
    "fit_fixed_features-choose_ridge-RelevanceModel-ConditionalDistribution-density_ratio-held_out_significance"
    "-cross_fitted_significance-diagnose-conditional_distance-MomentSums-LinearView-ViewPair-RelevanceFit"
    "-CanonicalVariables": fitted,
    "FiniteView": finite,
    "GaussianNoise-PixelShuffle-Composed-TimeShift-FourierView-self_views": channels,
    "SWA": followed(networks.SWA()),
    "SWAG": followed(networks.SWAG(2)),
    "FactorEM-WeightPosterior-Predictor": followed(networks.FactorEM(2, warmup=3)),
    "FactorEM-alone": followed(networks.FactorEM(2, warmup=3, refresh=1)),
    "FactorGradient": followed(networks.FactorGradient(2, warmup=3)),
    "FullCovariance": followed(networks.FullCovariance()),
    "WindowAverage": followed(networks.WindowAverage(4, networks.SWAG(2))),
    "fit-MultiPosterior": trained,
    "last_layer_laplace": last,
    "audit": audited,
    "linear_regression-RegressionMoments-regression_moments": regressed,
}
