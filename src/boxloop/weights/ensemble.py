r"""Several posteriors as one: a mixture of Gaussians over weights, one for each run of a training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, Self

import torch
from torch import Generator, Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from boxloop.data import check_list
from boxloop.loop import Iteration, run
from boxloop.numeric import RandomState, generator as stream, spawn
from boxloop.weights.ensemble_fit import Plan, fit_members
from boxloop.weights.fitting import Loss, Training
from boxloop.weights.method import Method, Part, Posterior
from boxloop.weights.predictor import Predictor
from boxloop.weights.usable import Usable

SETTLED, ROUNDS = 1e-12, 10_000
"""Change of the mean log score at which weights have settled, and most rounds until then."""


class MultiPosterior(Usable):
    r"""A mixture of posteriors over weights.

    .. math:: p(\theta) = \sum_k w_k \, N(\theta; \mu_k, F_k F_k^\top + \operatorname{diag} \psi_k)

    With ``"swag"`` members this is MultiSWAG (Wilson and Izmailov, 2020); with ``"factor"`` members a mixture of
    factor analysers, one for each basin that a run of the training came to; with ``"swa"`` members, which have no
    spread, an ensemble of averaged networks (Lakshminarayanan et al., 2017). The networks may differ.

    Args:
        posteriors: the members; one that is a mixture itself brings all its Gaussians.
        weights: w, (k,), not negative; they are made to sum to 1. Equal when None.

    Attributes:
        posteriors: the members.
        weights: their shares.
        trainings: how the training of each went, where :meth:`fit` made them.

    Example:
        >>> import torch
        >>> from boxloop.weights.posterior import WeightPosterior
        >>> members = []
        >>> for level in (1.0, 3.0):
        ...     net = torch.nn.Linear(1, 1, bias=False)
        ...     _ = net.weight.data.fill_(level)
        ...     members.append(WeightPosterior(net, "swa"))
        ...     _ = members[-1].observe()
        >>> both = MultiPosterior(members, weights=[3.0, 1.0])
        >>> [(part.weight, part.law.mean.item()) for part in both.parts()]
        [(0.75, 1.0), (0.25, 3.0)]
        >>> round(both.draw(4000, random_state=0).mean().item(), 1)
        1.5
    """

    def __init__(
        self, posteriors: Sequence[Posterior], weights: Sequence[float] | Tensor | None = None
    ) -> None:
        given: object = posteriors
        if isinstance(given, Posterior):
            raise TypeError(
                f"a mixture is of several posteriors: give a list of them, not a {type(given).__name__}"
            )
        self.posteriors = tuple(check_list(posteriors, "posteriors", "posteriors"))
        if not self.posteriors:
            raise ValueError("a mixture needs at least one posterior")
        for one in self.posteriors:
            if not isinstance(one, Posterior):
                raise TypeError(
                    f"a mixture is of posteriors, such as WeightPosterior(net) once it has observed, not of a "
                    f"{type(one).__name__}"
                )
        self.weights = _shares(weights, len(self.posteriors))
        self.trainings: tuple[Training, ...] = ()

    def __len__(self) -> int:
        return len(self.posteriors)

    def parts(self) -> tuple[Part, ...]:
        """Every Gaussian, with its share of the whole; those without any share are left out."""
        return tuple(
            Part(weight * part.weight, part.net, part.layout, part.law)
            for weight, member in zip(self.weights, self.posteriors, strict=True)
            if weight > 0.0
            for part in member.parts()
        )

    def draw(self, n: int, random_state: RandomState = None) -> Tensor:
        """n vectors of weights, (n, D), each from a member chosen by its share.

        Raises:
            ValueError: the members' networks have different numbers of weights.
        """
        parts = self.parts()
        if len({part.law.size for part in parts}) > 1:
            sizes = ", ".join(str(part.law.size) for part in parts)
            raise ValueError(f"vectors of different lengths make no table: the members have {sizes} weights")
        choosing, *streams = spawn(stream(random_state), 1 + len(parts))
        shares = torch.tensor([part.weight for part in parts], dtype=torch.float64)
        member = torch.multinomial(shares, n, replacement=True, generator=choosing)
        found = parts[0].law.mean.new_empty(n, parts[0].law.size)
        for place, (part, own) in enumerate(zip(parts, streams, strict=True)):
            chosen = (member == place).nonzero()[:, 0]
            law = part.law
            found[chosen.to(found.device)] = law.draw(len(chosen), stream(own, law.mean.device)).to(found)
        return found

    def stacked(self, predictor: Predictor, X: Any, y: Any) -> MultiPosterior:
        r"""The same members, weighed by how well they predict rows held out, together.

        .. math:: \max_w \frac1n \sum_i \log \sum_k w_k \, p_k(y_i \mid x_i)

        Stacking of predictive distributions (Yao et al., 2018). On few rows, or with members that are alike, equal
        weights predict better.

        Args:
            predictor: of this mixture, from which noise, temperature, scale and the number of draws are taken.
            X: inputs (n, ...) that were not trained on.
            y: what belongs to them.
        """
        scores = []
        for member in self.posteriors:
            parts = member.parts()
            alone = replace(predictor, parts=parts, buffers=None).at_scale(predictor.scale)
            scores.append(torch.as_tensor(alone.predict(X).log_prob(y)))
        found = MultiPosterior(self.posteriors, stacking_weights(torch.stack(scores)))
        found.trainings = self.trainings
        return found

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
        """Train several networks from different starts, and follow each.

        The members are the same however many processes train them, bit for bit where torch gives the same sums on any
        number of threads, as it does for small networks. Each process has its share of the threads. Networks on a GPU
        are best trained with one job.

        Args:
            make_net: gives a network, given a generator of random numbers for its start. Torch's layers start from
                the global generator instead, so that their starts differ from run to run.
            batches: pairs (x, y), the same for all, or a function that gives them, given a generator for their order.
            loss: of what a network says of x, and y.
            make_optimiser: gives the optimiser of a network.
            epochs: passes over the batches.
            members: how many networks.
            method: as of :class:`WeightPosterior`.
            rank: as of it.
            burn_in: epochs that are not observed.
            every: steps between two observations.
            make_scheduler: gives the scheduler of an optimiser.
            clip: largest norm of a gradient.
            parameters: that vary, as of :class:`WeightPosterior`.
            n_jobs: processes, as joblib understands it; 1 trains here, one member after another.
            random_state: of starts, orders and posteriors.
            verbose: show a progress bar for each member.
            checkpoint: files to save progress in and to go on from: a number is added for each member.

        Raises:
            KeyboardInterrupt: on Ctrl-C before any member could be used. Later the members so far are given back,
                with a warning; with several processes none is.
        """
        if members < 1:
            raise ValueError(f"members must be at least 1, got {members}")
        plan = Plan(
            loss,
            make_optimiser,
            make_scheduler,
            method,
            rank,
            parameters,
            epochs,
            burn_in,
            every,
            clip,
            verbose,
        )
        found, trainings = fit_members(
            plan, make_net, batches, spawn(stream(random_state), members), n_jobs, checkpoint
        )
        multi = cls(found)
        multi.trainings = trainings
        return multi


def _shares(weights: Sequence[float] | Tensor | None, n: int) -> tuple[float, ...]:
    given = torch.ones(n) if weights is None else torch.as_tensor(weights)
    given = given.to("cpu", torch.float64)
    if given.shape != (n,) or not bool((given >= 0.0).all()) or not 0.0 < float(given.sum()) < float("inf"):
        raise ValueError(
            f"weights must be {n} numbers that are not negative, nor all 0, got {given.tolist()}"
        )
    return tuple((given / given.sum()).tolist())


def stacking_weights(log_density: Tensor) -> Tensor:
    r"""The weights of members under which rows held out are most probable, by EM from equal ones.

    .. math:: \max_w \frac1n \sum_i \log \sum_k w_k \, p_{ki}, \qquad
        w_k \leftarrow \frac1n \sum_i \frac{w_k p_{ki}}{\sum_l w_l p_{li}}

    The score is concave in w, so that EM climbs to the highest.

    Args:
        log_density: log p, of each row under each member alone, (k, n).

    Returns:
        w, (k,), which sum to 1.

    Example:
        >>> import torch
        >>> score = torch.tensor([[-1.0, -1.0, -1.0, -9.0], [-9.0, -9.0, -9.0, -1.0]])
        >>> stacking_weights(score).round(decimals=2)
        tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    log_density = torch.as_tensor(log_density, dtype=torch.float64)
    if log_density.ndim != 2 or not log_density.numel():
        raise ValueError(f"log_density must have shape (k, n), k and n > 0, got {tuple(log_density.shape)}")
    n = len(log_density)
    best = log_density.amax(0)
    if not bool(best.isfinite().all()) or bool(log_density.isnan().any()):
        raise ValueError("every row needs a finite log-density under one member at least, and no NaN")
    density = (log_density - best).exp()

    def step(weights: Tensor) -> Iteration[Tensor]:
        joint = weights[:, None] * density
        total = joint.sum(0)
        return Iteration((joint / total).mean(1), float(total.log().mean()))

    start = torch.full((n,), 1.0 / n, dtype=torch.float64)
    found: Tensor = run(step, start, max_iter=ROUNDS, tol=SETTLED, monotone=True).state
    return found
