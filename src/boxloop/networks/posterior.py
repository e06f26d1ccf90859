"""A posterior over the weights of a network, estimated while the user's own loop trains it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass, replace
from itertools import accumulate
from numbers import Integral
from os import PathLike, fspath
from typing import Any, Self

import torch
from torch import Generator, Tensor, nn

from boxloop.networks.distribution import Component, Method, WeightDistribution, warn
from boxloop.networks.methods.factor import FactorEM, FactorGradient
from boxloop.networks.methods.sample_moments import SWA, SWAG, FullCovariance
from boxloop.networks.predictor import PredictivePosterior
from boxloop.networks.train import fit as fit_posterior
from boxloop.numeric import RandomState, generator as make_generator, pick_device, single_threaded, spawn
from boxloop.persist import ModelFileError, load_tree, save_tree
from boxloop.tree import Tree

LAST = "last"  # selects the last module that has parameters of its own
TRACED_WEIGHTS = 64  # weights whose values are recorded
TRACE_LENGTH = 8192  # recorded vectors; at twice as many, every other one is dropped
METHOD_NAMES = ("factor", "gradient", "swag", "swa", "full")  # methods that can be chosen by name
DTYPES = {"float32": torch.float32, "float64": torch.float64}
"""Dtypes of running statistics; half precision cannot average."""
ZERO_VARIANCE = 1e-30  # largest variance that counts as zero


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the parameters that vary, in their order in a vector of D numbers.

    Frozen parameters are left out. A parameter that several modules share appears once, under its first name.

    Args:
        names: as ``net.named_parameters()`` gives them.
        shapes: of the parameters.

    Example:
        >>> import torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
        >>> layout = Layout.from_network(net, "last")
        >>> layout.names, layout.size
        (('2.weight', '2.bias'), 4)
        >>> layout.unflatten(torch.arange(4.0))["2.bias"]
        tensor([3.])
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def from_network(cls, net: nn.Module, parameters: str | Sequence[str] | None = None) -> Self:
        """The layout of a network.

        Args:
            net: any module.
            parameters: names of parameters or modules; ``"last"`` is the last module with parameters of its own; None
                is all trainable parameters.
        """
        if not isinstance(net, nn.Module):
            raise TypeError(f"net must be a torch.nn.Module, got a {type(net).__name__}")
        if isinstance(net, nn.DataParallel):
            raise ValueError(
                "A DataParallel network cannot be evaluated with other weights; pass its net.module instead."
            )
        if isinstance(net, torch.jit.ScriptModule):
            raise ValueError(
                "A torch.jit network cannot be evaluated with other weights; pass the module that was scripted or "
                "traced instead."
            )
        trainable = {name: value for name, value in net.named_parameters() if value.requires_grad}
        if parameters is not None:
            trainable = _select_parameters(net, trainable, parameters)
        for name, value in trainable.items():
            if isinstance(value, nn.UninitializedParameter):
                raise ValueError(f"Parameter {name!r} has no shape yet: run the network on a batch first.")
            if not value.is_floating_point():
                dtype = str(value.dtype).removeprefix("torch.")
                raise ValueError(
                    f"Parameter {name!r} is {dtype}, but only real weights have a distribution: select other "
                    "parameters by parameters=, or store the real and imaginary parts as two parameters."
                )
        if not any(value.numel() for value in trainable.values()):
            raise ValueError(f"{type(net).__name__} has no trainable parameter among those selected.")
        return cls(tuple(trainable), tuple(tuple(value.shape) for value in trainable.values()))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of entries of each parameter."""
        return tuple(map(math.prod, self.shapes))

    @property
    def size(self) -> int:
        """Number of weights, D."""
        return sum(map(math.prod, self.shapes))

    @property
    def slices(self) -> dict[str, slice]:
        """The slice of each parameter in a vector."""
        ends = list(accumulate(self.sizes))
        return {name: slice(end - n, end) for name, end, n in zip(self.names, ends, self.sizes, strict=True)}

    def read(self, net: nn.Module, out: Tensor) -> Tensor:
        """Copy the parameters of a network into ``out``, (D,), in its dtype and on its device."""
        values = self._find_parameters(net)
        if all(value.dtype == out.dtype and value.device == out.device for value in values):
            return torch.cat([value.detach().reshape(-1) for value in values], out=out)
        for part, value in zip(out.split(self.sizes), values, strict=True):
            part.copy_(value.detach().reshape(-1))
        return out

    @torch.no_grad()
    def write(self, net: nn.Module, vector: Tensor) -> None:
        """Set the parameters of a network, in place, to a vector (D,)."""
        if not isinstance(vector, Tensor) or tuple(vector.shape) != (self.size,):
            got = tuple(vector.shape) if isinstance(vector, Tensor) else f"a {type(vector).__name__}"
            raise ValueError(f"vector must be one tensor of shape ({self.size},), got {got}")
        for value, part in zip(self._find_parameters(net), vector.split(self.sizes), strict=True):
            value.copy_(part.reshape(value.shape))

    def unflatten(self, vectors: Tensor) -> dict[str, Tensor]:
        """Parameters by name from one vector (D,) or from m vectors (m, D): views of shape (...) or (m, ...)."""
        lead = vectors.shape[:-1]
        parts = vectors.split(self.sizes, dim=-1)
        return {
            name: part.reshape((*lead, *shape))
            for name, part, shape in zip(self.names, parts, self.shapes, strict=True)
        }

    def _find_parameters(self, net: nn.Module) -> list[Tensor]:
        """The parameters of a network, checked against this layout."""
        present = dict(net.named_parameters())
        for name, shape in zip(self.names, self.shapes, strict=True):
            current = tuple(present[name].shape) if name in present else None
            if current != shape:
                change = "is missing now" if current is None else f"now has shape {current}"
                inner, hint = name.removeprefix("_orig_mod."), ""
                if inner != name and inner in present:
                    hint = ": pass the compiled network, torch.compile(net)"
                elif f"_orig_mod.{name}" in present:
                    hint = ": pass the network inside the compiled one"
                raise ValueError(f"Parameter {name!r} had shape {shape} and {change}{hint}")
            if present[name].is_meta:
                raise ValueError(f"Parameter {name!r} is on the meta device, where tensors have no values.")
        return [present[name] for name in self.names]


