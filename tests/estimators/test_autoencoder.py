"""The estimator of autoencoders: what it fits, what it gives back. Failure rates are written where chance enters."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import Tensor, nn

from boxloop import FactorAnalysis, FitWarning, GaussianMixture, compare, mega
from boxloop.estimators import (
    ALPHAS,
    BoundLoss,
    VariationalAutoencoder,
    choose_alpha,
    variational_autoencoder as engine,
)
from boxloop.fit import Warming
from boxloop.numeric import generator

QUICK = {"hidden": (8,), "max_iter": 3, "patience": None, "score_draws": 16, "penalty_nodes": 32}


def quick(n_components: int = 2, **more) -> VariationalAutoencoder:
    return VariationalAutoencoder(n_components, **{**QUICK, "random_state": 0, **more})


def factors(n: int, seed: int = 0) -> np.ndarray:
    """Two factors in five columns, far from the origin."""
    rng = np.random.default_rng(seed)
    loadings = np.array([[1.5, -1.0, 0.8, 0.0, 0.6], [0.0, 0.7, 1.2, -1.1, 0.4]])
    noise = np.array([0.4, 0.5, 0.6, 0.5, 0.4])
    return 100.0 + 3.0 * (rng.normal(size=(n, 2)) @ loadings + noise * rng.normal(size=(n, 5)))


def pixels(n: int, seed: int = 0, shape: tuple[int, ...] = (6, 6)) -> np.ndarray:
    """A bright square on the left or on the right."""
    rng = np.random.default_rng(seed)
    rows = rng.random((n, *shape)) < 0.1
    rows[: n // 2, ..., :2] |= rng.random((n // 2, *shape[:-1], 2)) < 0.8
    rows[n // 2 :, ..., -2:] |= rng.random((n - n // 2, *shape[:-1], 2)) < 0.8
    return rows.astype(float)


def kinds(likelihood: str, n: int = 120, seed: int = 0) -> np.ndarray:
    """Rows of two groups, of the kind that a likelihood takes."""
    rng = np.random.default_rng(seed)
    group = rng.integers(2, size=(n, 1))
    if likelihood == "bernoulli":
        return (rng.random((n, 6)) < np.where(group, 0.85, 0.15)).astype(float)
    if likelihood == "poisson":
        return rng.poisson(np.where(group, [40.0, 2.0, 300.0], [10.0, 8.0, 500.0])).astype(float)
    if likelihood == "categorical":
        return (
            np.hstack([(group + (rng.random((n, 1)) < 0.1)) % 2, (2 * group + rng.integers(2, size=(n, 1)))])
            * 1.0
        )
    return factors(n, seed)


def test_a_linear_autoencoder_is_factor_analysis():
    """Maximum likelihood of the rows is known; on six sets of rows training came within 0.004 nats of it.

    One factor fewer loses more than 0.3.
    """
    rng = np.random.default_rng(3)
    loadings, noise = rng.normal(size=(2, 7)), rng.uniform(0.4, 0.8, size=7)
    rows = 100.0 + rng.normal(size=(500, 2)) @ loadings + noise * rng.normal(size=(500, 7))
    best = FactorAnalysis(2, tol=1e-8, max_iter=2000).fit(rows).score(rows)
    fit = quick(
        hidden=(), variance="shared", learning_rate=0.02, schedule="cosine", max_iter=150, batch_size=60, n_draws=4,
        validation_fraction=0.0, dtype="float64", score_draws=256,
    ).fit(rows)  # fmt: skip
    assert best - 0.01 < fit.score(rows) < best + 0.001  # a lower bound, by fixed nodes
    assert fit.elbo(rows, 64).elbo < best + 0.01
    assert best - FactorAnalysis(1).fit(rows).score(rows) > 0.3
    assert not fit.converged_  # its passes were counted: no rows were held out to judge them
    assert fit.n_iter_ == 150


LIKELIHOODS = [
    ("gaussian", {"variance": "diagonal"}),
    ("gaussian", {"variance": "shared"}),
    ("gaussian", {"variance": "spherical"}),
    ("gaussian", {"variance": "low_rank", "rank": 2}),
    ("gaussian", {"prior": "mixture", "prior_components": 3}),
    ("bernoulli", {}),
    ("poisson", {}),
    ("poisson", {"alpha": 0.1}),
    ("categorical", {}),
]


@pytest.mark.parametrize(("likelihood", "options"), LIKELIHOODS)
def test_every_likelihood_learns(likelihood, options):
    """Better than its own start on rows it has not seen, and each method gives what it says."""
    rows, fresh = kinds(likelihood), kinds(likelihood, seed=1)
    start = quick(likelihood=likelihood, max_iter=0, **options).fit(rows)
    fit = quick(likelihood=likelihood, max_iter=40, learning_rate=0.02, batch_size=40, **options).fit(rows)
    assert fit.score(fresh) > start.score(fresh) + 0.2
    d = rows.shape[1]
    codes = fit.transform(fresh)
    assert codes.shape == (120, 2)
    assert fit.inverse_transform(codes).shape == fit.reconstruct(fresh).shape == (120, d)
    np.testing.assert_allclose(fit.inverse_transform(codes), fit.reconstruct(fresh), rtol=1e-3, atol=1e-4)
    mean, deviation = fit.posterior(fresh)
    np.testing.assert_array_equal(mean, codes)
    assert (deviation > 0).all()
    drawn, behind = fit.sample(7)
    assert drawn.shape == (7, d)
    assert behind.shape == (7, 2)
    parts = fit.elbo(fresh)
    assert parts.elbo == pytest.approx(parts.reconstruction - parts.divergence, rel=1e-9)
    assert parts.elbo - 4 * parts.elbo_error < fit.score(fresh)
    assert fit.n_parameters() == sum(value.numel() for value in fit.model_.trainable())
    assert set(fit.history_) >= {
        "elbo",
        "reconstruction",
        "divergence",
        "rate",
        "validation_elbo",
        "validation_gap",
    }
    assert all(len(column) == 40 for column in fit.history_.values())


def test_samples_are_of_the_kind_of_the_rows():
    for likelihood, top in (("bernoulli", 1), ("poisson", 1000), ("categorical", 3)):
        drawn, _ = quick(likelihood=likelihood).fit(kinds(likelihood)).sample(50)
        assert (drawn == drawn.round()).all()
        assert drawn.min() >= 0
        assert drawn.max() <= top


def test_the_history_is_in_the_units_of_the_data():
    """The last validation bound is that of the fitted model on the rows held out, by its own draws: 4 errors."""
    rows = factors(300)
    held = []

    def spied(*given):
        held.append(engine_hold(*given))
        return held[-1]

    engine_hold = engine.hold_out
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "hold_out", spied)
        fit = quick(max_iter=10, dtype="float64").fit(rows)
    found = fit.elbo(rows[held[0][0].numpy()], 200)
    history = max(fit.history_["validation_elbo"])
    spread = fit.model_.evidence_bound(torch.as_tensor(rows), generator(0), 1).value().std() / math.sqrt(
        30 * 16
    )
    assert abs(found.elbo - history) < 4 * float(spread)
    moved = quick(max_iter=10, dtype="float64").fit(1e-3 * (rows - 50.0))
    change = np.subtract(moved.history_["elbo"], fit.history_["elbo"])
    np.testing.assert_allclose(change, 5 * math.log(1e3), rtol=1e-6)


def test_early_stopping_keeps_the_best_pass():
    fit = quick(max_iter=200, patience=3, learning_rate=0.1, batch_size=16).fit(factors(100))
    history = fit.history_["validation_loss"]
    assert fit.converged_
    assert len(history) == fit.n_iter_ == int(np.argmin(history)) + 4
    found = quick(max_iter=int(np.argmin(history)) + 1, learning_rate=0.1, batch_size=16).fit(factors(100))
    assert all(
        torch.equal(a, b) for a, b in zip(fit.model_.trainable(), found.model_.trainable(), strict=True)
    )


def test_running_out_of_passes_is_reported():
    with pytest.warns(Warning, match="max_iter=3 while the validation bound still rose"):
        fit = quick(patience=5).fit(factors(100))
    assert not fit.converged_
    planned = quick(patience=5, schedule="cosine").fit(factors(100))  # without a warning
    assert not planned.converged_


def test_seeds_decide_and_the_global_one_does_not():
    rows = factors(80)
    before = torch.random.get_rng_state()
    one, two = quick(random_state=3).fit(rows), quick(random_state=3).fit(rows)
    assert np.array_equal(one.score_samples(rows), two.score_samples(rows))
    assert one.history_ == two.history_
    other = quick(random_state=generator(4)).fit(rows)
    assert not np.array_equal(one.score_samples(rows), other.score_samples(rows))
    with torch.random.fork_rng():
        torch.rand(3)
        again = quick(random_state=3).fit(rows)
    assert np.array_equal(one.score_samples(rows), again.score_samples(rows))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert clone(one).get_params() == one.get_params()


@pytest.mark.parametrize("shape", [(8, 6), (2, 8, 8), (1, 1, 3), (3, 3)])
@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian"])
def test_images(shape, likelihood):
    X = pixels(40, shape=shape)
    fit = quick(likelihood=likelihood, hidden=None, max_iter=2).fit(X)
    assert fit.image_shape_ == shape
    assert fit.n_features_in_ == int(np.prod(shape))
    assert fit.reconstruct(X).shape == fit.sample(40)[0].shape == X.shape
    assert fit.inverse_transform(fit.transform(X)).shape == X.shape
    kind = type(fit.model_.encoder.network).__name__
    assert kind == ("Layers" if shape == (1, 1, 3) else "Convolutions")
    np.testing.assert_array_equal(fit.score_samples(X), fit.score_samples(X.reshape(40, -1)))
    with pytest.raises(ValueError, match="images of shape"):
        fit.transform(pixels(3, shape=(4, 4)))
    assert quick(likelihood=likelihood, hidden=None, max_iter=1).fit(torch.as_tensor(X)).image_shape_ == shape


def test_convolutions_learn():
    X = pixels(200)
    fit = quick(1, likelihood="bernoulli", hidden=(8, 8), max_iter=25, learning_rate=0.01, batch_size=20).fit(
        X
    )
    code = fit.transform(X)[:, 0]
    left, right = code[:100], code[100:]
    assert abs(left.mean() - right.mean()) > left.std() + right.std()


class Mirror(nn.Module):
    """A module of one's own, with a number that is not trained."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.layer = nn.Linear(before, after)
        self.register_buffer("factor", torch.tensor(2.0))

    def forward(self, rows: Tensor) -> Tensor:
        return self.factor * self.layer(rows)


