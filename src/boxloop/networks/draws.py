r"""Networks drawn from a posterior and evaluated: how many per component, their outputs, and weighted means over them.

.. math:: f_i(x) = f(x; \theta_i), \qquad \theta_i \sim \sum_p w_p N(\mu_p, c\,\Sigma_p)

No network is copied. Draws are evaluated in chunks and rows in batches, as many as fit the memory. Each draw has its
own random stream, so the networks do not depend on the chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.modules.instancenorm import _InstanceNorm

from boxloop.data import as_frame
from boxloop.networks.distribution import Component
from boxloop.networks.function import (
    TRIAL_SIZE,
    Buffers,
    NetworkFunction,
    check_row_independence,
    evaluation_mode,
    find_batch_norms,
    is_vmap_usable,
)
from boxloop.networks.inputs import Inputs, as_inputs, count_rows, promote_to_float32, slice_rows
from boxloop.numeric import generator, spawn

Array = NDArray[np.float64]

MIN_ROWS = 64
"""Rows in a batch, where memory allows: below it, reading the weights costs more than using them."""
REFRESH_ROWS = 256  # rows in a batch for the statistics of BatchNorm, where all rows are one array


@dataclass(frozen=True, eq=False)
class DrawAllocation:
    r"""How many draws each component has, and means over them: stratified sampling (Cochran, 1977, chapter 5).

    .. math:: \bar f = \sum_p w_p \bar f_p, \qquad \mathrm{Var}(\bar f) = \sum_p w_p^2 s_p^2 / n_p
    """

    shares: Array  # weights of the components, (p,); they sum to 1
    counts: tuple[int, ...]  # draws of each component
    points: tuple[bool, ...]  # which components have zero variance; they need one draw

    @classmethod
    def allocate_proportionally(
        cls, shares: Sequence[float], points: Sequence[bool], draws: int
    ) -> DrawAllocation:
        """Draws in proportion to the shares by largest remainders, at least one each."""
        share, point = np.asarray(shares, dtype=np.float64), np.asarray(points, dtype=bool)
        if not (share.ndim == 1 and len(share) and (share > 0.0).all() and abs(share.sum() - 1.0) < 1e-6):
            raise ValueError(f"weights of components must be above 0 and sum to 1, got {share.tolist()}")
        count = np.ones(len(share), dtype=int)
        varying = np.flatnonzero(~point)
        if len(varying):
            least = max(2, len(varying))
            if draws < least:
                raise ValueError(
                    f"draws must be at least {least} for {len(varying)} component(s) with a variance, got {draws}"
                )
            count[varying] = _apportion_draws(share[varying] / share[varying].sum(), draws)
        return cls(share, tuple(count.tolist()), tuple(point.tolist()))

    @property
    def n_draws(self) -> int:
        """Draws of all components together, m."""
        return sum(self.counts)

    @property
    def weight(self) -> Array:
        """Weight of each draw, (m,); those of a component sum to its share."""
        return np.repeat(self.shares / np.array(self.counts), self.counts)

    def slices(self) -> Iterator[slice]:
        """The draws of each component."""
        ends = np.cumsum(self.counts)
        return (slice(int(end) - n, int(end)) for end, n in zip(ends, self.counts, strict=True))

    def mean(self, values: Array) -> Array:
        """Mean over the draws of values (m, ...)."""
        return np.asarray(np.tensordot(self.weight, values, 1))

    def variance(self, values: Array) -> Array:
        """Unbiased variance of the mixture: within components, and between their means, corrected for finite draws."""
        mean = self.mean(values)
        total = np.zeros_like(mean)
        for w, n, component_mean, within in self._component_moments(values, mean):
            total += w * (component_mean - mean) ** 2 + w * within * (1.0 - (1.0 - w) / n)
        return total

    def standard_error(self, values: Array) -> Array:
        """Monte Carlo standard error of :meth:`mean`, (...)."""
        total = np.zeros(values.shape[1:])
        for w, n, _, within in self._component_moments(values, self.mean(values)):
            total += w**2 * within / n
        return np.asarray(np.sqrt(total))

    def _component_moments(self, values: Array, mean: Array) -> Iterator[tuple[float, int, Array, Array]]:
        """Share, draws, mean and variance of each component; a single draw takes the variance of all draws."""
        for w, n, point, draws in zip(self.shares, self.counts, self.points, self.slices(), strict=True):
            own = values[draws]
            if n > 1:
                within = own.var(0, ddof=1)
            elif point:
                within = np.zeros_like(mean)
            else:
                within = np.asarray(np.tensordot(self.weight, (values - mean) ** 2, 1))
            yield float(w), n, own.mean(0), within


def _apportion_draws(share: Array, total: int) -> NDArray[np.int_]:
    """Integers near ``share * total`` with that sum, all above 0."""
    quota = share * total
    count = np.floor(quota).astype(int)
    largest = np.argsort(count - quota, kind="stable")[: total - int(count.sum())]
    count[largest] += 1
    for place in np.flatnonzero(count == 0):
        count[np.argmax(count)] -= 1
        count[place] = 1
    return count


@dataclass(frozen=True, eq=False)
class NetworkDraws:
    """The networks over which a prediction averages."""

    components: tuple[Component, ...]  # of the posterior
    allocation: DrawAllocation  # draws of each component
    scale: float  # factor of the covariances
    seed: int  # of all random numbers

    @classmethod
    def allocate(
        cls, components: Sequence[Component], n: int, *, scale: float = 1.0, seed: int = 0
    ) -> NetworkDraws:
        """n draws in proportion to the weights of the components; one draw for a component of zero variance."""
        requested: Any = n
        if not isinstance(requested, Integral):
            raise ValueError(f"draws must be a whole number, got {n!r}")
        if not 0.0 <= scale < float("inf"):
            raise ValueError(f"scale must be a finite number, at least 0, got {scale}")
        for component in components:
            _check_component(component)
        points = [scale == 0.0 or component.distribution.is_point for component in components]
        allocation = DrawAllocation.allocate_proportionally([one.weight for one in components], points, n)
        return cls(tuple(components), allocation, float(scale), int(seed))

    def draw_chunks(self, place: int, size: int) -> Iterator[Tensor]:
        """The weight vectors of one component in order, at most ``size`` at a time, (c, D)."""
        distribution, n = self.components[place].distribution, self.allocation.counts[place]
        if self.allocation.points[place]:
            yield distribution.mean[None]
            return
        own = spawn(generator(self.seed), len(self.components))[place]
        streams = [generator(own, distribution.mean.device) for _ in range(n)]
        centred = replace(distribution, mean=torch.zeros_like(distribution.mean))
        for start in range(0, n, size):
            vectors = torch.cat([centred.draw(1, stream) for stream in streams[start : start + size]])
            yield vectors.mul_(self.scale**0.5).add_(
                distribution.mean
            )  # scaling the draws copies no loadings

    def evaluate(
        self,
        rows: Inputs,
        *,
        buffers: Sequence[Buffers] | None = None,
        use_vmap: bool | None = None,
        memory: int | None = None,
    ) -> DrawOutputs:
        """Evaluate every draw on every row."""
        tables, used_vmap, n = [], True, count_rows(rows)
        for place, component in enumerate(self.components):
            function = NetworkFunction(component.net, component.layout)
            own: Buffers = {} if buffers is None else buffers[place]
            with evaluation_mode(component.net):
                plan = function.plan_evaluation(
                    next(self.draw_chunks(place, TRIAL_SIZE)), own, rows, use_vmap, memory
                )
                size = plan.count_fitting_draws(function.layout.size, min(n, MIN_ROWS))
                step = plan.count_fitting_rows(min(size, self.allocation.counts[place]))
                start, chunks = 0, []
                for vectors in self.draw_chunks(place, size):
                    weights = function.unflatten(vectors)
                    chosen = {name: value[start : start + len(vectors)] for name, value in own.items()}
                    start += len(vectors)
                    together = plan.use_vmap and len(vectors) > 1
                    batches = (function.move_inputs(slice_rows(rows, i, i + step)) for i in range(0, n, step))
                    outputs = [
                        function(weights, chosen, x, use_vmap=together).double().cpu() for x in batches
                    ]
                    chunks.append(torch.cat(outputs, 1))
            tables.append(np.asarray(torch.cat(chunks).numpy()))
            used_vmap = used_vmap and plan.use_vmap
        shapes = {one.shape[2:] for one in tables}
        if len(shapes) > 1:
            raise ValueError(
                f"The networks of a mixture must have outputs of the same shape, got {sorted(shapes)}"
            )
        return DrawOutputs(np.concatenate(tables), self.allocation, used_vmap)

    def compute_batch_statistics(
        self, batches: InputBatches, *, use_vmap: bool | None = None, memory: int | None = None
    ) -> tuple[dict[str, Tensor], ...]:
        """Statistics of BatchNorm and InstanceNorm under every draw, as ``update_bn`` of torch computes them."""
        return tuple(
            self._component_statistics(place, batches, use_vmap, memory)
            for place in range(len(self.components))
        )

    def _component_statistics(
        self, place: int, batches: InputBatches, use_vmap: bool | None, memory: int | None
    ) -> dict[str, Tensor]:
        component = self.components[place]
        function = NetworkFunction(component.net, component.layout)
        if not find_batch_norms(component.net):
            return {}
        with _fix_loader_order():
            first = next(iter(batches), None)
        if first is None:
            raise ValueError("refresh must hold at least one batch")
        vectors = next(self.draw_chunks(place, TRIAL_SIZE))
        with evaluation_mode(component.net):
            plan = function.plan_evaluation(vectors, {}, first, use_vmap, memory)
        with evaluation_mode(component.net, refreshing=True):
            together = plan.use_vmap
            if together and use_vmap is None:

                def flatten(use_vmap: bool) -> Tensor:
                    statistics = _average_batch_statistics(function, vectors[:TRIAL_SIZE], [first], use_vmap)
                    return torch.cat([value.reshape(-1) for value in statistics.values()])

                together = is_vmap_usable(component.net, flatten(False), lambda: flatten(True))
            size = plan.count_fitting_draws(function.layout.size, count_rows(first))
            each = [
                _average_batch_statistics(function, chunk, batches, together)
                for chunk in self.draw_chunks(place, size)
            ]
        return {name: torch.cat([one[name] for one in each]) for name in each[0]}


@dataclass(frozen=True, eq=False)
class DrawOutputs:
    """Outputs of every draw for every row."""

    values: Array  # (m, n, ...), float64
    allocation: DrawAllocation  # draws of each component, and their weights
    used_vmap: bool  # whether all networks were evaluated by vmap


def _check_component(component: Component) -> None:
    """Refuse a network without values, one that mixes rows, or one that does not fit its distribution."""
    net, name = component.net, type(component.net).__name__
    check_row_independence(net)
    if any(value.is_meta for value in net.parameters()) or component.distribution.mean.is_meta:
        raise ValueError(f"{name} or its distribution is on the meta device, where tensors have no values.")
    present = {n: tuple(value.shape) for n, value in net.named_parameters()}
    for named, shape in zip(component.layout.names, component.layout.shapes, strict=True):
        if present.get(named) != shape:
            raise ValueError(
                f"{name} has no parameter {named!r} of shape {shape}: it is not the observed network."
            )
    if component.distribution.size != component.layout.size:
        raise ValueError(
            f"The distribution has {component.distribution.size} weights, but {name} has {component.layout.size}."
        )


@dataclass(frozen=True, eq=False)
class InputBatches:
    """Rows, or batches of inputs, that can be read more than once; of a batch that is a tuple, inputs come first."""

    data: Any

    def __post_init__(self) -> None:
        if isinstance(self.data, Iterator):
            raise ValueError("refresh is an iterator, which can be read only once: pass a list or a loader")
        if not isinstance(self.data, (Iterable, np.ndarray, Tensor)):
            raise ValueError(f"refresh must be rows or batches of inputs, got a {type(self.data).__name__}")

    def __iter__(self) -> Iterator[Inputs]:
        if self._is_table():
            rows = as_inputs(self.data)
            n = count_rows(rows)
            for places in np.array_split(np.arange(n), -(-n // REFRESH_ROWS)):
                yield slice_rows(rows, int(places[0]), int(places[-1]) + 1)
            return
        for batch in self.data:
            yield as_inputs(batch[0] if isinstance(batch, (tuple, list)) else batch)

    def _is_table(self) -> bool:
        """Whether all rows are one table, not batches."""
        if isinstance(self.data, (list, tuple)):
            first = self.data[0] if self.data else None
            return isinstance(first[0] if isinstance(first, (list, tuple)) and first else first, Real)
        return isinstance(self.data, (np.ndarray, Tensor, dict)) or as_frame(self.data) is not None


def has_batch_norm(components: Iterable[Component]) -> bool:
    """Whether any network has running statistics."""
    return any(find_batch_norms(component.net) for component in components)


def _average_batch_statistics(
    function: NetworkFunction, vectors: Tensor, batches: Iterable[Inputs], use_vmap: bool
) -> Buffers:
    """Running statistics of the networks with these weights, averaged over batches."""
    buffers: Buffers = _make_initial_statistics(function, len(vectors))
    weights = function.unflatten(vectors)
    instance_norms = [
        norm for norm in find_batch_norms(function.net).values() if isinstance(norm, _InstanceNorm)
    ]
    with _fix_loader_order():
        for number, batch in enumerate(batches, 1):
            for norm in instance_norms:
                norm.momentum = 1.0 / number  # unlike BatchNorm it does not count batches
            try:
                rows = function.move_inputs(batch)
                buffers = function.update_batch_statistics(weights, buffers, rows, use_vmap=use_vmap)
            except ValueError as error:
                if count_rows(batch) > 1:
                    raise
                raise ValueError(
                    f"A batch of refresh has one row, which has no variance ({error}): leave it out, as "
                    "drop_last=True of a loader does."
                ) from error
    return {name: value for name, value in buffers.items() if value.ndim}


def _make_initial_statistics(function: NetworkFunction, n: int) -> dict[str, Tensor]:
    """Mean 0, variance 1 and no batches, for n draws."""
    buffers: dict[str, Tensor] = {}
    for name, norm in find_batch_norms(function.net).items():
        prefix = f"{name}." if name else ""
        mean, variance = norm.running_mean, norm.running_var
        assert mean is not None
        assert variance is not None
        dtype, device = promote_to_float32(mean.dtype), mean.device
        buffers[f"{prefix}running_mean"] = torch.zeros(n, *mean.shape, dtype=dtype, device=device)
        buffers[f"{prefix}running_var"] = torch.ones(n, *variance.shape, dtype=dtype, device=device)
        buffers[f"{prefix}num_batches_tracked"] = torch.zeros((), dtype=torch.long, device=device)
    return buffers


def _fix_loader_order() -> Any:
    """Restore torch's global stream afterwards: a loader draws its order from it, the same for every chunk of draws."""
    return torch.random.fork_rng(devices=[])