def _select_parameters(
    net: nn.Module, trainable: dict[str, nn.Parameter], selection: str | Sequence[str]
) -> dict[str, nn.Parameter]:
    """The trainable parameters that are named, under any of their names, or belong to a named module."""
    if selection == LAST:
        owners = [
            name for name, module in net.named_modules() if next(module.parameters(False), None) is not None
        ]
        names = tuple(owners[-1:])
    elif isinstance(selection, str):
        names = (selection,)
    else:
        names = tuple(selection) if isinstance(selection, Sequence) else ()
        if not names or not all(isinstance(name, str) for name in names):
            raise ValueError(
                f"parameters must be names of parameters or modules, or {LAST!r}, got {selection!r:.60}"
            )
    aliases = dict(net.named_parameters(remove_duplicate=False))
    modules = dict(net.named_modules())
    selected: set[int] = set()
    for name in names:
        if name in modules:
            selected |= {id(value) for value in modules[name].parameters()}
        elif name in aliases:
            selected.add(id(aliases[name]))
        else:
            raise ValueError(f"{type(net).__name__} has no parameter and no module named {name!r}")
    return {name: value for name, value in trainable.items() if id(value) in selected}


def pick_method(method: str | Method, rank: int, size: int) -> Method:
    """A method from its name, or the method itself."""
    if not isinstance(method, str):
        candidate: object = method
        if isinstance(candidate, type) or not is_dataclass(candidate):
            raise ValueError(
                f"method must be one of {', '.join(METHOD_NAMES)}, or a method such as SWAG(10), got {method!r}"
            )
        return method
    if method == "window":
        raise ValueError(
            "A window average needs its length: pass method=WindowAverage(50, FullCovariance()), or "
            "WindowAverage(n_rows=..., batch_size=...)"
        )
    if method not in METHOD_NAMES:
        raise ValueError(f"method must be one of {', '.join(METHOD_NAMES)}, or a method, got {method!r}")
    if method in ("full", "swa"):
        return FullCovariance() if method == "full" else SWA()
    requested: Any = rank
    if not isinstance(requested, Integral) or rank < 1:
        raise ValueError(f"rank must be a whole number, at least 1, got {rank!r}")
    if method == "swag":
        if rank < 2:
            raise ValueError(f"rank must be at least 2 for method='swag', got {rank}")
        return SWAG(max(2, min(int(rank), size)))
    return (FactorEM if method == "factor" else FactorGradient)(min(int(rank), size))


