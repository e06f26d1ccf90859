"""What posteriors over the weights of small networks are worth on tables for regression."""

from __future__ import annotations

import numpy as np

from papers.experiment import Finding
from papers.uci_networks_compare import SURE, Compared, Results, compared, split_error
from papers.uci_networks_trials import (
    ALONE,
    ANNEALED,
    ENSEMBLE,
    ENSEMBLE_0,
    FACTOR,
    LAPLACE,
    MULTI_FACTOR,
    MULTI_SWA,
    MULTI_SWAG,
    SGD,
    SPREAD,
    SWA,
    SWAG,
    Facts,
)
from papers.words import met

SEVERAL = (ENSEMBLE, ENSEMBLE_0, MULTI_SWA, MULTI_SWAG, MULTI_FACTOR)
"""Methods that train several networks."""


def judge(results: Results) -> list[Finding]:
    """Single runs, what their covariances are worth, several runs, then every table."""
    found = [
        _lower(results, SWAG, SGD, "SWAG lowers", "Maddox et al. (2019): better calibrated than SGD"),
        _lower(results, FACTOR, SGD, "factor analysis by online EM lowers", "predictions better than SGD's"),
        _parts(results),
        _no_worse(results, FACTOR, SWAG, "nll", "factor EM is as good as SWAG or better"),
        _no_worse(results, SWA, SGD, "rmse", "the mean of the trajectory predicts no worse than its end"),
        _annealed(results),
        _lower(results, LAPLACE, SGD, "Laplace's law of the last layer lowers", "not in the document"),
    ]
    found += [_alone(results, method) for method in (SWAG, FACTOR, LAPLACE)]
    found += [_several(results), _adds(results), _coverage(results)]
    return found + [_table(name, facts) for name, facts in results.items()]


def _lower(results: Results, method: str, base: str, words: str, paper: str) -> Finding:
    seen, error = compared(results, method, base), compared(results, method, base, "rmse")
    return Finding(
        f"{words} the negative log-likelihood of {base}",
        paper,
        str(seen),
        seen.error,
        met(seen.lower),
        f"Root mean squared error {error.mean:+.1%} (z = {error.z:+.1f}). Noise and scale of both were tuned alike.",
    )


def _parts(results: Results) -> Finding:
    """What of the gain is the mean, and what the spread around it."""
    mean = compared(results, SWA, SGD)
    spread = {method: compared(results, method, SWA) for method in (SWAG, FACTOR)}
    told = "; ".join(f"{method} less SWA {one}" for method, one in spread.items())
    return Finding(
        "a gain over SGD is one of the spread, not of the mean alone",
        "004, section 6.2: for linear regression the mean is all there is",
        f"SWA less SGD {mean.mean:+.3f} (z = {mean.z:+.1f}); {told}",
        None,
        met(all(one.lower for one in spread.values())),
        "SWA has the same mean and no spread; its noise is tuned like that of the others.",
    )


def _no_worse(results: Results, method: str, base: str, measure: str, claim: str) -> Finding:
    seen = compared(results, method, base, measure)
    plain = compared(results, method, base, measure + ALONE)
    said = f" At scale 1: {plain}." if method in SPREAD else _lagging(results, seen)
    return Finding(
        claim,
        "004, chapter 5: EM fits better" if method == FACTOR else "Izmailov et al. (2018): wider optima",
        f"{method} less {base} {seen}",
        seen.error,
        met(seen.z < SURE),
        f"No worse is a z below {SURE:g}.{said}",
    )


def _lagging(results: Results, seen: Compared) -> str:
    """Tables on which the mean is surely worse, and whether a falling rate was so too."""
    slow = compared(results, ANNEALED, SGD, "rmse").each > SURE
    behind = [name for name, z, late in zip(results, seen.each, slow, strict=True) if z > SURE and late]
    told = " and ".join(behind)
    return (
        f" On {told} SGD was still learning: a mean, like a falling rate, lags behind it." if behind else ""
    )


def _annealed(results: Results) -> Finding:
    """The baseline that is not handicapped by a constant rate."""
    told = {method: compared(results, method, ANNEALED) for method in (SWA, SWAG, FACTOR)}
    gain = compared(results, ANNEALED, SGD)
    return Finding(
        "SWAG and factor EM are better than SGD whose rate fell to 0 in as many steps",
        "not in the document",
        "; ".join(f"{method} {one}" for method, one in told.items()),
        None,
        met(all(told[method].lower for method in (SWAG, FACTOR))),
        f"The end of a run at a constant rate is a noisy baseline: a falling rate alone gives {gain}.",
    )