def test_own_modules():
    with torch.random.fork_rng():
        encoder, decoder = Mirror(5, 4), Mirror(2, 10)
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    fit = quick(encoder=encoder, decoder=decoder).fit(factors(60))
    assert fit.n_parameters() == 5 * 4 + 4 + 2 * 10 + 10
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
    assert np.isfinite(fit.score(factors(20, 1)))
    with pytest.raises(ValueError, match="encoder must make 4 columns from 5"):
        quick(encoder=decoder.layer.__class__(5, 3)).fit(factors(60))


def test_it_is_a_model_like_others():
    rows, fresh = factors(300), factors(300, 1)
    fit = quick(max_iter=20, learning_rate=0.02, batch_size=50).fit(rows)
    found = compare({"autoencoder": fit, "gaussian": GaussianMixture(1).fit(rows)}, fresh)
    assert set(found.names) == {"autoencoder", "gaussian"}
    assert np.isfinite(found.bic).all()
    gaps = mega(fit, fresh, draws=19)
    assert np.isfinite([gap.norm() for gap in gaps.gaps]).all()
    assert make_pipeline(StandardScaler(), quick()).fit(rows).transform(rows).shape == (300, 2)
    assert list(fit.get_feature_names_out()) == ["variationalautoencoder0", "variationalautoencoder1"]
    assert fit.plot_trace().get_xlabel() == "iteration"


