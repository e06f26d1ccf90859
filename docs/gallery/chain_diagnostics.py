"""A chain that never moved, and chains that all missed the same mode: which diagnostics detect it.

python docs/gallery/chain_diagnostics.py
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch

from boxloop.distributions import DiagonalGaussian
from boxloop.figures import COLOURS, new_figure, png
from boxloop.sample import Draws, Independent, RandomWalk, SampleWarning, sample_density


def needle(x: torch.Tensor) -> torch.Tensor:
    """A normal density with a narrow spike in its middle, which has a hundredth of the probability."""
    normal = -0.5 * x[:, 0] ** 2
    return torch.where(x[:, 0].abs() < 1e-9, normal + 16.5, normal)


def hills(x: torch.Tensor) -> torch.Tensor:
    """Two normal components, probability 0.3 around -6 and 0.7 around 6: the mean is 2.4."""
    low, high = -0.5 * (x[:, 0] + 6.0) ** 2, -0.5 * (x[:, 0] - 6.0) ** 2
    return torch.logaddexp(low + np.log(0.3), high + np.log(0.7))


def classical_r_hat(draws: Draws) -> float:
    """Gelman and Rubin (1992): standard deviation of all draws over that within chains."""
    table = draws.table[:, :, 0]
    within = table.var(1, ddof=1).mean()
    return float(np.sqrt(1.0 - 1.0 / draws.n_draws + table.mean(1).var(ddof=1) / within))


def describe(what: str, draws: Draws, most: int = 1) -> None:
    """Print the mean, the classical R-hat and the concerns of the library."""
    print(f"{what}: mean {abs(float(draws['x'].mean())):.1f}, classical R-hat {classical_r_hat(draws):.2f}")
    for concern in draws.concerns[:most] or ("no concerns",):
        print(f"    {concern}")


start = torch.tensor([[-1.0], [0.0], [0.5], [1.0]]).double()  # the second chain starts on the spike
with warnings.catch_warnings():
    warnings.simplefilter("ignore", SampleWarning)  # the concerns are printed below
    stuck = sample_density(needle, start, RandomWalk(scale=2.4), draws=2000, warmup=0, random_state=0)
one_hill = sample_density(hills, [6.0], chains=4, draws=500, warmup=500, random_state=0)
wide = sample_density(hills, [0.0], chains=4, start_sd=8.0, draws=500, warmup=500, random_state=0)
distribution = DiagonalGaussian(torch.zeros(1, 1).double(), torch.full((1, 1), 49.0).double())
jumps = sample_density(
    hills, [0.0], Independent(distribution), chains=4, start_sd=8.0, draws=2000, warmup=100, random_state=0
)

describe("a spike", stuck, most=2)
describe("two modes, chains start at one", one_hill)
describe("two modes, dispersed starts", wide)
describe("two modes, wide independent proposals", jumps)

figure = new_figure(11.5, 7.2)
panels = figure.subplots(2, 2)
cases = (
    ("One of four chains never moves", stuck),
    ("Two modes: all chains start at the right one", one_hill),
    ("Chains with dispersed starts disagree", wide),
    ("Wide independent proposals reach both modes", jumps.thin_draws(8)),
)
for axes, (title, draws) in zip(panels.flat, cases, strict=True):
    draws.plot(axes)
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
    if axes.get_legend() is not None:
        axes.get_legend().remove()
panels[0, 0].plot(stuck.table[1, :, 0], color=COLOURS[1], lw=2.5)
panels[0, 0].set_xlim(0, 500)
Path(__file__).with_suffix(".png").write_bytes(png(panels[0, 0]))
