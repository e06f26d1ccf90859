"""Parts of the audit against known answers: autoregressions, exact posteriors of linear models, logistic curvature."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from boxloop.numeric import wasserstein
from boxloop.weights import (
    Chains,
    Layout,
    NetFunction,
    Part,
    Predictor,
    Record,
    WeightLaw,
    check_last_layer,
    compare_chains,
    compare_with_chains,
    exact_last_layer,
    held_out,
    iterates,
    judged,
    laplace_root,
    log_posterior,
    mean_network,
)

F64 = torch.float64


def autoregression(n: int, p: int, phi: float, seed: int) -> Tensor:
    """Stationary, with variance 1."""
    rng = np.random.default_rng(seed)
    rows = np.empty((n, p))
    rows[0] = rng.normal(size=p)
    for t in range(1, n):
        rows[t] = phi * rows[t - 1] + math.sqrt(1 - phi**2) * rng.normal(size=p)
    return torch.from_numpy(rows)


def record(rows: Tensor, stride: int = 1) -> Record:
    return Record(torch.arange(rows.shape[1]), rows, stride, stride * len(rows))


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_effective_vectors_of_an_autoregression(phi):
    """n (1 - phi) / (1 + phi) within 4.5 errors of the mean over 40 weights (7e-6), and 5 % for the cut-off sum."""
    found = iterates(record(autoregression(4000, 40, phi, 1)))
    truth = 4000 * (1 - phi) / (1 + phi)
    error = 4.5 * found.effective.std() / 40**0.5 + 0.05 * truth
    assert abs(found.effective.mean() - truth) < error
    assert np.median(found.time) == pytest.approx((1 + phi) / (1 - phi), rel=0.2)
    np.testing.assert_allclose(found.autocorrelation[:4], phi ** np.arange(4), atol=0.05)
    assert found.worries[0].level == ("doubtful" if phi == 0.9 else "good")


def test_a_thinned_record_tells_the_same_time():
    rows = autoregression(16_000, 20, 0.95, 2)
    every, fourth = iterates(record(rows)), iterates(record(rows[::4], 4))
    assert fourth.seen == every.seen
    assert np.median(fourth.time) == pytest.approx(np.median(every.time), rel=0.15)


def test_means_of_windows_are_what_counts():
    rows = autoregression(6400, 20, 0.8, 3)
    found = iterates(record(rows), window=64)
    assert found.seen == 100
    assert found.typical > 70
    again = iterates(record(rows.reshape(100, 64, 20).mean(1)))
    np.testing.assert_allclose(found.effective, again.effective)


def test_drift_is_found_and_only_then():
    """Of 60 settled trajectories at 1 % each, 7 alarms or more have probability 1e-6; Student's t is approximate."""
    alarms = sum(iterates(record(autoregression(600, 10, 0.7, s))).p_value < 0.01 for s in range(60))
    assert alarms <= 6
    rows = autoregression(2000, 10, 0.5, 9)
    slow = iterates(record(rows + 0.5 * torch.linspace(-1, 1, 2000, dtype=F64)[:, None]))
    assert slow.worries[1].level == "doubtful"
    fast = iterates(record(rows + 5.0 * torch.linspace(-1, 1, 2000, dtype=F64)[:, None]))
    assert fast.worries[1].level == "bad"
    assert np.median(fast.shift) == pytest.approx(5 / math.sqrt(25 / 3 + 1), rel=0.05)
    assert fast.worries[0].level == "bad"


def test_drift_that_is_bad_by_its_size_alone_says_so():
    moved = torch.linspace(-1, 1, 40, dtype=F64)[:, None].expand(40, 20)
    found = iterates(record(moved + 0.01 * autoregression(40, 20, 0.5, 0)))
    assert found.p_value > 0.01
    assert found.worries[1].level == "bad"
    assert "bad by the size, not by the test" in found.worries[1].why


@pytest.mark.parametrize(("n", "phi"), [(500, 0.97), (100, 0.9)])
def test_slow_fluctuation_is_not_called_drift(n, phi):
    """Halves are worth 4 and 3 vectors. At 5 % 12 alarms of 80 or more have probability 6e-4, and at the 20 % of errors
    by estimated sizes 11 or fewer have 0.10."""
    alarms = sum(iterates(record(autoregression(n, 10, phi, s))).p_value < 0.01 for s in range(80))
    assert alarms <= 11


def test_weights_that_never_move_are_set_aside():
    rows = autoregression(100, 3, 0.0, 0)
    rows[:, 1] = 2.0
    found = iterates(record(rows))
    assert found.still == 1
    assert len(found.table()) == 2
    with pytest.raises(ValueError, match="has moved"):
        iterates(record(torch.ones(100, 2, dtype=F64)))
    with pytest.raises(ValueError, match="are needed"):
        iterates(record(rows[:9]))


