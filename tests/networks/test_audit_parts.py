"""Parts of the audit against known answers: autoregressions, exact posteriors of linear models, logistic curvature."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from boxloop.networks import (
    ChainComparison,
    Component,
    Layout,
    NetworkFunction,
    Predictor,
    WeightDistribution,
    WeightTrace,
    build_mean_network,
    check_last_layer,
    check_trajectory,
    compare_chains,
    compare_predictions,
    compute_laplace_root,
    grade_agreement,
    last_layer_laplace,
    make_log_posterior,
    score_held_out,
)
from boxloop.numeric import wasserstein_distance

F64 = torch.float64


def autoregression(n: int, p: int, phi: float, seed: int) -> Tensor:
    """Stationary, with variance 1."""
    rng = np.random.default_rng(seed)
    rows = np.empty((n, p))
    rows[0] = rng.normal(size=p)
    for t in range(1, n):
        rows[t] = phi * rows[t - 1] + math.sqrt(1 - phi**2) * rng.normal(size=p)
    return torch.from_numpy(rows)


def record(rows: Tensor, stride: int = 1) -> WeightTrace:
    return WeightTrace(torch.arange(rows.shape[1]), rows, stride, stride * len(rows))


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_effective_vectors_of_an_autoregression(phi):
    """n (1 - phi) / (1 + phi) within 4.5 errors of the mean over 40 weights (7e-6), and 5 % for the cut-off sum."""
    found = check_trajectory(record(autoregression(4000, 40, phi, 1)))
    truth = 4000 * (1 - phi) / (1 + phi)
    error = 4.5 * found.ess.std() / 40**0.5 + 0.05 * truth
    assert abs(found.ess.mean() - truth) < error
    assert np.median(found.autocorrelation_time) == pytest.approx((1 + phi) / (1 - phi), rel=0.2)
    np.testing.assert_allclose(found.autocorrelation[:4], phi ** np.arange(4), atol=0.05)
    assert found.concerns[0].level == ("doubtful" if phi == 0.9 else "good")


def test_a_thinned_record_tells_the_same_time():
    rows = autoregression(16_000, 20, 0.95, 2)
    every, fourth = check_trajectory(record(rows)), check_trajectory(record(rows[::4], 4))
    assert fourth.n_vectors == every.n_vectors
    assert np.median(fourth.autocorrelation_time) == pytest.approx(
        np.median(every.autocorrelation_time), rel=0.15
    )


def test_means_of_windows_are_what_counts():
    rows = autoregression(6400, 20, 0.8, 3)
    found = check_trajectory(record(rows), window=64)
    assert found.n_vectors == 100
    assert found.median_ess > 70
    again = check_trajectory(record(rows.reshape(100, 64, 20).mean(1)))
    np.testing.assert_allclose(found.ess, again.ess)


def test_drift_is_found_and_only_then():
    """Of 60 settled trajectories at 1 % each, 7 alarms or more have probability 1e-6; Student's t is approximate."""
    alarms = sum(check_trajectory(record(autoregression(600, 10, 0.7, s))).p_value < 0.01 for s in range(60))
    assert alarms <= 6
    rows = autoregression(2000, 10, 0.5, 9)
    slow = check_trajectory(record(rows + 0.5 * torch.linspace(-1, 1, 2000, dtype=F64)[:, None]))
    assert slow.concerns[1].level == "doubtful"
    fast = check_trajectory(record(rows + 5.0 * torch.linspace(-1, 1, 2000, dtype=F64)[:, None]))
    assert fast.concerns[1].level == "bad"
    assert np.median(fast.drift_std) == pytest.approx(5 / math.sqrt(25 / 3 + 1), rel=0.05)
    assert fast.concerns[0].level == "bad"


def test_drift_that_is_bad_by_its_size_alone_says_so():
    moved = torch.linspace(-1, 1, 40, dtype=F64)[:, None].expand(40, 20)
    found = check_trajectory(record(moved + 0.01 * autoregression(40, 20, 0.5, 0)))
    assert found.p_value > 0.01
    assert found.concerns[1].level == "bad"
    assert "large but not significant" in found.concerns[1].why


