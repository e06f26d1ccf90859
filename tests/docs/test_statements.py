"""What the pages say of the classes as a whole is so."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import boxloop

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "missing_values.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (`.*`) \| (accepted|refused)", GUIDE, re.M)
MODELS = {name: verdict == "accepted" for names, verdict in ROWS for name in re.findall(r"`(\w+)`", names)}
NEITHER = {"MultiPosterior", "OutlierDetector", "ModelSearchCV", "WeightPosterior"}
"""Those that take a model of the user's, and what it takes."""


def test_every_estimator_is_in_the_table() -> None:
    classes = {name for name in boxloop.__all__ if isinstance(getattr(boxloop, name), type)}
    assert {name for name in classes if hasattr(getattr(boxloop, name), "fit")} - NEITHER == set(MODELS)


@pytest.mark.filterwarnings("ignore::boxloop.estimators.FitWarning")
@pytest.mark.parametrize("name", sorted(MODELS))
def test_missing_values_are_accepted_or_refused_as_the_table_says(name: str) -> None:
    model = getattr(boxloop, name)()
    assert model.__sklearn_tags__().input_tags.allow_nan == MODELS[name]
    rows = np.random.default_rng(0).integers(0, 2, (60, 3)).astype(float)
    target = rows[:, 0].copy()
    rows[5, 1] = np.nan
    if MODELS[name]:
        assert np.isfinite(model.set_params(max_iter=20).fit(rows).score_samples(rows)).all()
        return
    with pytest.raises(ValueError, match=r"missing value|NaN"):
        model.fit(rows, target)
