"""Posteriors over the weights of small networks, at a small size."""

import copy

import numpy as np
import pytest
import torch
from scipy.stats import norm

from boxloop.networks import Predictor, StackedLayers
from boxloop.numeric import generator, spawn
from papers.experiment import Options
from papers.network_posteriors import ENSEMBLE, FACTOR, METHODS, MULTI_SWAG, SGD, SWA, SWAG, WITH_COVARIANCE
from papers.uci_networks import (
    UNTUNED,
    Comparison,
    NormalPrediction,
    Setting,
    StackTrainer,
    Table,
    compare,
    evaluate,
    experiment,
    judge,
    load_tables,
    split_error,
    split_rows,
    train_runs,
)


@pytest.fixture(scope="module")
def report():
    return experiment(Options(quick=True))


@pytest.fixture(scope="module")
def ordered():
    """A table in the order of its target, with a constant column far from 0."""
    rng = np.random.default_rng(0)
    x = rng.normal(3.0, 5.0, size=(203, 3))
    x[:, 1] = 0.998
    x = x[np.argsort(x[:, 0])]
    return Table("ordered", x, 2.0 * x[:, 0] + 7.0)


def test_splits_partition_all_rows_in_random_order(ordered):
    found = split_rows(ordered, 4, 0)
    for place in range(4):
        back = {part: y[place, :, 0].numpy() * found.scale[place] for part, y in found.y.items()}
        rows = np.concatenate(list(back.values()))
        assert [len(back[part]) for part in ("test", "valid", "train")] == [20, 18, 165]
        np.testing.assert_allclose(
            np.sort(rows) - rows.mean(), np.sort(ordered.y) - ordered.y.mean(), atol=1e-9
        )
        spread = ordered.y.std()
        assert abs(back["test"].mean() - rows.mean()) < 4.5 * spread / 20**0.5  # false alarm 7e-6 a split
    assert not torch.equal(found.y["test"][0], found.y["test"][1])


def test_columns_are_standardised_by_training_rows_and_constant_ones_stay_finite(ordered):
    found = split_rows(ordered, 2, 0)
    train = found.x["train"]
    np.testing.assert_allclose(train.mean(1).numpy(), 0.0, atol=1e-12)
    np.testing.assert_allclose(train.std(1, correction=0)[:, [0, 2]].numpy(), 1.0, rtol=1e-12)
    assert float(found.x["test"][:, :, 1].abs().max()) < 1e-9
    assert abs(float(found.x["test"].mean())) > 1e-4  # not in units of their own


def test_a_folder_without_tables_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="uci_regression_004"):
        load_tables(tmp_path, None, 0)


def test_networks_trained_together_equal_those_trained_alone():
    setting = Setting(units=6, batch=8, rate=0.05)
    stream = generator(0)
    x = torch.randn((2, 20, 3), generator=stream, dtype=torch.float64)
    y = torch.randn((2, 20, 1), generator=stream, dtype=torch.float64)
    stack = StackedLayers((3, 6, 1), "relu", spawn(generator(1), 3))
    nets = [copy.deepcopy(net) for net in stack.split_members()]
    StackTrainer(stack, x, y, torch.tensor([0, 1, 1]), setting)(5, generator(2), lambda done: 1.0 - done)
    orders = generator(2)
    epochs = [torch.rand((3, 20), generator=orders).argsort(1) for _ in range(3)]
    batches = [epoch[:, start : start + 8] for epoch in epochs for start in (0, 8)][:5]
    for place, net in enumerate(nets):
        own = (0, 1, 1)[place]
        decay = 2.0 * setting.prior_precision / (setting.noise_precision * 20)
        optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=decay)
        for step, rows in enumerate(batches):
            optimiser.param_groups[0]["lr"] = 0.05 * (1.0 - step / 5)
            optimiser.zero_grad()
            torch.nn.functional.mse_loss(net(x[own, rows[place]]), y[own, rows[place]]).backward()
            optimiser.step()
        for value, other in zip(net.parameters(), stack.split_members()[place].parameters(), strict=True):
            torch.testing.assert_close(value, other, rtol=1e-10, atol=1e-12)


SETTING = Setting(units=5, batch=20, burn_in=30, steps=40, every=4, rank=3)


