r"""Running statistics of BatchNorm under drawn weights: those of the training run belong to other weights.

InstanceNorm that keeps statistics is treated likewise.

.. math:: \hat m = \tfrac1B \sum_b m_b, \qquad \hat v = \tfrac1B \sum_b v_b

over batches b of inputs, for every draw (Izmailov et al., 2018; Maddox et al., 2019).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.instancenorm import _InstanceNorm

from boxloop.data import as_frame
from boxloop.weights.functional import Buffers, NetFunction, batch_norms, evaluating
from boxloop.weights.inputs import Inputs, as_inputs, count, cut
from boxloop.weights.method import Part
from boxloop.weights.outputs import Draws
from boxloop.weights.trial import TRIED, agree, trial

ROWS = 256
"""In a batch, where all rows come as one array."""


@dataclass(frozen=True, eq=False)
class Batches:
    """Inputs that can be gone through more than once.

    Args:
        given: an array, a frame or a list of rows, a dictionary of tensors, or batches of inputs: a list, a loader. Of
            a batch that is a tuple, inputs come first.
    """

    given: Any

    def __post_init__(self) -> None:
        if isinstance(self.given, Iterator):
            raise ValueError("these batches can be gone through only once: give a list of them, or a loader")
        if not isinstance(self.given, (Iterable, np.ndarray, Tensor)):
            raise ValueError(f"refresh must be rows or batches of inputs, got a {type(self.given).__name__}")

    def __iter__(self) -> Iterator[Inputs]:
        if _is_table(self.given):
            rows = as_inputs(self.given)
            for places in np.array_split(np.arange(count(rows)), -(-count(rows) // ROWS)):
                yield cut(rows, int(places[0]), int(places[-1]) + 1)
            return
        for batch in self.given:
            yield as_inputs(batch[0] if isinstance(batch, (tuple, list)) else batch)


def has_batch_norm(parts: Iterable[Part]) -> bool:
    """Whether any network keeps running statistics."""
    return any(batch_norms(part.net) for part in parts)


def refreshed(
    draws: Draws, batches: Batches, *, together: bool | None = None, memory: int | None = None
) -> tuple[dict[str, Tensor], ...]:
    """Statistics of BatchNorm under every draw, means over the batches, all of which count the same.

    Only BatchNorm is as in training; dropout stays off. On a network that holds a draw and has no dropout, the same as
    ``torch.optim.swa_utils.update_bn``.

    Args:
        draws: which networks.
        batches: of inputs; gone through once for each chunk of draws.
        together: as in :func:`run_draws`.
        memory: bytes that may be taken for draws in flight; None to choose.

    Returns:
        For each part, buffers by name with a leading axis of its draws.

    Raises:
        ValueError: no batches, or a network that cannot take them.
    """
    return tuple(_of_part(draws, place, batches, together, memory) for place in range(len(draws.parts)))


def _of_part(
    draws: Draws, place: int, batches: Batches, together: bool | None, memory: int | None
) -> dict[str, Tensor]:
    net = draws.parts[place].net
    function = NetFunction(net, draws.parts[place].layout)
    if not batch_norms(net):
        return {}
    with _same_random_numbers():
        first = next(iter(batches), None)
    if first is None:
        raise ValueError("refresh has no batches")
    vectors = draws.few(place)
    with evaluating(net):
        how = trial(function, vectors, {}, first, together, memory)
    with evaluating(net, refreshing=True):
        safe = how.together and (together is True or _agree(function, vectors, first))
        size = how.draws(function.layout.size, count(first))
        each = [_gathered(function, chunk, batches, together=safe) for chunk in draws.chunks(place, size)]
    return {name: torch.cat([one[name] for one in each]) for name in each[0]}


def _gathered(
    function: NetFunction, vectors: Tensor, batches: Iterable[Inputs], *, together: bool
) -> Buffers:
    weights, now = function.weights(vectors), _nothing_seen(function, len(vectors))
    alike = [norm for norm in batch_norms(function.net).values() if isinstance(norm, _InstanceNorm)]
    with _same_random_numbers():
        for number, batch in enumerate(batches, 1):
            for norm in alike:
                norm.momentum = 1.0 / number  # it does not count batches, as BatchNorm does
            try:
                now = function.statistics(weights, now, function.take(batch), together=together)
            except ValueError as error:
                if count(batch) > 1:
                    raise
                raise ValueError(
                    f"a batch of refresh has one row, of which there are no statistics ({error}): leave it out, as "
                    "drop_last=True of a loader does"
                ) from error
    return {name: value for name, value in now.items() if value.ndim}


def _agree(function: NetFunction, vectors: Tensor, first: Inputs) -> bool:
    """Whether statistics of draws that go together are those of single ones."""

    def found(together: bool) -> Tensor:
        seen = _gathered(function, vectors[:TRIED], [first], together=together)
        return torch.cat([value.reshape(-1) for value in seen.values()])

    return agree(function.net, found(False), lambda: found(True))


def _nothing_seen(function: NetFunction, n: int) -> Buffers:
    now: dict[str, Tensor] = {}
    for name, norm in batch_norms(function.net).items():
        lead = f"{name}." if name else ""
        mean, variance = norm.running_mean, norm.running_var
        assert mean is not None
        assert variance is not None
        wide = torch.promote_types(mean.dtype, torch.float32)
        now[f"{lead}running_mean"] = torch.zeros(n, *mean.shape, dtype=wide, device=mean.device)
        now[f"{lead}running_var"] = torch.ones(n, *variance.shape, dtype=wide, device=mean.device)
        now[f"{lead}num_batches_tracked"] = torch.zeros((), dtype=torch.long, device=mean.device)
    return now


def _is_table(given: Any) -> bool:
    """Whether all rows come as one, and not in batches."""
    if isinstance(given, (list, tuple)):
        first = given[0] if given else None
        return isinstance(first[0] if isinstance(first, (list, tuple)) and first else first, Real)
    return isinstance(given, (np.ndarray, Tensor, dict)) or as_frame(given) is not None


def _same_random_numbers() -> Any:
    """A loader asks the global stream for the order of its rows: every chunk of draws sees the same, none moves it."""
    return torch.random.fork_rng(devices=[])
