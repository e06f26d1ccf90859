"""The audit whole: what is right passes, what is wrong is named, and what cannot be looked at is said."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from boxloop.figures import png
from boxloop.networks import (
    Audit,
    Component,
    Layout,
    Predictor,
    WeightDistribution,
    WeightPosterior,
    WindowAverage,
    audit,
    weight_decay,
)

ALPHA, SIGMA, N = 1.0, 0.5, 300
TRUTH = torch.tensor([[1.0], [-2.0], [0.5]])


def made(n: int, seed: int) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=stream)
    return x, x @ TRUTH + SIGMA * torch.randn(n, 1, generator=stream)


X, Y = made(N, 0)
X_TEST, Y_TEST = made(400, 1)
RIGHT = weight_decay(ALPHA, N, noise_precision=SIGMA**-2)


def exact_distribution() -> WeightDistribution:
    phi = torch.cat([X, torch.ones(N, 1)], 1).double()
    precision = ALPHA * torch.eye(4).double() + phi.mT @ phi / SIGMA**2
    mean = torch.linalg.solve(precision, phi.mT @ Y.double() / SIGMA**2)[:, 0]
    return WeightDistribution(
        mean, torch.linalg.cholesky(torch.linalg.inv(precision)), torch.zeros(4).double()
    )


@dataclass
class Fixed:
    """A distribution that nobody has followed."""

    part: tuple[Component, ...]

    def components(self) -> tuple[Component, ...]:
        return self.part


def fixed(net: nn.Module, distribution: WeightDistribution) -> Fixed:
    return Fixed((Component(1.0, net, Layout.from_network(net), distribution),))


def judge(posterior, **given) -> Audit:
    stated = {"prior_precision": ALPHA, "noise": SIGMA, **given}
    return audit(posterior, X, Y, X_TEST, Y_TEST, kind="regression", **stated)


def levels(found: Audit) -> dict[str, str]:
    return {concern.what: concern.level for concern in found.concerns}


def trained(rate: float, decay: float, method="full", steps: int = 3000, batch_size: int = 20) -> tuple:
    stream = torch.Generator().manual_seed(3)
    net = nn.Linear(3, 1)
    with torch.no_grad():
        net.weight.copy_(TRUTH.mT)
    optimiser = torch.optim.SGD(net.parameters(), lr=rate, weight_decay=decay)
    posterior = WeightPosterior(net, method, random_state=0)
    for step in range(steps + 500):
        batch = torch.randint(N, (batch_size,), generator=stream)
        loss = (net(X[batch]) - Y[batch]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step >= 500:
            posterior.observe(loss.detach())
    return posterior, optimiser


@pytest.fixture(scope="module")
def draws_of_the_posterior() -> tuple[WeightPosterior, torch.optim.Optimizer]:
    """A trajectory that is what it should be: independent draws of the exact posterior."""
    net = nn.Linear(3, 1)
    posterior = WeightPosterior(net, "full", random_state=0)
    for vector in exact_distribution().draw(1000, torch.Generator().manual_seed(5)):
        posterior.layout.write(net, vector.float())
        posterior.observe()
    return posterior, torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=RIGHT)


def test_the_exact_posterior_passes(draws_of_the_posterior):
    posterior, optimiser = draws_of_the_posterior
    found = judge(posterior, optimiser=optimiser)
    assert levels(found) == {
        "Effective sample size": "good",
        "Drift": "good",
        "Last layer": "good",
        "Hamiltonian Monte Carlo": "good",
        "Weight decay": "good",
        "Predictions": "good",
        "Coverage": "good",
    }
    assert found.level == "good"
    assert found.last_layer.variance_ratio == pytest.approx(1.0, abs=0.15)
    assert found.chains.std_ratio == pytest.approx(1.0, abs=0.25)


def test_iterates_of_small_steps_are_found_too_narrow():
    """Theory: at rate e and batch S the iterates' covariance is near e sigma^2 / S, the posterior's sigma^2 / N."""
    posterior, optimiser = trained(rate=0.005, decay=RIGHT)
    found = judge(posterior, optimiser=optimiser)
    said = levels(found)
    assert said["Last layer"] == "bad"
    assert said["Hamiltonian Monte Carlo"] in ("bad", "doubtful")
    assert said["Weight decay"] == "good"
    assert found.last_layer.variance_ratio == pytest.approx(0.005 * N / 20, rel=0.6)
    assert "too small" in str(found)
    assert found.level == "bad"
    assert found.concerns[0].level == "bad"


def test_a_wrong_weight_decay_is_named_and_moves_the_mean():
    """The paper's choice, alpha / beta, where 2 alpha / (beta N) is right."""
    posterior, optimiser = trained(rate=0.05, decay=ALPHA * SIGMA**2)
    found = judge(posterior, optimiser=optimiser, chains=0)
    said = levels(found)
    assert said["Weight decay"] == "bad"
    assert said["Last layer"] == "bad"
    assert found.last_layer.mean_distance > 2.0
    assert "weight_decay=0.001667" in str(found)