@pytest.fixture(scope="module")
def trained():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(120, 2))
    y = 40.0 + 10.0 * (x[:, 0] + rng.normal(size=120))
    splits = split_rows(Table("line", x, y), 2, 0)
    return splits, train_runs(splits, 2, SETTING, 0)


def test_all_posteriors_have_one_mean_and_observed_the_same(trained):
    _, runs = trained
    for run in runs[0] + runs[1]:
        means = [run.posteriors[word].mean() for word in ("swa", "swag", "factor")]
        assert {posterior.count for posterior in run.posteriors.values()} == {10}
        torch.testing.assert_close(means[1], means[0], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(means[2], means[0], rtol=1e-10, atol=1e-12)
        assert not torch.equal(run.last.vector, run.annealed.vector)
    assert runs[0][0].laplace is not None
    assert runs[0][1].laplace is None


def test_the_annealed_rate_falls_to_0_from_the_end_of_the_burn_in(trained):
    splits, runs = trained
    starts, first, annealing, *_ = spawn(generator(0), 5)
    stack = StackedLayers((2, 5, 1), "relu", spawn(starts, 4))
    train = StackTrainer(stack, splits.x["train"], splits.y["train"], torch.tensor([0, 0, 1, 1]), SETTING)
    train(SETTING.burn_in, first)
    train(SETTING.steps, annealing, lambda done: 1.0 - done)
    for run, net in zip(runs[0] + runs[1], stack.split_members(), strict=True):
        expected = torch.cat([value.detach().reshape(-1) for value in net.parameters()])
        torch.testing.assert_close(run.annealed.vector, expected, rtol=1e-10, atol=1e-12)


def test_scores_of_one_network_are_those_of_a_normal_in_units_of_the_target(trained):
    splits, runs = trained
    found = evaluate(runs[1][0].last, splits, 1, None, 0)
    net, scale = runs[1][0].last.net, splits.scale[1]
    with torch.no_grad():
        left = {
            part: scale * (splits.y[part][1] - net(splits.x[part][1])).numpy() for part in ("valid", "test")
        }
    noise = np.sqrt((left["valid"] ** 2).mean())  # most likely
    assert found["noise"] == pytest.approx(noise, rel=1e-5)
    assert found["rmse"] == pytest.approx(np.sqrt((left["test"] ** 2).mean()), rel=1e-10)
    assert found["nll"] == pytest.approx(-norm.logpdf(left["test"], scale=noise).mean(), rel=1e-5)
    assert found["inside"] == pytest.approx((np.abs(left["test"]) < norm.ppf(0.975) * noise).mean())
    assert found["nll" + UNTUNED] == found["nll"]


def test_predictions_are_normal_with_the_mean_and_variance_of_draws_and_noise(trained):
    splits, runs = trained
    predictor = Predictor.from_posterior(
        METHODS[MULTI_SWAG](runs[0]), "regression", 50, noise=0.4, random_state=0
    )
    found = predictor.predict(splits.x["test"][0])
    y = splits.y["test"][0].numpy()
    distribution = NormalPrediction.of(found, splits.y["test"][0])
    expected = norm.logpdf(y, found.mean, found.std)
    np.testing.assert_allclose(distribution.log_density(0.4), expected.ravel(), rtol=1e-10)
    scores = distribution.scores(0.4, 3.0)
    assert scores["nll"] == pytest.approx(np.log(3.0) - expected.mean(), rel=1e-10)
    assert scores["inside"] == (np.abs(y - found.mean) < norm.ppf(0.975) * found.std).mean()
    grid = np.exp(np.linspace(-8.0, 1.0, 4001))
    best = max(grid, key=lambda noise: distribution.log_density(noise).mean())
    assert (
        distribution.log_density(distribution.choose_noise(1e-3)).mean()
        >= distribution.log_density(best).mean() - 1e-9
    )
    assert distribution.choose_noise(2.0 * best) == pytest.approx(2.0 * best, rel=1e-4)


def test_a_tuned_scale_and_scale_1_are_scored_separately(trained):
    splits, runs = trained
    for method in WITH_COVARIANCE:
        found = evaluate(METHODS[method](runs[0]), splits, 0, 20, 0)
        assert np.isfinite(list(found.values())).all()
        assert (found["nll"] == found["nll" + UNTUNED]) == (found["scale"] == 1.0)


def test_the_error_of_a_mean_over_splits_counts_the_rows_they_share():
    """Rows have effects of their own: splits that share them are dependent, and the plain error is too small."""
    rng = np.random.default_rng(0)
    means, plain, errors = [], [], []
    for _ in range(300):
        effect = rng.normal(size=200)
        values = np.array([effect[rng.permutation(200)[:20]].mean() for _ in range(20)])
        means.append(values.mean())
        plain.append(values.std(ddof=1) / 20**0.5)
        errors.append(split_error(values))
    truth = np.std(means)  # itself within 0.04 of its size
    assert np.mean(plain) < 0.75 * truth
    assert 0.85 < np.mean(errors) / truth < 1.5


def make_results(shift, noise, seed=0):
    """Two tables on which methods differ from SGD by known amounts."""
    rng = np.random.default_rng(seed)
    results = {}
    for name in ("one", "two"):
        base = rng.normal(2.0, 0.3, size=10)
        facts = {}
        for method in METHODS:
            nll = base + shift.get(method, 0.0) + noise * rng.normal(size=10) * (method != SGD)
            rmse = np.exp(0.5 * nll)
            own = {"nll": nll, "rmse": rmse, "inside": np.full(10, 0.95)}
            own |= {key + UNTUNED: value for key, value in own.items()}
            own |= {"scale": np.ones(10), "at the end": np.zeros(10)}
            facts[method] = {key: value.tolist() for key, value in own.items()}
        results[name] = facts
    return results


def test_differences_are_paired_and_have_the_right_sign():
    results = make_results({SWAG: -0.1}, 0.01)
    found = compare(results, SWAG, SGD)
    assert isinstance(found, Comparison)
    assert found.mean == pytest.approx(-0.1, abs=0.02)
    assert found.z < -10.0  # far below what the spread of 0.3 between splits would allow
    assert compare(results, SGD, SWAG).z == pytest.approx(-found.z)
    assert compare(results, SWAG, SGD, "rmse").mean == pytest.approx(-0.05, abs=0.01)
    assert "surely lower on 2 and higher on 0" in str(found)


def test_verdicts_follow_the_differences():
    good = make_results({SWAG: -0.1, FACTOR: -0.12, ENSEMBLE: -0.2, MULTI_SWAG: -0.3}, 0.01)
    bad = make_results({SWAG: 0.1, FACTOR: 0.2, SWA: 0.1}, 0.01)
    wanted = (
        "SWAG lowers the negative log-likelihood of SGD",
        "factor EM is as good as SWAG or better",
        "the mean of the trajectory predicts no worse than its end",
        "several runs together are better than any one run: MultiSWAG and deep ensembles",
        "one: the best of all is one of several runs",
    )
    for results, verdict in ((good, "target met"), (bad, "target missed")):
        found = {finding.claim: finding.verdict for finding in judge(results)}
        assert [found[claim] for claim in wanted[:4]] == [verdict] * 4
    assert {f.claim: f.verdict for f in judge(good)}[wanted[4]] == "target met"


@pytest.mark.slow
def test_the_report_has_all_methods_and_they_learn(report):
    results = report.curves["results"]
    assert set(results) == {"diabetes", "friedman"}
    spread = {table.name: table.y.std() for table in load_tables(None, None, 0)}
    for name, facts in results.items():
        assert set(facts) == set(METHODS)
        for own in facts.values():
            assert all(np.isfinite(values).all() and len(values) == 3 for values in own.values())
            assert np.mean(own["rmse"]) < 0.8 * spread[name]
    assert np.mean(results["friedman"][SGD]["noise"]) > 1.0  # what was added to the function
    assert set(report.figures) == {"likelihood", "errors", "coverage"}
    assert len(report.findings) == 13 + 2


@pytest.mark.slow
def test_the_report_is_written(report, tmp_path):
    paths = report.write(tmp_path)
    assert {path.suffix for path in paths} == {".json", ".md", ".png"}
    assert "MultiSWAG" in (tmp_path / "uci-networks.md").read_text()
