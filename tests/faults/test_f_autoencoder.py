"""Bad input of autoencoders: each is refused by name, or reported."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from boxloop import FitWarning
from boxloop.data import ArraySource
from boxloop.estimators import BoundLoss, VariationalAutoencoder

QUICK = {"hidden": (4,), "max_iter": 3, "patience": None, "score_draws": 8, "penalty_nodes": 16}
ROWS = np.random.default_rng(0).normal(size=(60, 3))
COUNTS = np.random.default_rng(0).poisson(3.0, size=(60, 3)).astype(float)


def quick(n_components: int = 2, **more) -> VariationalAutoencoder:
    return VariationalAutoencoder(n_components, **{**QUICK, "random_state": 0, **more})


def spoiled(rows: np.ndarray, value: float) -> np.ndarray:
    found = rows.copy()
    found[17, 1] = value
    return found


@pytest.mark.parametrize(
    ("likelihood", "rows", "value", "message"),
    [
        ("gaussian", ROWS, math.nan, "column 'x1' has a missing value"),
        ("gaussian", ROWS, math.inf, "x1"),
        ("bernoulli", COUNTS > 2, 1.5, r"outside \[0, 1\].*column 'x1' holds 1.5"),
        ("bernoulli", COUNTS > 2, -0.5, "Negative values.*column 'x1'"),
        ("bernoulli", COUNTS > 2, math.nan, "column 'x1' has a missing value"),
        ("poisson", COUNTS, 2.5, "column 'x1' holds 2.5: the poisson likelihood needs counts"),
        ("poisson", COUNTS, -1.0, "Negative values.*column 'x1' holds -1"),
        ("poisson", COUNTS, math.nan, "column 'x1' has a missing value"),
        ("categorical", COUNTS, 0.5, "column 'x1' holds 0.5: the categorical likelihood needs codes"),
        ("categorical", COUNTS, -2.0, "Negative values.*column 'x1'"),
    ],
)
def test_values_that_the_likelihood_cannot_take(likelihood, rows, value, message):
    rows = rows.astype(float)
    bad = spoiled(rows, value)
    with pytest.raises(ValueError, match=message):
        quick(likelihood=likelihood).fit(bad)
    if math.isfinite(value) or math.isnan(value):
        with pytest.raises(ValueError, match=message):
            quick(likelihood=likelihood).fit(ArraySource(torch.as_tensor(bad)))
    fit = quick(likelihood=likelihood).fit(rows)
    for use in (fit.transform, fit.score_samples, fit.reconstruct, fit.elbo):
        with pytest.raises(ValueError, match=message):
            use(bad)


def test_names_of_columns_are_used():
    import pandas

    frame = pandas.DataFrame(spoiled(ROWS, math.nan), columns=["height", "width", "depth"])
    with pytest.raises(ValueError, match="column 'width' has a missing value"):
        quick().fit(frame)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (ROWS[:1], "at least 2 rows"),
        (ROWS[:0], "0 sample"),
        (ROWS[0], "1D|2D"),
        (ROWS[:, :0], "0 feature"),
        (np.array([["a", "b"]] * 4), "column 0 of X holds text"),
    ],
)
def test_tables_that_are_none(rows, message):
    with pytest.raises(ValueError, match=message):
        quick().fit(rows)


def test_a_batch_larger_than_the_data_is_all_of_it():
    fit = quick(batch_size=10**6).fit(ROWS)
    small = quick(batch_size=54).fit(ROWS)  # a tenth is held out
    np.testing.assert_array_equal(fit.transform(ROWS), small.transform(ROWS))


def test_two_rows_are_enough():
    assert np.isfinite(quick(1).fit(ROWS[:2]).score(ROWS[:2]))


def test_columns_without_spread_are_reported():
    with pytest.warns(FitWarning, match=r"constant columns \(x2\)"):
        fit = quick().fit(np.c_[ROWS[:, :2], np.full(60, 7.0)])
    assert np.isfinite(fit.score_samples(np.c_[ROWS[:, :2], np.full(60, 7.0)])).all()


def test_a_code_of_a_category_that_was_not_seen_has_no_density():
    fit = quick(likelihood="categorical").fit(COUNTS)
    assert np.isneginf(fit.score_samples(COUNTS[:1] + 100.0)).all()


def test_units_far_apart():
    rows = ROWS * [1e-8, 1e8, 1.0] + [1e-3, 1e12, 1e7]
    plain = quick(max_iter=5).fit(ROWS)
    fit = quick(max_iter=5).fit(rows)
    np.testing.assert_allclose(fit.transform(rows), plain.transform(ROWS), rtol=1e-2, atol=1e-3)
    np.testing.assert_allclose(fit.history_["elbo"], plain.history_["elbo"], rtol=1e-3)  # the scales cancel


def breaking(patch, when) -> None:
    plain, calls = BoundLoss.__call__, iter(range(10**6))

    def broken(self, model, rows, weight, stream):
        loss, parts = plain(self, model, rows, weight, stream)
        return (loss * math.nan if self.draws == 1 and next(calls) in when else loss), parts

    patch.setattr(BoundLoss, "__call__", broken)


def test_a_loss_that_is_not_a_number_for_a_while(monkeypatch):
    breaking(monkeypatch, {1, 2})
    with pytest.warns(FitWarning, match="2 of 3 steps had a loss or gradient that is not finite: refused"):
        fit = quick(batch_size=18).fit(ROWS)
    assert len(fit.events_) == 1
    assert fit.history_["rate"] == [0.25e-3] * 3
    assert fit.history_["refused"] == [2.0] * 3
    assert np.isfinite(fit.score(ROWS))


def test_a_loss_that_is_never_a_number(monkeypatch):
    breaking(monkeypatch, range(10**6))
    with pytest.raises(FloatingPointError, match=r"10 steps in a row.*lower the learning rate"):
        quick(batch_size=5).fit(ROWS)


class Wild(nn.Module):
    """Grows without bound: exp of exp of what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.ones(2, 6))

    def forward(self, codes: Tensor) -> Tensor:
        return (codes @ self.slope * 40).exp()


