"""scikit-learn's checks that an estimator fails as it is constructed by default, each with its reason.

A list is exact: a check that no longer fails has to leave it.
"""

from __future__ import annotations

from sklearn.base import BaseEstimator

DECIMALS = "the check gives decimals, which a mixture of counts refuses; weights are held against repetitions elsewhere"
ONE_COLUMN = (
    "the check takes whatever has predict_proba for a classifier of two classes; one component has one column"
)
NOT_BITS = "the rows of the check are no zeros and ones, which are refused unless binarize is given"
GROUPS = "the fit needs groups, which the check does not give"
NOT_COUNTS = "the responses of the check are decimals, which a regression of counts refuses"
SEPARATED = "columns of the check tell its two classes apart without error: the likelihood has no maximum"
COLLINEAR = "the check has more columns than rows, or collinear ones: the likelihood has no one maximum"
ONE_GROUP = "the check has one row, thus one group"
BATCHES = "training draws mini-batches of rows, in which a weight is not a repetition"
ONE_PAIR = (
    "the y of the check has one column: there is one pair of canonical variables, and CCA's default is two"
)
FLOAT32 = "networks are in float32, whose sums differ in the seventh digit with the size of a batch"

WEIGHTS = "check_sample_weight_equivalence_on_dense_data"
SPARSE_WEIGHTS = "check_sample_weight_equivalence_on_sparse_data"
SPARSE = ("check_estimator_sparse_array", "check_estimator_sparse_matrix")
COUNTS = {WEIGHTS: DECIMALS, SPARSE_WEIGHTS: DECIMALS}

WITHOUT_GROUPS = """
    check_all_zero_sample_weights_error check_dict_unchanged check_dont_overwrite_parameters
    check_dtype_object check_estimators_dtypes check_estimators_fit_returns_self
    check_estimators_nan_inf check_estimators_overwrite_params check_estimators_pickle
    check_f_contiguous_array_estimator check_fit2d_1feature check_fit2d_predict1d
    check_fit_check_is_fitted check_fit_idempotent check_fit_score_takes_y
    check_methods_sample_order_invariance check_methods_subset_invariance check_n_features_in
    check_n_features_in_after_fitting check_non_transformer_estimators_n_iter check_pipeline_consistency
    check_positive_only_tag_during_fit check_readonly_memmap_input
    check_sample_weight_equivalence_on_dense_data check_sample_weights_list
    check_sample_weights_not_an_array check_sample_weights_not_overwritten
    check_sample_weights_pandas_series check_sample_weights_shape check_supervised_y_2d
"""
OF_LABELS = """
    check_classifier_data_not_an_array check_classifiers_classes
    check_classifiers_one_label_sample_weights check_classifiers_train
"""
OF_COUNTS = "check_fit2d_1sample check_regressors_int"
OF_DECIMALS = """
    check_fit_check_is_fitted check_fit_idempotent check_n_features_in check_n_features_in_after_fitting
    check_regressor_data_not_an_array check_regressors_no_decision_function check_regressors_train
"""
OF_SEPARATED = """
    check_classifiers_classes check_dict_unchanged check_dont_overwrite_parameters check_estimators_fit_returns_self
    check_estimators_overwrite_params check_f_contiguous_array_estimator check_fit2d_1feature check_fit2d_predict1d
    check_methods_sample_order_invariance check_methods_subset_invariance check_non_transformer_estimators_n_iter
    check_positive_only_tag_during_fit check_readonly_memmap_input
"""
OF_FEW_ROWS = """
    check_estimators_pickle check_pipeline_consistency check_sample_weights_not_overwritten
    check_sample_weights_shape
"""
OF_BITS = """
    check_dict_unchanged check_dont_overwrite_parameters check_estimators_dtypes
    check_estimators_fit_returns_self check_estimators_overwrite_params
    check_f_contiguous_array_estimator check_fit2d_1feature check_fit2d_1sample check_fit2d_predict1d
    check_fit_check_is_fitted check_fit_idempotent check_methods_sample_order_invariance
    check_methods_subset_invariance check_n_features_in check_n_features_in_after_fitting
    check_readonly_memmap_input check_sample_weight_equivalence_on_dense_data
    check_sample_weights_not_an_array check_sample_weights_not_overwritten
    check_sample_weights_pandas_series check_sample_weights_shape check_transformer_data_not_an_array
    check_transformer_general check_transformer_preserve_dtypes
"""

OF_ONE_PAIR = """
    check_dict_unchanged check_dtype_object check_estimators_dtypes check_estimators_fit_returns_self
    check_estimators_nan_inf check_estimators_overwrite_params check_estimators_pickle
    check_f_contiguous_array_estimator check_fit_check_is_fitted check_fit_idempotent check_fit_score_takes_y
    check_n_features_in check_n_features_in_after_fitting check_non_transformer_estimators_n_iter
    check_positive_only_tag_during_fit check_readonly_memmap_input check_regressors_no_decision_function
    check_supervised_y_2d check_transformer_preserve_dtypes
"""

COUNTING = ("PoissonMixture", "MultinomialMixture", "BayesianMultinomialMixture")
BY_DEFAULT: dict[str, dict[str, str]] = {
    **{name: {**COUNTS, **dict.fromkeys(SPARSE, ONE_COLUMN)} for name in COUNTING},
    "BernoulliMixture": dict.fromkeys(OF_BITS.split(), NOT_BITS),
    "CCA": dict.fromkeys(OF_ONE_PAIR.split(), ONE_PAIR),
    "LogisticRandomEffects": dict.fromkeys((WITHOUT_GROUPS + OF_LABELS).split(), GROUPS),
    "PoissonRandomEffects": {
        **dict.fromkeys((WITHOUT_GROUPS + OF_COUNTS).split(), GROUPS),
        **dict.fromkeys(OF_DECIMALS.split(), NOT_COUNTS),
    },
    "VariationalAutoencoder": {WEIGHTS: BATCHES},
    "NetworkRegressor": {WEIGHTS: BATCHES},
    "NetworkClassifier": {WEIGHTS: BATCHES},
    "RelevantClassifier": {WEIGHTS: BATCHES},
    "RelevantGenerator": {WEIGHTS: BATCHES},
    "RelevantFeatures": {
        WEIGHTS: BATCHES,
        "check_methods_sample_order_invariance": FLOAT32,
        "check_methods_subset_invariance": FLOAT32,
    },
}
"""By name of the class; a class that is not here fails none."""

WITH_GROUPS: dict[str, dict[str, str]] = {
    "LogisticRandomEffects": {
        **dict.fromkeys(OF_SEPARATED.split(), SEPARATED),
        **dict.fromkeys((*OF_FEW_ROWS.split(), WEIGHTS), COLLINEAR),
        "check_estimators_dtypes": "within every group of the check all responses are equal",
    },
    "PoissonRandomEffects": {
        **dict.fromkeys(OF_DECIMALS.split(), NOT_COUNTS),
        WEIGHTS: COLLINEAR,
        "check_fit2d_1sample": ONE_GROUP,
    },
}
"""The same where every row has a group."""


def expected_of(estimator: BaseEstimator) -> dict[str, str]:
    """Checks that a mixture of several components fails."""
    return COUNTS if type(estimator).__name__ in COUNTING else {}
