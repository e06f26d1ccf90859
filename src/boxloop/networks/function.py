"""A network as a function of its weights: many weight vectors at once, without changing the network."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.overrides import TorchFunctionMode

from boxloop.networks.distribution import warn
from boxloop.networks.inputs import (
    Inputs,
    count_rows,
    iterate_tensors,
    map_tensors,
    promote_to_float32,
    slice_rows,
)

if TYPE_CHECKING:
    from boxloop.networks.posterior import Layout

Buffers = Mapping[str, Tensor]  # buffers by name, with a leading axis of draws

TRIAL_SIZE = 2  # draws and rows of the trial before a prediction
LIVE_TENSORS = 4  # tensors of the size of a layer's output that exist at the same time
CPU_BYTES, GPU_BYTES = 2**24, 2**30
"""Default memory for draws that are evaluated together. On a CPU it is what the caches hold, beyond which a batch of
draws is slower than single ones; on a GPU it leaves room for others."""


def find_batch_norms(net: nn.Module) -> dict[str, _BatchNorm | _InstanceNorm]:
    """Modules by name whose running statistics depend on the weights of the training run."""
    return {
        name: module
        for name, module in net.named_modules()
        if isinstance(module, (_BatchNorm, _InstanceNorm)) and module.running_mean is not None
    }


def check_row_independence(net: nn.Module) -> None:
    """Refuse a network whose output for a row depends on the other rows."""
    for name, module in net.named_modules():
        if isinstance(module, _BatchNorm) and module.running_mean is None:
            raise ValueError(
                f"{type(module).__name__} {name!r} has no running statistics, so the output for a row depends on the "
                "rows beside it. Set track_running_stats=True, or use LayerNorm or GroupNorm."
            )


@contextmanager
def evaluation_mode(net: nn.Module, *, refreshing: bool = False) -> Iterator[None]:
    """Evaluation mode without gradients; with ``refreshing``, BatchNorm trains and averages all batches equally."""
    modes = [(module, module.training) for module in net.modules()]
    norms = [(module, module.momentum) for module in find_batch_norms(net).values()]
    try:
        for module, _ in modes:
            module.training = False
        for norm, _ in norms if refreshing else ():
            norm.training, norm.momentum = True, None
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode
        for norm, momentum in norms:
            norm.momentum = momentum


@dataclass(frozen=True, eq=False)
class NetworkFunction:
    """The outputs of a network as a function of its weights.

    Parameters in half precision are evaluated in float32: draws closer together than the rounding error of half
    precision would coincide.
    """

    net: nn.Module  # any module; parameters outside the layout, and buffers, are used as they are
    layout: Layout  # the parameters that vary

    @property
    def first_parameter(self) -> Tensor:
        """A parameter whose device and dtype the inputs should have."""
        return self.net.get_parameter(self.layout.names[0])

    def move_inputs(self, rows: Inputs) -> Inputs:
        """Rows in the dtype and on the device of the network."""
        device, dtype = self.first_parameter.device, promote_to_float32(self.first_parameter.dtype)
        return map_tensors(rows, lambda one: one.to(device, dtype if one.is_floating_point() else one.dtype))

    def unflatten(self, vectors: Tensor) -> dict[str, Tensor]:
        """Weight vectors (m, D) as parameters (m, ...), each on its own device."""
        own = dict(self.net.named_parameters())
        return {
            name: value.to(own[name].device, promote_to_float32(own[name].dtype))
            for name, value in self.layout.unflatten(vectors).items()
        }

    def get_constants(self) -> dict[str, Tensor]:
        """Parameters that do not vary, and copies of buffers, which the network may change."""
        varying = set(self.layout.names)
        values = {n: p.detach() for n, p in self.net.named_parameters() if n not in varying}
        values |= {n: b.detach().clone() for n, b in self.net.named_buffers()}
        return {n: v.to(promote_to_float32(v.dtype)) for n, v in values.items()}

    def __call__(self, weights: Buffers, buffers: Buffers, rows: Inputs, *, use_vmap: bool) -> Tensor:
        """Outputs (m, n, ...) of m draws, all at once by ``vmap`` or one after another."""

        def evaluate(weights: Buffers, buffers: Buffers) -> Tensor:
            outputs = functional_call(self.net, {**constants, **weights, **buffers}, (rows,))
            if isinstance(outputs, Tensor) and outputs.ndim and len(outputs) == n:
                return outputs
            is_tensor = isinstance(outputs, Tensor)
            got = f"shape {tuple(outputs.shape)}" if is_tensor else f"a {type(outputs).__name__}"
            raise ValueError(
                f"The network must return one tensor with {n} rows, one per input row; got {got}"
            )

        constants, n = self.get_constants(), count_rows(rows)
        if use_vmap:
            return vmap(evaluate, in_dims=(0, 0))(dict(weights), dict(buffers))
        return torch.stack([evaluate(*one) for one in _iterate_draws(weights, buffers)])

    def update_batch_statistics(
        self, weights: Buffers, buffers: Buffers, rows: Inputs, *, use_vmap: bool
    ) -> Buffers:
        """Running statistics after one more batch; ``num_batches_tracked`` is common to all draws."""

        def update(weights: Buffers, statistics: Buffers) -> dict[str, Tensor]:
            updated = {name: value.clone() for name, value in statistics.items()}
            counters = {name: value.clone() for name, value in counts.items()}
            functional_call(self.net, {**constants, **weights, **updated, **counters}, (rows,))
            return updated

        counts = {name: value for name, value in buffers.items() if value.ndim == 0}
        constants, statistics = self.get_constants(), {n: v for n, v in buffers.items() if n not in counts}
        if use_vmap:
            updated = vmap(update, in_dims=(0, 0))(dict(weights), statistics)
        else:
            each = [update(*one) for one in _iterate_draws(weights, statistics)]
            updated = {name: torch.stack([one[name] for one in each]) for name in statistics}
        return {**updated, **{name: value + 1 for name, value in counts.items()}}

    def measure_row_bytes(self, weights: Buffers, buffers: Buffers, rows: Inputs) -> int:
        """Bytes of the largest tensor that one more row adds under one draw."""
        sizes = []
        one = slice_rows(rows, 0, 1)
        for x in (one, map_tensors(one, lambda first: torch.cat([first, first]))):
            with _ByteRecorder() as recorder:
                self(weights, buffers, x, use_vmap=False)
            sizes.append(recorder.bytes)
        return max([b - a for a, b in zip(*sizes, strict=False)], default=0)

    def plan_evaluation(
        self, vectors: Tensor, buffers: Buffers, rows: Inputs, use_vmap: bool | None, memory: int | None
    ) -> EvaluationPlan:
        """Evaluate two draws on two rows, to find out whether ``vmap`` works and how much memory a row needs."""
        weights = self.unflatten(vectors[:TRIAL_SIZE])
        few = {name: value[:TRIAL_SIZE] for name, value in buffers.items()}
        rows, device = self.move_inputs(slice_rows(rows, 0, TRIAL_SIZE)), self.first_parameter.device
        states = _get_random_states(device)
        try:
            single = self(weights, few, rows, use_vmap=False)
            first, own = ({n: v[:1] for n, v in values.items()} for values in (weights, few))
            cost = self.measure_row_bytes(first, own, rows)
        except (RuntimeError, TypeError, IndexError) as error:
            raise ValueError(
                f"{type(self.net).__name__} cannot be evaluated at {self._describe_failure(rows, error)}"
            ) from error
        finally:
            after = _get_random_states(device)
            moved = any(not torch.equal(a, b) for a, b in zip(states, after, strict=True))
            if moved:
                torch.set_rng_state(states[0])
                if device.type == "cuda":
                    torch.cuda.set_rng_state(states[1], device)
        if moved:
            raise ValueError(
                f"{type(self.net).__name__} draws random numbers in evaluation mode, so its output is not a function "
                "of its weights; use a network whose dropout and noise stop with eval()."
            )
        if use_vmap is None:
            use_vmap = is_vmap_usable(self.net, single, lambda: self(weights, few, rows, use_vmap=True))
        default = CPU_BYTES if device.type == "cpu" else GPU_BYTES
        return EvaluationPlan(use_vmap, cost, default if memory is None else memory)

    def _describe_failure(self, rows: Inputs, error: Exception) -> str:
        """Rows that the network could not take, the error, and a likely remedy."""
        shapes = [f"{tuple(one.shape[1:])} and {one.dtype}" for one in iterate_tensors(rows)]
        if isinstance(rows, Tensor):
            description = f"rows of shape {shapes[0]}"
        else:
            description = f"a {type(rows).__name__} of rows of shapes {', '.join(shapes)}"
        dtype, hint = self.first_parameter.dtype, ""
        if not any(one.is_floating_point() for one in iterate_tensors(rows)):
            hint = "; integers stay integers: pass X as floats if the network takes values"
        elif dtype != promote_to_float32(dtype):
            hint = (
                f"; half-precision weights are evaluated in {promote_to_float32(dtype)}: remove casts to half"
            )
        return f"{description}: {error}{hint}"


@dataclass(frozen=True)
class EvaluationPlan:
    """How draws are evaluated."""

    use_vmap: bool  # whether several draws are evaluated by vmap
    cost: int  # bytes of the largest tensor per row and draw
    memory: int  # bytes for draws that are evaluated together

    def count_fitting_draws(self, size: int, rows: int) -> int:
        """Draws of ``size`` weights that fit the memory at once, each on so many rows."""
        return max(1, self.memory // max(1, 16 * size, LIVE_TENSORS * self.cost * rows))

    def count_fitting_rows(self, draws: int) -> int:
        """Rows that fit the memory at once under so many draws."""
        return max(1, self.memory // max(1, LIVE_TENSORS * self.cost * draws))


def is_vmap_usable(net: nn.Module, single: Tensor, batched: Callable[[], Tensor]) -> bool:
    """Whether ``vmap`` works and gives the values of single evaluations; a warning says why not."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "There is a performance drop")  # vmap would fall back to a loop
            values = batched()
        tolerance = torch.finfo(single.dtype).eps ** 0.5 if single.is_floating_point() else 0.0
        size = single.abs().nan_to_num(0.0, 0.0, 0.0).max().item() if single.numel() else 0.0
        options: dict[str, Any] = {"rtol": 10 * tolerance, "atol": 10 * tolerance * size, "equal_nan": True}
        same = values.shape == single.shape and torch.allclose(values, single, **options)
        reason = "" if same else "its outputs differ from those of single draws"
    except (RuntimeError, ValueError, UserWarning) as error:
        reason = str(error).strip().partition("\n")[0]
    if reason:
        warn(
            f"{type(net).__name__} cannot be evaluated by vmap ({reason}): draws are evaluated one by one, which is "
            "slower. Pass use_vmap=False to silence this warning."
        )
    return not reason


class _ByteRecorder(TorchFunctionMode):
    """Records how many bytes each operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: list[int] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.bytes.append(result.numel() * result.element_size())
        return result


def _iterate_draws(
    weights: Buffers, buffers: Buffers
) -> Iterator[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    for i in range(len(next(iter(weights.values())))):
        yield {n: v[i] for n, v in weights.items()}, {n: v[i].clone() for n, v in buffers.items()}


def _get_random_states(device: torch.device) -> list[Tensor]:
    on_gpu = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *on_gpu]
