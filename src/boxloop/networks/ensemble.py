r"""Ensembles: a mixture of posteriors over weights, one component or more for each training run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Self

import torch
from sklearn.utils.parallel import Parallel, delayed
from torch import Generator, Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from boxloop.data import check_list
from boxloop.loop import Iteration, run
from boxloop.networks.distribution import Component, Method, Posterior, warn
from boxloop.networks.posterior import WeightPosterior
from boxloop.networks.predictor import PredictivePosterior, Predictor
from boxloop.networks.train import Loss, TrainingHistory
from boxloop.numeric import RandomState, generator as make_generator, seed, spawn

TOLERANCE, MAX_ITERATIONS = 1e-12, 10_000
"""Change of the mean log score at which stacking weights have converged, and most iterations."""


class MultiPosterior(PredictivePosterior):
    r"""A mixture of posteriors over weights.

    .. math:: p(\theta) = \sum_k w_k \, N(\theta; \mu_k, F_k F_k^\top + \operatorname{diag} \psi_k)

    With ``"swag"`` members it is MultiSWAG (Wilson and Izmailov, 2020); with ``"factor"`` members a mixture of factor
    analysers, one for each basin that a training run reached; with ``"swa"`` members, which have zero variance, an
    ensemble of averaged networks (Lakshminarayanan et al., 2017). The networks may differ.

    Args:
        posteriors: the members; a member that is a mixture contributes all its components.
        weights: w, (k,), not negative; they are normalised to sum to 1. Equal if None.

    Attributes:
        posteriors: the members.
        weights: of the members.
        trainings: the training history of each, if :meth:`fit` made them.

    Example:
        >>> import torch
        >>> from boxloop.networks import WeightPosterior
        >>> members = []
        >>> for level in (1.0, 3.0):
        ...     net = torch.nn.Linear(1, 1, bias=False)
        ...     _ = net.weight.data.fill_(level)
        ...     members.append(WeightPosterior(net, "swa"))
        ...     _ = members[-1].observe()
        >>> mixture = MultiPosterior(members, weights=[3.0, 1.0])
        >>> [(one.weight, one.distribution.mean.item()) for one in mixture.components()]
        [(0.75, 1.0), (0.25, 3.0)]
        >>> round(mixture.draw(4000, random_state=0).mean().item(), 1)
        1.5
    """

    def __init__(
        self, posteriors: Sequence[Posterior], weights: Sequence[float] | Tensor | None = None
    ) -> None:
        candidate: object = posteriors
        if isinstance(candidate, Posterior):
            raise TypeError(
                f"posteriors must be a list of posteriors, got a single {type(candidate).__name__}"
            )
        members = check_list(posteriors, "posteriors", "posteriors")
        self.posteriors: tuple[WeightPosterior, ...] = tuple(members)
        if not self.posteriors:
            raise ValueError("posteriors must hold at least one posterior, got an empty list")
        for one in self.posteriors:
            if not isinstance(one, Posterior):
                raise TypeError(
                    f"posteriors must hold posteriors, such as WeightPosterior(net) after it has observed; got a "
                    f"{type(one).__name__}"
                )
        n = len(self.posteriors)
        w = (torch.ones(n) if weights is None else torch.as_tensor(weights)).to("cpu", torch.float64)
        if w.shape != (n,) or not bool((w >= 0.0).all()) or not 0.0 < float(w.sum()) < float("inf"):
            raise ValueError(f"weights must be {n} non-negative numbers, not all 0, got {w.tolist()}")
        self.weights: tuple[float, ...] = tuple((w / w.sum()).tolist())
        self.trainings: tuple[TrainingHistory, ...] = ()

    def __len__(self) -> int:
        return len(self.posteriors)

    def components(self) -> tuple[Component, ...]:
        """The components of all members with their weights in the mixture; those of weight 0 are left out."""
        return tuple(
            replace(component, weight=weight * component.weight)
            for weight, member in zip(self.weights, self.posteriors, strict=True)
            if weight > 0.0
            for component in member.components()
        )

    def draw(self, n: int, random_state: RandomState = None) -> Tensor:
        """Draw n weight vectors, (n, D), each from a component chosen by its weight; all networks have D weights."""
        components = self.components()
        if len({one.distribution.size for one in components}) > 1:
            sizes = ", ".join(str(one.distribution.size) for one in components)
            raise ValueError(f"draw() needs networks of equal size; the components have {sizes} weights")
        choice, *streams = spawn(make_generator(random_state), 1 + len(components))
        shares = torch.tensor([one.weight for one in components], dtype=torch.float64)
        assignment = torch.multinomial(shares, n, replacement=True, generator=choice)
        vectors = components[0].distribution.mean.new_empty(n, components[0].distribution.size)
        for place, (component, own) in enumerate(zip(components, streams, strict=True)):
            rows = (assignment == place).nonzero()[:, 0]
            distribution = component.distribution
            draws = distribution.draw(len(rows), make_generator(own, distribution.mean.device))
            vectors[rows.to(vectors.device)] = draws.to(vectors)
        return vectors

    def stack(self, predictor: Predictor, X: Any, y: Any) -> MultiPosterior:
        r"""The same members, with the weights that are best together on held-out rows.

        .. math:: \max_w \frac1n \sum_i \log \sum_k w_k \, p_k(y_i \mid x_i)

        Stacking of predictive distributions (Yao et al., 2018). With few rows, or similar members, equal weights
        predict better.

        Args:
            predictor: of this mixture; its noise, temperature, scale and number of draws are used.
            X: inputs (n, ...) of rows that were not used for training.
            y: their outputs or classes.
        """
        scores = []
        for member in self.posteriors:
            single = replace(predictor, components=member.components(), buffers=None).with_scale(
                predictor.scale
            )
            scores.append(torch.as_tensor(single.predict(X).log_prob(y)))
        stacked = MultiPosterior(self.posteriors, stacking_weights(torch.stack(scores)))
        stacked.trainings = self.trainings
        return stacked

    @classmethod
    def fit(
        cls,
        make_net: Callable[[Generator], nn.Module],
        batches: Iterable[Any] | Callable[[Generator], Iterable[Any]],
        loss: Loss,
        make_optimiser: Callable[[nn.Module], Optimizer],
        *,
        epochs: int,
        members: int = 5,
        method: str | Method = "factor",
        rank: int = 10,
        burn_in: int = 0,
        every: int = 1,
        make_scheduler: Callable[[Optimizer], LRScheduler] | None = None,
        clip: float | None = None,
        parameters: str | Sequence[str] | None = None,
        n_jobs: int | None = 1,
        random_state: RandomState = None,
        verbose: bool = False,
        checkpoint: str | PathLike[str] | None = None,
    ) -> Self:
        """Train several networks from different initial weights, and estimate a posterior for each.

        The members do not depend on the number of processes, bit for bit where torch sums identically on any number of
        threads, as for small networks. Each process has its share of the threads. Networks on a GPU are best trained
        with one job.

        Args:
            make_net: returns a network, given a random generator for its initial weights. Layers of torch use the
                global generator instead, so their initial weights differ between runs.
            batches: pairs (x, y), the same for all members, or a function that returns them, given a generator for
                their order.
            loss: of the network's predictions and y.
            make_optimiser: returns the optimiser of a network.
            epochs: passes over the batches.
            members: number of networks.
            method: as in :class:`WeightPosterior`.
            rank: as in :class:`WeightPosterior`.
            burn_in: epochs before weights are observed.
            every: steps between two observations.
            make_scheduler: returns the scheduler of an optimiser.
            clip: largest norm of a gradient.
            parameters: that vary, as in :class:`WeightPosterior`.
            n_jobs: number of processes, as in joblib; 1 trains one member after another in this process.
            random_state: of initial weights, orders and posteriors.
            verbose: show a progress bar for each member.
            checkpoint: files to save progress in and to continue from; a number is appended for each member.

        Raises:
            KeyboardInterrupt: on Ctrl-C before any member is usable. Later the finished members are returned with a
                warning; with several processes none is.
        """
        if members < 1:
            raise ValueError(f"members must be at least 1, got {members}")
        if isinstance(make_net, nn.Module) or not callable(make_net):
            raise TypeError(
                f"make_net must be a function that returns a network, got a {type(make_net).__name__}"
            )
        if not callable(make_optimiser):
            raise TypeError(
                "make_optimiser must be a function that returns an optimiser, given a network; got a "
                f"{type(make_optimiser).__name__}"
            )

        def train_member(
            net: nn.Module, own_batches: Iterable[Any], own_seed: int, path: Path | None
        ) -> tuple[WeightPosterior, TrainingHistory]:
            posterior = WeightPosterior(net, method, rank, parameters=parameters, random_state=own_seed)
            optimiser = make_optimiser(net)
            history = posterior.fit(
                own_batches,
                loss,
                optimiser,
                epochs=epochs,
                burn_in=burn_in,
                every=every,
                scheduler=None if make_scheduler is None else make_scheduler(optimiser),
                clip=clip,
                verbose=verbose,
                checkpoint=path,
            )
            return posterior, history

        # Networks are made here: layers of torch use a global generator, which is the same in every new process.
        tasks = []
        for number, own in enumerate(spawn(make_generator(random_state), members)):
            start, order, observation = spawn(own, 3)
            own_batches = batches(order) if callable(batches) else batches
            path = None if checkpoint is None else Path(f"{checkpoint}.{number}")
            tasks.append((make_net(start), own_batches, seed(observation), path))
        if len({id(net) for net, *_ in tasks}) < len(tasks):
            raise ValueError(
                "make_net returned the same network twice; it must return a new one at every call"
            )
        if n_jobs in (None, 1):
            trained = _train_sequentially(train_member, tasks)
        else:
            trained = Parallel(n_jobs=n_jobs)(delayed(train_member)(*task) for task in tasks)
        mixture = cls([posterior for posterior, _ in trained])
        mixture.trainings = tuple(history for _, history in trained)
        return mixture


def _train_sequentially(
    train_member: Callable[..., tuple[WeightPosterior, TrainingHistory]], tasks: Sequence[Any]
) -> list[tuple[WeightPosterior, TrainingHistory]]:
    """Train one member after another, until Ctrl-C."""
    trained: list[tuple[WeightPosterior, TrainingHistory]] = []
    for task in tasks:
        posterior, history = train_member(*task)
        if not history.interrupted or posterior.count >= posterior.method.min_vectors:
            trained.append((posterior, history))
        if history.interrupted:
            if not trained:
                raise KeyboardInterrupt
            warn(f"Interrupted: the mixture has {len(trained)} of {len(tasks)} members.")
            break
    return trained


def stacking_weights(log_density: Tensor) -> Tensor:
    """The weights (k,) under which rows of log-densities (k, n) are most probable, by EM, as the score is concave."""
    log_density = torch.as_tensor(log_density, dtype=torch.float64)
    if log_density.ndim != 2 or not log_density.numel():
        raise ValueError(f"log_density must have shape (k, n), k and n > 0, got {tuple(log_density.shape)}")
    k = len(log_density)
    best = log_density.amax(0)
    if not bool(best.isfinite().all()) or bool(log_density.isnan().any()):
        raise ValueError("log_density must be free of NaN, and finite for one member at least in every row")
    density = (log_density - best).exp()

    def step(weights: Tensor) -> Iteration[Tensor]:
        joint = weights[:, None] * density
        total = joint.sum(0)
        return Iteration((joint / total).mean(1), float(total.log().mean()))

    start = torch.full((k,), 1.0 / k, dtype=torch.float64)
    result: Tensor = run(step, start, max_iter=MAX_ITERATIONS, tol=TOLERANCE, monotone=True).state
    return result
