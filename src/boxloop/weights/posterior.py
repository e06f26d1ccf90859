"""A posterior over the weights of any network, gathered while the user's own loop trains it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from boxloop.numeric import RandomState, generator as stream, pick_device, single_threaded, spawn
from boxloop.persist import ModelFileError, load_tree, save_tree
from boxloop.tree import Tree
from boxloop.weights.law import WeightLaw
from boxloop.weights.layout import Layout
from boxloop.weights.method import Method, Part, warn
from boxloop.weights.methods import method_of
from boxloop.weights.posterior_checks import has_spread, number_of, what_is_wrong
from boxloop.weights.record import Record, Recorder
from boxloop.weights.usable import Usable

if TYPE_CHECKING:
    from boxloop.weights.fitting import Training

DTYPES = {"float32": torch.float32, "float64": torch.float64}
"""What vectors may be kept in; half precision cannot average."""


@dataclass(frozen=True)
class PosteriorState(Tree):
    """All that a posterior knows, but for the network.

    Args:
        layout: of its parameters.
        method: how they are followed.
        follower: the state of the method.
        record: of the weights that are watched.
        n_refused: vectors refused.
        dtype: of what is kept, as a word.
    """

    layout: Layout
    method: Any
    follower: Any
    record: Record
    n_refused: int
    dtype: str


class WeightPosterior(Usable):
    r"""A Gaussian law over the weights of a network, from the vectors that its training passes through.

    Call :meth:`observe` after an optimiser's step, once the loss has stopped falling; then draw networks from the law
    and average what they say. Whether the vectors are anything like draws from a posterior is another matter: ask
    :meth:`audit`.

    Args:
        net: any module. It stays the caller's; nothing here changes its weights, unless asked to.
        method: ``"factor"`` (online EM for factor analysis, document 004, Algorithm 2), ``"gradient"`` (Algorithm 1),
            ``"swag"`` (Maddox et al., 2019), ``"swa"`` (the mean alone), ``"full"`` (a full covariance, for small
            networks), or a method with settings of its own, such as ``Windowed(50, Full())``.
        rank: of the methods that have one, when ``method`` is a word.
        parameters: names of the parameters or modules that vary; ``"last"`` for the last module; all when None.
        dtype: of what is kept, as long as the parameters; theirs when None, float32 at least.
        device: where it is kept, ``"cpu"``, ``"cuda"`` or ``"auto"``; where the first parameter is when None.
        random_state: of the start and of the weights that are watched.

    Attributes:
        layout: which parameters vary, and where they stand in a vector.
        n_refused: vectors that were refused, as the loss or a weight was not finite.

    Example:
        >>> import torch
        >>> draws = torch.Generator().manual_seed(0)
        >>> net = torch.nn.Linear(2, 1)
        >>> x = torch.randn(200, 2, generator=draws)
        >>> y = x @ torch.tensor([[1.0], [-2.0]]) + 0.1 * torch.randn(200, 1, generator=draws)
        >>> optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
        >>> posterior = WeightPosterior(net, "swag", rank=2, random_state=0)
        >>> for step in range(300):
        ...     some = torch.randint(200, (20,), generator=draws)
        ...     loss = (net(x[some]) - y[some]).square().mean()
        ...     optimiser.zero_grad(); loss.backward(); optimiser.step()
        ...     if step >= 100:
        ...         _ = posterior.observe(loss)
        >>> posterior.count, posterior.law().rank
        (200, 2)
        >>> bool((posterior.centre()[:2] - torch.tensor([1.0, -2.0])).abs().max() < 0.05)
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
        self.layout = Layout.of(net, parameters)
        self.method = method_of(method, rank, self.layout.size)
        first = net.get_parameter(self.layout.names[0])
        if first.is_meta:
            raise ValueError(
                f"{type(net).__name__} is on the meta device, where tensors have shapes but no numbers"
            )
        self.dtype = torch.promote_types(first.dtype, torch.float32) if dtype is None else dtype
        if self.dtype not in DTYPES.values():
            raise ValueError(f"dtype must be float32 or float64, got {self.dtype}")
        self.device = pick_device(first.device if device is None else device)
        starting, watching = spawn(stream(random_state), 2)
        self.n_refused = 0
        self._follower = self.method.start(self.layout.size, starting, self.dtype, self.device)
        self._recorder = Recorder(Record.start(self.layout.size, watching))
        self._vector = torch.empty(self.layout.size, dtype=self.dtype, device=self.device)
        self._looked = 0

    @classmethod
    def restore(cls, state: PosteriorState, net: nn.Module, device: torch.device | str | None = None) -> Self:
        """A posterior that goes on from a state: on the same device, bit for bit as the one that gave it.

        Args:
            state: from :meth:`state`.
            net: the network, with the same parameters; its weights are its own affair.
            device: where what is kept goes; where the first parameter is when None.

        Raises:
            ValueError: a parameter is not there, or has another shape.
        """
        self = cls.__new__(cls)
        self.net, self.layout, self.method = net, state.layout, state.method
        self.dtype = DTYPES[state.dtype]
        self._vector = torch.empty(self.layout.size, dtype=self.dtype)
        self.layout.read(net, self._vector)
        first = net.get_parameter(self.layout.names[0])
        self.device = pick_device(first.device if device is None else device)
        self._vector = self._vector.to(self.device)
        self.n_refused, self._looked = state.n_refused, 0
        self._follower = self.method.restore(state.follower, self.device)
        self._recorder = Recorder(state.record)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """As a state with its network: a follower may hold functions, which do not travel."""
        return type(self).restore, (self.state(), self.net, self.device)

    def state(self) -> PosteriorState:
        """A copy of all that is known, for a checkpoint; the network is not in it."""
        dtype = str(self.dtype).removeprefix("torch.")
        follower, record = self._follower.state(), self.record.map(torch.clone)
        return PosteriorState(self.layout, self.method, follower, record, self.n_refused, dtype)

    @property
    def count(self) -> int:
        """Vectors taken in."""
        return self._recorder.seen

    @property
    def record(self) -> Record:
        """A few weights of every vector, in order."""
        return self._recorder.record()

    def observe(self, loss: Tensor | float | None = None) -> bool:
        """Take in the weights as they are now.

        Args:
            loss: of the step behind them; where it is not finite they are refused.

        Returns:
            Whether they were taken; a refusal warns, and is counted in ``n_refused``.

        Raises:
            ValueError: a parameter is gone or has another shape, or a loss is not one number; nothing is taken in.
        """
        vector = self.layout.read(self.net, self._vector)
        value = 0.0 if loss is None else number_of(loss)
        if not math.isfinite(value):
            return self._refuse(f"the loss is {value}")
        if not math.isfinite(float(torch.dot(vector, vector))):
            return self._refuse(what_is_wrong(vector))
        self._follower.observe(vector)
        self._recorder.observe(vector)
        return True

    def law(self) -> WeightLaw:
        """The law of the weights after all vectors so far.

        Warns when it has fewer directions than the method could have, or no spread at all.

        Raises:
            ValueError: too few vectors for any.
        """
        least, seen = self.method.least, self.count
        if seen < least:
            said = "observe() was never called" if not seen else f"it was called {seen} time(s)"
            raise ValueError(
                f"{type(self.method).__name__} needs {least} vectors of weights at least; {said}"
            )
        law = self._follower.law()
        if seen != self._looked:
            self._looked = seen
            self._warn(law)
        return law

    def parts(self) -> tuple[Part, ...]:
        """This law alone, with the network that it is of."""
        return (Part(1.0, self.net, self.layout, self.law()),)

    def draw(self, n: int, random_state: RandomState = None) -> Tensor:
        """n vectors of weights, (n, D)."""
        return self.law().draw(n, stream(random_state, self.device))

    def centre(self) -> Tensor:
        """The mean of the law, (D,)."""
        return self.law().mean

    def apply(self, vector: Tensor | None = None) -> Self:
        """Set the weights of the network to a vector (D,), or to the mean when None; the user's net is changed."""
        self.layout.write(self.net, self.centre() if vector is None else vector)
        return self

    def fit(
        self,
        batches: Iterable[Any],
        loss: Callable[[Any, Any], Tensor],
        optimiser: Optimizer,
        *,
        epochs: int,
        burn_in: int = 0,
        every: int = 1,
        scheduler: LRScheduler | None = None,
        clip: float | None = None,
        verbose: bool = False,
        checkpoint: str | PathLike[str] | None = None,
    ) -> Training:
        """Train the network and observe it, for those who have no loop: :func:`boxloop.weights.fit`."""
        from boxloop.weights.fitting import fit

        return fit(
            *(self, batches, loss, optimiser),
            epochs=epochs,
            burn_in=burn_in,
            every=every,
            scheduler=scheduler,
            clip=clip,
            verbose=verbose,
            checkpoint=checkpoint,
        )

    def save(self, path: str | PathLike[str]) -> None:
        """Write all that is known, at any point of the trajectory: :func:`boxloop.weights.save_posterior`."""
        save_posterior(path, self)

    @classmethod
    def load(
        cls, path: str | PathLike[str], net: nn.Module, device: torch.device | str | None = None
    ) -> Self:
        """Read what :meth:`save` wrote, for the same network or one alike: :func:`boxloop.weights.load_posterior`."""
        return cls.restore(read_state(path), net, device)

    def _warn(self, law: WeightLaw) -> None:
        """Once for as many vectors: what the law lacks."""
        wanted, name = self._follower.rank, type(self.method).__name__
        if wanted and not has_spread(law):
            said = "are alike, and the law has no spread: is the learning rate 0?"
        elif law.rank < wanted:
            said = f"give the law {law.rank} directions, fewer than the {wanted} of {name}"
        else:
            return
        warn(f"the {self.count} vectors of weights {said}")

    def _refuse(self, why: str) -> bool:
        self.n_refused += 1
        warn(f"weights after {self.count} vectors were refused: {why}")
        return False