@dataclass(frozen=True)
class WeightTrace(Tree):
    """Values of a few weights along a trajectory, from which autocorrelation and drift are estimated.

    Args:
        index: of the recorded weights, (p,), int64, sorted.
        values: their values at every ``stride``-th vector, (t, p), float64, oldest first.
        stride: vectors from one row of ``values`` to the next.
        count: vectors observed.
    """

    index: Tensor
    values: Tensor
    stride: int = 1
    count: int = 0

    @classmethod
    def start(cls, size: int, generator: Generator) -> WeightTrace:
        """An empty trace of randomly selected weights, or of all where they are few."""
        index = torch.arange(size)
        if size > TRACED_WEIGHTS:
            candidates = torch.randint(size, (4 * TRACED_WEIGHTS,), generator=generator).unique()
            order = torch.randperm(len(candidates), generator=generator)[:TRACED_WEIGHTS]
            index = candidates[order].sort().values
        return cls(index, torch.zeros(0, len(index), dtype=torch.float64))


class TraceRecorder:
    """A trace that grows; new rows wait in a list until the trace is read."""

    def __init__(self, trace: WeightTrace) -> None:
        self.count: int = trace.count
        self._trace = trace
        self._index = trace.index  # on the device of the vectors
        self._pending: list[Tensor] = []

    def record(self, vector: Tensor) -> None:
        """Record the selected weights of one vector (D,)."""
        if self.count % self._trace.stride == 0:
            self._index = self._index.to(vector.device)
            self._pending.append(vector[self._index].double())
        self.count += 1
        if len(self._trace.values) + len(self._pending) >= 2 * TRACE_LENGTH:
            trace = self.trace()
            self._trace = replace(trace, values=trace.values[::2].clone(), stride=2 * trace.stride)

    def trace(self) -> WeightTrace:
        """Everything recorded so far."""
        values = self._trace.values
        if self._pending:
            values = torch.cat([values, torch.stack(self._pending).cpu()])
            self._pending = []
        self._trace = replace(self._trace, values=values, count=self.count)
        return self._trace


@dataclass(frozen=True)
class PosteriorState(Tree):
    """The state of a posterior, without its network."""

    layout: Layout  # of the parameters
    method: Any  # that estimates the distribution
    estimate: Any  # state of the method
    trace: WeightTrace  # of the recorded weights
    n_refused: int  # vectors refused
    dtype: str  # of the running statistics, by name