def _alone(results: Results, method: str) -> Finding:
    """What a law claims by itself: no scale is tuned, only the noise."""
    seen = compared(results, method, SGD, "nll" + ALONE, "nll")
    scales = {name: np.median(facts[method]["scale"]) for name, facts in results.items()}
    ends = np.mean([facts[method]["at the end"] for facts in results.values()])
    told = ", ".join(f"{name} {scale:.2g}" for name, scale in scales.items())
    return Finding(
        f"{method} as it is, its covariance at scale 1, lowers the negative log-likelihood of SGD",
        "not in the document",
        str(seen),
        seen.error,
        met(seen.lower),
        f"Median of the scale that held-out rows prefer: {told}; the largest tried in {ends:.0%} of splits.",
    )


def _several(results: Results) -> Finding:
    """Whether several runs are better than the best that one run gives."""
    singles = (SGD, ANNEALED, SWA, SWAG, FACTOR, LAPLACE)
    told = {
        method: max((compared(results, method, single) for single in singles), key=lambda one: one.z)
        for method in SEVERAL
    }
    return Finding(
        "several runs together are better than any one run: MultiSWAG and deep ensembles",
        "Wilson and Izmailov (2020)",
        "; ".join(f"{method} {one.mean:+.3f} (z = {one.z:+.1f})" for method, one in told.items()),
        None,
        met(all(told[method].lower for method in (ENSEMBLE, MULTI_SWAG))),
        "Each against the single-run method that it is least ahead of. They cost as many trainings as they have runs.",
    )


def _adds(results: Results) -> Finding:
    """Whether Gaussians around the members are better than the members."""
    pairs = (
        (MULTI_SWAG, ENSEMBLE),
        (MULTI_SWAG, MULTI_SWA),
        (MULTI_FACTOR, MULTI_SWA),
        (MULTI_FACTOR, MULTI_SWAG),
    )
    told = {pair: compared(results, *pair) for pair in pairs}
    return Finding(
        "Gaussians around the members of an ensemble are better than the members: MultiSWAG less the deep ensemble",
        "Wilson and Izmailov (2020)",
        "; ".join(
            f"{one} less {other} {seen.mean:+.3f} (z = {seen.z:+.1f})" for (one, other), seen in told.items()
        ),
        None,
        met(told[MULTI_SWAG, ENSEMBLE].lower),
        "MultiSWA has the same means without spread.",
    )


def _coverage(results: Results) -> Finding:
    """Shares of test rows in 95% intervals."""
    names = list(next(iter(results.values())))
    shares = {
        (method, end): np.array([np.mean(facts[method]["inside" + end]) for facts in results.values()])
        for method in names
        for end in ("", ALONE)
    }
    told = [f"{method} {shares[method, ''].mean():.3f}" for method in names]
    alone = [f"{method} {shares[method, ALONE].mean():.3f}" for method in names if method in SPREAD]
    worst = {method: float(np.abs(shares[method, ""] - 0.95).max()) for method in names}
    return Finding(
        "95% intervals hold 95% of test rows once noise and scale are tuned, within 0.03 on every table",
        "not in the document",
        ", ".join(told) + "; at scale 1 " + ", ".join(alone),
        None,
        met(max(worst.values()) < 0.03),
        "Means over tables; farthest off on one table: "
        + ", ".join(f"{method} {off:.3f}" for method, off in worst.items())
        + ".",
    )


def _table(name: str, facts: Facts) -> Finding:
    """All methods on one table."""
    told = []
    for method, own in facts.items():
        nll, rmse = np.asarray(own["nll"]), np.asarray(own["rmse"])
        error = [values.std(ddof=1) / np.sqrt(len(values)) for values in (nll, rmse)]
        told.append(f"{method} {nll.mean():.3f} ± {error[0]:.3f}, {_short(rmse.mean())} ± {_short(error[1])}")
    best = min(facts, key=lambda method: float(np.mean(facts[method]["nll"])))
    lead = np.asarray(facts[best]["nll"]) - np.asarray(facts[SGD]["nll"])
    return Finding(
        f"{name}: the best of all is one of several runs",
        "not in the document",
        "; ".join(told),
        None,
        met(best in SEVERAL),
        f"Negative log-likelihood and root mean squared error in units of the target, ± s / sqrt(S) over splits. Best: "
        f"{best}, {lead.mean():+.3f} ± {split_error(lead):.3f} less SGD.",
    )


def _short(value: float) -> str:
    return f"{value:.3g}"
