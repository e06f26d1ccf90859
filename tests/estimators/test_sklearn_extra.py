"""The checks that scikit-learn runs on its own classes but ``parametrize_with_checks`` does not run."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable

import numpy as np
import pytest
from sklearn.utils import estimator_checks as checks

from estimators.cases import Case, every, mixtures

EXPECTED_WARNINGS = ("ignore::boxloop.FitWarning", "ignore::sklearn.exceptions.ConvergenceWarning")
# The checks of set_output mix frames and arrays, whoever is tested.
MIXED = ("ignore:X does not have valid feature names", "ignore:X has feature names")
pytestmark = [pytest.mark.filterwarnings(expected) for expected in (*EXPECTED_WARNINGS, *MIXED)]

EXTRA = [
    checks.check_all_zero_sample_weights_error,
    checks.check_dataframe_column_names_consistency,
    checks.check_get_feature_names_out_error,
    checks.check_global_output_transform_pandas,
    checks.check_global_set_output_transform_polars,
    checks.check_param_validation,
    checks.check_readonly_memmap_input,
    checks.check_set_output_transform,
    checks.check_set_output_transform_pandas,
    checks.check_set_output_transform_polars,
    checks.check_transformer_get_feature_names_out,
    checks.check_transformer_get_feature_names_out_pandas,
    checks.check_transformer_n_iter,
]
NOT_FOR_US = {
    "check_array_api_input",
    "check_array_api_input_and_values",
    "check_array_api_mixed_inputs",
    "check_array_api_same_namespace",
    "check_class_weight_balanced_classifiers",
    "check_classifiers_predictions",
    "check_estimator",
    "check_inplace_ensure_writeable",
    "check_outlier_corruption",
}


@pytest.mark.parametrize("check", EXTRA, ids=lambda check: check.__name__)
@every
def test_check_that_is_not_run_by_default(case: Case, check: Callable[..., None]) -> None:
    check(case.kind.__name__, case.for_measurements(n_components=1))


@pytest.mark.parametrize("kind", ["NotAnArray", "PandasDataframe"])
@mixtures
def test_what_is_not_an_array(case: Case, kind: str) -> None:
    checks.check_estimators_data_not_an_array(
        case.kind.__name__, case.for_measurements(), abs(case.rows(20)), np.zeros(20), kind
    )


@every
def test_no_warning_about_feature_names(case: Case) -> None:
    with warnings.catch_warnings(record=True) as record:
        estimator = case.for_measurements(n_components=1)
        checks.check_dataframe_column_names_consistency(case.kind.__name__, estimator)
    assert not [w for w in record if "was fitted without feature names" in str(w.message)]


def test_no_check_of_scikit_learn_is_forgotten() -> None:
    """A release that brings new checks fails here, so that someone looks at them."""
    source = inspect.getsource(checks)
    written = {
        name
        for name, value in vars(checks).items()
        if name.startswith("check_") and inspect.isfunction(value) and value.__module__ == checks.__name__
    }
    standard = {name for name in written if f"yield {name}" in source or f"partial({name}" in source}
    here = {check.__name__ for check in EXTRA} | {"check_estimators_data_not_an_array"}
    assert written - standard - here - NOT_FOR_US == set()
