"""The same kernel on the same target, ours and BlackJAX's: stepping, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import torch

from boxloop.chain import advance
from boxloop.numeric import generator
from boxloop.sample import MALA, CompiledSteps, RandomWalk, Target
from chains_peers import D, around_mode, problem

PROBLEMS = {
    "walk, Gaussian 10": ("walk", 10, False),
    "walk, Gaussian 100": ("walk", 100, False),
    "MALA, formula, Gaussian 10": ("mala", 10, True),
    "MALA, formula, logistic 24": ("mala", D, True),
    "MALA, autograd, Gaussian 10": ("mala", 10, False),
    "MALA, autograd, logistic 24": ("mala", D, False),
}
"""Kernel, columns, whether ours is given the gradient. BlackJAX differentiates."""


@dataclass
class Steady:
    run: Callable[[], object]
    steps: int
    acceptance: float
    compiled: Callable[[], Callable[[], object]] | None = None


def scale_of(kind: str, columns: int) -> float:
    if columns == D:
        return 0.03
    return 2.38 / columns**0.5 if kind == "walk" else 1.65 / columns ** (1 / 6)


def steps_of(chains: int, columns: int) -> int:
    return int(np.clip(2_000_000 // (chains * columns), 64, 2048))


def starts(chains: int, columns: int) -> np.ndarray:
    """Draws of the Gaussian, or of the normal distribution around the mode of the logistic regression."""
    noise = np.random.default_rng(1).normal(size=(chains, columns))
    if columns != D:
        return noise
    mode, root = around_mode()
    return mode + noise @ root.T


def ours(name: str, chains: int, dtype: str) -> Steady:
    kind, d, formula = PROBLEMS[name]
    kind_of = getattr(torch, dtype)
    x, y = (torch.as_tensor(part, dtype=kind_of) for part in problem())

    def gaussian(z):
        return -0.5 * (z * z).sum(1)

    def logistic(z):
        e = z @ x.T
        return (y * e - torch.nn.functional.softplus(e)).sum(1) - 0.125 * (z * z).sum(1)

    def gaussian_pair(z):
        return -0.5 * (z * z).sum(1), -z

    def logistic_pair(z):
        e = z @ x.T
        value = (e @ y) - torch.nn.functional.softplus(e).sum(1) - 0.125 * (z * z).sum(1)
        return value, (y - torch.sigmoid(e)) @ x - 0.25 * z

    density, pair = (logistic, logistic_pair) if d == D else (gaussian, gaussian_pair)
    target = Target(density, pair if formula else None)
    h = scale_of(kind, d)
    kernel = (RandomWalk(scale=h) if kind == "walk" else MALA(scale=h)).kernel(target)
    with torch.no_grad():
        chained = kernel.init(torch.as_tensor(starts(chains, d), dtype=kind_of))
        steps = steps_of(chains, d)
        path = advance(kernel, chained, steps, generator(0))
    accepted = float(path.log_ratio[steps // 2 :].clamp(max=0.0).exp().mean())

    def run(move=advance):
        with torch.no_grad():
            return move(kernel, path.chains, steps, generator(1))

    def compiled():
        mover = CompiledSteps()
        run(mover)
        return lambda: run(mover)

    return Steady(run, steps, accepted, compiled)


def theirs(name: str, chains: int, dtype: str) -> Steady:
    jax.config.update("jax_enable_x64", dtype == "float64")
    kind, d, _ = PROBLEMS[name]
    x, y = (jnp.asarray(part, dtype=dtype) for part in problem())

    def gaussian(z):
        return -0.5 * jnp.sum(z * z)

    def logistic(z):
        e = x @ z
        return jnp.sum(y * e - jnp.logaddexp(0.0, e)) - 0.125 * jnp.sum(z * z)

    density = logistic if d == D else gaussian
    h = scale_of(kind, d)
    if kind == "walk":
        normal = blackjax.mcmc.random_walk.normal(jnp.full(d, h, dtype))
        kernel = blackjax.additive_step_random_walk(density, normal)
    else:
        kernel = blackjax.mala(density, 0.5 * h * h)
    state = jax.vmap(kernel.init)(jnp.asarray(starts(chains, d), dtype=dtype))
    steps = steps_of(chains, d)

    @jax.jit
    def go(key, state):
        def one(state, key):
            state, info = jax.vmap(kernel.step)(jax.random.split(key, chains), state)
            return state, (state.position, info.acceptance_rate)

        return jax.lax.scan(one, state, jax.random.split(key, steps))

    state, (_, rate) = jax.block_until_ready(go(jax.random.key(0), state))
    return Steady(
        lambda: jax.block_until_ready(go(jax.random.key(1), state)), steps, float(rate[steps // 2 :].mean())
    )
