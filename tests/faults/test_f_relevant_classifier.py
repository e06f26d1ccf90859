"""Bad input of the classifier: each is refused by name, or reported."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch

from boxloop import FitWarning
from boxloop.data import ArraySource
from boxloop.estimators import RelevantClassifier

ROWS = np.random.default_rng(0).normal(size=(60, 3))
LABELS = np.array(["a", "b", "c"])[np.arange(60) % 3]
QUICK = {"hidden": (4,), "max_iter": 2, "patience": None, "random_state": 0}


def linear(**more) -> RelevantClassifier:
    return RelevantClassifier(features="linear", **more)


def spoiled(value: float) -> np.ndarray:
    found = ROWS.copy()
    found[17, 1] = value
    return found


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_no_numbers_are_named(value: float) -> None:
    with pytest.raises(ValueError, match="x1"):
        linear().fit(spoiled(value), LABELS)
    fit = linear().fit(ROWS, LABELS)
    for use in (fit.predict, fit.predict_proba, fit.transform, fit.decision_function):
        with pytest.raises(ValueError, match="x1"):
            use(spoiled(value))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (None, "requires y to be passed"),
        (np.array(["a"] * 60), r"one class only, \['a'\]"),
        (np.arange(60) + 0.5, "Unknown label type"),
        (np.where(np.arange(60) == 3, np.nan, np.arange(60) % 2), "NaN"),
        (pd.Series([None, *LABELS[1:]], dtype=object), "missing value in row 0"),
        (np.stack([LABELS, LABELS], 1), "1d array"),
        (LABELS[:50], "60 rows and the second 50"),
    ],
)
def test_labels_that_are_none(labels, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        linear().fit(ROWS, labels)


def test_one_class_has_all_the_weight() -> None:
    with pytest.raises(ValueError, match=r"one class only, \['b'\] among the rows whose weight is not 0"):
        linear().fit(ROWS, LABELS, sample_weight=(LABELS == "b").astype(float))


def test_a_class_without_weight_is_never_predicted() -> None:
    with pytest.warns(FitWarning, match=r"none of the classes \['c'\]"):
        fit = linear().fit(ROWS, LABELS, sample_weight=(LABELS != "c").astype(float))
    assert set(fit.predict(ROWS)) <= {"a", "b"}
    assert fit.predict_proba(ROWS)[:, 2].max() < 1e-9


def test_columns_must_be_those_of_the_fit() -> None:
    fit = linear().fit(ROWS, LABELS)
    with pytest.raises(ValueError, match="2 features, but RelevantClassifier is expecting 3"):
        fit.predict(ROWS[:, :2])
    with pytest.raises(ValueError, match="X has 2 columns"):
        fit.predict(ArraySource(torch.as_tensor(ROWS[:, :2])))
    with pytest.raises(ValueError, match="images of shape"):
        fit.predict(ROWS.reshape(60, 1, 3))


def test_text_is_no_feature() -> None:
    with pytest.raises(ValueError, match="a table of numbers is needed"):
        linear().fit(LABELS[:, None], LABELS)


def test_a_label_never_seen_is_a_wrong_prediction() -> None:
    """As scikit-learn scores: no class of the fit can be it."""
    fit = linear().fit(ROWS, LABELS)
    assert fit.score(ROWS[:2], ["z", "z"]) == 0.0


def test_separable_classes_keep_relevances_in_bounds() -> None:
    with pytest.warns(FitWarning, match="exact function of the other view"):
        fit = linear().fit(np.eye(3)[np.arange(60) % 3], LABELS)
    assert 0.0 <= fit.relevance_.min() <= fit.relevance_.max() <= 1.0
    assert fit.score(np.eye(3)[np.arange(60) % 3], LABELS) == 1.0


@pytest.mark.filterwarnings("ignore:2 canonical variables")
def test_fewer_rows_than_columns_are_reported() -> None:
    rows = np.random.default_rng(1).normal(size=(12, 40))
    with pytest.warns(FitWarning, match="12 rows for 40 features of X"):
        linear().fit(rows, LABELS[:12])


def test_a_small_batch_is_reported() -> None:
    with pytest.warns(FitWarning, match="below 10 rows per feature"):
        RelevantClassifier(batch_size=10, **QUICK).fit(ROWS, LABELS)


def test_a_temperature_of_the_rows_learned_from_is_reported() -> None:
    with pytest.warns(FitWarning, match="overconfident: raise validation_fraction"):
        RelevantClassifier(calibration="temperature", validation_fraction=0.0, **QUICK).fit(ROWS, LABELS)


def test_constant_columns_add_nothing() -> None:
    with_constant = np.hstack([ROWS, np.full((60, 1), 7.0)])
    one, two = linear().fit(ROWS, LABELS), linear().fit(with_constant, LABELS)
    np.testing.assert_allclose(one.decision_function(ROWS), two.decision_function(with_constant), atol=1e-9)
