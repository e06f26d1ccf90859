"""Every distribution and every family of ``boxloop.distributions``, without being named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from contract.distribution_checks import DISTRIBUTION_CHECKS, FAMILY_CHECKS
from contract.distributions import (
    EXPORTED,
    EXPORTED_FAMILIES,
    FAMILIES,
    OTHERS,
    DistributionCase,
    distribution_case,
)


def name(value: Callable[..., object]) -> str:
    return value.__name__


def test_every_distribution_has_a_builder() -> None:
    assert set(FAMILIES) == EXPORTED_FAMILIES
    assert set(OTHERS) == EXPORTED - EXPORTED_FAMILIES


@pytest.mark.parametrize("check", DISTRIBUTION_CHECKS, ids=name)
@pytest.mark.parametrize("distribution", sorted(EXPORTED, key=name), ids=name)
def test_distribution(distribution: type, check: Callable[[DistributionCase], None]) -> None:
    check(distribution_case(distribution))


@pytest.mark.parametrize("check", FAMILY_CHECKS, ids=name)
@pytest.mark.parametrize("family", sorted(EXPORTED_FAMILIES, key=name), ids=name)
def test_family(family: type, check: Callable[[DistributionCase], None]) -> None:
    check(distribution_case(family))