class WeightPosterior(PredictivePosterior):
    r"""A Gaussian approximation of the posterior over network weights, from the trajectory of the training.

    .. math:: \theta \sim N(\mu, F F^\top + \operatorname{diag} \psi)

    Call :meth:`observe` after each optimiser step once the loss has stopped falling. :meth:`predictor` then averages
    predictions over networks drawn from the distribution. Iterates of an optimiser are in general not draws from a
    posterior; :meth:`audit` measures how far they are from it.

    Args:
        net: any module. It remains the caller's: only :meth:`apply` and :meth:`fit` change its weights.
        method: ``"factor"`` (online EM for factor analysis, Brownlie 2021, Algorithm 2), ``"gradient"`` (Algorithm 1),
            ``"swag"`` (Maddox et al., 2019), ``"swa"`` (the mean alone, Izmailov et al., 2018), ``"full"`` (a full
            covariance, for small networks), or a method with its own settings, such as
            ``WindowAverage(50, FullCovariance())``.
        rank: of the covariance, for methods chosen by name.
        parameters: names of the parameters or modules that vary; ``"last"`` is the last module; None is all.
        dtype: of the running statistics, float32 or float64; None is that of the parameters, at least float32.
        device: of the running statistics, ``"cpu"``, ``"cuda"`` or ``"auto"``; None is that of the first parameter.
        random_state: of the initial loadings and of the weights that are recorded.

    Attributes:
        layout: the parameters that vary, and their order in a vector.
        n_refused: vectors that were refused because the loss or a weight was not finite.

    Example:
        >>> import torch
        >>> draws = torch.Generator().manual_seed(0)
        >>> net = torch.nn.Linear(2, 1)
        >>> x = torch.randn(200, 2, generator=draws)
        >>> y = x @ torch.tensor([[1.0], [-2.0]]) + 0.1 * torch.randn(200, 1, generator=draws)
        >>> optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
        >>> posterior = WeightPosterior(net, "swag", rank=2, random_state=0)
        >>> for step in range(300):
        ...     batch = torch.randint(200, (20,), generator=draws)
        ...     loss = (net(x[batch]) - y[batch]).square().mean()
        ...     optimiser.zero_grad(); loss.backward(); optimiser.step()
        ...     if step >= 100:
        ...         _ = posterior.observe(loss)
        >>> posterior.count, posterior.distribution().rank
        (200, 2)
        >>> bool((posterior.mean()[:2] - torch.tensor([1.0, -2.0])).abs().max() < 0.05)
        True
    """

    @single_threaded
    def __init__(
        self,
        net: nn.Module,
        method: str | Method = "factor",
        rank: int = 10,
        *,
        parameters: str | Sequence[str] | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        random_state: RandomState = None,
    ) -> None:
        self.net = net
        self.layout: Layout = Layout.from_network(net, parameters)
        size = self.layout.size
        self.method: Method = pick_method(method, rank, size)
        first = net.get_parameter(self.layout.names[0])
        if first.is_meta:
            raise ValueError(f"{type(net).__name__} is on the meta device, where tensors have no values.")
        self.dtype: torch.dtype = torch.promote_types(first.dtype, torch.float32) if dtype is None else dtype
        if self.dtype not in DTYPES.values():
            raise ValueError(f"dtype must be float32 or float64, got {self.dtype}")
        self.device: torch.device = first.device if device is None else pick_device(device)
        start, selection = spawn(make_generator(random_state), 2)
        self.n_refused: int = 0
        self._estimate = self.method.start(size, start, self.dtype, self.device)
        self._recorder = TraceRecorder(WeightTrace.start(size, selection))
        self._vector = torch.empty(size, dtype=self.dtype, device=self.device)
        self._checked_count = 0

    @classmethod
    def restore(cls, state: PosteriorState, net: nn.Module, device: torch.device | str | None = None) -> Self:
        """A posterior that continues from a state; on the same device the results are identical bit for bit.

        Args:
            state: from :meth:`state`.
            net: the network, or another with the same parameters; its weights are not changed.
            device: of the running statistics; None is that of the first parameter.
        """
        self = cls.__new__(cls)
        self.net, self.layout, self.method = net, state.layout, state.method
        self.dtype = DTYPES[state.dtype]
        vector = self.layout.read(net, torch.empty(self.layout.size, dtype=self.dtype))
        first = net.get_parameter(self.layout.names[0])
        self.device = first.device if device is None else pick_device(device)
        self._vector = vector.to(self.device)
        self.n_refused, self._checked_count = state.n_refused, 0
        self._estimate = self.method.restore(state.estimate, self.device)
        self._recorder = TraceRecorder(state.trace)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the state and the network: a running estimate may hold functions, which cannot be pickled."""
        return type(self).restore, (self.state(), self.net, self.device)

    def state(self) -> PosteriorState:
        """A copy of the state, for a checkpoint; it does not include the network."""
        dtype = str(self.dtype).removeprefix("torch.")
        estimate, trace = self._estimate.state(), self.trace.map(torch.clone)
        return PosteriorState(self.layout, self.method, estimate, trace, self.n_refused, dtype)

    @property
    def count(self) -> int:
        """Number of vectors observed."""
        return self._recorder.count

    @property
    def trace(self) -> WeightTrace:
        """The values of a few weights in every vector, in order."""
        return self._recorder.trace()

    def observe(self, loss: Tensor | float | None = None) -> bool:
        """Observe the current weights of the network.

        Args:
            loss: of the step that led to them; where it is not finite the weights are refused.

        Returns:
            Whether the weights were accepted; a refusal warns and is counted in ``n_refused``.

        Raises:
            ValueError: a parameter is missing or has another shape, or the loss is not one number; nothing is observed.
        """
        vector = self.layout.read(self.net, self._vector)
        if loss is not None:
            value: Any = loss.detach() if isinstance(loss, Tensor) else loss
            try:
                value = float(value)
            except (TypeError, ValueError, RuntimeError) as error:
                got = repr(value)
                if isinstance(value, Tensor):
                    got = f"shape {tuple(value.shape)}, {value.dtype}"
                raise ValueError(f"loss must be one number, such as loss.mean(), got {got:.60}") from error
            if not math.isfinite(value):
                return self.refuse(f"the loss is {value}")
        if not math.isfinite(float(torch.dot(vector, vector))):
            if not bool(vector.isfinite().all()):
                return self.refuse("a weight is not finite")
            remedy = "" if vector.dtype == torch.float64 else "; use dtype=torch.float64"
            return self.refuse(f"the squares of the weights overflow in {vector.dtype}{remedy}")
        self._estimate.observe(vector)
        self._recorder.record(vector)
        return True

    def refuse(self, reason: str) -> bool:
        """Count a vector that cannot be observed, and warn; always False."""
        self.n_refused += 1
        warn(f"The weights after {self.count} vectors were refused: {reason}.")
        return False

    def distribution(self) -> WeightDistribution:
        """The estimated distribution of the weights.

        Warns if its rank is lower than that of the method, or if its variance is zero.
        """
        required, count = self.method.min_vectors, self.count
        if count < required:
            calls = "observe() was never called" if not count else f"observe() was called {count} time(s)"
            raise ValueError(f"{type(self.method).__name__} needs at least {required} vectors; {calls}.")
        estimate = self._estimate.distribution()
        if count != self._checked_count:
            self._checked_count = count
            rank, name = self._estimate.rank, type(self.method).__name__
            varies = float(estimate.noise.amax()) > ZERO_VARIANCE or (
                estimate.rank > 0 and float(estimate.loadings.abs().amax()) ** 2 > ZERO_VARIANCE
            )
            if rank and not varies:
                warn(f"All {count} vectors are identical, so the variance is zero: is the learning rate 0?")
            elif estimate.rank < rank:
                warn(f"{count} vectors give a distribution of rank {estimate.rank}; {name} has rank {rank}.")
        return estimate

    def components(self) -> tuple[Component, ...]:
        """One component: the estimated distribution, with the network."""
        return (Component(1.0, self.net, self.layout, self.distribution()),)

    def draw(self, n: int, random_state: RandomState = None) -> Tensor:
        """Draw n weight vectors, (n, D)."""
        return self.distribution().draw(n, make_generator(random_state, self.device))

    def mean(self) -> Tensor:
        """The mean of the distribution, (D,)."""
        return self.distribution().mean

    def apply(self, vector: Tensor | None = None) -> Self:
        """Set the weights of the network, in place, to a vector (D,), or to the mean if None."""
        self.layout.write(self.net, self.mean() if vector is None else vector)
        return self

    fit = fit_posterior

    def save(self, path: str | PathLike[str]) -> None:
        """Write the state to a file, at any point of the trajectory: :func:`boxloop.networks.save_posterior`."""
        save_posterior(path, self)

    @classmethod
    def load(
        cls, path: str | PathLike[str], net: nn.Module, device: torch.device | str | None = None
    ) -> Self:
        """Read a file of :meth:`save`, for the same network or one like it: :func:`boxloop.networks.load_posterior`."""
        from boxloop.networks.constraints import CLASSES, CONSTRAINTS

        state = load_tree(path, CLASSES, CONSTRAINTS).tree
        if not isinstance(state, PosteriorState):
            raise ModelFileError(
                f"{fspath(path)}: holds a {type(state).__name__}, not a posterior over weights"
            )
        try:
            return cls.restore(state, net, device)
        except ValueError as error:
            raise ModelFileError(f"{fspath(path)}: {error}") from error


def save_posterior(path: str | PathLike[str], posterior: WeightPosterior) -> None:
    """Write the state of a posterior; the weights of the network and the optimiser's state are not included.

    Args:
        path: the file; it is replaced as a whole or not at all.
        posterior: at any point of a trajectory; its method is one of this library, with a ``Power`` as schedule.
    """
    save_tree(path, posterior.state())


def load_posterior(
    path: str | PathLike[str], net: nn.Module, device: torch.device | str | None = None
) -> WeightPosterior:
    """Read a posterior, to observe further weights or to predict.

    Args:
        path: a file of :func:`save_posterior`; nothing in it is executed. A ModelFileError says what is wrong with it.
        net: the network that was observed, or another with parameters of the same names and shapes.
        device: of the running statistics; None is that of the first parameter.

    Returns:
        The posterior. On the same device, further observations give identical results bit for bit.

    Example:
        >>> import torch
        >>> from tempfile import TemporaryDirectory
        >>> net = torch.nn.Linear(2, 1)
        >>> posterior = WeightPosterior(net, "swa", random_state=0)
        >>> posterior.observe()
        True
        >>> with TemporaryDirectory() as folder:
        ...     save_posterior(f"{folder}/weights.boxloop", posterior)
        ...     restored = load_posterior(f"{folder}/weights.boxloop", net)
        >>> restored.count, torch.equal(restored.mean(), posterior.mean())
        (1, True)
    """
    return WeightPosterior.load(path, net, device)