@pytest.mark.parametrize(("n", "phi"), [(500, 0.97), (100, 0.9)])
def test_slow_fluctuation_is_not_called_drift(n, phi):
    """Halves are worth 4 and 3 vectors. At 5 % 12 alarms of 80 or more have probability 6e-4, and at the 20 % of errors
    by estimated sizes 11 or fewer have 0.10."""
    alarms = sum(check_trajectory(record(autoregression(n, 10, phi, s))).p_value < 0.01 for s in range(80))
    assert alarms <= 11


def test_weights_that_never_move_are_set_aside():
    rows = autoregression(100, 3, 0.0, 0)
    rows[:, 1] = 2.0
    found = check_trajectory(record(rows))
    assert found.n_constant == 1
    assert len(found.table()) == 2
    with pytest.raises(ValueError, match="has changed"):
        check_trajectory(record(torch.ones(100, 2, dtype=F64)))
    with pytest.raises(ValueError, match="are needed"):
        check_trajectory(record(rows[:9]))


ALPHA, SIGMA, N = 2.0, 0.5, 150
DRAWS = torch.Generator().manual_seed(0)
MIX = torch.tensor([[1.0, 1.8, 0.0], [0.0, 0.6, 0.0], [0.4, 0.0, 0.5]], dtype=F64)
X = torch.randn(N, 3, generator=DRAWS, dtype=F64) @ MIX + torch.tensor([0.0, 1.0, 0.0], dtype=F64)
Y = X @ torch.tensor([[1.0], [-0.5], [2.0]], dtype=F64) + SIGMA * torch.randn(
    N, 1, generator=DRAWS, dtype=F64
)
LABELS = (X + torch.randn(N, 3, generator=DRAWS, dtype=F64)).argmax(1)


def exact_part() -> Component:
    """A linear network with its exact posterior."""
    net = nn.Linear(3, 1).double()
    phi = torch.cat([X, torch.ones(N, 1, dtype=F64)], 1)
    precision = ALPHA * torch.eye(4, dtype=F64) + phi.mT @ phi / SIGMA**2
    mean = torch.linalg.solve(precision, phi.mT @ Y / SIGMA**2)[:, 0]
    root = torch.linalg.cholesky(torch.linalg.inv(precision))
    return Component(
        1.0, net, Layout.from_network(net), WeightDistribution(mean, root, torch.zeros(4, dtype=F64))
    )


def changed(part: Component, distribution: WeightDistribution) -> Component:
    return Component(1.0, part.net, part.layout, distribution)


def check(part: Component):
    exact = last_layer_laplace(build_mean_network(part), X, Y, "regression", ALPHA, SIGMA)
    return check_last_layer(part, exact, X, "regression")


def test_the_exact_posterior_passes():
    found = check(exact_part())
    assert found.only_last
    assert found.mean_error < 1e-10
    assert found.covariance_error < 1e-9
    assert found.wasserstein < 1e-6
    assert found.variance_ratio == pytest.approx(1.0)
    assert found.output_ratio == pytest.approx(1.0)
    assert found.concerns[0].level == "good"


def test_what_is_wrong_with_a_distribution_is_measured():
    part = exact_part()
    distribution = part.distribution
    narrow = check(changed(part, distribution.scale_covariance(0.1)))
    assert narrow.variance_ratio == pytest.approx(0.1)
    assert narrow.output_ratio == pytest.approx(0.1)
    assert narrow.covariance_error == pytest.approx(0.9)
    assert narrow.shape_error < 1e-9
    assert narrow.concerns[0].level == "bad"
    assert "too small" in narrow.concerns[0].why
    assert [
        check(changed(part, distribution.scale_covariance(c))).concerns[0].level for c in (0.4, 1.5, 3.0, 9.0)
    ] == [
        "doubtful",
        "good",
        "doubtful",
        "bad",
    ]
    point = check(changed(part, WeightDistribution.point(distribution.mean)))
    assert point.covariance_error == pytest.approx(1.0)
    assert point.concerns[0].level == "bad"
    step = distribution.loadings @ torch.tensor([2.0, 0.0, 0.0, 2.0], dtype=F64)
    off = check(
        changed(part, WeightDistribution(distribution.mean + step, distribution.loadings, distribution.noise))
    )
    assert off.mean_distance == pytest.approx(math.sqrt(8 / 4))
    assert off.mean_error == pytest.approx(float(step.norm() / distribution.mean.norm()))
    assert off.wasserstein == pytest.approx(float(step.norm()), rel=1e-6)
    assert off.concerns[0].level == "doubtful"


