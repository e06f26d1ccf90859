"""What is asked of a fit about a long table: the same as of a short one, however many tiles it is read in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from boxloop import compare, mega
from boxloop.criticise import calibration
from boxloop.data import ArraySource, Tile, open_source
from estimators.cases import Case, everyone

ASKED: dict[str, Callable[[Any, Any], Any]] = {
    "score": lambda fit, X: fit.score(X),
    "score_samples": lambda fit, X: fit.score_samples(X),
    "aic": lambda fit, X: fit.aic(X),
    "bic": lambda fit, X: fit.bic(X),
    "predict": lambda fit, X: fit.predict(X),
    "predict_proba": lambda fit, X: fit.predict_proba(X),
    "transform": lambda fit, X: fit.transform(X),
    "posterior": lambda fit, X: list(fit.posterior(X)),
    "standard_errors": lambda fit, X: list(fit.standard_errors(X).values()),
    "compare": lambda fit, X: [(found := compare({"fit": fit}, X)).error, found.bic],
    "mega": lambda fit, X: [gap.z for gap in mega(fit.model_, X, draws=0).gaps],
    "calibration": lambda fit, X: calibration(fit, X).transform,
}


class Cut(ArraySource):
    """Rows in many tiles."""

    def chunks(self, size: int | None = None) -> Iterator[Tile]:
        return super().chunks(min(size or 7, 7))


@pytest.mark.filterwarnings(
    "ignore:the column means of X"
)  # of rows of the fit, under a model without their digest
@everyone
@pytest.mark.parametrize("name", ASKED)
def test_many_tiles_answer_as_one_does(case: Case, name: str) -> None:
    X = case.rows(120)
    fit = case.quick().fit(X)
    if not hasattr(fit, name) and name not in ("compare", "mega", "calibration"):
        pytest.skip(f"it has no {name}")
    whole = open_source(X)
    assert isinstance(whole, ArraySource)
    one, many = (ASKED[name](fit, table) for table in (X, Cut(whole.rows)))
    for a, b in zip(*((found if isinstance(found, list) else [found]) for found in (one, many)), strict=True):
        np.testing.assert_allclose(np.asarray(b), np.asarray(a), rtol=1e-8, atol=1e-10)
