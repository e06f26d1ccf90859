"""Chains from a log-density: warm-up, draws, and what there is to worry about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path as FilePath
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.distributions.constraints import Constraint

from boxloop.average import Running
from boxloop.caller import warn_caller
from boxloop.chain import Kernel
from boxloop.data import check_callable
from boxloop.loop import Observer, Outcome, run
from boxloop.numeric import RandomState, generator, seed, single_threaded
from boxloop.persist import CheckpointWriter, read_checkpoint
from boxloop.sample.adapt import Spread, Tuning
from boxloop.sample.chees import Reach
from boxloop.sample.choices import check_chains, choose_algorithm, choose_mover, make_tuner
from boxloop.sample.draws import Draws, SampleWarning
from boxloop.sample.gibbs import Algorithm
from boxloop.sample.hmc import HMC
from boxloop.sample.identity import fingerprint
from boxloop.sample.loop import BLOCK, Plan, Sampling
from boxloop.sample.mala import MALA
from boxloop.sample.space import Space, Values
from boxloop.sample.start import check_begun, check_counts, check_target, make_space, read_start, scattered
from boxloop.sample.target import Pair, Target, make_target, unvalidated
from boxloop.sample.watching import watching

STATES = {c.__name__: c for c in (Sampling, Tuning, Running, Spread, Reach)}


@single_threaded
def sample(
    log_density: Callable[..., Tensor] | Target | None,
    start: Any,
    kernel: Algorithm | Kernel | Literal["hmc", "mala", "random_walk"] | None = None,
    *,
    chains: int | None = None,
    draws: int = 1000,
    warmup: int = 1000,
    thin: int = 1,
    support: Constraint | Mapping[str, Constraint] | None = None,
    value_and_gradient: Pair | None = None,
    batched: bool = True,
    spread: float = 1.0,
    superchains: int | None = None,
    random_state: RandomState = None,
    device: torch.device | str | None = None,
    mode: Literal["eager", "compiled", "graph"] | None = None,
    checkpoint: str | PathLike[str] | None = None,
    verbose: bool | None = False,
    observers: Sequence[Observer[Sampling]] = (),
) -> Draws:
    r"""Draw from a law that is known up to a constant, with many chains at once.

    .. math:: \pi(x) \propto \exp(\text{log-density}(x))

    Document 002, chapter 1. Warm-up tunes scale, metric and trajectories and is thrown away; after it nothing is
    tuned, so that draws are exact.

    Args:
        log_density: all chains' values -> (c,). Values are a tensor (c, ...) or, where ``start`` is a mapping, a
            mapping of such. None where the kernel needs none. A :class:`~boxloop.sample.Target` is sampled as it is.
        start: values with a leading axis of chains; or, with ``chains``, one point, around which chains begin.
        kernel: an algorithm (:class:`~boxloop.sample.HMC`, :class:`~boxloop.sample.MALA`,
            :class:`~boxloop.sample.RandomWalk`, ...), its name, or a finished :class:`~boxloop.chain.Kernel`. When
            omitted, Hamiltonian Monte Carlo with lengths tuned across chains where the density can be differentiated,
            else a random walk.
        chains: how many, when ``start`` is one point.
        draws: of each chain.
        warmup: steps of each chain before the first draw.
        thin: steps from one draw to the next.
        support: constraint of the values (``torch.distributions.constraints``), by name for a mapping. Chains move in
            unconstrained coordinates, and the density is corrected by the Jacobian.
        value_and_gradient: positions (c, d) -> log-density (c,) and gradient (c, d), where a formula beats
            differentiation; for a vector without constraint.
        batched: false for a log-density of one chain's values.
        spread: standard deviation of the noise around ``start`` when it is one point, in unconstrained coordinates.
        superchains: begin the chains in so many groups, each from one point; R-hat is then the nested one, which tells
            whether many *short* chains have found the target (Margossian et al. 2024).
        random_state: seed or generator.
        device: where to; that of ``start`` when omitted.
        mode: how draws are run. ``eager``, one operation after another; ``graph``, as CUDA graphs; ``compiled``, by
            ``torch.compile``, which takes some twenty seconds to begin with and is worth it for long runs of a few
            chains (not for trajectories). When omitted, graphs on a GPU and eager elsewhere.
        checkpoint: a file to save the chains to now and then, and to go on from if it is there. The same trajectory
            results, bit for bit, for the same ``draws``; for more, chains go on from the last one. It needs an integer
            ``random_state``.
        verbose: show progress with acceptance and R-hat; None shows it in a terminal.
        observers: of the loop.

    Returns:
        :class:`~boxloop.sample.Draws`: ``draws["name"]``, ``summary()``, ``worries``, ``plot()``, ``to_arviz()``.

    Raises:
        ValueError: the density has the wrong form, or is zero, infinite or not a number where a chain begins.

    Warns:
        SampleWarning: trajectories diverged, moves were refused since the density was not a number there, acceptance is
            near 0 or 1, trajectories take many times the gradients they need, a draw is not finite, or Ctrl-C ended it.

    Example:
        >>> import torch
        >>> from torch.distributions import constraints
        >>> from boxloop.sample import sample
        >>> rows = torch.tensor([2.1, 1.2, 3.3, 2.7, 1.9]).double()
        >>> def log_density(values):
        ...     law = torch.distributions.Normal(values["mean"][:, None], values["scale"][:, None])
        ...     return law.log_prob(rows).sum(1) - values["scale"]
        >>> draws = sample(
        ...     log_density,
        ...     {"mean": torch.tensor(0.0).double(), "scale": torch.tensor(1.0).double()},
        ...     support={"scale": constraints.positive},
        ...     chains=8,
        ...     random_state=0,
        ... )
        >>> draws.converged, round(float(draws["mean"].mean()), 1)
        (True, 2.2)
    """
    check_counts(draws, warmup, thin, spread)
    check_chains(chains, superchains)
    values = read_start(start, chains, device)
    target, position = _begin(log_density, values, support, value_and_gradient, batched)
    stream = generator(seed(random_state), position.device)
    with torch.no_grad():
        if chains is not None:
            with unvalidated():
                position = scattered(target, position, spread, stream, superchains)
        check_target(target, position)
    algorithm = choose_algorithm(kernel, target, position, log_density is not None)
    tuner = make_tuner(algorithm, position, warmup)
    plan = Plan(algorithm, target, tuner, warmup, draws, thin, stream, choose_mover(mode, position))
    outcome = _run(plan, position, checkpoint, random_state, [*observers, *watching(verbose, plan)])
    found = gather(plan, outcome, target.space or Space.of(position), superchains)
    if found.faults:
        warn_caller("; ".join(found.faults), SampleWarning)
    return found


def gather(plan: Plan, outcome: Outcome[Sampling], space: Space, superchains: int | None) -> Draws:
    """The draws of all rounds."""
    state = outcome.state
    kernel = plan.final_kernel(state)
    steps = state.drawn * plan.thin
    none = state.position[None][:0], state.log_density[None][:0]
    return Draws(
        positions=torch.cat([none[0], *state.draws])[: plan.draws],
        log_density=torch.cat([none[1], *state.densities])[: plan.draws],
        space=space,
        algorithm=plan.tuned(state.tuning, plan.warmup),
        acceptance=None if kernel.chance is None or steps == 0 else state.accepted / steps,
        refused=state.refused,
        outside=state.outside,
        diverging=torch.cat(state.diverging)[: plan.draws] if state.diverging else None,
        warmup=min(plan.warmup, state.steps),
        thin=plan.thin,
        superchains=superchains,
        events=tuple(outcome.events),
        interrupted=outcome.interrupted,
    )


def _begin(
    log_density: Any,
    values: Tensor | Values,
    support: Constraint | Mapping[str, Constraint] | None,
    value_and_gradient: Pair | None,
    batched: bool,
) -> tuple[Target, Tensor]:
    space = make_space(values, support)
    position = space.pack(values)
    if isinstance(log_density, Target):
        return (log_density if log_density.space is not None else replace(log_density, space=space)), position
    if log_density is None:
        return Target(lambda rows: rows.new_zeros(len(rows)), None, space), position
    check_callable(log_density, "log_density", "all chains' values")
    return make_target(log_density, space, value_and_gradient, batched), position


def _run(
    plan: Plan,
    position: Tensor,
    checkpoint: str | PathLike[str] | None,
    random_state: RandomState,
    observers: Sequence[Observer[Sampling]],
) -> Outcome[Sampling]:
    with torch.no_grad():
        state = plan.begin(position)
    check_begun(state.chains, isinstance(plan.algorithm, HMC | MALA))
    resume = None
    if checkpoint is not None:
        if not isinstance(random_state, int | np.integer):
            raise ValueError("a checkpoint needs an integer random_state: the same start must be drawn again")
        belongs = fingerprint(plan, state, int(random_state))
        if FilePath(checkpoint).exists():
            resume = read_checkpoint(checkpoint, STATES, belongs)
            state = resume.state
        observers = [*observers, CheckpointWriter(checkpoint, belongs, seconds=10.0)]
    before = 0 if resume is None else resume.n_iter
    warm, rest = max(0, plan.warmup - state.steps), max(0, plan.draws - state.drawn)
    rounds = before - (-warm // plan.pause) - (-rest // BLOCK)
    return run(plan.step, state, max_iter=rounds, observers=observers, resume=resume)
