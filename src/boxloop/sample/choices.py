"""What :func:`boxloop.sample.sample` does when it is not told, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from boxloop.chain import Kernel, advance
from boxloop.data import check_choice
from boxloop.sample.adapt import Tunable, Tuner
from boxloop.sample.gibbs import Algorithm, Gibbs
from boxloop.sample.hmc import HMC
from boxloop.sample.independent import Independent
from boxloop.sample.mala import MALA
from boxloop.sample.movers import Compiled, Graphs, Mover
from boxloop.sample.random_walk import RandomWalk
from boxloop.sample.start import check_steps, check_whole, has_gradient
from boxloop.sample.target import Target

BY_NAME: dict[str, Callable[[], Algorithm]] = {"hmc": HMC, "mala": MALA, "random_walk": RandomWalk}


def check_chains(chains: int | None, superchains: int | None) -> None:
    """Refuse numbers of chains that cannot be."""
    if chains is not None:
        check_whole("chains", chains, 1)
    if superchains is None:
        return
    if chains is None:
        raise ValueError("superchains begin around one point: pass it as start, and chains=")
    check_whole("superchains", superchains, 1)
    if superchains < 2 or chains % superchains or chains == superchains:
        raise ValueError(
            f"superchains must divide chains into at least 2 groups of at least 2, got {superchains} of {chains}"
        )


def choose_algorithm(kernel: Any, target: Target, position: Tensor, known: bool) -> Any:
    """The algorithm that was asked for, or the default of the target."""
    if isinstance(kernel, str):
        if kernel not in BY_NAME:
            raise ValueError(
                f"kernel must be one of {', '.join(BY_NAME)}, an algorithm or a Kernel, got {kernel!r}"
            )
        kernel = BY_NAME[kernel]()
    if kernel is None:
        if not known:
            raise ValueError("without a log_density there must be a kernel")
        kernel = HMC() if has_gradient(target, position) else RandomWalk()
    if isinstance(kernel, Kernel):
        return kernel
    if isinstance(kernel, type) or not isinstance(kernel, Algorithm):
        raise ValueError(f"kernel must be an algorithm such as HMC(), its name, or a Kernel, got {kernel!r}")
    if not known:
        _check_free(kernel)
    if isinstance(kernel, HMC | MALA) and not has_gradient(target, position):
        raise ValueError(
            f"{type(kernel).__name__} needs a gradient, and log_density cannot be differentiated: "
            "write it in torch, pass value_and_gradient, or use RandomWalk"
        )
    return check_steps(kernel, position) if isinstance(kernel, Tunable) else kernel


def _check_free(kernel: Algorithm) -> None:
    """Refuse moves that look at a density where there is none: they would accept all."""
    for block in kernel.blocks.values() if isinstance(kernel, Gibbs) else (kernel,):
        if isinstance(block, HMC | MALA | RandomWalk | Independent):
            raise ValueError(f"{type(block).__name__} needs a log_density, and it is None")


def choose_mover(mode: str | None, position: Tensor) -> Mover:
    """How blocks of steps are run."""
    asked = mode is not None
    if mode is None:
        mode = "graph" if position.is_cuda else "eager"
    if mode == "graph" and not position.is_cuda:
        raise ValueError("graphs are for a GPU: pass device='cuda', or mode='compiled'")
    movers: dict[str, Mover] = {"eager": advance, "compiled": Compiled(), "graph": Graphs(strict=asked)}
    check_choice(mode, "mode", tuple(movers))
    return movers[mode]


def make_tuner(algorithm: Any, position: Tensor, warmup: int) -> Tuner | None:
    """Who tunes the algorithm; None where its scale is given or there is no warm-up."""
    if not isinstance(algorithm, Tunable) or algorithm.scale is not None or warmup == 0:
        return None
    return Tuner(algorithm, position.shape[1], warmup, len(position))
