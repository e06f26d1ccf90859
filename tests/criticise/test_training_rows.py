"""Rows of the fit are known again, whatever table they come in; others are refused as training rows."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.decomposition import PCA as PeerComponents, FactorAnalysis as PeerFactors
from sklearn.exceptions import NotFittedError
from sklearn.mixture import GaussianMixture as PeerMixture
from sklearn.model_selection import GridSearchCV

import boxloop
from boxloop import GaussianMixture, mega
from boxloop.criticise import Below, as_model, calibration
from boxloop.data import (
    ArraySource,
    fingerprint_rows,
    fit_standardisation,
    identity_standardisation,
    open_source,
)
from boxloop.estimators import LatentEstimator
from estimators.public_cases import PUBLIC, Public, quietly

ROWS = np.random.default_rng(0).normal(size=(300, 3)).round(6)
HELD = np.random.default_rng(1).normal(size=(200, 3))


class Cut(ArraySource):
    """Rows in small tiles."""

    def chunks(self, size: int | None = None) -> Any:
        return super().chunks(7)


def tables(folder: Any) -> dict[str, Any]:
    frame = pd.DataFrame(ROWS, columns=["x0", "x1", "x2"])
    frame.to_csv(folder / "rows.csv", index=False)
    frame.to_parquet(folder / "rows.parquet")
    return {
        "array": ROWS.copy(),
        "other order": ROWS[::-1],
        "Fortran order": np.asfortranarray(ROWS),
        "frame": frame,
        "tensor": torch.from_numpy(ROWS),
        "csv": str(folder / "rows.csv"),
        "stream": open_source(folder / "rows.parquet", memory=0),
        "tiles": Cut(torch.from_numpy(ROWS)),
    }


@pytest.mark.parametrize(
    "name", ["array", "other order", "Fortran order", "frame", "tensor", "csv", "stream", "tiles"]
)
def test_the_same_rows_are_known_in_any_table(name: str, tmp_path: Any) -> None:
    fit = GaussianMixture(1).fit(ROWS)
    given = tables(tmp_path)[name]
    assert GaussianMixture(1).fit(given).training_digest_ == fit.training_digest_
    with pytest.warns(UserWarning, match="X holds the rows that the GaussianMixture was fitted to"):
        found = mega(fit, tables(tmp_path)[name], draws=19)
    assert found.parameter_error == "training rows"
    same = mega(fit, ROWS, train=tables(tmp_path)[name], draws=19)
    assert same.parameter_error == "training rows"
    torch.testing.assert_close(same["second"].row_error, found["second"].row_error, rtol=1e-9, atol=1e-12)
    assert mega(fit, HELD, train=tables(tmp_path)[name], draws=0).parameter_error == "included"


def test_gaps_of_the_rows_of_the_fit_say_that_they_are_zero_by_construction() -> None:
    """Before, p was 0.96 with gaps of 5e-15, without a word."""
    fit = GaussianMixture(1).fit(ROWS)
    with pytest.warns(UserWarning, match="no gap by construction.*as with train=X. Use held-out rows"):
        found = mega(fit, ROWS.copy(), draws=99)
    assert found["first"].norm() < 1e-12
    assert float(found["second"].null_error.abs().max()) == 0.0


def test_other_rows_are_refused_as_training_rows() -> None:
    fit = GaussianMixture(1).fit(ROWS)
    for other in (HELD, ROWS[:-1], np.vstack([ROWS, ROWS[:1]]), ROWS + 1e-9, ROWS[:, [1, 0, 2]]):
        with pytest.raises(
            ValueError, match="train= holds other rows than the GaussianMixture was fitted to"
        ):
            mega(fit, HELD + 1.0, train=other, draws=0)


@pytest.mark.parametrize("columns", [1, 3])
def test_other_rows_are_warned_of_where_the_fit_kept_no_digest(columns: int) -> None:
    """Held-out rows as ``train`` counted as "rows of the fit" with p = 0.01, without a word."""
    rows, held = ROWS[:, :columns], HELD[:, :columns]
    for fit in (PeerMixture(1).fit(rows), GaussianMixture(1).fit(rows).model_):
        for judging in (held, held + 1.0):
            with pytest.warns(
                UserWarning, match="train= holds other rows than the model was fitted to, or the fit"
            ):
                mega(fit, judging, train=held, draws=0)
        assert mega(fit, held, train=rows, draws=0).parameter_error == "included"


def test_rows_of_a_fit_elsewhere_are_known_by_their_means() -> None:
    """Warnings are errors in tests: several components, factors, variances by n - 1, weights, a missing value."""
    rng = np.random.default_rng(8)
    rows = rng.normal(size=(600, 3)) + 6.0 * rng.integers(2, size=(600, 1))
    for fit in (
        PeerMixture(2, random_state=0),
        PeerMixture(2, covariance_type="diag", random_state=0),
        PeerFactors(1),
        PeerComponents(1),
    ):
        assert mega(fit.fit(rows[:300]), rows[300:], train=rows[:300], draws=0).parameter_error == "included"
    weight = np.arange(300) % 3 + 1.0
    heavy = GaussianMixture(2, random_state=0).fit(rows[:300], sample_weight=weight).model_
    assert (
        mega(heavy, rows[300:], train=open_source(rows[:300], weight), draws=0).parameter_error == "included"
    )
    with pytest.warns(UserWarning, match="or leave out train="):
        mega(heavy, rows[300:], train=rows[:300], draws=0)
    rows[5, 1] = np.nan
    mixture = GaussianMixture(2, random_state=0).fit(rows[:300]).model_
    assert mega(mixture, rows[300:], train=rows[:300], draws=0).parameter_error == "included"


def test_weights_are_part_of_the_rows() -> None:
    weight = np.arange(300) % 3 + 1.0
    fit = GaussianMixture(1).fit(ROWS, sample_weight=weight)
    with pytest.raises(ValueError, match="with its weights"):
        mega(fit, HELD, train=ROWS, draws=0)
    assert mega(fit, HELD, train=open_source(ROWS, weight), draws=0).parameter_error == "included"


def test_rows_of_a_fit_elsewhere_are_known_by_what_they_hold() -> None:
    fit = PeerMixture(1).fit(ROWS)
    with pytest.warns(UserWarning, match="X seems to hold the rows of the fit"):
        assert mega(fit, ROWS.copy(), draws=0).parameter_error == "left out"
    assert mega(fit, ROWS.copy(), train=ROWS, draws=0).parameter_error == "training rows"


@pytest.mark.parametrize(
    "make",
    [
        lambda: GaussianMixture(2, random_state=0),
        lambda: GaussianMixture(2, method="online", random_state=0),
        lambda: boxloop.FactorAnalysis(1),
        lambda: boxloop.ProbabilisticPCA(1),
        lambda: boxloop.BayesianGaussianMixture(2, random_state=0),
        lambda: boxloop.BayesianFactorAnalysis(1),
    ],
)
def test_every_fit_keeps_its_digest_and_its_file_does(make: Any, tmp_path: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = make().fit(ROWS)
    assert fit.training_digest_ == fingerprint_rows(ArraySource(torch.from_numpy(ROWS)))
    fit.save(tmp_path / "m.boxloop")
    assert boxloop.load(tmp_path / "m.boxloop").training_digest_ == fit.training_digest_


GRADIENT = ("VariationalAutoencoder", "RelevantGenerator", "EnergyBasedModel")


@pytest.mark.parametrize("name", GRADIENT)
def test_rows_of_a_fit_by_gradients_are_known_again(name: str, tmp_path: Any) -> None:
    """They kept no digest: mega of the training rows gave p-values without a word."""
    public = next(one for one in PUBLIC if one.name == name)
    fit, (rows, _) = public.fitted(), public.data()
    if name == "EnergyBasedModel":  # criticism needs more draws than the quick settings keep
        fit = quietly(lambda: public.make().set_params(partition_chains=2048).fit(rows))
    assert fit.training_digest_ == fingerprint_rows(open_source(rows))
    fit.save(tmp_path / "m.boxloop")
    held, _ = public.data(seed=5)
    quick: dict[str, Any] = {"draws": 19, "functions": (Below(),)}  # bounded: few draws are enough
    for one in (fit, boxloop.load(tmp_path / "m.boxloop")):
        with pytest.warns(UserWarning, match=f"X holds the rows that the {name} was fitted to"):
            assert mega(one, rows.copy(), **quick).parameter_error == "training rows, left out"
        assert mega(one, held, **quick).parameter_error == "left out"


@pytest.mark.parametrize("public", PUBLIC, ids=lambda public: public.name)
def test_every_estimator_that_can_be_judged_keeps_its_digest(public: Public) -> None:
    fit = public.fitted()
    try:
        as_model(fit)
    except TypeError:
        return
    rows, _ = public.data()
    assert getattr(fit, "best_estimator_", fit).training_digest_ == fingerprint_rows(open_source(rows))


def test_files_without_a_digest_are_checked_by_their_means(tmp_path: Any) -> None:
    fit = GaussianMixture(1).fit(ROWS)
    fit.training_digest_ = None
    fit.save(tmp_path / "m.boxloop")
    with pytest.warns(UserWarning, match="train= holds other rows than the model was fitted to, or the fit"):
        assert (
            mega(boxloop.load(tmp_path / "m.boxloop"), HELD, train=ROWS[:50], draws=0).parameter_error
            == "included"
        )


def test_what_was_fitted_to_no_table_has_no_digest() -> None:
    assert boxloop.FactorAnalysis(1).fit_covariance(np.eye(3), 100).training_digest_ is None
    streamed: LatentEstimator = GaussianMixture(1, random_state=0)
    assert streamed.partial_fit(ROWS).training_digest_ is None


def test_the_digest_is_the_same_of_sparse_missing_and_single_precision_rows() -> None:
    counts = np.random.default_rng(2).poisson(0.5, size=(50, 6)).astype(float)
    dense, thin = open_source(counts), open_source(sparse.csr_array(counts))
    assert (
        fingerprint_rows(dense)
        == fingerprint_rows(thin)
        == identity_standardisation(thin).digest
        == fit_standardisation(dense).digest
    )
    single = ROWS.astype(np.float32)
    assert fingerprint_rows(open_source(single)) == fingerprint_rows(open_source(single.astype(float)))
    missing = ROWS.copy()
    missing[3, 1] = np.nan
    negative = missing.copy()
    negative.view(np.int64)[3, 1] |= np.int64(-(2**63))  # another NaN
    assert (
        fingerprint_rows(open_source(missing))
        == fingerprint_rows(open_source(negative))
        == fit_standardisation(open_source(missing)).digest
    )
    swapped = ROWS.copy()
    swapped[[0, 1], 0] = swapped[[1, 0], 0]  # the same columns, other rows
    assert fingerprint_rows(open_source(swapped)) != fingerprint_rows(open_source(ROWS))


def test_standardised_halves_of_a_table_are_not_taken_for_one_another() -> None:
    halves = [(half - half.mean(0)) / half.std(0) for half in (ROWS[:150], ROWS[150:])]
    fit = GaussianMixture(1).fit(halves[0])
    with pytest.warns(UserWarning, match="or was centred at its own means"):
        assert mega(fit, halves[1], draws=0).parameter_error == "left out"


COPIES = {
    "single precision": lambda rows: rows.astype(np.float32),
    "six digits": lambda rows: rows.round(6),
    "repeated": lambda rows: np.repeat(rows, 2, axis=0),
}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("columns", [1, 3])
def test_copies_of_the_rows_of_the_fit_are_recognised_by_their_means(name: str, columns: int) -> None:
    """p is near 1 for these, and their digest is another one."""
    rows = np.random.default_rng(3).normal(size=(300, columns))
    for fit in (GaussianMixture(1).fit(rows), PeerMixture(1).fit(rows)):
        with pytest.warns(UserWarning, match="X seems to hold the rows of the fit"):
            assert mega(fit, COPIES[name](rows), draws=19).p_value > 0.9


def test_held_out_rows_are_no_copies() -> None:
    """Warnings are errors in tests: none in 300 tables of one column and of two."""
    rng = np.random.default_rng(4)
    for columns in (1, 2):
        fit = GaussianMixture(1).fit(rng.normal(size=(500, columns)))
        for _ in range(150):
            mega(fit, rng.normal(size=(50, columns)), draws=0)


def test_means_of_few_values_that_agree_are_no_copies() -> None:
    """Half of 100 coins fall on heads in 8% of tables: that proves nothing, beside a column of measurements neither."""
    rng = np.random.default_rng(6)
    coin = torch.distributions.Bernoulli(torch.tensor([0.5], dtype=torch.float64))
    fit = boxloop.PoissonMixture(1).fit(rng.permutation(np.repeat([0.0, 1.0, 2.0, 3.0], 50))[:, None])
    for _ in range(100):
        mega(as_model(coin), rng.integers(2, size=(100, 1)).astype(float), draws=0)
        mega(fit, rng.poisson(1.5, size=(100, 1)).astype(float), draws=0)
    rows = np.column_stack([rng.integers(2, size=300), rng.normal(size=300)]).astype(float)
    both = GaussianMixture(1).fit(rows)
    with pytest.warns(UserWarning, match="X seems to hold the rows of the fit"):
        mega(both, rows.round(8), draws=0)


def test_a_part_of_the_training_rows_is_reported_where_they_are_given() -> None:
    fit = GaussianMixture(1).fit(ROWS)
    with pytest.warns(UserWarning, match="100 of 150 rows of X are among the training rows, too"):
        mega(fit, np.vstack([HELD[:50], ROWS[:100]]), train=ROWS, draws=0)
    assert mega(fit, HELD, train=ROWS, draws=0).parameter_error == "included"


def test_rows_that_repeat_by_chance_are_not_said_to_be_shared() -> None:
    rng = np.random.default_rng(5)
    fit = boxloop.PoissonMixture(1).fit(train := rng.poisson(2.0, size=(400, 2)).astype(float))
    mega(fit, rng.poisson(2.0, size=(300, 2)).astype(float), train=train, draws=0)


def test_columns_in_another_order_are_refused() -> None:
    """They were compared by place: false misfits in a true model."""
    frame = pd.DataFrame(ROWS * [1.0, 5.0, 20.0], columns=list("abc"))
    fit, other = GaussianMixture(1).fit(frame), frame[["c", "b", "a"]]
    with pytest.raises(ValueError, match="X has columns c, b, a, but GaussianMixture was fitted to a, b, c"):
        mega(fit, other.iloc[:100], draws=0)
    with pytest.raises(ValueError, match="train has columns c, b, a"):
        mega(fit, HELD, train=other, draws=0)
    mega(fit, HELD, draws=0)  # without names: by place


def test_rows_of_the_fit_of_a_bayesian_mixture_are_warned_of() -> None:
    """It raised that it has no free parameters."""
    fit = boxloop.BayesianGaussianMixture(2, random_state=0).fit(ROWS)
    with pytest.warns(
        UserWarning, match="as the error of its parameters cannot be computed, p-values are too large"
    ):
        assert mega(fit, ROWS, draws=19).parameter_error == "training rows, left out"
    for train in (ROWS, HELD):  # other rows would not be right either
        with pytest.raises(TypeError, match="leave out train="):
            mega(fit, HELD, train=train, draws=19)


def test_a_search_is_judged_as_the_estimator_that_it_chose() -> None:
    search = boxloop.ModelSearchCV(GaussianMixture(random_state=0), {"n_components": [1, 2]}, cv=2).fit(ROWS)
    with pytest.warns(UserWarning, match="X holds the rows that the GaussianMixture was fitted to"):
        assert mega(search, ROWS, draws=0).parameter_error == "training rows"
    with pytest.raises(ValueError, match="train= holds other rows than the GaussianMixture"):
        mega(search, HELD, train=HELD[:50], draws=0)
    found, same = (mega(one, HELD, draws=19) for one in (search, search.best_estimator_))
    assert found.p_value == same.p_value
    peer = GridSearchCV(PeerMixture(random_state=0), {"n_components": [1, 2]}, cv=2).fit(ROWS)
    assert (
        mega(peer, HELD, draws=0)["first"].norm() == mega(peer.best_estimator_, HELD, draws=0)["first"].norm()
    )


def test_a_search_over_cut_rows_judges_rows_cut_alike() -> None:
    rows = np.random.default_rng(3).normal(size=(60, 2))
    search = boxloop.ModelSearchCV(boxloop.BernoulliMixture(binarize=0.0), {"n_components": [1]}, cv=2).fit(
        rows
    )
    assert calibration(search, rows + 0.0).transform.shape == (60, 2)
    gap = mega(search, rows[:30], draws=0)["first"]
    torch.testing.assert_close(gap.data, torch.from_numpy((rows[:30] > 0.0).mean(0)))


def test_searches_without_an_estimator_say_so() -> None:
    kept = boxloop.ModelSearchCV(GaussianMixture(), {"n_components": [1]}, cv=2, refit=False)
    with pytest.raises(NotFittedError, match="this ModelSearchCV is not fitted yet"):
        mega(kept, ROWS)
    with pytest.raises(TypeError, match="with refit=False it has no best_estimator_"):
        mega(kept.fit(ROWS), ROWS)
    with pytest.raises(TypeError, match=r"cannot take OutlierDetector as a model: .* \.estimator_"):
        mega(boxloop.OutlierDetector(GaussianMixture()).fit(ROWS), ROWS)
