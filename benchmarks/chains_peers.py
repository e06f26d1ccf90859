"""One sampler, one cold call: time to draws of a logistic regression, and how many of them are effective."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

D, N = 24, 1000
DRAWS = 20_000


def problem() -> tuple[np.ndarray, np.ndarray]:
    """Columns that are correlated, and answers zero or one."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, D))
    x[:, 1:] = 0.5 * x[:, 1:] + x[:, :1]
    y = rng.random(N) < 1.0 / (1.0 + np.exp(-x @ (0.5 * rng.normal(size=D))))
    return x, y.astype(float)


def around_mode() -> tuple[np.ndarray, np.ndarray]:
    """Mode of the posterior by Newton's method, and a root of the covariance there."""
    x, y = problem()
    w = np.zeros(D)
    for _ in range(20):
        p = 1.0 / (1.0 + np.exp(-x @ w))
        curvature = (x * (p * (1.0 - p))[:, None]).T @ x + 0.25 * np.eye(D)
        w += np.linalg.solve(curvature, x.T @ (y - p) - 0.25 * w)
    return w, np.linalg.cholesky(np.linalg.inv(curvature))


def effective(draws: np.ndarray) -> float:
    """Bulk effective draws (chains, draws, columns): the least over columns, as ArviZ counts them."""
    from arviz_stats.base import array_stats

    return float(min(array_stats.ess(draws[:, :, j], method="bulk") for j in range(draws.shape[2])))


def TARGETS(device: str = "cpu") -> dict[str, tuple[Callable[..., Any], int]]:
    import torch

    x, y = (torch.as_tensor(part).to(device) for part in problem())

    def logistic(w):
        e = w @ x.T
        return (y * e - torch.nn.functional.softplus(e)).sum(1) - 0.125 * (w * w).sum(1)

    scale = torch.linspace(0.3, 1.0, 100, dtype=torch.float64, device=device)
    return {
        "logistic 24": (logistic, D),
        "Gaussian 10": (lambda x: -0.5 * (x * x).sum(1), 10),
        "Gaussian 100": (lambda x: -0.5 * (x / scale).square().sum(1), 100),
        "Student 10": (lambda x: -(4.0 * torch.log1p(x * x / 7.0)).sum(1), 10),
    }


def cold_call(who: str, chains: int) -> dict[str, Any]:
    """Import, start the clock, sample in growing runs until 1000 draws are effective."""
    call = {"boxloop": _boxloop, "BlackJAX": _blackjax, "NumPyro": _numpyro, "emcee": _emcee}[who](chains)
    warnings.simplefilter("ignore")
    length = {"emcee": 2000}.get(who, 300 if chains < 100 else 40)
    begin = time.perf_counter()
    draws = call(length)
    spent = time.perf_counter() - begin
    found = effective(draws)
    while found < 1000.0:
        if spent > 300.0:
            return {"seconds to 1000": float("inf"), "draws": length * chains, "effective": found}
        length *= 2
        begin = time.perf_counter()
        draws = call(length)
        spent = time.perf_counter() - begin  # a longer run of its own: what one who knew would have waited
        found = effective(draws)
    return {
        "seconds to 1000": spent,
        "draws": length * chains,
        "effective": found,
        "means": float(draws.mean()),
    }


def _boxloop(chains: int) -> Callable[[int], np.ndarray]:
    import torch

    from boxloop.sample import sample_density

    target, d = TARGETS()["logistic 24"]

    def call(length: int) -> np.ndarray:
        start = torch.zeros(d, dtype=torch.float64)
        draws = sample_density(
            target, start, chains=chains, draws=length, warmup=300 if chains < 100 else 100, random_state=0
        )
        return np.swapaxes(draws.positions.numpy(), 0, 1)

    return call


def _blackjax(chains: int) -> Callable[[int], np.ndarray]:
    import blackjax
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    x, y = (jnp.asarray(part) for part in problem())

    def density(w):
        e = x @ w
        return jnp.sum(y * e - jnp.logaddexp(0.0, e)) - 0.125 * jnp.sum(w * w)

    def call(length: int) -> np.ndarray:
        keys = jax.random.split(jax.random.key(0), chains)
        starts = jax.random.normal(jax.random.key(1), (chains, D))

        @jax.jit
        def one(key, start):
            warm, go = jax.random.split(key)
            (state, tuned), _ = blackjax.window_adaptation(blackjax.nuts, density).run(warm, start, 300)
            kernel = blackjax.nuts(density, **tuned).step
            _, path = jax.lax.scan(
                lambda s, k: (lambda r: (r, r.position))(kernel(k, s)[0]), state, jax.random.split(go, length)
            )
            return path

        return np.asarray(jax.block_until_ready(jax.vmap(one)(keys, starts)))

    return call


def _numpyro(chains: int) -> Callable[[int], np.ndarray]:
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    numpyro.enable_x64()
    x, y = (jnp.asarray(part) for part in problem())

    def model():
        w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([D]).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    def call(length: int) -> np.ndarray:
        mcmc = MCMC(
            NUTS(model),
            num_warmup=300,
            num_samples=length,
            num_chains=chains,
            chain_method="vectorized",
            progress_bar=False,
        )
        mcmc.run(jax.random.key(0))
        return np.asarray(mcmc.get_samples(group_by_chain=True)["w"])

    return call


def _emcee(chains: int) -> Callable[[int], np.ndarray]:
    import emcee

    x, y = problem()
    walkers = max(chains, 2 * D + 2)

    def density(w):
        e = w @ x.T
        return (y * e - np.logaddexp(0.0, e)).sum(1) - 0.125 * (w * w).sum(1)

    def call(length: int) -> np.ndarray:
        rng = np.random.default_rng(0)
        sampler = emcee.EnsembleSampler(walkers, D, density, vectorize=True)
        start = sampler.run_mcmc(rng.normal(size=(walkers, D)), 2000)
        sampler.reset()
        sampler.run_mcmc(start, length)
        return np.swapaxes(sampler.get_chain(), 0, 1)

    return call