def test_a_wrong_shape_is_seen_where_the_size_is_right():
    part = exact_part()
    variance = part.distribution.variance()
    flipped = WeightDistribution(part.distribution.mean, torch.zeros(4, 0, dtype=F64), variance.flip(0) * 1.0)
    found = check(changed(part, flipped))
    assert found.variance_ratio == pytest.approx(1.0)
    assert found.covariance_error > 0.5
    assert found.concerns[0].level != "good"
    truth = part.distribution.loadings @ part.distribution.loadings.mT
    assert found.wasserstein == pytest.approx(wasserstein_distance(flipped.noise.diag(), truth), rel=1e-8)


def test_variances_of_outputs_are_those_of_predictions():
    part = exact_part()
    distribution = WeightDistribution(
        part.distribution.mean,
        0.3 * torch.randn(4, 2, generator=DRAWS, dtype=F64),
        torch.full((4,), 0.01).double(),
    )
    found = check(changed(part, distribution))
    phi = torch.cat([X, torch.ones(N, 1, dtype=F64)], 1)
    ours, theirs = (
        (phi @ (one.loadings @ one.loadings.mT + one.noise.diag()) * phi).sum()
        for one in (distribution, part.distribution)
    )
    assert found.output_ratio == pytest.approx(float(ours / theirs), rel=1e-8)


def deep(seed: int = 0, outputs: int = 1) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).double()


def test_a_distribution_over_all_layers_may_be_wider_not_narrower():
    net = deep()
    layout = Layout.from_network(net)
    exact = last_layer_laplace(net, X, Y, "regression", ALPHA, SIGMA)
    mean, where = layout.read(net, torch.empty(layout.size, dtype=F64)), layout.slices
    loadings = torch.zeros(layout.size, 5, dtype=F64)
    for name, rows in exact.layout.unflatten(exact.distribution.loadings.mT).items():
        loadings[where[name]] = rows.reshape(5, -1).mT
    for name, value in exact.layout.unflatten(exact.distribution.mean).items():
        mean[where[name]] = value.reshape(-1)
    found = {}
    for scale in (0.1, 1.0, 9.0):
        part = Component(
            1.0, net, layout, WeightDistribution(mean, scale**0.5 * loadings, torch.zeros_like(mean))
        )
        found[scale] = check_last_layer(part, exact, X, "regression")
    assert not found[1.0].only_last
    assert {scale: one.concerns[0].level for scale, one in found.items()} == {
        0.1: "bad",
        1.0: "good",
        9.0: "doubtful",
    }
    first = Layout.from_network(net, ["0"])
    part = Component(1.0, net, first, WeightDistribution.point(torch.zeros(first.size, dtype=F64)))
    with pytest.raises(ValueError, match=r"does not include 2\.bias, 2\.weight"):
        check_last_layer(part, exact, X, "regression")


def test_directions_that_no_row_determines_are_reported_apart():
    """A column that is always zero: its weight keeps the prior, which iterates of an optimiser never see."""
    rows = torch.cat([X, torch.zeros(N, 1, dtype=F64)], 1)
    net = nn.Linear(4, 1).double()
    exact = last_layer_laplace(net, rows, Y, "regression", 0.01, SIGMA)
    for scale, word in (
        (1.0, "too small in directions that the data do not determine"),
        (3.0, "too large in directions that the data determine"),
    ):
        loadings = scale**0.5 * exact.distribution.loadings.clone()
        loadings[3] = 0.0
        distribution = WeightDistribution(exact.distribution.mean, loadings, exact.distribution.noise)
        found = check_last_layer(Component(1.0, net, exact.layout, distribution), exact, rows, "regression")
        assert found.output_ratio == pytest.approx(scale)
        assert found.variance_ratio < 0.01
        assert found.concerns[0].level == "doubtful"
        assert word in found.concerns[0].why


