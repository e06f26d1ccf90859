"""Random effects as estimators: the maximum of the likelihood, other units, predictions, and what is refused.

Statistical comparisons use the Monte Carlo error that the fit itself reports, at 4.5 of them: about 30 in all, fewer
than 1 false alarm in 1000 runs with new seeds.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning

import boxloop
from boxloop.estimators import LogisticRandomEffects, PoissonRandomEffects, random_effects
from boxloop.models import BernoulliResponse, GroupedRows, PoissonResponse, RandomEffects
from boxloop.persist import CheckpointWriter, ModelFileError
from papers.mcem import reference

KINDS = {"logistic": LogisticRandomEffects, "poisson": PoissonRandomEffects}
RESPONSES = {"logistic": BernoulliResponse(), "poisson": PoissonResponse()}
every_kind = pytest.mark.parametrize("kind", KINDS)


def table(kind, groups=40, each=8, seed=0, slope=0.0):
    rng = np.random.default_rng(seed)
    n = groups * each
    X = rng.normal(size=(n, 2))
    label = np.arange(n) % groups
    level = (
        0.2
        + X @ [0.6, -0.4]
        + rng.normal(size=groups)[label]
        + slope * rng.normal(size=groups)[label] * X[:, 0]
    )
    y = rng.random(n) < 1 / (1 + np.exp(-level)) if kind == "logistic" else rng.poisson(np.exp(level))
    return X, y.astype(int), label


def quick(kind, **params):
    return KINDS[kind](**{"random_state": 0, "max_iter": 80, "precision": 0.2, **params})


@cache
def usual(kind):
    """The quick fit of the usual table, for all tests that only look at it."""
    return quick(kind).fit(*table(kind))


@every_kind
@pytest.mark.parametrize("method", ["saem", "mcem"])
def test_the_fit_is_the_maximum_of_the_likelihood(kind, method):
    X, y, groups = table(kind)
    fit = KINDS[kind](method=method, random_state=1).fit(X, y, groups)
    assert fit.converged_
    assert not fit.interrupted_
    fixed = torch.from_numpy(np.column_stack([np.ones(len(X)), X]))
    rows = GroupedRows.from_rows(torch.from_numpy(y), fixed, fixed[:, :1], torch.from_numpy(groups))
    first = RandomEffects(torch.zeros(3).double(), torch.eye(1).double(), RESPONSES[kind])
    truth = reference(first, rows)
    found = np.concatenate([[fit.intercept_], fit.coef_, fit.covariance_.ravel()])
    error = np.concatenate(
        [np.ravel(fit.monte_carlo_errors_[name]) for name in ("intercept", "coef", "covariance")]
    )
    assert np.abs((found - truth.point.numpy()) / error).max() < 4.5
    wide = np.concatenate(
        [np.ravel(fit.standard_errors_[name]) for name in ("intercept", "coef", "covariance")]
    )
    np.testing.assert_allclose(wide, truth.errors, rtol=0.1)  # the errors differ where the estimates do
    assert (error < 0.1 * wide).all()
    # A quadratic: the likelihood lost is half the squared distance in standard errors.
    assert (
        truth.log_likelihood - 4 * 0.5 * (4.5 * 0.1) ** 2 < fit.log_likelihood_ < truth.log_likelihood + 1e-6
    )


def test_slopes_that_vary():
    X, y, groups = table("poisson", groups=60, slope=0.5)
    fit = PoissonRandomEffects(slopes=[0], random_state=0).fit(X, y, groups)
    assert fit.covariance_.shape == (2, 2)
    assert fit.effects_.shape == (60, 2)
    assert abs(fit.covariance_[1, 1] - 0.25) < 4.5 * fit.standard_errors_["covariance"][1, 1]
    named = PoissonRandomEffects(slopes=["a"], random_state=0).fit(
        pd.DataFrame(X, columns=["a", "b"]), y, groups
    )
    np.testing.assert_allclose(named.covariance_, fit.covariance_, rtol=1e-9)  # a frame is stored by columns


@pytest.mark.parametrize("kind", [pytest.param("logistic", marks=pytest.mark.slow), "poisson"])
def test_other_units_give_the_same_fit(kind):
    X, y, groups = table(kind, each=20, slope=1.0)
    fit = quick(kind, slopes=[0]).fit(X, y, groups)
    origin, scale = np.array([1e3, -50.0]), np.array([1e4, 1e-3])
    other = quick(kind, slopes=[0]).fit(origin + scale * X, y, groups)
    np.testing.assert_allclose(other.coef_ * scale, fit.coef_, rtol=1e-5)
    np.testing.assert_allclose(other.intercept_ + other.coef_ @ origin, fit.intercept_, rtol=1e-5)
    assert other.log_likelihood_ == pytest.approx(fit.log_likelihood_, rel=1e-7)
    turn = np.array([[1.0, origin[0]], [0.0, scale[0]]])
    np.testing.assert_allclose(turn @ other.covariance_ @ turn.T, fit.covariance_, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(other.predict(origin + scale * X, groups), fit.predict(X, groups), rtol=1e-5)


@every_kind
def test_names_of_groups_and_of_classes(kind):
    X, y, groups = table(kind)
    fit = usual(kind)
    labels = np.array([f"g{i:03d}" for i in groups])
    other = quick(kind).fit(X, np.where(y, "yes", "no") if kind == "logistic" else y, labels)
    np.testing.assert_array_equal(other.coef_, fit.coef_)
    assert other.groups_[0] == "g000"
    if kind == "logistic":
        assert set(other.predict(X)) <= {"yes", "no"}
        np.testing.assert_allclose(other.predict_proba(X).sum(1), 1.0, rtol=1e-12)


@every_kind
def test_whole_weights_are_repetitions(kind):
    X, y, groups = table(kind)
    times = np.random.default_rng(1).integers(1, 4, len(X))
    fit = quick(kind).fit(np.repeat(X, times, 0), np.repeat(y, times), np.repeat(groups, times))
    other = quick(kind).fit(X, y, groups, sample_weight=times)
    np.testing.assert_allclose(other.coef_, fit.coef_, rtol=1e-7)
    np.testing.assert_allclose(other.covariance_, fit.covariance_, rtol=1e-7)


def test_exposure_as_an_offset():
    X, y, groups = table("poisson")
    fit = usual("poisson")
    other = quick("poisson").fit(X, y, groups, offset=np.full(len(X), np.log(10.0)))
    assert other.intercept_ == pytest.approx(fit.intercept_ - np.log(10.0), abs=1e-6)
    np.testing.assert_allclose(
        other.predict(X, groups, np.full(len(X), np.log(10.0))), fit.predict(X, groups), rtol=1e-6
    )


@every_kind
def test_a_known_group_is_predicted_better_than_a_new_one(kind):
    X, y, groups = table(kind)
    fit = usual(kind)
    assert fit.score(X, y, groups) > fit.score(X, y)
    new = fit.predict(X, np.full(len(X), 10_000))
    np.testing.assert_array_equal(new, fit.predict(X))
    assert not np.array_equal(fit.predict(X, groups), new)


def test_a_new_group_gets_the_average_over_groups():
    X, fit = table("logistic")[0], usual("logistic")
    u = np.random.default_rng(0).normal(size=(200_000, 1)) * fit.covariance_[0, 0] ** 0.5
    chance = 1 / (1 + np.exp(-(fit.intercept_ + X[:3] @ fit.coef_ + u)))
    error = chance.std(0) / len(u) ** 0.5
    assert (np.abs(fit.predict_proba(X[:3])[:, 1] - chance.mean(0)) < 4.5 * error).all()
    X, fit = table("poisson")[0], usual("poisson")
    wide = np.exp(fit.intercept_ + X[:3] @ fit.coef_ + fit.covariance_[0, 0] / 2)
    np.testing.assert_allclose(fit.predict(X[:3]), wide, rtol=1e-12)


@every_kind
def test_the_same_seed_gives_the_same_fit(kind):
    X, y, groups = table(kind)
    np.random.seed(1)  # noqa: NPY002
    one = usual(kind)
    torch.manual_seed(5)
    other = clone(one).fit(X, y, groups)
    np.testing.assert_array_equal(one.coef_, other.coef_)
    np.testing.assert_array_equal(one.effects_, other.effects_)


def test_groups_of_one_row_among_others():
    X, y, groups = table("logistic")
    groups = np.where(np.arange(len(X)) < 10, 1000 + np.arange(len(X)), groups)
    fit = quick("logistic").fit(X, y, groups)
    assert np.isfinite(fit.effects_).all()
    assert len(fit.groups_) >= 50


def test_no_variance_between_groups_is_reported():
    rng = np.random.default_rng(3)
    X, groups = rng.normal(size=(400, 1)), np.repeat(np.arange(40), 10)
    y = np.round(np.exp(0.5 * X[:, 0] + 1.0))  # less variation than chance has: the maximum is at zero
    with pytest.warns(boxloop.FitWarning, match="is within one standard error of zero") as record:
        fit = quick("poisson", precision=0.5).fit(X, y, groups)  # near zero, precision takes many draws
    assert len(record) >= 1
    assert fit.covariance_[0, 0] < 0.05
    assert any("variance of the intercept" in event for event in fit.events_)


@every_kind
@pytest.mark.parametrize("iterations", [2, 8])
def test_killed_and_resumed(kind, iterations, tmp_path: Path, monkeypatch):
    class Killed(BaseException):
        pass

    class Doomed(CheckpointWriter):
        def __init__(self, path, fingerprint, **options):
            super().__init__(path, fingerprint, every=3, seconds=None)

        def __call__(self, progress):
            if progress.iteration == iterations:
                raise Killed
            super().__call__(progress)

    X, y, groups = table(kind)
    straight = quick(kind, max_iter=12).fit(X, y, groups)
    with monkeypatch.context() as patch:
        patch.setattr(random_effects, "CheckpointWriter", Doomed)
        with pytest.raises(Killed):
            quick(kind, max_iter=12, checkpoint=tmp_path / "c").fit(X, y, groups)
    assert (tmp_path / "c").exists() == (iterations > 3)
    resumed = quick(kind, max_iter=12, checkpoint=tmp_path / "c").fit(X, y, groups)
    np.testing.assert_array_equal(resumed.coef_, straight.coef_)
    np.testing.assert_array_equal(resumed.covariance_, straight.covariance_)
    np.testing.assert_array_equal(resumed.effects_, straight.effects_)
    with pytest.raises(ValueError, match="a checkpoint of another fit"):
        quick(kind, max_iter=12, checkpoint=tmp_path / "c").fit(X + 1.0, y[::-1], groups)


@every_kind
def test_ctrl_c_keeps_the_last_iteration(kind, tmp_path, monkeypatch):
    plain = random_effects.monte_carlo_em

    def interrupted(*args):
        step = plain(*args)

        def counted(state):
            if state.iteration == 5:
                raise KeyboardInterrupt
            return step(state)

        return counted

    monkeypatch.setattr(random_effects, "monte_carlo_em", interrupted)
    X, y, groups = table(kind)
    with pytest.warns(boxloop.FitWarning, match="interrupted after iteration 5"):
        fit = quick(kind).fit(X, y, groups)
    assert fit.interrupted_
    assert not fit.converged_
    assert fit.n_iter_ == 5
    assert np.isfinite(fit.effects_).all()
    assert np.isnan(fit.standard_errors_["coef"]).all()
    assert np.isfinite(fit.predict(X, groups).astype(float)).all()
    fit.save(tmp_path / "m.boxloop")
    assert_same_fit(boxloop.load(tmp_path / "m.boxloop"), fit, X, groups)


def test_too_few_iterations_are_warned_of():
    X, y, groups = table("logistic")
    with pytest.warns(ConvergenceWarning, match="did not converge in 1 iterations"):
        LogisticRandomEffects(method="mcem", max_iter=1, random_state=0).fit(X, y, groups)


def assert_same_fit(back, fit, X, groups):
    assert type(back) is type(fit)
    assert back.get_params() == fit.get_params()
    for name, value in vars(fit).items():
        if name.endswith("_") and name != "model_":
            np.testing.assert_equal(getattr(back, name), value, err_msg=name)
    other = np.array(groups)
    other[::5] = 99 if other.dtype.kind == "i" else "elsewhere"
    for labels in (None, groups, other):
        np.testing.assert_array_equal(
            back.predict(X, labels, np.ones(len(X))), fit.predict(X, labels, np.ones(len(X)))
        )


@pytest.mark.filterwarnings("ignore")
@every_kind
@pytest.mark.parametrize("labels", ["numbers", "words", "objects"])
def test_what_was_saved_is_read_back(kind, labels, tmp_path):
    X, y, groups = table(kind, groups=12, slope=1.0)
    if labels != "numbers":
        groups = np.char.add("group ", groups.astype(str)).astype(object if labels == "objects" else str)
    frame = pd.DataFrame(X, columns=["age", "dose"])
    fit = quick(kind, chains=2, max_iter=5, precision=0.9, slopes=("age",)).fit(frame, y, groups)
    fit.save(tmp_path / "m.boxloop")
    back = boxloop.load(tmp_path / "m.boxloop")
    assert_same_fit(back, fit, frame, groups)
    assert_same_fit(clone(back).fit(frame, y, groups), fit, frame, groups)


@pytest.mark.filterwarnings("ignore")
def test_a_fit_without_errors_is_saved(tmp_path):
    """Three effects per group have no likelihood by quadrature, and a short fit no standard errors of all of them."""
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(80, 3)), np.arange(80) % 4
    y = rng.poisson(2.0, 80)
    fit = PoissonRandomEffects(slopes=(0, 1), chains=2, max_iter=3, random_state=0).fit(X, y, groups)
    assert np.isnan(fit.log_likelihood_)
    assert np.isnan(fit.standard_errors_["covariance"]).any()
    fit.save(tmp_path / "m.boxloop")
    assert_same_fit(boxloop.load(tmp_path / "m.boxloop"), fit, X, groups)


@pytest.mark.filterwarnings("ignore")
def test_labels_that_a_file_cannot_hold_are_named(tmp_path):
    X, y, groups = table("poisson", groups=12)
    fit = quick("poisson", chains=2, max_iter=3, precision=0.9).fit(
        X, y, np.datetime64("2020-01-01") + groups
    )
    with pytest.raises(ModelFileError, match=r"'groups_' holds datetime64.* as text"):
        fit.save(tmp_path / "m.boxloop")


def changed(values, place, new):
    values = np.array(values, dtype=float)
    values[place] = new
    return values


X, Y, GROUPS = table("logistic")
BAD = {
    "no groups": (X, Y, None, "groups is None"),
    "one group": (X, Y, np.zeros(len(X)), "one label only"),
    "groups of one row": (X, Y, np.arange(len(X)), "every group has one row"),
    "too few labels": (X, Y, GROUPS[:-1], "groups has the shape"),
    "a label that is not a number": (X, Y, changed(GROUPS, 0, np.nan), "not finite"),
    "NaN": (changed(X, (3, 1), np.nan), Y, GROUPS, "contains NaN in column 'x1'"),
    "infinity": (changed(X, (3, 0), np.inf), Y, GROUPS, "contains infinity in column 'x0'"),
    "NaN in y": (X, changed(Y, 2, np.nan), GROUPS, "y contains NaN"),
    "three classes": (
        X,
        changed(Y, 2, 7),
        GROUPS,
        "Only binary classification .* multiclass: .* labels, got 3",
    ),
    "one class": (X, np.ones(len(X)), GROUPS, "two labels, got 1"),
    "y of another length": (X, Y[:-1], GROUPS, "y has the shape"),
    "y of two columns": (X, np.stack([Y, Y], 1), GROUPS, "one column"),
    "a constant column": (np.column_stack([X, np.ones(len(X))]), Y, GROUPS, "column 'x2' is constant"),
    "collinear columns": (np.column_stack([X, X[:, 0] + X[:, 1]]), Y, GROUPS, "collinear"),
    "separated": (X, X[:, 0] > 0, GROUPS, "separate the responses completely"),
    "constant in groups": (X, GROUPS % 2, GROUPS, "within every group all y are equal"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused(case):
    X, y, groups, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        quick("logistic").fit(X, y, groups)


def test_weights_that_leave_one_class_are_refused():
    with pytest.raises(ValueError, match="rows of positive weight hold one class"):
        quick("logistic").fit(X, Y, GROUPS, sample_weight=np.asarray(Y, dtype=float))


def test_responses_in_a_matrix_of_one_column_are_taken_with_a_warning():
    with pytest.warns(DataConversionWarning, match="column-vector"):
        found = quick("logistic").fit(X, np.asarray(Y)[:, None], GROUPS)
    np.testing.assert_array_equal(found.coef_, quick("logistic").fit(X, Y, GROUPS).coef_)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (changed(Y, 2, -1), "y must hold counts"),
        (changed(Y, 2, 0.5), "y must hold counts"),
        (changed(Y, 2, np.inf), "y must hold counts"),
        (np.zeros(len(X)), "zero everywhere"),
    ],
)
def test_what_is_no_count_is_refused(y, message):
    with pytest.raises(ValueError, match=message):
        quick("poisson").fit(X, y, GROUPS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sample_weight": np.zeros(len(X))}, "zero everywhere"),
        ({"sample_weight": -np.ones(len(X))}, "at least 0"),
        ({"sample_weight": np.ones(3)}, "sample_weight has the shape"),
        ({"offset": np.full(len(X), np.nan)}, "offset must be finite"),
    ],
)
def test_bad_weights_and_offsets_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        quick("logistic").fit(X, Y, GROUPS, **options)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"slopes": [5]}, "names 5, which is not a column"),
        ({"slopes": ["z"]}, "names 'z'"),
        ({"slopes": [0, 0]}, "twice"),
        ({"chains": 1}, "chains"),
        ({"method": "em"}, "method"),
    ],
)
def test_bad_parameters_are_refused(params, message):
    with pytest.raises(ValueError, match=message):
        quick("logistic", **params).fit(X, Y, GROUPS)


def test_other_columns_at_predict_are_refused():
    fit = usual("logistic")
    with pytest.raises(ValueError, match="features"):
        fit.predict(X[:, :1])
    with pytest.raises(ValueError, match="groups has the shape"):
        fit.predict(X, GROUPS[:-1])