ALPHA, SIGMA, N = 2.0, 0.5, 150
DRAWS = torch.Generator().manual_seed(0)
MIX = torch.tensor([[1.0, 1.8, 0.0], [0.0, 0.6, 0.0], [0.4, 0.0, 0.5]], dtype=F64)
X = torch.randn(N, 3, generator=DRAWS, dtype=F64) @ MIX + torch.tensor([0.0, 1.0, 0.0], dtype=F64)
Y = X @ torch.tensor([[1.0], [-0.5], [2.0]], dtype=F64) + SIGMA * torch.randn(
    N, 1, generator=DRAWS, dtype=F64
)
LABELS = (X + torch.randn(N, 3, generator=DRAWS, dtype=F64)).argmax(1)


def exact_part() -> Part:
    """A linear network with its exact posterior."""
    net = nn.Linear(3, 1).double()
    phi = torch.cat([X, torch.ones(N, 1, dtype=F64)], 1)
    precision = ALPHA * torch.eye(4, dtype=F64) + phi.mT @ phi / SIGMA**2
    mean = torch.linalg.solve(precision, phi.mT @ Y / SIGMA**2)[:, 0]
    root = torch.linalg.cholesky(torch.linalg.inv(precision))
    return Part(1.0, net, Layout.of(net), WeightLaw(mean, root, torch.zeros(4, dtype=F64)))


def changed(part: Part, law: WeightLaw) -> Part:
    return Part(1.0, part.net, part.layout, law)


def check(part: Part):
    exact = exact_last_layer(mean_network(part), X, Y, "regression", ALPHA, SIGMA)
    return check_last_layer(part, exact, X, "regression")


def test_the_exact_posterior_passes():
    found = check(exact_part())
    assert found.alone
    assert found.mean_error < 1e-10
    assert found.covariance_error < 1e-9
    assert found.distance < 1e-6
    assert found.variance_ratio == pytest.approx(1.0)
    assert found.output_ratio == pytest.approx(1.0)
    assert found.worries[0].level == "good"


def test_what_is_wrong_with_a_law_is_measured():
    part = exact_part()
    law = part.law
    narrow = check(changed(part, law.scaled(0.1)))
    assert narrow.variance_ratio == pytest.approx(0.1)
    assert narrow.output_ratio == pytest.approx(0.1)
    assert narrow.covariance_error == pytest.approx(0.9)
    assert narrow.shape_error < 1e-9
    assert narrow.worries[0].level == "bad"
    assert "narrow" in narrow.worries[0].why
    assert [check(changed(part, law.scaled(c))).worries[0].level for c in (0.4, 1.5, 3.0, 9.0)] == [
        "doubtful",
        "good",
        "doubtful",
        "bad",
    ]
    point = check(changed(part, WeightLaw.point(law.mean)))
    assert point.covariance_error == pytest.approx(1.0)
    assert point.worries[0].level == "bad"
    step = law.loadings @ torch.tensor([2.0, 0.0, 0.0, 2.0], dtype=F64)
    off = check(changed(part, WeightLaw(law.mean + step, law.loadings, law.noise)))
    assert off.off == pytest.approx(math.sqrt(8 / 4))
    assert off.mean_error == pytest.approx(float(step.norm() / law.mean.norm()))
    assert off.distance == pytest.approx(float(step.norm()), rel=1e-6)
    assert off.worries[0].level == "doubtful"


def test_a_wrong_shape_is_seen_where_the_size_is_right():
    part = exact_part()
    variance = part.law.variance()
    flipped = WeightLaw(part.law.mean, torch.zeros(4, 0, dtype=F64), variance.flip(0) * 1.0)
    found = check(changed(part, flipped))
    assert found.variance_ratio == pytest.approx(1.0)
    assert found.covariance_error > 0.5
    assert found.worries[0].level != "good"
    truth = part.law.loadings @ part.law.loadings.mT
    assert found.distance == pytest.approx(wasserstein(flipped.noise.diag(), truth), rel=1e-8)


def test_variances_of_outputs_are_those_of_predictions():
    part = exact_part()
    law = WeightLaw(
        part.law.mean, 0.3 * torch.randn(4, 2, generator=DRAWS, dtype=F64), torch.full((4,), 0.01).double()
    )
    found = check(changed(part, law))
    phi = torch.cat([X, torch.ones(N, 1, dtype=F64)], 1)
    ours, theirs = (
        (phi @ (one.loadings @ one.loadings.mT + one.noise.diag()) * phi).sum() for one in (law, part.law)
    )
    assert found.output_ratio == pytest.approx(float(ours / theirs), rel=1e-8)