def test_warm_start_goes_on():
    rows = factors(200)
    fit = quick(max_iter=10, learning_rate=0.01, warm_start=True).fit(rows)
    first = fit.history_["elbo"]
    fit.fit(rows)
    assert fit.history_["elbo"][0] > first[4]
    with pytest.raises(ValueError, match="warm_start needs"):
        fit.set_params(hidden=(9,)).fit(rows)


def test_weights_move_the_fit():
    """A group of weight zero leaves no trace in the bound, the moments, or the validation."""
    rows = np.r_[factors(150), factors(150) + 60.0]
    weight = np.r_[np.ones(150), np.zeros(150)]
    fit = quick(max_iter=30, learning_rate=0.02, alpha=0.1).fit(rows, sample_weight=weight)
    assert np.abs(fit.sample(400)[0].mean(0) - rows[:150].mean(0)).max() < 15.0
    assert fit.n_samples_seen_ == 150.0


def test_the_bound_is_a_weighted_mean():
    fit = quick(max_iter=1, dtype="float64").fit(factors(50))
    rows = torch.as_tensor(factors(6, 3))
    weight = torch.tensor([1.0, 2.0, 0.0, 1.0, 1.0, 3.0]).double()
    more = torch.repeat_interleave(rows, weight.long(), 0)
    loss = [
        BoundLoss(beta=0.0, draws=20_000, unit=float(w.mean()))(fit.model_, x, w, generator(1))[1][
            "divergence"
        ]
        for x, w in ((rows, weight), (more, torch.ones(8).double()))
    ]
    torch.testing.assert_close(loss[0], loss[1], rtol=1e-10, atol=0.0)


