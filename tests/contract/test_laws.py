"""Every law and every family of ``boxloop.distributions``, without being named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from contract.distributions import EXPORTED, EXPORTED_FAMILIES, FAMILIES, OTHERS, LawCase, law_case
from contract.law_checks import FAMILY_CHECKS, LAW_CHECKS


def name(value: Callable[..., object]) -> str:
    return value.__name__


def test_every_law_has_a_builder() -> None:
    assert set(FAMILIES) == EXPORTED_FAMILIES
    assert set(OTHERS) == EXPORTED - EXPORTED_FAMILIES


@pytest.mark.parametrize("check", LAW_CHECKS, ids=name)
@pytest.mark.parametrize("law", sorted(EXPORTED, key=name), ids=name)
def test_law(law: type, check: Callable[[LawCase], None]) -> None:
    check(law_case(law))


@pytest.mark.parametrize("check", FAMILY_CHECKS, ids=name)
@pytest.mark.parametrize("family", sorted(EXPORTED_FAMILIES, key=name), ids=name)
def test_family(family: type, check: Callable[[LawCase], None]) -> None:
    check(law_case(family))
