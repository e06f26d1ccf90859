"""What appendix C claims, beside what is so."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from boxloop.numeric import generator
from boxloop.twoview import GaussianChannel
from papers.experiment import Finding
from papers.gaussian_channel_trials import SIGMA, TAU, Array, Learned, Size, exact_error, inferred_density
from papers.words import held, met

JUDGED = 4
"""Variables, of those learned, whose relevance is compared: the last ones learned are seldom whole."""


def judge_exact(seed: int) -> list[Finding]:
    """Equations 49 to 53, at several channels, and what is said around them."""
    stream = generator(seed)
    pairs = [(TAU, SIGMA), *(2.0 * torch.rand(5, 2, generator=stream, dtype=torch.float64) + 0.1).tolist()]
    channels = [(tau, sigma, GaussianChannel.noisy(tau, sigma)) for tau, sigma in pairs]
    gaps = [_matrices(*one) for one in channels]
    return [
        *_correlators(np.asarray(gaps).max(0), len(pairs)),
        _eigenvalues(),
        _moments(channels),
        _normalised(),
        _rank(),
        _parameters(),
    ]


def _matrices(tau: float, sigma: float, channel: GaussianChannel) -> list[float]:
    """Largest relative differences of K, L, A (eq. 49, 50) and of M (eq. 51)."""
    t, s = tau**2, sigma**2
    w, gamma = t + s, t / (t + s)
    found = channel.monomials(3)
    inner, outer, cross = found
    whole = torch.linalg.solve(inner, cross.mT @ torch.linalg.solve(outer, cross))
    known = [
        [[1, 0, t], [0, t, 0], [t, 0, 3 * t**2]],
        [[1, 0, w], [0, w, 0], [w, 0, 3 * w**2]],
        [[1, 0, t], [0, t, 0], [w, 0, t * (s + 3 * t)]],
        [[1, 0, t * (1 - gamma**2)], [0, gamma, 0], [0, 0, gamma**2]],
    ]
    return [_apart(a, torch.tensor(b, dtype=torch.float64)) for a, b in zip((*found, whole), known)]


def _apart(found: Tensor, known: Tensor) -> float:
    return float((found - known).abs().max() / known.abs().max())


def _correlators(gap: Array, count: int) -> list[Finding]:
    return [
        Finding(
            "K, L and A of 1, x, x² (eq. 49, 50)",
            "closed forms",
            f"largest relative difference {gap[:3].max():.0e}",
            None,
            "reproduced" if gap[:3].max() < 1e-12 else "not reproduced",
            f"Against moments by Isserlis' pairings, for {count} pairs of deviations.",
            exact=True,
        ),
        Finding(
            "M = K⁻¹AᵀL⁻¹A is triangular (eq. 51)",
            "diagonal 1, γ, γ²; corner τ²(1 − γ²)",
            f"largest relative difference {gap[3]:.0e}",
            None,
            "reproduced" if gap[3] < 1e-9 else "not reproduced",
            "Its eigenfunctions are 1, x and x² − τ².",
            exact=True,
        ),
    ]


def _eigenvalues() -> Finding:
    gamma, size = TAU**2 / (TAU**2 + SIGMA**2), 8
    inner, outer, cross = GaussianChannel.noisy(TAU, SIGMA).monomials(size)
    whole = torch.linalg.solve(inner, cross.mT @ torch.linalg.solve(outer, cross))
    found = torch.linalg.eigvals(whole).real.sort(descending=True).values.numpy()
    gap = float(np.abs(found / gamma ** np.arange(size) - 1.0).max())
    return Finding(
        "relevances are 1, γ, γ², ...",
        "three of them",
        f"{size} of them, largest relative difference {gap:.0e}",
        None,
        "reproduced" if gap < 1e-8 else "not reproduced",
        "The relevance of xⁿ less its projection on lower powers is γⁿ = η², as the correlation of x and y is √γ.",
        exact=True,
    )


def _moments(channels: Sequence[tuple[float, float, GaussianChannel]]) -> Finding:
    inside, beyond = 0.0, math.inf
    for tau, sigma, channel in channels:
        y = math.hypot(tau, sigma) * torch.linspace(-2, 2, 9, dtype=torch.float64)
        for size in range(2, 7):
            for order in range(1, size + 1):
                known = channel.conditional_moment(order, y[:, None])[:, 0]
                gap = _apart(channel.inferred_moment(order, y, size), known)
                inside, beyond = (max(inside, gap), beyond) if order < size else (inside, min(beyond, gap))
    return Finding(
        "moments of x given y up to k0 − 1 are exact (eq. 53)",
        "exact",
        f"relative error at most {inside:.0e} for k0 = 2 to 6; of the k0-th moment at least {beyond:.1g}",
        None,
        "reproduced" if inside < 1e-8 and beyond > 1e-6 else "not reproduced",
        "Powers below k0 lie in the span of the variables; the next does not.",
        exact=True,
    )


def _normalised() -> Finding:
    channel, y = GaussianChannel.noisy(TAU, SIGMA), 1.0
    x = np.linspace(-12.0, 12.0, 4001) * TAU
    mass = float(inferred_density(channel, x, y, 3).sum() * (x[1] - x[0]))
    both = mass * math.exp(-0.5 * y**2 / float(channel.cov_y)) / math.sqrt(2 * math.pi * float(channel.cov_y))
    return Finding(
        "the inferred law of x given y (eq. 52)",
        "p(x) p(y) Σ ...",
        f"integral {mass:.6f} with p(x) alone, {both:.3f} with both, at y = 1",
        None,
        "reproduced" if abs(both - 1.0) < abs(mass - 1.0) else "not reproduced",
        "An erratum: p(y) does not belong there; the moments of eq. 53 are those without it.",
        exact=True,
    )


def _rank() -> Finding:
    cutoff, gamma = 0.1, TAU**2 / (TAU**2 + SIGMA**2)
    count = 1 + math.floor(2.0 * math.log(cutoff) / math.log(gamma))
    found = 1 + int((GaussianChannel.noisy(TAU, SIGMA).relevance(200).sqrt() > cutoff).sum())
    return Finding(
        "the rank is infinite even for any finite cutoff on the singular values",
        "infinite",
        f"{found} singular values above {cutoff}, by the formula {count}",
        None,
        "not reproduced" if found == count else "reproduced",
        "An erratum: γ^(n/2) falls below every positive cutoff; the rank is infinite only without one.",
        exact=True,
    )


def _parameters() -> Finding:
    eye = torch.eye(2, dtype=torch.float64)
    near, far = (
        GaussianChannel(eye, eye, torch.tensor([0.9, rho], dtype=torch.float64).diag()).powers(2)[1].tolist()
        for rho in (0.85, 0.5)
    )
    return Finding(
        "relevant variables do not depend on the parameters of a Gaussian law",
        "a general property",
        f"of two columns, correlations 0.9 and 0.85: second variable {_named(near)}; 0.9 and 0.5: {_named(far)}",
        None,
        "reproduced" if near == far else "not reproduced",
        "It holds for one column in each view; of several, which products of powers come first depends on the "
        "correlations, and in which coordinates on the covariances.",
        exact=True,
    )


def _named(power: Sequence[int]) -> str:
    return " ".join(f"He{p}(a{i + 1})" for i, p in enumerate(power) if p)


def judge_learned(runs: Sequence[Learned], size: Size) -> list[Finding]:
    """Learned variables beside the exact ones."""
    return [_within(runs, size), _worth(runs), _functions(runs), _inference(runs, size), _more(runs)]


def _within(runs: Sequence[Learned], size: Size) -> Finding:
    channel = runs[0].channel
    known, error = channel.relevance(JUDGED).numpy(), exact_error(channel, size.held, JUDGED)
    found = np.asarray([run.judged.relevance[:JUDGED] for run in runs])
    z = (found - known) / error
    line = ", ".join(f"{f:.3f} ± {e:.3f} ({k:.4f})" for f, e, k in zip(found.mean(0), error, known))
    return Finding(
        f"learned relevances of rows held out, n = 1 to {JUDGED}, beside γⁿ",
        "γⁿ",
        line,
        None,
        held(bool((np.abs(z) < 3.0).mean() >= 0.9)),
        f"Mean of {len(runs)} data sets of {size.rows} rows, ± the sampling error of one, γⁿ in brackets; "
        f"{int((np.abs(z) < 3.0).sum())} of {z.size} lie within three errors.",
    )


def _worth(runs: Sequence[Learned]) -> Finding:
    known = runs[0].channel.relevance(JUDGED).numpy()
    share = np.asarray([run.under_law[0][:JUDGED] ** 2 / known for run in runs])
    return Finding(
        "relevance of the learned variables under the true law, as a share of γⁿ",
        "—",
        ", ".join(f"{value:.3f}" for value in share.mean(0)) + f"; lowest {share.min():.2f}",
        None,
        met(bool(share.mean(0)[:2].min() > 0.95 and share.mean(0)[2] > 0.85)),
        "By quadrature, free of sampling error of the rows held out: what is missing was not learned.",
    )


def _functions(runs: Sequence[Learned]) -> Finding:
    match = np.asarray([run.under_law[1][:JUDGED] for run in runs])
    return Finding(
        "learned variables are Hermite polynomials",
        "He₁, He₂, ...",
        "correlations " + ", ".join(f"{value:.3f}" for value in match.mean(0)),
        None,
        held(bool(match.mean(0)[:2].min() > 0.95)),
        "Under the true law, each with the polynomial of its degree; higher ones mix, as their relevances are close.",
    )


def _inference(runs: Sequence[Learned], size: Size) -> Finding:
    channel = runs[0].channel
    spread = float(channel.cov_y) ** 0.5
    y = np.linspace(-2.0, 2.0, 9) * spread
    given = torch.from_numpy(y)[:, None]
    known = torch.cat([channel.conditional_moment(k, given) for k in (1, 2)], 1).numpy()
    gaps = np.asarray([run.moments(y)[0] - known for run in runs])
    rms = np.sqrt((gaps**2).mean((0, 1))) / (TAU, TAU**2)
    return Finding(
        "learned variables infer the mean and the second moment of x given y",
        "γy and γ²y² + (1 − γ)τ²",
        f"root mean square errors {rms[0]:.3f} τ and {rms[1]:.3f} τ²",
        None,
        met(bool(rms[0] < 0.05 and rms[1] < 0.15)),
        f"At 9 values of y up to two deviations, by `expect` on the {size.rows} rows of each fit.",
    )


def _more(runs: Sequence[Learned]) -> Finding:
    last = [not run.judged.sufficient for run in runs]
    return Finding(
        f"{len(runs[0].judged.correlation)} variables are not all there are",
        "the rank is infinite",
        f"the last is still significant in {sum(last)} of {len(runs)} fits",
        None,
        met(sum(last) >= 0.5 * len(runs)),
        "Permutation tests on rows held out, at a false-discovery rate of 5%.",
    )