def test_beta_weighs_the_divergence():
    rows = factors(200)
    history = [
        quick(max_iter=30, learning_rate=0.02, beta=beta).fit(rows).history_["divergence"][-1]
        for beta in (0.1, 1.0, 10.0)
    ]
    assert history[0] > history[1] > history[2]


def three(n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.array([[-2.0, 0.0], [2.0, 0.0], [0.0, 3.0]])[rng.integers(3, size=n)] + 0.4 * rng.normal(
        size=(n, 2)
    )


@pytest.mark.slow
def test_a_penalty_that_begins_late_closes_the_moments_at_nearly_the_same_bound():
    """Beaulac (2023), section 7, on three clusters, as medians over five seeds.

    In trials at alpha = 0.3 the second gap fell by 2.0 to 3.5 times for 0.005 to 0.03 nats, and 0.26 on one seed; a
    penalty of 0.3 all along left no code at all (divergence 0.01 to 0.08) and lost 0.55 to 0.78 nats.
    """
    found = []
    for seed in range(5):
        rows, fresh = three(1000, seed), three(4000, 100 + seed)
        more = {"hidden": (64, 64), "variance": "shared", "learning_rate": 5e-3, "schedule": "cosine"}
        more |= {"max_iter": 150, "batch_size": 128, "penalty_nodes": 512, "random_state": seed}
        fits = [quick(**more, **o).fit(rows) for o in ({}, {"alpha": 0.3}, {"alpha": 0.3, "alpha_from": 0.0})]
        found.append([(f.elbo(fresh).elbo, mega(f, fresh, draws=9).gaps[1].norm()) for f in fits])
    plain, late, early = np.moveaxis(np.array(found), 1, 0)
    assert np.median(plain[:, 1] / late[:, 1]) > 1.5
    assert np.median(plain[:, 0] - late[:, 0]) < 0.06
    assert np.median(plain[:, 0] - early[:, 0]) > 0.3


def test_alpha_is_chosen_on_validation(monkeypatch):
    monkeypatch.setattr(engine, "ALPHAS", (0.0, 0.1, 30.0))
    fit = quick(alpha="validation", max_iter=15, learning_rate=0.02, validation_fraction=0.3).fit(
        three(200, 0)
    )
    table = fit.alphas_
    assert table["alpha"] == [0.0, 0.1, 30.0]
    assert fit.alpha_ == table["alpha"][table["chosen"].index(1.0)]
    plain = quick(alpha=fit.alpha_, max_iter=15, learning_rate=0.02, validation_fraction=0.3).fit(
        three(200, 0)
    )
    assert np.array_equal(plain.transform(three(5, 1)), fit.transform(three(5, 1)))
    with pytest.raises(ValueError, match="validation_fraction above 0"):
        quick(alpha="validation", validation_fraction=0.0).fit(three(50, 0))


def test_the_rule_of_the_choice():
    """Within one paired error of the best bound, the smallest gap."""
    rng = np.random.default_rng(0)
    base, weight = rng.normal(size=100), np.ones(100)
    near, far = base - 0.01 + 0.2 * np.tile([1.0, -1.0], 50), base - 1.0
    pick, table = choose_alpha([0.0, 0.1, 1.0], [base, near, far], [0.9, 0.3, 0.1], weight)
    assert pick == 1
    assert table["behind"][2] == pytest.approx(1.0)
    assert choose_alpha([0.0, 0.1], [base, far], [0.9, 0.1], weight)[0] == 0
    assert choose_alpha([0.0, 0.1], [base, base], [0.2, 0.2], weight)[0] == 0
    assert choose_alpha([0.0, 0.1], [base * np.nan, far], [0.2, 0.3], weight)[0] == 1
    assert ALPHAS[0] == 0.0


def test_alpha_may_be_a_schedule():
    fit = quick(alpha=Warming(0.4, 4), max_iter=4).fit(factors(100))
    assert fit.alpha_ == 0.4
    history = fit.history_
    first = (history["loss"][0] + history["elbo"][0]) / history["penalty"][0]
    assert first == pytest.approx(0.1, rel=1e-4)  # one step a pass of 90 rows
    assert (history["loss"][3] + history["elbo"][3]) / history["penalty"][3] == pytest.approx(0.4, rel=1e-4)
    with pytest.raises(ValueError, match="must not be negative"):
        quick(alpha=lambda t: -1.0).fit(factors(50))


def test_the_penalty_begins_late_by_default():
    """Ten passes of one step: nothing for five, then rising over two."""

    def weights(**more):
        history = quick(alpha=0.4, max_iter=10, batch_size=100, **more).fit(factors(100)).history_
        found = [
            (loss + elbo) / gap
            for loss, elbo, gap in zip(history["loss"], history["elbo"], history["penalty"])
        ]
        return np.round(found, 4).tolist()

    assert weights() == [0.0] * 5 + [0.2] + [0.4] * 4
    assert weights(alpha_from=0.0) == [0.4] * 10
    fit = quick(alpha=0.4, max_iter=20, patience=1, schedule="cosine").fit(factors(100))
    assert fit.n_iter_ > 14


@pytest.mark.filterwarnings("ignore::boxloop.FitWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(
    [
        VariationalAutoencoder(**{**QUICK, "patience": 20}, random_state=0),
        VariationalAutoencoder(1, **QUICK, alpha=0.1, prior="mixture", dtype="float64", random_state=0),
    ],
    expected_failed_checks=lambda _: {
        "check_sample_weight_equivalence_on_dense_data": "draws and mini-batches differ with the number of rows"
    },
)
def test_scikit_learn_check(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    "wrong",
    [
        {"likelihood": "normal"}, {"variance": "full"}, {"prior": "vamp"}, {"n_draws": 0}, {"beta": -1.0},
        {"alpha": -0.1}, {"alpha": "grid"}, {"learning_rate": 0.0}, {"hidden": 3}, {"hidden": (0,)},
        {"patience": 0}, {"validation_fraction": 1.0}, {"precision": "half"}, {"dtype": "float16"},
        {"device": "abacus"}, {"n_components": 0}, {"schedule": "step"}, {"encoder": "mlp"}, {"batch_size": 0},
        {"precision": "mixed", "dtype": "float64"}, {"variance": "low_rank", "rank": 5},
    ],
)  # fmt: skip
def test_parameters_are_checked(wrong):
    with pytest.raises(ValueError):
        quick(**wrong).fit(factors(50))


def test_mixed_precision_is_close():
    rows = factors(200)
    one, other = (
        quick(max_iter=20, learning_rate=0.02, precision=precision).fit(rows)
        for precision in ("full", "mixed")
    )
    assert other.model_.encoder.parameters[0].dtype == torch.float32
    gap = np.abs(one.score(rows) - other.score(rows))
    assert 0.0 < gap < 0.2


def test_units_do_not_matter():
    rows = factors(100)
    one, other = quick().fit(rows), quick().fit(1e-6 * (rows - 7.0))
    moved = 1e-6 * (rows - 7.0)
    np.testing.assert_allclose(other.transform(moved), one.transform(rows), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(other.reconstruct(moved) * 1e6 + 7.0, one.reconstruct(rows), rtol=1e-5)
    np.testing.assert_allclose(
        np.add(other.history_["elbo"], 5 * math.log(1e-6)), one.history_["elbo"], rtol=1e-4
    )


def test_codes_wider_than_rows_are_reported():
    with pytest.warns(FitWarning, match="n_components=6 is more than the 5 columns"):
        quick(6).fit(factors(50))


def test_a_penalty_that_came_too_late_is_said():
    """Few rows and a large network: the best pass comes early, and the moments are those without a penalty."""
    X = np.random.default_rng(0).normal(size=(60, 5))
    options = {
        "hidden": (64,),
        "max_iter": 60,
        "patience": None,
        "learning_rate": 0.02,
        "validation_fraction": 0.4,
    }
    with pytest.warns(FitWarning, match="came before the moment penalty"):
        late = VariationalAutoencoder(2, alpha=1.0, random_state=0, **options).fit(X)
    early = VariationalAutoencoder(2, alpha=1.0, alpha_from=0.0, random_state=0, **options).fit(X)
    assert not [event for event in early.events_ if "came before" in event]
    assert late.history_["elbo"][:30] != early.history_["elbo"][:30]
