"""Every exported class has the methods of its protocol, with the protocol's own argument names."""

from __future__ import annotations

import inspect

import pytest

from boxloop.distributions import Family
from boxloop.types import Distribution, ExpectationModel, LatentModel
from contract.distributions import EXPORTED, EXPORTED_FAMILIES
from contract.models import EXPORTED_MODELS

PAIRS = [
    *[(Distribution, distribution) for distribution in EXPORTED],
    *[(Family, distribution) for distribution in EXPORTED_FAMILIES],
    *[(protocol, model) for protocol in (LatentModel, ExpectationModel) for model in EXPORTED_MODELS],
]


def promised(protocol: type) -> dict[str, object]:
    return {name: value for name, value in vars(protocol).items() if not name.startswith("_")}


@pytest.mark.parametrize(
    ("protocol", "kind"), sorted(PAIRS, key=str), ids=lambda value: getattr(value, "__name__", str(value))
)
def test_promises_are_kept(protocol: type, kind: type) -> None:
    fields = getattr(kind, "__dataclass_fields__", {})
    for name, promise in promised(protocol).items():
        if isinstance(promise, property):
            assert name in fields or isinstance(inspect.getattr_static(kind, name), property)
            continue
        kept = inspect.getattr_static(kind, name)
        assert list(inspect.signature(kept).parameters) == list(inspect.signature(promise).parameters), name


def test_protocols_promise_something() -> None:
    model = {"expect", "solve", "expected_log_likelihood", "free_parameters", "with_free_parameters"}
    assert model | {"named_parameters"} <= set(promised(ExpectationModel))
    assert {"view", "fit_statistics", "split", "affine", "is_floored"} <= set(promised(Family))