def test_a_decoder_that_overflows_is_reported():
    with pytest.raises(FloatingPointError, match="finite"):
        quick(decoder=Wild(), max_iter=50, batch_size=10).fit(ROWS)


def test_wild_learning_rates_leave_finite_numbers_or_say_why():
    with np.errstate(all="ignore"):
        try:
            fit = quick(learning_rate=1e4, batch_size=10, max_iter=20).fit(ROWS)
        except FloatingPointError as error:
            assert "learning rate" in str(error)  # noqa: PT017
        else:
            assert fit.model_.is_finite()


def test_calls_that_make_no_sense():
    fit = quick().fit(ROWS)
    with pytest.raises(ValueError, match="n_samples"):
        fit.sample(0)
    with pytest.raises(ValueError, match="table of 2 columns"):
        fit.inverse_transform(np.ones((3, 5)))
    with pytest.raises(ValueError, match="features"):
        fit.transform(np.ones((3, 5)))
    with pytest.raises(ValueError, match="fitted to 3"):
        fit.transform(torch.ones(3, 5))
    with pytest.raises(Exception, match="not fitted"):
        quick().transform(ROWS)


@pytest.mark.parametrize(
    ("likelihood", "value", "bounded"), [("gaussian", 1e20, True), ("poisson", 1e60, False)]
)
def test_rows_on_which_the_bound_overflows_are_refused_by_number(likelihood, value, bounded):
    """Means over them were -inf or NaN; a single row may be beyond all numbers, but not undefined."""
    rows = ROWS if likelihood == "gaussian" else COUNTS
    fit = quick(likelihood=likelihood).fit(rows)
    far = rows.copy()
    far[17] = value
    for use in (fit.score, fit.elbo) if bounded else (fit.score_samples, fit.score, fit.elbo):
        with pytest.raises(
            ValueError, match=r"the bound of row 17 .*rows of the fit.*or fit with dtype='float64'"
        ):
            use(far)
    assert not bounded or np.isneginf(fit.score_samples(far)).tolist() == [row == 17 for row in range(60)]
    assert math.isfinite(fit.score(rows))