def test_without_a_stated_prior_the_decay_is_read_as_one():
    posterior, optimiser = trained(rate=0.05, decay=RIGHT, steps=300)
    found = judge(posterior, optimiser=optimiser, prior_precision=None, noise=None, chains=0)
    assert levels(found)["Weight decay"] == "not run"
    concern = next(concern for concern in found.concerns if concern.what == "Weight decay")
    assert "corresponds to" in concern.why
    assert len(found.assumptions) == 2
    assert found.last_layer.noise[0] == pytest.approx(SIGMA, rel=0.15)
    assert "Assumed" in str(found)


def test_windows_are_judged_by_their_means():
    posterior, _ = trained(rate=0.1, decay=RIGHT, method=WindowAverage(15), steps=3000)
    found = judge(posterior, chains=0)
    assert found.trajectory.n_vectors == 200
    assert found.trajectory.median_ess > 100
    assert levels(found)["Last layer"] in ("good", "doubtful")


def test_predictions_that_are_too_sure_or_too_wide_are_bad(draws_of_the_posterior):
    posterior, _ = draws_of_the_posterior
    sure = judge(posterior, predictor=Predictor.from_posterior(posterior, "regression", noise=0.2), chains=0)
    assert levels(sure)["Coverage"] == "bad"
    assert "too few" in str(sure)
    wide = judge(fixed(posterior.net, exact_distribution().scale_covariance(400.0)), chains=0)
    assert levels(wide)["Predictions"] == "bad"
    assert levels(wide)["Last layer"] == "bad"
    assert wide.held_out.differences["log score"].z < -2


def test_what_was_not_looked_at_is_said():
    net = nn.Linear(3, 1)
    alone = judge(fixed(net, exact_distribution()), chains=0)
    said = levels(alone)
    assert said["Effective sample size"] == said["Weight decay"] == "not run"
    assert said["Hamiltonian Monte Carlo"] == "not run"
    assert said["Last layer"] == "good"
    assert alone.level == "good"
    two = Fixed(tuple(Component(0.5, net, Layout.from_network(net), exact_distribution()) for _ in range(2)))
    both = judge(two, optimiser=torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=RIGHT))
    assert levels(both)["Last layer"] == levels(both)["Effective sample size"] == "not run"
    assert levels(both)["Weight decay"] == levels(both)["Coverage"] == "good"
    short = WeightPosterior(net, "swa", random_state=0)
    short.observe()
    few = judge(short, chains=0)
    assert levels(few)["Effective sample size"] == "bad"


def test_large_networks_are_not_sampled_unless_asked():
    net = nn.Sequential(nn.Linear(3, 200), nn.Tanh(), nn.Linear(200, 1))
    layout = Layout.from_network(net)
    distribution = WeightDistribution.point(layout.read(net, torch.empty(layout.size)))
    found = judge(fixed(net, distribution))
    concern = next(concern for concern in found.concerns if concern.what.startswith("Hamiltonian"))
    assert concern.level == "not run"
    assert "1001 weights" in concern.why
    assert levels(found)["Last layer"] == "bad"