def deep(seed: int = 0, outputs: int = 1) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).double()


def test_a_law_over_all_layers_may_be_wider_not_narrower():
    net = deep()
    layout = Layout.of(net)
    exact = exact_last_layer(net, X, Y, "regression", ALPHA, SIGMA)
    mean, where = layout.read(net, torch.empty(layout.size, dtype=F64)), layout.places
    loadings = torch.zeros(layout.size, 5, dtype=F64)
    for name, rows in exact.layout.views(exact.law.loadings.mT).items():
        loadings[where[name]] = rows.reshape(5, -1).mT
    for name, value in exact.layout.views(exact.law.mean).items():
        mean[where[name]] = value.reshape(-1)
    found = {}
    for scale in (0.1, 1.0, 9.0):
        part = Part(1.0, net, layout, WeightLaw(mean, scale**0.5 * loadings, torch.zeros_like(mean)))
        found[scale] = check_last_layer(part, exact, X, "regression")
    assert not found[1.0].alone
    assert {scale: one.worries[0].level for scale, one in found.items()} == {
        0.1: "bad",
        1.0: "good",
        9.0: "doubtful",
    }
    first = Layout.of(net, ["0"])
    part = Part(1.0, net, first, WeightLaw.point(torch.zeros(first.size, dtype=F64)))
    with pytest.raises(ValueError, match=r"not over 2\.bias, 2\.weight"):
        check_last_layer(part, exact, X, "regression")


def test_directions_that_no_row_determines_are_told_apart():
    """A column that is always zero: its weight keeps the prior, which iterates of an optimiser never see."""
    rows = torch.cat([X, torch.zeros(N, 1, dtype=F64)], 1)
    net = nn.Linear(4, 1).double()
    exact = exact_last_layer(net, rows, Y, "regression", 0.01, SIGMA)
    for scale, word in ((1.0, ": too narrow in weights"), (3.0, "too wide in what rows tell")):
        loadings = scale**0.5 * exact.law.loadings.clone()
        loadings[3] = 0.0
        law = WeightLaw(exact.law.mean, loadings, exact.law.noise)
        found = check_last_layer(Part(1.0, net, exact.layout, law), exact, rows, "regression")
        assert found.output_ratio == pytest.approx(scale)
        assert found.variance_ratio < 0.01
        assert found.worries[0].level == "doubtful"
        assert word in found.worries[0].why


def test_features_are_those_of_the_mean_network_whatever_the_network_holds():
    net, other = deep(0), deep(1)
    layout = Layout.of(net)
    mean = layout.read(other, torch.empty(layout.size, dtype=F64))
    part = Part(
        1.0, net, layout, WeightLaw(mean, torch.zeros(layout.size, 0, dtype=F64), torch.ones_like(mean))
    )
    held = layout.read(net, torch.empty(layout.size, dtype=F64))
    torch.testing.assert_close(mean_network(part)(X), other(X))
    assert torch.equal(layout.read(net, torch.empty(layout.size, dtype=F64)), held)


def test_a_vector_added_to_all_classes_changes_nothing():
    net = nn.Linear(3, 3).double()
    exact = exact_last_layer(net, X, LABELS, "classification", ALPHA, None)
    part = Part(1.0, net, exact.layout, exact.law)
    same = check_last_layer(part, exact, X, "classification")
    assert same.covariance_error < 1e-9
    assert same.worries[0].level == "good"
    shift, wave = torch.zeros(12, dtype=F64), torch.zeros(12, 1, dtype=F64)
    shift[exact.layout.places["weight"]] = torch.tensor([1.0, -2.0, 3.0], dtype=F64).repeat(3)
    wave[exact.layout.places["bias"]] = 7.0
    law = WeightLaw(exact.law.mean + shift, torch.cat([exact.law.loadings, wave], 1), exact.law.noise)
    moved = check_last_layer(Part(1.0, net, exact.layout, law), exact, X, "classification")
    for name in ("mean_error", "off", "covariance_error"):
        assert getattr(moved, name) < 1e-6
    assert moved.variance_ratio == pytest.approx(1.0)
    assert moved.output_ratio == pytest.approx(1.0)


def test_a_prior_of_highest_evidence_is_found_for_classes():
    net = nn.Linear(3, 3).double()
    found = exact_last_layer(net, X, LABELS, "classification", None, None)
    best = found.log_evidence
    alpha = float(found.alpha.mean())
    for factor in (0.5, 2.0):
        other = exact_last_layer(net, X, LABELS, "classification", factor * alpha, None)
        assert other.log_evidence < best