def test_features_are_those_of_the_mean_network_whatever_the_network_holds():
    net, other = deep(0), deep(1)
    layout = Layout.from_network(net)
    mean = layout.read(other, torch.empty(layout.size, dtype=F64))
    part = Component(
        1.0,
        net,
        layout,
        WeightDistribution(mean, torch.zeros(layout.size, 0, dtype=F64), torch.ones_like(mean)),
    )
    held = layout.read(net, torch.empty(layout.size, dtype=F64))
    torch.testing.assert_close(build_mean_network(part)(X), other(X))
    assert torch.equal(layout.read(net, torch.empty(layout.size, dtype=F64)), held)


def test_a_vector_added_to_all_classes_changes_nothing():
    net = nn.Linear(3, 3).double()
    exact = last_layer_laplace(net, X, LABELS, "classification", ALPHA, None)
    part = Component(1.0, net, exact.layout, exact.distribution)
    same = check_last_layer(part, exact, X, "classification")
    assert same.covariance_error < 1e-9
    assert same.concerns[0].level == "good"
    shift, wave = torch.zeros(12, dtype=F64), torch.zeros(12, 1, dtype=F64)
    shift[exact.layout.slices["weight"]] = torch.tensor([1.0, -2.0, 3.0], dtype=F64).repeat(3)
    wave[exact.layout.slices["bias"]] = 7.0
    distribution = WeightDistribution(
        exact.distribution.mean + shift,
        torch.cat([exact.distribution.loadings, wave], 1),
        exact.distribution.noise,
    )
    moved = check_last_layer(Component(1.0, net, exact.layout, distribution), exact, X, "classification")
    for name in ("mean_error", "mean_distance", "covariance_error"):
        assert getattr(moved, name) < 1e-6
    assert moved.variance_ratio == pytest.approx(1.0)
    assert moved.output_ratio == pytest.approx(1.0)


def test_a_prior_of_highest_evidence_is_found_for_classes():
    net = nn.Linear(3, 3).double()
    found = last_layer_laplace(net, X, LABELS, "classification", None, None)
    best = found.log_evidence
    alpha = float(found.alpha.mean())
    for factor in (0.5, 2.0):
        other = last_layer_laplace(net, X, LABELS, "classification", factor * alpha, None)
        assert other.log_evidence < best


def test_the_log_posterior_is_the_sum_over_rows():
    net = deep()
    function = NetworkFunction(net, Layout.from_network(net))
    vectors = torch.randn(3, function.layout.size, generator=DRAWS, dtype=F64)
    density = make_log_posterior(function, X, Y, "regression", ALPHA, np.array([SIGMA]))
    found = density(vectors)
    for vector, value in zip(vectors, found, strict=True):
        function.layout.write(net, vector)
        distribution = torch.distributions.Normal(net(X), SIGMA)
        prior = torch.distributions.Normal(0.0, torch.tensor(ALPHA, dtype=F64).rsqrt())
        whole = distribution.log_prob(Y).sum() + prior.log_prob(vector).sum()
        constant = N * math.log(SIGMA * math.sqrt(2 * math.pi)) + 0.5 * len(vector) * math.log(
            2 * math.pi / ALPHA
        )
        assert float(value) == pytest.approx(float(whole.detach()) + constant, rel=1e-10)
    many = deep(outputs=3)
    function = NetworkFunction(many, Layout.from_network(many))
    vectors = torch.randn(2, function.layout.size, generator=DRAWS, dtype=F64)
    value = make_log_posterior(function, X, LABELS, "classification", ALPHA, None)(vectors)[1]
    function.layout.write(many, vectors[1])
    whole = (
        -nn.functional.cross_entropy(many(X), LABELS, reduction="sum")
        - 0.5 * ALPHA * vectors[1].square().sum()
    )
    assert float(value) == pytest.approx(float(whole.detach()), rel=1e-10)
    one = deep()
    function = NetworkFunction(one, Layout.from_network(one))
    vectors = torch.randn(1, function.layout.size, generator=DRAWS, dtype=F64)
    value = make_log_posterior(function, X, LABELS.clamp(max=1), "classification", ALPHA, None)(vectors)[0]
    function.layout.write(one, vectors[0])
    logits = nn.functional.binary_cross_entropy_with_logits(
        one(X)[:, 0], LABELS.clamp(max=1).double(), reduction="sum"
    )
    assert float(value) == pytest.approx(
        float(-logits.detach() - 0.5 * ALPHA * vectors.square().sum()), rel=1e-10
    )


