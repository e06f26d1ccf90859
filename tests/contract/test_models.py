"""Every model of ``boxloop.models``, without being named; the mixture with every family."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from contract.model_checks import MODEL_CHECKS
from contract.models import EXPORTED_MODELS, MODELS, ModelCase, model_cases

CASES = model_cases()


def test_every_model_has_a_builder() -> None:
    assert set(MODELS) == EXPORTED_MODELS


@pytest.mark.parametrize("check", MODEL_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_model(case: ModelCase, check: Callable[[ModelCase], None]) -> None:
    check(case)
