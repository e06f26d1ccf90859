"""Wrong kinds of arguments to functions on weights of networks, two views and selection: the error says what is needed.

Arrays and lists where tensors or sources are wanted are among them; those of ``criticise`` have their own tests.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError

import boxloop
from boxloop import networks, select, twoview
from boxloop.data import ArraySource
from boxloop.twoview import LinearView, ViewPair

ROWS = np.random.default_rng(0).normal(size=(60, 4))
ROWS[:, 2] += ROWS[:, 0]
SOURCE = ArraySource(torch.from_numpy(ROWS))
UNIT = LinearView(torch.zeros(2).double(), torch.ones(2).double())
PAIR = ViewPair(UNIT, UNIT)
MODEL = twoview.RelevanceModel.solve(PAIR, SOURCE, most=2)
CONDITIONAL = twoview.ConditionalDistribution(MODEL, SOURCE)
X, Y = torch.from_numpy(ROWS[:, :3]), torch.from_numpy(ROWS[:, 3:])
PRODUCTS = twoview.MomentSums.of(PAIR, torch.from_numpy(ROWS), torch.ones(60).double())
CANONICAL = MODEL.canonical
MOMENTS = networks.RegressionMoments.from_rows(X, Y)
NET = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
SGD = torch.optim.SGD(NET.parameters(), lr=0.1, weight_decay=0.01)
FIT = boxloop.GaussianMixture(1).fit(ROWS)
WORDS = np.random.default_rng(1).poisson(3.0, size=(40, 5)).astype(float)

CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "linear_regression": (networks.linear_regression, (MOMENTS, 1.0, 1.0)),
    "regression_moments": (networks.regression_moments, (SOURCE, 1)),
    "RegressionMoments.from_rows": (networks.RegressionMoments.from_rows, (X, Y, torch.ones(60))),
    "weight_decay": (lambda a, n: networks.weight_decay(a, n, noise_precision=1.0), (0.01, 100)),
    "weight_decay, loss": (lambda *more: networks.weight_decay(1.0, 10, *more), ("mean_squared", 1.0, 1)),
    "implied_precision": (networks.implied_precision, (0.01, 100, "mean_log")),
    "check_weight_decay": (
        lambda o, a, n: networks.check_weight_decay(o, a, n, noise_precision=1.0),
        (SGD, 0.1, 10),
    ),
    "window_length": (networks.window_length, (100, 10)),
    "last_layer_laplace": (networks.last_layer_laplace, (NET, X, Y, "regression", 1.0, 1.0)),
    "relevance_loss": (twoview.relevance_loss, (X[:, :2], X[:, 1:], torch.ones(60))),
    "fit_fixed_features": (twoview.fit_fixed_features, (PAIR, SOURCE, 2, 0.1)),
    "choose_ridge": (twoview.choose_ridge, (PAIR, SOURCE, 2)),
    "cross_fitted_significance": (
        lambda *given: twoview.cross_fitted_significance(*given, permutations=19),
        (PAIR, SOURCE, 2, 0.1),
    ),
    "held_out_significance": (
        lambda *given: twoview.held_out_significance(*given, permutations=19),
        (MODEL, SOURCE),
    ),
    "density_ratio": (twoview.density_ratio, (CONDITIONAL, ROWS[:3, :2], ROWS[:3, 2:])),
    "diagnose": (twoview.diagnose, (CONDITIONAL,)),
    "conditional_distance": (twoview.conditional_distance, (CANONICAL, PRODUCTS)),
    "self_views": (twoview.self_views, (ROWS, twoview.GaussianNoise(1.0))),
    "one_standard_error": (select.one_standard_error, ([0.0, 1.0], [0.0, 2.0], [3, 2])),
    "penalised_path": (select.penalised_path, ([1.0, 2.0], [0.0, 1.0])),
    "topic_spectrum": (lambda *given: select.topic_spectrum(*given, draws=19), (WORDS, 3)),
    "compare": (select.compare, ([FIT], ROWS)),
}
ELSEWHERE = {"audit", "fit", "load_posterior", "save_posterior"}
"""Functions on posteriors of networks, whose arguments have tests of their own."""
WRONG: dict[str, Any] = {
    "None": None,
    "number": 3.5,
    "negative": -1,
    "nan": float("nan"),
    "text": "text",
    "object": object(),
    "list": [],
    "lists": [[1.0, 2.0], [3.0, 4.0]],
    "array": ROWS,
    "tensor": torch.from_numpy(ROWS),
    "mapping": {"a": [1]},
    "four axes": np.zeros((2, 2, 2, 2)),
    "words": [["a", "b"]] * 60,
    "complex": np.ones((60, 2)) * 1j,
    "function": len,
    "class": networks.RegressionMoments,
    "not fitted": boxloop.GaussianMixture(),
    "loader": torch.utils.data.DataLoader(torch.zeros(4, 2)),
}
RAW = ("object has no attribute", "not supported between", "unsupported operand", "subscriptable", "argument 'input'",
       "not callable", "object is not iterable", "must be real number", "bad operand", "can't multiply")  # fmt: skip
"""Words of Python and torch that name no remedy."""


def test_every_public_function_is_called() -> None:
    functions = {
        name
        for room in (networks, twoview, select)
        for name in room.__all__
        if inspect.isfunction(getattr(room, name))
    }
    assert functions <= {name.partition(",")[0] for name in CALLS} | ELSEWHERE


@pytest.mark.parametrize("name", CALLS)
def test_wrong_kinds_are_refused_in_words(name: str) -> None:
    """``linear_regression`` of an array said that it has no attribute ``to``."""
    function, right = CALLS[name]
    refused = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        function(*right)
        for place in range(len(right)):
            for kind, wrong in WRONG.items():
                try:
                    function(*right[:place], wrong, *right[place + 1 :])
                except Exception as error:
                    refused.append((place, kind, error))
    mended = (ValueError, TypeError, NotFittedError, FileNotFoundError)
    wrong_words = [
        (place, kind, f"{type(error).__name__}: {str(error)[:90]}")
        for place, kind, error in refused
        if not isinstance(error, mended) or not str(error) or any(words in str(error) for words in RAW)
    ]
    assert wrong_words == []
    assert refused
