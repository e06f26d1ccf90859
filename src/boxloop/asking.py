"""Questions that a step asks of its numbers, and answers that can wait.

A question about a tensor on a GPU makes the host wait until all that was asked of the device before is done. Most of
them have a usual answer: no value is missing, no component is empty, the matrix has a Cholesky factor. So a round may
be taken in hope: questions get their usual answer at once, what was doubtful is written down, and whether the hope was
right is read later, for many rounds at once. A round whose hope was wrong is worth nothing, and is taken again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import cast

from torch import Tensor

NEAR = frozenset({"cpu"})
"""Devices whose answers cost no wait: there every question is answered at once."""


@dataclass
class Watch:
    """What a step asked: ``doubts`` are true where a hope was wrong, ``odd`` is whether an answer was not the usual."""

    hopes: bool
    doubts: list[Tensor] = field(default_factory=list)
    odd: bool = False


_WATCH: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def _watched(watch: Watch) -> Iterator[Watch]:
    token = _WATCH.set(watch)
    try:
        yield watch
    finally:
        _WATCH.reset(token)


def hoping() -> AbstractContextManager[Watch]:
    """Inside, questions about far tensors get their usual answer and are written down as doubts."""
    return _watched(Watch(hopes=True))


def noting() -> AbstractContextManager[Watch]:
    """Inside, questions are answered, and it is noted whether an answer was not the usual one."""
    return _watched(Watch(hopes=False))


def is_far(value: object) -> bool:
    """Whether the host would wait for this: a tensor that is not where the host is."""
    return isinstance(value, Tensor) and value.device.type not in NEAR


def hopes_for(value: object) -> bool:
    """Whether a question about this would be put off."""
    watch = _WATCH.get()
    return watch is not None and watch.hopes and is_far(value)


def ask(flag: Tensor | bool, *, usual: bool = False) -> bool:
    """Whether ``flag`` is true; in hope, of a far tensor, the usual answer.

    Args:
        flag: a number of truth.
        usual: the answer that is nearly always right.

    Example:
        >>> import torch
        >>> ask(torch.isnan(torch.tensor([1.0, torch.nan])).any())
        True
    """
    watch = _WATCH.get()
    if watch is None:
        return bool(flag)
    if isinstance(flag, Tensor) and watch.hopes and is_far(flag):
        watch.doubts.append(~flag if usual else flag)
        return usual
    answer = bool(flag)
    watch.odd = watch.odd or answer is not usual
    return answer


def told(value: Tensor) -> float:
    """A number as a float; in hope, of a far tensor, the tensor, which stands for the number until it is read."""
    return cast(float, value) if hopes_for(value) else float(value)
