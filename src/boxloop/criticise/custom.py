"""A test function of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from boxloop.criticise.probes import Vector
from boxloop.types import Distribution


@dataclass(frozen=True)
class CustomProbe(Vector):
    """A user's function."""

    function: Callable[[Tensor], Tensor]
    expectation: Callable[[Distribution], Tensor] | None
    title: str
    size: int

    @property
    def name(self) -> str:
        """As the user calls it."""
        return self.title

    @property
    def moment(self) -> str:
        """In the units of the function."""
        return f"mean of {self.title}"

    def labels(self) -> list[str]:
        """Its name, numbered if it has several values."""
        return [self.title] if self.size == 1 else [f"{self.title} {i}" for i in range(self.size)]

    def values(self, rows: Tensor) -> Tensor:
        """As a matrix."""
        return self.function(rows.reshape(-1, rows.shape[-1])).reshape(*rows.shape[:-1], -1)

    def exact(self, law: Distribution) -> Tensor | None:
        """The user's closed form, if any."""
        if self.expectation is None:
            return None
        found = self.expectation(law)
        if not isinstance(found, Tensor) or len(found) != len(law.mean):
            raise TypeError(f"expectation of {self.title} must give a tensor (m,) or (m, p) for m laws")
        return found.reshape(len(law.mean), -1)