def classifier(batch_norm: bool = False, outputs: int = 2) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        middle = [nn.BatchNorm1d(5)] if batch_norm else []
        return nn.Sequential(nn.Linear(3, 5), *middle, nn.Tanh(), nn.Linear(5, outputs))


@pytest.mark.parametrize(("batch_norm", "outputs"), [(False, 2), (True, 2), (False, 1)])
def test_classifiers(batch_norm, outputs):
    net = classifier(batch_norm, outputs)
    labels, labels_test = (Y[:, 0] > 0).long(), (Y_TEST[:, 0] > 0).long()
    optimiser = torch.optim.Adam(net.parameters(), lr=0.02, weight_decay=1.0 / N)
    posterior = WeightPosterior(net, "swag", rank=4, random_state=0)
    stream = torch.Generator().manual_seed(0)
    for step in range(500):
        batch = torch.randint(N, (50,), generator=stream)
        said = net(X[batch])
        said = said if outputs == 2 else torch.cat([torch.zeros_like(said), said], 1)
        loss = nn.functional.cross_entropy(said, labels[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step >= 200:
            posterior.observe(loss.detach())
    before = {name: value.clone() for name, value in net.state_dict().items()}
    found = audit(
        posterior, X, labels, X_TEST, labels_test, kind="classification", prior_precision=1.0,
        optimiser=optimiser, chains=0,
    )  # fmt: skip
    assert levels(found)["Weight decay"] == "good"
    assert (levels(found)["Last layer"] == "not run") == (outputs == 1)
    assert found.held_out.posterior.accuracy > 0.8
    assert png(found.plot()[0, 0].figure).startswith(b"\x89PNG")
    assert net.training
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_small_classifier_is_sampled():
    net = nn.Linear(3, 2)
    labels, labels_test = (Y[:, 0] > 0).long(), (Y_TEST[:, 0] > 0).long()
    from boxloop.networks import last_layer_laplace

    exact = last_layer_laplace(net, X, labels, "classification", 1.0)
    found = audit(
        exact, X, labels, X_TEST, labels_test, kind="classification", prior_precision=1.0, chain_draws=100
    )
    assert levels(found)["Last layer"] == "good"
    assert levels(found)["Hamiltonian Monte Carlo"] == "good"
    assert levels(found)["Calibration"] == "good"
    narrow = fixed(net, exact.distribution.scale_covariance(0.01))
    again = audit(
        narrow, X, labels, X_TEST, labels_test, kind="classification", prior_precision=1.0, chain_draws=100
    )
    assert levels(again)["Last layer"] == "bad"
    assert levels(again)["Hamiltonian Monte Carlo"] == "bad"


def test_one_page_one_table_one_figure(draws_of_the_posterior):
    posterior, optimiser = draws_of_the_posterior
    found = judge(posterior, optimiser=optimiser, chains=0)
    page = str(found).splitlines()
    assert len(page) < 60
    assert max(len(line) for line in page) <= 100
    assert page[0].endswith(": good")
    assert page[2].startswith("not run")
    assert found.table().columns.tolist() == ["level", "what", "why", "next"]
    grid = found.plot()
    assert grid.shape == (2, 2)
    assert png(grid[0, 0].figure).startswith(b"\x89PNG")
    assert str(judge(posterior, optimiser=optimiser, chains=0)) == str(found)
    nothing = judge(fixed(posterior.net, exact_distribution()), chains=0).plot()
    assert png(nothing[0, 0].figure).startswith(b"\x89PNG")


def test_outputs_of_many_columns_and_arrays_of_numpy():
    both = torch.cat([Y, -Y], 1)
    net = nn.Linear(3, 2)
    posterior = WeightPosterior(net, "swag", rank=2, random_state=0)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, weight_decay=RIGHT / 2)
    stream = torch.Generator().manual_seed(0)
    for _ in range(600):
        batch = torch.randint(N, (20,), generator=stream)
        loss = (net(X[batch]) - both[batch]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        posterior.observe(loss.detach())
    tests = torch.cat([Y_TEST, -Y_TEST], 1)
    given = (value.numpy() for value in (X, both, X_TEST, tests))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = audit(
            posterior, *given, kind="regression", prior_precision=ALPHA, noise=[SIGMA, SIGMA],
            optimiser=optimiser, chains=0,
        )  # fmt: skip
    assert levels(found)["Weight decay"] == "good"
    assert found.held_out.posterior.names == ("y0", "y1")
    assert np.isfinite(found.last_layer.wasserstein)


@pytest.mark.parametrize("given", [{}, {"noise": np.full((2, 2), SIGMA), "chains": 2, "chain_draws": 5}])
def test_outputs_of_any_shape(given):
    y, tests = (torch.cat([one, -one, 2 * one, one], 1).reshape(-1, 2, 2) for one in (Y, Y_TEST))
    net = nn.Sequential(nn.Linear(3, 4), nn.Unflatten(1, (2, 2)))
    posterior = WeightPosterior(net, "swag", rank=2, random_state=0)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(50):
        loss = (net(X) - y).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        posterior.observe(loss)
    found = audit(posterior, X, y, X_TEST, tests, kind="regression", **{"chains": 0, **given})
    assert found.held_out.posterior.names == ("y0", "y1", "y2", "y3")
    assert found.last_layer is not None
    assert (found.chains is None) == (not given)


def test_rows_that_do_not_fit_are_refused(draws_of_the_posterior):
    posterior, _ = draws_of_the_posterior
    with pytest.raises(ValueError, match="X has 300 rows and y has 5"):
        audit(posterior, X, Y[:5], X_TEST, Y_TEST, kind="regression")
    with pytest.raises(ValueError, match="kind must be"):
        audit(posterior, X, Y, X_TEST, Y_TEST, kind="ranking")
    with pytest.raises(ValueError, match="y_test has 7"):
        audit(posterior, X, Y, X_TEST, Y_TEST[:7], kind="regression", chains=0)


def linear() -> WeightPosterior:
    stream = torch.Generator().manual_seed(4)
    net = nn.Linear(3, 1)
    posterior = WeightPosterior(net, "swag", rank=2, random_state=0)
    for _ in range(30):
        with torch.no_grad():
            net.weight.copy_(TRUTH.T + 0.1 * torch.randn(1, 3, generator=stream))
        posterior.observe()
    return posterior


def test_frames_and_lists_are_audited_as_tensors_are() -> None:
    import pandas

    x, y = made(40, 5)
    options = {"kind": "regression", "chains": 0, "n_draws": 20}
    posterior = linear()
    wanted = audit(posterior, x, y, x[:20], y[:20], **options)
    frame, series = pandas.DataFrame(x.numpy()), pandas.Series(y[:, 0].numpy(), index=range(100, 140))
    found = audit(posterior, frame, series, frame[:20], series[:20], **options)
    assert str(found) == str(wanted)


@pytest.mark.filterwarnings("ignore:overflow")
def test_an_exact_posterior_without_spread_is_not_compared() -> None:
    x, y = made(40, 5)
    found = audit(linear(), x, 0.0 * y, x, y, kind="regression", chains=0, n_draws=20)
    assert found.last_layer is None
    assert any("no variance" in concern.why for concern in found.skipped)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"X": torch.full((40, 3), torch.nan)}, "X must be finite"),
        ({"X_test": torch.full((40, 3), torch.inf)}, "X_test must be finite"),
        ({"y": ["a"] * 40}, "y must hold numbers, or class numbers"),
        ({"y_test": torch.zeros(3)}, "X_test has 40 rows and y_test has 3"),
        ({"prior_precision": -1.0}, "prior_precision must be above 0"),
        ({"chains": 1}, "chains must be 0 or at least 2, .* got 1"),
        ({"chains": -1}, "chains must be at least 0, got -1"),
    ],
)
def test_what_cannot_be_audited_is_said(change: dict[str, object], said: str) -> None:
    x, y = made(40, 5)
    given = {"X": x, "y": y, "X_test": x, "y_test": y, "kind": "regression", "chains": 0, **change}
    with pytest.raises(ValueError, match=said):
        audit(linear(), **given)  # type: ignore[arg-type]
