"""Wrong kinds of arguments to every public function: an error that says so, never one from inside."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError
from sklearn.mixture import GaussianMixture as Peer

import boxloop
from boxloop import compare, criticise
from boxloop.criticise import as_model
from boxloop.distributions import DiagonalGaussian
from boxloop.numeric import generator

ROWS = np.random.default_rng(0).normal(size=(60, 2))
HELD = np.random.default_rng(1).normal(size=(40, 2))
FIT = boxloop.GaussianMixture(1).fit(ROWS)
CODES = boxloop.VariationalAutoencoder(1, hidden=(4,), max_iter=2, patience=None, random_state=0).fit(ROWS)
SHARES, LABELS = np.tile([0.4, 0.6], (60, 1)), (ROWS[:, 0] > 0).astype(int)
NORMAL = DiagonalGaussian(torch.zeros(1, 2).double(), torch.ones(1, 2).double())
TENSOR = torch.from_numpy(ROWS)


def judged(function: Any) -> Any:
    return criticise.mega(FIT, HELD, functions=[function], draws=0)


CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "mega": (lambda *given: criticise.mega(*given[:2], train=given[2], draws=9), (FIT, HELD, ROWS)),
    "mega, functions": (judged, (criticise.First(),)),
    "mega, weights": (lambda w: criticise.mega(FIT, HELD, sample_weight=w, draws=0), (np.ones(40),)),
    "as_model": (criticise.as_model, (FIT,)),
    "as_model, pair": (
        lambda prior, emission: criticise.mega(as_model(prior, emission), HELD, nodes=64, draws=0),
        (2, lambda z: (z, torch.ones_like(z))),
    ),
    "calibration": (criticise.calibration, (FIT, HELD)),
    "information_criteria": (criticise.information_criteria, (FIT, ROWS)),
    "active_units": (criticise.active_units, (CODES, ROWS)),
    "aggregate_gap": (lambda *given: criticise.aggregate_gap(*given, permutations=9), (CODES, ROWS)),
    "mmd": (criticise.mmd, (ROWS, HELD)),
    "median_bandwidth": (criticise.median_bandwidth, (ROWS, HELD)),
    "energy_distance": (criticise.energy_distance, (ROWS, HELD)),
    "sliced_wasserstein": (criticise.sliced_wasserstein, (ROWS, HELD)),
    "frechet_distance": (criticise.frechet_distance, (ROWS, HELD)),
    "gaussian_wasserstein": (
        criticise.gaussian_wasserstein,
        (np.zeros(2), np.eye(2), np.zeros(2), np.eye(2)),
    ),
    "relative_covariance_error": (criticise.relative_covariance_error, (np.eye(2), np.eye(2))),
    "kernel_stein": (lambda *given: criticise.kernel_stein(*given, bootstrap=9), (ROWS, lambda rows: -rows)),
    "score_of": (lambda model: criticise.score_of(model)(TENSOR), (as_model(FIT),)),
    "classification_scores": (criticise.classification_scores, (SHARES, LABELS)),
    "regression_scores": (criticise.regression_scores, (ROWS[:, 0], ROWS[:, 1], np.ones(60))),
    "reliability": (criticise.reliability, (SHARES, LABELS)),
    "entrywise": (criticise.entrywise, (torch.eye(2),)),
    "schatten": (criticise.schatten, (torch.eye(2),)),
    "operator": (criticise.operator, (torch.eye(2),)),
    "moment_penalty": (
        lambda model: criticise.moment_penalty(0.1, 64)(as_model(model), TENSOR, generator(0)),
        (FIT,),
    ),
    "paper_gaps": (lambda *given: criticise.paper_gaps(*given, generator(0), 64), (FIT, TENSOR)),
    "second_gap_norm": (
        lambda *given: criticise.second_gap_norm(*given, torch.ones(1).double()),
        (TENSOR, NORMAL),
    ),
    "forward_moments": (lambda *given: criticise.forward_moments(*given, generator(0)), (FIT, [])),
    "Power": (lambda order, pairs: judged(criticise.Power(order, pairs=pairs)), (3, [(0, 1)])),
    "Power, projections": (lambda count: judged(criticise.Power(3, projections=count)), (2,)),
    "Fourier": (lambda count, width: judged(criticise.Fourier(count, width)), (3, 1.0)),
    "Below": (lambda levels: judged(criticise.Below(levels)), ((0.5,),)),
    "Below, thresholds": (lambda at: judged(criticise.Below(thresholds=at)), ({0: [1.0]},)),
    "Lagged": (lambda lag: judged(criticise.Lagged(lag)), (1,)),
    "Second": (lambda about: judged(criticise.Second(about)), ("mean",)),
    "Custom": (lambda *given: judged(criticise.Custom(*given)), (lambda rows: rows.sum(1), None)),
    "compare": (compare, ([FIT], HELD)),
}
WRONG: dict[str, Any] = {
    "None": None,
    "number": 3,
    "negative": -1,
    "nan": float("nan"),
    "text": "text",
    "object": object(),
    "list": [],
    "mapping": {},
    "four axes": np.zeros((2, 2, 2, 2)),
    "no rows": np.zeros((0, 2)),
    "words": [["a", "b"]] * 60,
    "complex": np.ones((60, 2)) * 1j,
    "function": len,
    "class": Peer,
    "not fitted": Peer(),
    "ours, not fitted": boxloop.GaussianMixture(),
    "codes, not fitted": boxloop.VariationalAutoencoder(),
    "models": [FIT, FIT],
    "loader": torch.utils.data.DataLoader(torch.zeros(4, 2)),
}
RESULTS = {
    "ActiveUnits",
    "AggregateGap",
    "Calibration",
    "ClassificationScores",
    "Criteria",
    "Difference",
    "ForwardMoment",
    "Gap",
}
RESULTS |= {"Mega", "MomentPenalty", "RegressionScores", "Reliability", "TestFunction", "First"}


def test_every_public_name_is_called() -> None:
    assert set(criticise.__all__) <= {name.partition(",")[0] for name in CALLS} | RESULTS


@pytest.mark.parametrize("name", CALLS)
def test_wrong_kinds_are_refused_in_words(name: str) -> None:
    """ValueError, TypeError, NotFittedError, or no file of that name: what a caller can mend. The right call works."""
    function, right = CALLS[name]
    refused = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        function(*right)
        for place in range(len(right)):
            for kind, wrong in WRONG.items():
                given = [*right[:place], wrong, *right[place + 1 :]]
                try:
                    function(*given)
                except Exception as error:
                    refused.append((kind, place, error))
    mended = (ValueError, TypeError, NotFittedError, FileNotFoundError)
    assert [case for case in refused if not (isinstance(case[2], mended) and str(case[2]))] == []
    assert refused


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: as_model(Peer(2)), NotFittedError, "call fit"),
        (lambda: as_model([FIT, FIT]), TypeError, "cannot take list as a model"),
        (lambda: as_model(0, lambda z: z), ValueError, "at least 1"),
        (
            lambda: criticise.mega(FIT, HELD, functions=[criticise.First]),
            TypeError,
            "the class First",
        ),
        (
            lambda: criticise.mega(as_model(2, lambda z: z), HELD),
            TypeError,
            r"emission\(z\) is Tensor.*\(mean, var",
        ),
        (lambda: criticise.mega(as_model(2, lambda z: None), HELD), TypeError, r"emission\(z\) is NoneType"),
        (
            lambda: judged(criticise.Power(3, projections=-1)),
            ValueError,
            "projections must be at least 0, got -1",
        ),
        (
            lambda: judged(criticise.Below(thresholds=[1.0])),
            TypeError,
            "thresholds must map columns to values",
        ),
        (lambda: judged(criticise.Custom(len)), TypeError, "Custom must give a tensor"),
        (lambda: criticise.calibration(FIT, ROWS[:, :1]), ValueError, "model has 2 columns, the rows have 1"),
        (lambda: criticise.score_of(FIT), TypeError, r"pass as_model\(estimator\)"),
        (
            lambda: criticise.schatten(np.ones((2, 3))),
            ValueError,
            r"square matrix of real numbers, got shape \(2, 3\)",
        ),
        (
            lambda: criticise.forward_moments(FIT, [criticise.First()], generator(0)),
            TypeError,
            r"First\(\).prepare\(frame\)",
        ),
        (lambda: compare(len, HELD), TypeError, "a list or a dictionary of them, got builtin_function"),
        (lambda: compare([], HELD), ValueError, "at least one model"),
        (lambda: compare([Peer(2)], HELD), NotFittedError, "fit"),
    ],
)
def test_errors_name_the_remedy(call: Callable[[], Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()