@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_laplace_s_precision_is_the_curvature_of_a_linear_model(kind):
    net = nn.Linear(3, 1 if kind == "regression" else 3).double()
    function = NetworkFunction(net, Layout.from_network(net))
    noise = np.array([SIGMA]) if kind == "regression" else None
    centre = torch.randn(function.layout.size, generator=DRAWS, dtype=F64)
    root = compute_laplace_root(function, centre, X, kind, ALPHA, noise)
    density = make_log_posterior(function, X, Y if kind == "regression" else LABELS, kind, ALPHA, noise)
    bend = torch.autograd.functional.hessian(lambda vector: density(vector[None])[0], centre)
    torch.testing.assert_close(
        root @ root.mT @ -bend, torch.eye(len(centre), dtype=F64), rtol=1e-8, atol=1e-8
    )


def test_chains_find_the_spread_of_a_linear_model():
    """Spread of chains and of 400 draws: within 5 standard errors of the exact one (4e-6 with normal errors)."""
    part = exact_part()
    rows = X[:40]
    said = Predictor((part,), "regression", 400, noise=SIGMA).predict(rows).outputs.reshape(400, 40, 1)
    found = compare_chains(
        part, said, X, Y, rows, kind="regression", prior_precision=ALPHA, noise=np.array([SIGMA]),
        chains=16, draws=150, seed=0,
    )  # fmt: skip
    phi = torch.cat([rows, torch.ones(40, 1, dtype=F64)], 1)
    truth = float((phi @ part.distribution.loadings).square().sum(1).mean().sqrt())
    assert found.converged
    assert abs(found.chain_std / truth - 1.0) < 5.0 / (2.0 * found.ess) ** 0.5
    assert abs(found.std / truth - 1.0) < 5.0 / (2.0 * 400) ** 0.5
    assert found.mean_distance < 0.2
    assert found.weight_std_ratio == pytest.approx(1.0, rel=0.15)
    assert found.concerns[0].level == "good"


def test_chains_that_disagree_decide_nothing():
    apart = ChainComparison(4, 100, 1.9, 8.0, 0.1, 5.0, 9.0, 1.0)
    assert apart.concerns[0].level == "doubtful"
    assert "the comparison is not possible" in apart.concerns[0].why
    assert grade_agreement(0.3, 0.0) == "doubtful"
    assert (
        grade_agreement(0.2, 0.0)
        == grade_agreement(5.0, 0.0)
        == grade_agreement(1.0, 2.0)
        == grade_agreement(0.0, 0.0)
        == "bad"
    )
    assert grade_agreement(1.0, 0.6) == "doubtful"
    assert grade_agreement(0.6, 0.4) == "good"


def test_chains_that_did_not_move_are_not_compared_with():
    part = exact_part()
    still = torch.zeros(5, 2, part.distribution.size, dtype=F64)
    with pytest.raises(ValueError, match="No chain moved"):
        compare_predictions(np.ones((4, 3, 1)), np.ones((10, 3, 1)), part, still, np.inf, 0.0)


def test_batch_norm_has_no_likelihood_of_one_row():
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)).double()
    layout = Layout.from_network(net)
    part = Component(1.0, net, layout, WeightDistribution.point(torch.zeros(layout.size, dtype=F64)))
    with pytest.raises(ValueError, match="BatchNorm"):
        compare_chains(
            part, np.zeros((2, 5, 1)), X, Y, X, kind="regression", prior_precision=1.0, noise=np.ones(1),
            chains=2, draws=2, seed=0,
        )  # fmt: skip


def test_what_few_rows_cannot_tell_is_not_claimed():
    """Ten rows reject next to nothing: the words say how many there were, and that no difference was seen."""
    part = exact_part()
    judged_rows = score_held_out(Predictor((part,), "regression", 50, noise=SIGMA), X[:10], Y[:10], seed=0)
    gain, covered = judged_rows.concerns
    assert covered.why.startswith("The 10 held-out rows lie in their intervals")
    assert "which is not significant" in gain.why
