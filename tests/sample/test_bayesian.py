"""Posteriors of mixtures and factor models as users meet them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import boxloop
from boxloop.distributions import FactorPrior, MixturePrior
from boxloop.numeric import generator, normal
from boxloop.sample import (
    ScatterStatistics,
    make_factor_kernel,
    make_mixture_kernel,
    sample_density,
    sample_factors,
    sample_mixture,
)
from contract.scores import assert_scores

EXACT = {"rtol": 1e-9, "atol": 1e-9}
kinds = pytest.mark.parametrize("covariance", ["full", "diag"])


def blobs(n: int = 120) -> np.ndarray:
    rng = np.random.default_rng(0)
    first = rng.normal([-4.0, 0.0], [1.0, 0.5], (n // 3, 2))
    return np.concatenate([first, rng.normal([4.0, 1.0], [0.7, 1.5], (n - n // 3, 2))])


def factors(n: int = 200) -> np.ndarray:
    rng = np.random.default_rng(1)
    loadings = np.array([[1.0, 0.8, 0.0, 0.1, 0.0], [0.0, 0.3, 1.0, 0.7, 0.0]])
    return 3.0 + rng.normal(size=(n, 2)) @ loadings + 0.5 * rng.normal(size=(n, 5))


@kinds
def test_density_is_in_the_units_of_the_rows(covariance: str) -> None:
    X = 100.0 + 0.01 * blobs()
    found = sample_mixture(X, 2, covariance=covariance, draws=10, warmup=5, random_state=0)
    # Without standard coordinates, about an origin that keeps the digits.
    here = found.prior.affine(torch.full((2,), -100.0).double(), torch.ones(2).double())
    kernel = make_mixture_kernel(found.rows - 100.0, here)
    last = found.draws.positions[-1].clone()
    last[:, 2:6] -= 100.0
    assert_close(kernel.init(last).log_density, found.draws.log_density[-1], rtol=1e-8, atol=1e-8)


def test_density_of_factors_is_in_the_units_of_the_rows() -> None:
    X = factors() * [1.0, 10.0, 0.1, 3.0, 1.0]
    found = sample_factors(X, 2, draws=10, warmup=5, random_state=0)
    kernel = make_factor_kernel(ScatterStatistics.from_rows(torch.from_numpy(X)), found.prior)
    assert_close(kernel.init(found.draws.positions[-1]).log_density, found.draws.log_density[-1], **EXACT)


@kinds
def test_other_units_give_the_same_draws(covariance: str) -> None:
    origin, scale = np.array([1e7, -3.0]), np.array([0.1, 1e6])
    plain = sample_mixture(blobs(), 2, covariance=covariance, draws=20, warmup=20, random_state=3)
    moved = sample_mixture(
        origin + scale * blobs(), 2, covariance=covariance, draws=20, warmup=20, random_state=3
    )
    back = (moved.means - torch.from_numpy(origin)) / torch.from_numpy(scale)
    assert_close(back, plain.means, rtol=1e-5, atol=1e-5)
    assert_close(moved.weights, plain.weights, rtol=1e-5, atol=1e-5)
    ratio = moved.variances / torch.from_numpy(scale**2)
    assert_close(ratio, plain.variances, rtol=1e-5, atol=1e-5)


def test_other_units_give_the_same_factors() -> None:
    scale = np.array([1e-6, 1.0, 10.0, 1e5, 2.0])
    plain = sample_factors(factors(), 2, draws=20, warmup=20, random_state=3)
    moved = sample_factors(factors() * scale + 5.0, 2, draws=20, warmup=20, random_state=3)
    assert_close(moved.communalities, plain.communalities, rtol=1e-5, atol=1e-5)
    assert_close(moved.noise / torch.from_numpy(scale**2), plain.noise, rtol=1e-5, atol=1e-5)


@kinds
def test_clear_components_are_found(covariance: str) -> None:
    found = sample_mixture(blobs(), 2, covariance=covariance, draws=400, warmup=200, random_state=0)
    assert found.converged, found.concerns
    means = found.relabelled(found.means).mean((0, 1))
    left = int(means[:, 0].argmin())
    # Posterior deviations are about 0.16 and 0.1: five of them.
    assert_close(means[left], torch.tensor([-4.0, 0.0]).double(), rtol=0, atol=0.8)
    assert_close(means[1 - left], torch.tensor([4.0, 1.0]).double(), rtol=0, atol=0.8)
    shapes = (4, 400, 2, 2) if covariance == "diag" else (4, 400, 2, 2, 2)
    assert found.covariances.shape == shapes
    together = found.similarity()
    assert float(together[0, 1]) > 0.99
    assert float(together[0, -1]) < 0.01
    share = found.responsibilities()
    assert_close(share.sum(1), torch.ones(120).double(), **EXACT)
    assert int((share.argmax(1)[:40] == share.argmax(1)[0]).sum()) == 40
    assert bool((found.occupied() == 2).all())


def test_every_line_says_what_it_is() -> None:
    found = sample_mixture(blobs(), 3, draws=60, warmup=20, random_state=0)
    table = found.summary()
    assert set(table["identification"]) == {"label-invariant", "relabelled"}
    assert (
        table.loc[[i for i in table.index if i.startswith("component")], "identification"] == "relabelled"
    ).all()
    assert (
        table.loc[["log_density", "occupied", "sorted weight[0]", "mean[x0]"], "identification"]
        == "label-invariant"
    ).all()
    assert "Labels: component labels are not identified" in repr(found)
    other = sample_factors(factors(), 2, draws=60, warmup=20, random_state=0)
    table = other.summary()
    assert set(table["identification"]) == {"rotation-invariant", "aligned"}
    assert (
        table.loc[[i for i in table.index if i.startswith("loading")], "identification"] == "aligned"
    ).all()
    assert "Rotation: rotations of the factors are not identified" in repr(other)
    for page, kind in ((found._repr_html_(), "label-invariant"), (other._repr_html_(), "rotation-invariant")):
        assert kind in page
        assert "are not identified" in page
        assert "<li>" in page
    with pytest.raises(ValueError, match="level"):
        other.summary(1.5)


def test_predictive_distributions_are_models() -> None:
    X = blobs()
    distribution = sample_mixture(X, 2, draws=100, warmup=100, random_state=0).predictive(50)
    assert distribution.n_components == 100
    assert_close(distribution.log_weight.exp().sum(), torch.tensor(1.0).double())
    held = blobs(90)
    assert boxloop.mega(distribution, held, random_state=0) is not None
    fitted = boxloop.GaussianMixture(2, random_state=0).fit(X)
    assert float(distribution.log_prob(torch.from_numpy(X)).mean()) == pytest.approx(fitted.score(X), abs=0.2)
    distribution = sample_factors(factors(), 2, draws=100, warmup=100, random_state=0).predictive(40)
    fitted = boxloop.FactorAnalysis(2, random_state=0).fit(factors())
    assert float(distribution.log_prob(torch.from_numpy(factors())).mean()) == pytest.approx(
        fitted.score(factors()), abs=0.2
    )


def test_factors_agree_with_another_sampler() -> None:
    """Means of numbers that are rotation-invariant, beside a random walk on the same density.

    z-scores from both Monte Carlo errors; false alarms as in contract.scores.
    """
    X = torch.from_numpy(factors(60)[:, :3] - 3.0)
    prior = FactorPrior.from_moments(X.mean(0), X.var(0), 1)
    found = sample_factors(X, 1, prior=prior, chains=8, draws=1000, warmup=200, random_state=0)

    def log_density(position: torch.Tensor) -> torch.Tensor:
        mean, loading, log_noise = position.split(3, 1)
        noise = log_noise.exp()
        deviation = X - mean[:, None]
        inner = 1.0 + (loading.square() / noise).sum(1)
        score = (deviation * (loading / noise)[:, None]).sum(2)
        quadratic = (deviation.square() / noise[:, None]).sum((1, 2)) - score.square().sum(1) / inner
        likelihood = -0.5 * (quadratic + 60 * (inner.log() + log_noise.sum(1)))
        # The prior is one of noise variances; chains move in their logs.
        return likelihood + prior.log_prob(mean, loading[..., None], noise) + log_noise.sum(1)

    start = torch.cat([X.mean(0), torch.ones(3).double(), torch.zeros(3).double()])
    other = sample_density(
        log_density,
        start,
        "random_walk",
        chains=64,
        draws=100,
        warmup=600,
        thin=10,
        start_sd=0.1,
        random_state=1,
    )
    ours = torch.cat([found.mean, found.draws["loadings"][..., 0].square(), found.draws["log_noise"]], 2)
    theirs = other["x"].clone()
    theirs[..., 3:6] = theirs[..., 3:6].square()
    assert_scores(gap_scores(ours, theirs))


def gap_scores(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    from boxloop.sample import diagnose

    errors = [diagnose(values.numpy()).mcse for values in (ours, theirs)]
    gap = (ours.mean((0, 1)) - theirs.mean((0, 1))).numpy()
    return torch.from_numpy(gap / np.hypot(*errors))


@pytest.mark.parametrize("model", ["mixture", "factors"])
def test_checkpoints_go_on_bit_for_bit(model: str, tmp_path: Path) -> None:
    def run(draws: int, seed: int = 0, shift: float = 0.0, file: str | None = "c.ckpt"):
        path = None if file is None else tmp_path / file
        if model == "mixture":
            X = blobs()
            X[0] += shift
            return sample_mixture(X, 2, draws=draws, warmup=40, random_state=seed, checkpoint=path).draws
        X = factors()
        X[0] += shift
        return sample_factors(X, 2, draws=draws, warmup=40, random_state=seed, checkpoint=path).draws

    whole = run(128, file=None)
    run(64)
    again = run(128)
    assert_close(again.positions, whole.positions, rtol=0, atol=0)
    assert_close(again.log_density, whole.log_density, rtol=0, atol=0)
    with pytest.raises(ValueError):
        run(128, shift=0.5)
    with pytest.raises(ValueError, match="random_state"):
        run(128, seed=None)


def test_factors_from_a_file_are_those_of_the_array(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", factors())
    first = sample_factors(factors(), 2, draws=5, warmup=5, random_state=0)
    second = sample_factors(tmp_path / "x.npy", 2, draws=5, warmup=5, random_state=0)
    assert_close(first.draws.positions, second.draws.positions, **EXACT)


def with_missing_value() -> np.ndarray:
    X = factors()
    X[3, 2] = np.nan
    return X


def with_constant() -> np.ndarray:
    X = factors()
    X[:, 4] = 1.0
    return X


@pytest.mark.parametrize("draw", [sample_mixture, sample_factors])
def test_bad_tables_are_refused(draw) -> None:
    with pytest.raises(ValueError, match=r"x2.*missing"):
        draw(with_missing_value(), 2)
    with pytest.raises(ValueError, match=r"x4.*constant"):
        draw(with_constant(), 2)
    with pytest.raises(ValueError, match="infinite"):
        draw(np.where(np.isnan(with_missing_value()), np.inf, factors()), 2)
    with pytest.raises(ValueError, match="at least 1"):
        draw(factors(), 0)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="9 components of 5 rows"):
        sample_mixture(factors()[:5], 9)
    with pytest.raises(ValueError, match="9 factors of 5 columns"):
        sample_factors(factors(), 9)
    with pytest.raises(ValueError, match="1 sample"):
        sample_factors(factors()[:1], 1)
    with pytest.raises(ValueError, match="tied"):
        sample_mixture(blobs(), 2, covariance="tied")
    zero, eye = torch.zeros(2).double(), torch.eye(2).double()
    with pytest.raises(ValueError, match="prior is for 3 components and 2 columns"):
        sample_mixture(blobs(), 2, prior=MixturePrior.from_moments(zero, eye, 3))
    with pytest.raises(ValueError, match="prior is for 1 factors and 2 columns"):
        sample_factors(factors(), 2, prior=FactorPrior.from_moments(zero, zero + 1.0, 1))
    found = sample_mixture(blobs(), 2, draws=5, warmup=5, random_state=0)
    with pytest.raises(ValueError, match="columns"):
        found.similarity(factors())
    with pytest.raises(ValueError, match="at most"):
        found.similarity(np.zeros((5000, 2)))
    with pytest.raises(ValueError, match="kind"):
        found.plot(kind="pie")


def test_a_prior_in_the_units_of_the_rows_is_the_default_again() -> None:
    X = 50.0 + 3.0 * blobs()
    first = sample_mixture(X, 2, draws=10, warmup=10, random_state=0)
    again = sample_mixture(X, 2, prior=first.prior, draws=10, warmup=10, random_state=0)
    assert_close(first.draws.positions, again.draws.positions, **EXACT)
    other = sample_factors(factors(), 2, draws=10, warmup=10, random_state=0)
    again = sample_factors(factors(), 2, prior=other.prior, draws=10, warmup=10, random_state=0)
    assert_close(other.draws.positions, again.draws.positions, **EXACT)


def test_a_constant_column_passes_with_a_prior() -> None:
    X = factors()
    prior = FactorPrior.from_moments(torch.zeros(5).double(), torch.ones(5).double(), 2)
    X[:, 4] = 1.0
    found = sample_factors(X, 2, prior=prior, draws=50, warmup=50, random_state=0)
    assert bool(torch.isfinite(found.draws.positions).all())


def test_more_columns_than_rows() -> None:
    X = normal((6, 10), generator(0))
    for found in (
        sample_factors(X, 2, draws=50, warmup=50, random_state=0),
        sample_mixture(X, 2, draws=50, warmup=50, random_state=0),
    ):
        assert bool(torch.isfinite(found.draws.positions).all())
        assert bool(torch.isfinite(found.draws.log_density).all())


def test_global_seeds_do_not_matter() -> None:
    first = sample_mixture(blobs(), 2, draws=5, warmup=5, random_state=0).draws.positions
    torch.rand(7)
    np.random.rand(3)  # noqa: NPY002
    second = sample_mixture(blobs(), 2, draws=5, warmup=5, random_state=0).draws.positions
    assert_close(first, second, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["components", "similarity", "trace"])
def test_pictures_of_mixtures(kind: str) -> None:
    found = sample_mixture(blobs(), 2, draws=20, warmup=20, random_state=0)
    title = found.plot(kind=kind).get_title(loc="left")
    assert ("relabelled" if kind == "components" else "label-invariant") in title


@pytest.mark.parametrize("kind", ["loadings", "trace"])
def test_pictures_of_factors(kind: str) -> None:
    found = sample_factors(factors(), 2, draws=20, warmup=20, random_state=0)
    title = found.plot(kind=kind).get_title(loc="left")
    assert ("aligned" if kind == "loadings" else "rotation-invariant") in title


def stop_at(round_number: int):
    """Ctrl-C after some iterations."""

    def observe(progress) -> None:
        if progress.iteration == round_number and not progress.stopped:
            raise KeyboardInterrupt

    return observe


@pytest.mark.filterwarnings("ignore::boxloop.sample.SampleWarning")
@pytest.mark.parametrize("draw", [sample_mixture, sample_factors])
def test_interrupted_chains(draw) -> None:
    found = draw(factors(), 2, draws=100, warmup=64, random_state=0, observers=[stop_at(1)])
    assert found.draws.interrupted
    assert "interrupted" in repr(found)
    assert not found.converged
    with pytest.raises(ValueError, match="no draws"):
        found.summary()
    found = draw(factors(), 2, draws=100, warmup=64, random_state=0, observers=[stop_at(4)])
    assert 0 < found.draws.n_draws < 100
    assert "interrupted" in repr(found)


def test_one_chain_never_passes() -> None:
    found = sample_mixture(blobs(), 2, chains=1, draws=50, warmup=20, random_state=0)
    assert any("one chain" in concern for concern in found.concerns)
    other = sample_factors(factors(), 2, chains=1, draws=50, warmup=20, random_state=0)
    assert any("one chain" in concern for concern in other.concerns)


@kinds
@pytest.mark.parametrize(("k", "d"), [(1, 1), (1, 2), (3, 1)])
def test_smallest_mixtures(k: int, d: int, covariance: str) -> None:
    found = sample_mixture(blobs()[:, :d], k, covariance=covariance, draws=30, warmup=20, random_state=0)
    assert found.means.shape == (4, 30, k, d)
    assert np.isfinite(found.summary()["mean"]).all()
    assert found.similarity().shape == (120, 120)
    assert "Gaussian mixture" in repr(found)
    assert bool(torch.isfinite(found.predictive(10).log_prob(found.rows)).all())


def test_as_many_factors_as_columns() -> None:
    found = sample_factors(factors()[:, :2], 2, draws=30, warmup=20, random_state=0)
    assert found.loadings.shape == (4, 30, 2, 2)
    assert np.isfinite(found.summary()["mean"]).all()


@kinds
def test_the_summary_has_moments_of_the_whole_mixture(covariance: str) -> None:
    """Mean and deviation of a column over all components, by its raw moments; weights in falling order."""
    found = sample_mixture(blobs(), 2, covariance=covariance, draws=40, warmup=20, random_state=0)
    weight, mean, variance = (
        value.flatten(0, 1).numpy() for value in (found.weights, found.means, found.variances)
    )
    centre = np.einsum("mk,mkd->md", weight, mean)
    square = np.einsum("mk,mkd->md", weight, variance + mean**2)
    wanted = {f"mean[x{j}]": centre[:, j] for j in range(2)}
    wanted |= {f"sd[x{j}]": np.sqrt(square - centre**2)[:, j] for j in range(2)}
    wanted |= {"sorted weight[0]": weight.max(1), "sorted weight[1]": weight.min(1)}
    table = found.summary(level=0.8)
    for name, values in wanted.items():
        line = table.loc[name]
        assert line["mean"] == pytest.approx(values.mean(), rel=1e-9)
        assert line["sd"] == pytest.approx(values.std(ddof=1), rel=1e-9)
        assert [line["low"], line["high"]] == pytest.approx(np.quantile(values, [0.1, 0.9]), rel=1e-9)
