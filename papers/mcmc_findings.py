"""What chains on Gaussians showed, beside the document and the theory it cites."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from papers.experiment import Finding
from papers.mcmc_finite import Finite
from papers.mcmc_theory import BARKER_GOALS, EXPONENTS, GOALS, acceptance, limit_best, limit_curve, scale_for
from papers.mcmc_trials import Array, Measured
from papers.words import held, met

FAR = np.asarray([1e4, 1e5, 1e6])
WORTH = {"random walk": -1.0, "MALA": -1.0 / 3.0, "HMC": -1.0 / 4.0}
"""Power of d in effective draws, by evaluations."""

Sweep = Mapping[tuple[str, str], list[Measured]]
Tops = Mapping[tuple[str, str], tuple[float, float, float, float]]


def slope(columns: Array, values: Array, errors: Array) -> tuple[float, float]:
    """Of log values against log columns by least squares, with the error that those of the values leave."""
    x = np.log(columns)
    x = (x - x.mean()) / ((x - x.mean()) @ (x - x.mean()))
    return float(x @ np.log(values)), float(((x * errors) ** 2).sum() ** 0.5)


def exponents(scales: Mapping[str, Mapping[int, Array]]) -> list[Finding]:
    """Tuned scales against columns: fitted exponents, the closed form's, and those of large d."""
    lines = []
    for name, by in scales.items():
        d = np.asarray(list(by), dtype=np.float64)
        logs = [np.log(found) for found in by.values()]
        errors = np.asarray([log.std() / max(len(log) - 1, 1) ** 0.5 for log in logs])
        errors = np.maximum(
            errors, float(np.sqrt(np.mean(errors**2)))
        )  # of few warm-ups one alone is a poor guess
        values = np.exp([log.mean() for log in logs])
        exact = np.asarray([scale_for(name, GOALS[name], columns) for columns in d])
        fitted, error = slope(d, values, errors)
        closed, _ = slope(d, exact, errors)
        high, _ = slope(d[-3:], values[-3:], errors[-3:])
        far, _ = slope(
            FAR, np.asarray([scale_for(name, GOALS[name], columns) for columns in FAR]), np.zeros(3)
        )
        target = EXPONENTS[name]
        why = (
            f"At acceptance {GOALS[name]} the closed form has {closed:.3f} over these columns and {far:.4f} from "
            f"1e4 to 1e6; the fit to the last three is {high:.3f}. "
            + (
                "Numbers of leapfrog steps are whole."
                if name == "HMC"
                else "Few columns want longer steps than that."
            )
        )
        right = abs(fitted - closed) < 4.0 * error + 0.002 and abs(far - target) < 1e-3
        in_paper = name == "MALA"
        lines.append(
            Finding(
                f"{name}, best scale against columns",
                "h ~ d^(-1/6)" if in_paper else f"not in the document; theory says h ~ d^({target:.3g})",
                f"h ~ d^({fitted:.3f}) from {d[0]:.0f} to {d[-1]:.0f} columns",
                error,
                held(right) if in_paper else met(right),
                why,
            )
        )
    return lines


def worths(runs: list[Measured]) -> list[Finding]:
    """Effective draws against columns."""
    lines = []
    for name, target in WORTH.items():
        mine = [run for run in runs if run.name == name]
        d = np.asarray([float(run.d) for run in mine])
        worth = np.asarray([run.worth / run.cost for run in mine])
        errors = np.asarray([run.error / run.worth for run in mine])
        fitted, _ = slope(d, worth, errors)
        late, late_error = slope(d[-3:], worth[-3:], errors[-3:])
        what = "gradient" if name == "HMC" else "draw"
        lines.append(
            Finding(
                f"{name}, effective draws a {what} against columns",
                f"not in the document; theory says d^({target:.3g})",
                f"d^({late:.2f}) over the last three, d^({fitted:.2f}) over all; {_range(worth)}",
                late_error,
                met(abs(late - target) < 3.0 * late_error + 0.01),
                _why_worth(name),
            )
        )
    return lines


def _why_worth(name: str) -> str:
    if name == "random walk":
        return "The limit is 0.331 / d; with few columns d times the effective draws is less."
    if name == "MALA":
        return "The limit needs small h; here steps are so long that a proposal forgets much of where it came from."
    return "Numbers of leapfrog steps are whole and few, so that the law of many columns shows through only slowly."