def test_the_log_posterior_is_the_sum_over_rows():
    net = deep()
    function = NetFunction(net, Layout.of(net))
    vectors = torch.randn(3, function.layout.size, generator=DRAWS, dtype=F64)
    density = log_posterior(function, X, Y, "regression", ALPHA, np.array([SIGMA]))
    found = density(vectors)
    for vector, value in zip(vectors, found, strict=True):
        function.layout.write(net, vector)
        law = torch.distributions.Normal(net(X), SIGMA)
        prior = torch.distributions.Normal(0.0, torch.tensor(ALPHA, dtype=F64).rsqrt())
        whole = law.log_prob(Y).sum() + prior.log_prob(vector).sum()
        constant = N * math.log(SIGMA * math.sqrt(2 * math.pi)) + 0.5 * len(vector) * math.log(
            2 * math.pi / ALPHA
        )
        assert float(value) == pytest.approx(float(whole.detach()) + constant, rel=1e-10)
    many = deep(outputs=3)
    function = NetFunction(many, Layout.of(many))
    vectors = torch.randn(2, function.layout.size, generator=DRAWS, dtype=F64)
    value = log_posterior(function, X, LABELS, "classification", ALPHA, None)(vectors)[1]
    function.layout.write(many, vectors[1])
    whole = (
        -nn.functional.cross_entropy(many(X), LABELS, reduction="sum")
        - 0.5 * ALPHA * vectors[1].square().sum()
    )
    assert float(value) == pytest.approx(float(whole.detach()), rel=1e-10)
    one = deep()
    function = NetFunction(one, Layout.of(one))
    vectors = torch.randn(1, function.layout.size, generator=DRAWS, dtype=F64)
    value = log_posterior(function, X, LABELS.clamp(max=1), "classification", ALPHA, None)(vectors)[0]
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
    function = NetFunction(net, Layout.of(net))
    noise = np.array([SIGMA]) if kind == "regression" else None
    centre = torch.randn(function.layout.size, generator=DRAWS, dtype=F64)
    root = laplace_root(function, centre, X, kind, ALPHA, noise)
    density = log_posterior(function, X, Y if kind == "regression" else LABELS, kind, ALPHA, noise)
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
    truth = float((phi @ part.law.loadings).square().sum(1).mean().sqrt())
    assert found.mixed
    assert abs(found.true_spread / truth - 1.0) < 5.0 / (2.0 * found.effective) ** 0.5
    assert abs(found.spread / truth - 1.0) < 5.0 / (2.0 * 400) ** 0.5
    assert found.off < 0.2
    assert found.weight_ratio == pytest.approx(1.0, rel=0.15)
    assert found.worries[0].level == "good"


def test_chains_that_disagree_decide_nothing():
    apart = Chains(4, 100, 1.9, 8.0, 0.1, 5.0, 9.0, 1.0)
    assert apart.worries[0].level == "doubtful"
    assert "nothing follows" in apart.worries[0].why
    assert judged(0.3, 0.0) == "doubtful"
    assert judged(0.2, 0.0) == judged(5.0, 0.0) == judged(1.0, 2.0) == judged(0.0, 0.0) == "bad"
    assert judged(1.0, 0.6) == "doubtful"
    assert judged(0.6, 0.4) == "good"


def test_chains_that_did_not_move_are_not_compared_with():
    part = exact_part()
    still = torch.zeros(5, 2, part.law.size, dtype=F64)
    with pytest.raises(ValueError, match="no chain moved"):
        compare_with_chains(np.ones((4, 3, 1)), np.ones((10, 3, 1)), part, still, np.inf, 0.0)


def test_batch_norm_has_no_likelihood_of_one_row():
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)).double()
    layout = Layout.of(net)
    part = Part(1.0, net, layout, WeightLaw.point(torch.zeros(layout.size, dtype=F64)))
    with pytest.raises(ValueError, match="BatchNorm"):
        compare_chains(
            part, np.zeros((2, 5, 1)), X, Y, X, kind="regression", prior_precision=1.0, noise=np.ones(1),
            chains=2, draws=2, seed=0,
        )  # fmt: skip


def test_what_few_rows_cannot_tell_is_not_claimed():
    """Ten rows reject next to nothing: the words say how many there were, and that no difference was seen."""
    part = exact_part()
    judged_rows = held_out(Predictor((part,), "regression", 50, noise=SIGMA), X[:10], Y[:10], seed=0)
    gain, covered = judged_rows.worries
    assert covered.why.startswith("as far as 10 rows tell")
    assert "no difference that these rows show" in gain.why