def save_posterior(path: str | PathLike[str], posterior: WeightPosterior) -> None:
    """Write all that a posterior knows; the weights of the network, and its optimiser's state, are not in it.

    Args:
        path: the file, replaced whole or not at all.
        posterior: at any point of a trajectory.

    Raises:
        ModelFileError: a method that is not of this library, or a schedule that is not a ``Power``.
    """
    save_tree(path, posterior.state())


def load_posterior(
    path: str | PathLike[str], net: nn.Module, device: torch.device | str | None = None
) -> WeightPosterior:
    """Read a posterior, to go on observing or to predict.

    Args:
        path: a file that :func:`save_posterior` wrote; nothing in it is executed.
        net: the network that was followed, or another with parameters of the same names and shapes.
        device: where what is kept goes; where the first parameter is when None.

    Returns:
        The posterior: on the same device, whatever it observes from here on leads to the same bits.

    Raises:
        ModelFileError: not a whole file of a posterior, or one of a network with other parameters; the first that
            the network does not have, or not in that shape, is named.

    Example:
        >>> import torch
        >>> from tempfile import TemporaryDirectory
        >>> net = torch.nn.Linear(2, 1)
        >>> posterior = WeightPosterior(net, "swa", random_state=0)
        >>> posterior.observe()
        True
        >>> with TemporaryDirectory() as folder:
        ...     save_posterior(f"{folder}/weights.boxloop", posterior)
        ...     again = load_posterior(f"{folder}/weights.boxloop", net)
        >>> again.count, torch.equal(again.centre(), posterior.centre())
        (1, True)
    """
    state = read_state(path)
    try:
        return WeightPosterior.restore(state, net, device)
    except ValueError as error:
        raise ModelFileError(f"{fspath(path)}: {error}") from error


def read_state(path: str | PathLike[str]) -> PosteriorState:
    """What :func:`save_posterior` wrote, checked."""
    from boxloop.weights.constraints import CLASSES, CONSTRAINTS

    state = load_tree(path, CLASSES, CONSTRAINTS).tree
    if not isinstance(state, PosteriorState):
        raise ModelFileError(f"{fspath(path)}: a {type(state).__name__}, not a posterior over weights")
    return state
