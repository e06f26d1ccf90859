"""A device that must be waited for, pretended on the CPU, and a count of the times that one waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from boxloop import asking
from boxloop.data import ArraySource
from boxloop.distributions import DiagonalGaussian, FullGaussian, TiedGaussian
from boxloop.fit import EMState, ahead
from boxloop.models import Mixture
from boxloop.numeric import ConditionError
from boxloop.run import MonotonicityError, Outcome, run
from fit.test_em import overlapping

ANSWERS = {
    "_local_scalar_dense",  # bool, float, int, item
    "_linalg_check_errors",  # of torch.linalg's functions that raise
    "_linalg_eigh",  # these look at what the library says, on a GPU
    "_linalg_svd",
    "_unique2",
    "unique_dim",
    "bincount",
    "equal",
    "masked_select",
    "nonzero",
    "repeat_interleave",
}
"""Operations whose result the host must see before it can go on."""


class Reads(TorchDispatchMode):
    """Counts the reads of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self._lists = _Lists(self)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function._schema.name.split("::")[1]
        if name in ANSWERS or (name.startswith("index") and _masked(args)):
            self.names.append(name)
        return function(*args, **(kwargs or {}))

    def __enter__(self) -> Reads:
        super().__enter__()
        self._lists.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._lists.__exit__(*error)
        super().__exit__(*error)


class _Lists(TorchFunctionMode):
    """Lists are made from memory, past the operations that a dispatcher sees."""

    def __init__(self, reads: Reads) -> None:
        super().__init__()
        self.reads = reads

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is Tensor.tolist:
            self.reads.names.append("tolist")
        return function(*args, **(kwargs or {}))


def _masked(args: Any) -> bool:
    places = args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else ()
    return any(isinstance(place, Tensor) and place.dtype == torch.bool for place in places)


@contextmanager
def far(most: int = ahead.MOST) -> Iterator[None]:
    """All tensors are far, however quick: blocks have up to ``most`` rounds."""
    with (
        patch.object(asking, "NEAR", frozenset()),
        patch.object(ahead, "SECONDS", torch.inf),
        patch.object(ahead, "MOST", most),
    ):
        yield


def told_of(progress: Any) -> Any:
    leaves = [(name, leaf.clone()) for name, leaf in progress.state.leaves()]
    rest = (progress.round, list(progress.trace), list(progress.events), progress.stopped, progress.converged)
    return leaves, progress.state.bar, rest


def followed(make: Callable[[], tuple[Any, Any]], **how: Any) -> tuple[Outcome[Any] | Exception, list[Any]]:
    """How a loop ends, by an error too, and all that observers were told."""
    step, state = make()
    seen: list[Any] = []
    try:
        return run(step, state, observers=[lambda p: seen.append(told_of(p))], **how), seen
    except (MonotonicityError, ConditionError) as error:
        return error, seen


def assert_alike(
    make: Callable[[], tuple[Any, Any]], **how: Any
) -> tuple[Outcome[Any] | Exception, list[Any]]:
    """The same rounds, states, events, words and end with hope as without; what careful steps gave."""
    how = {"max_rounds": 24, **how}
    careful, heard = followed(make, **how)
    with far():
        hoped, also_heard = followed(make, **how)
    assert len(heard) == len(also_heard)
    for (leaves, bar, rest), (others, other_bar, other_rest) in zip(heard, also_heard, strict=True):
        assert rest == other_rest
        assert bar == other_bar
        assert type(other_bar) is float
        assert [name for name, _ in leaves] == [name for name, _ in others]
        assert all(torch.equal(a, b) for (_, a), (_, b) in zip(leaves, others, strict=True))
    assert type(careful) is type(hoped)
    if isinstance(careful, Outcome):
        assert isinstance(hoped, Outcome)
        assert replace(careful, state=None) == replace(hoped, state=None)
    else:
        assert str(careful) == str(hoped)
    return careful, heard


def problem(engine: Any, model: Any, rows: Tensor, weight: Tensor | None = None, **how: Any) -> Any:
    """A new start each time: a model remembers what it has answered."""
    return lambda: (engine(ArraySource(rows, weight), **how), EMState(model.map(torch.clone)))


def creeping(kind: type, floor: float = 1e-6) -> tuple[Mixture[Any], Tensor]:
    """Two clusters in one another, of any shape."""
    model, rows = overlapping()
    eye = torch.eye(2, dtype=torch.float64)
    spread = {FullGaussian: eye.repeat(2, 1, 1), TiedGaussian: eye, DiagonalGaussian: torch.ones_like(eye)}
    return Mixture(model.log_weight, kind(model.family.mean, spread[kind], floor)), rows


def reads(make: Callable[[], tuple[Any, Any]], rounds: int) -> int:
    step, state = make()
    with far(), Reads() as seen:
        run(step, state, max_rounds=rounds)
    return len(seen.names)