def peaks(sweep: Sweep, tops: Tops, d: int) -> list[Finding]:
    """Where efficiency is highest along scales."""
    lines = []
    for (name, rule), (at, error, height, _) in tops.items():
        goal = limit_best(name, rule)
        runs = sweep[name, rule]
        order = np.argsort([run.accepted for run in runs])
        worth = np.asarray([run.worth / run.cost for run in runs])[order]
        there = float(np.interp(goal, np.asarray([run.accepted for run in runs])[order], worth)) / height
        cited = GOALS[name] if rule == "metropolis" else BARKER_GOALS.get(name, goal)
        lines.append(
            Finding(
                f"{name} by {rule.capitalize()}, best acceptance at d = {d}",
                f"not in the document; theory says {cited:.3f}",
                f"{at:.3f}",
                error,
                met(there > 0.9 and abs(at - goal) < 3.0 * error + 0.03),
                f"At {goal:.3f}, the best of many columns, efficiency is {min(there, 1.0):.2f} of the highest. "
                + (
                    "By gradients; whole numbers of steps make it jagged."
                    if name == "HMC"
                    else "The top is flat."
                ),
            )
        )
    return lines


def rules(sweep: Sweep, tops: Tops, exact: Finite) -> list[Finding]:
    """Barker's rule beside Metropolis'."""
    lines = []
    for name in GOALS:
        pairs = list(zip(sweep[name, "metropolis"], sweep[name, "barker"]))
        ratio = np.asarray([barker.worth / best.worth for best, barker in pairs])
        error = ratio * np.asarray([np.hypot(p.error / p.worth, q.error / q.worth) for p, q in pairs])
        least = np.asarray([1.0 / (2.0 / best.worth + 1.0) / best.worth for best, _ in pairs])
        right = bool((ratio < 1.0 + 4.0 * error).all() and (ratio > least - 4.0 * error).all())
        (_, _, high, high_error), (_, _, low, low_error) = tops[name, "metropolis"], tops[name, "barker"]
        limit = max(limit_curve(name, "barker")[1])
        lines.append(
            Finding(
                f"{name}, efficiency of Barker's rule over Metropolis', each at its best",
                "both are in detailed balance (lemma 1.8); Peskun: Metropolis is never worse",
                f"{low / high:.2f}, at equal scales {ratio.min():.2f} to {ratio.max():.2f}",
                low / high * float(np.hypot(high_error / high, low_error / low)),
                held(right and low / high < 1.0),
                f"{limit:.2f} in the limit of many columns, and less where one step forgets the last.",
            )
        )
    right = exact.order > -1e-12 and min(exact.ratios) > 1.0 - 1e-9 and exact.slack > -1e-9
    lines.append(
        Finding(
            "asymptotic variance of Barker's rule over Metropolis', finite spaces",
            "not in the document; theory says at least 1, and at most 2 + Var f / variance",
            f"{min(exact.ratios):.2f} to {max(exact.ratios):.2f} over {len(exact.ratios)} random functions",
            None,
            met(right),
            f"Exact matrices; the difference of kernels has no eigenvalue below {exact.order:.0e}.",
        )
    )
    return lines


def exactness(runs: list[Measured], exact: Finite) -> list[Finding]:
    """Invariance and reversibility on finite spaces; moments and acceptance on Gaussians."""
    z = np.abs(np.concatenate([run.z for run in runs]))
    apart = [
        abs(run.accepted - acceptance(run.name, run.scale, run.d))
        for run in runs
        if run.rule == "metropolis" and run.name != "HMC"
    ]
    return [
        Finding(
            "lemmas 1.7, 1.8 and 1.10: the law is invariant and the kernel reversible, both rules",
            "exactly",
            f"largest errors {exact.invariance:.0e} and {exact.reversibility:.0e}",
            None,
            "reproduced" if max(exact.invariance, exact.reversibility) < 1e-12 else "not reproduced",
            f"Matrices of our steps on 12 states; the same check says {exact.planted:.2f} where the proposal's part is "
            "left out of the ratio.",
            exact=True,
        ),
        Finding(
            "means of a column, a square and a product on Gaussians",
            "0, 1 and 0",
            f"largest of {len(z)} absolute z-scores {z.max():.2f}",
            None,
            held(float(z.max()) < 4.0),
            f"Errors from effective draws; by chance one run in {1.0 / (len(z) * 6.33e-5):.0f} would exceed 4.",
        ),
        Finding(
            "acceptance of the random walk and of MALA",
            "not in the document; closed form 2 P(F > ratio of eigenvalues)",
            f"largest difference {max(apart):.4f}",
            None,
            met(max(apart) < 0.01),
            f"{len(apart)} runs, from exact draws.",
        ),
    ]


def _range(values: Array) -> str:
    return f"{values[0]:.2g} to {values[-1]:.2g}"
