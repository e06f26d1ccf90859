"""What autoencoders with a moment penalty showed, beside document 000."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from papers.experiment import Finding
from papers.vae_trials import paired_error
from papers.words import held, met

Trials = Mapping[str, list[dict[str, float]]]
Table = Mapping[str, Mapping[str, list[dict[str, float]]]]

SECONDS = 1246.0781
"""That the document spent on 500 evaluations of the penalty."""

SURE = 2.0
"""Standard errors by which a difference must exceed zero to be one."""


def judge(
    strong: Trials, table: Table, seconds: tuple[float, str], evaluations: int, real: bool
) -> list[Finding]:
    """Table 4, the time, and whether the penalty helps at equal bound."""
    return [*_distances(strong, real), _time(seconds, evaluations), *_helps(table)]


def _distances(strong: Trials, real: bool) -> list[Finding]:
    said = {"Fréchet x": ("94.9 to 58.3", True), "Fréchet mean": ("46.3 to 47.6", False)}
    plain, *weights = strong
    findings = []
    for name, (paper, falls) in said.items():
        before = _mean(strong[plain], name)
        after = {alpha: _mean(strong[alpha], name) for alpha in weights}
        changes = {
            alpha: paired_error([b[name] - a[name] for a, b in zip(strong[plain], strong[alpha])])
            for alpha in weights
        }
        best = min(changes, key=lambda alpha: changes[alpha][0])
        change, error = changes[best]
        lower = change < -SURE * error
        values = ", ".join(f"{after[alpha]:.2f} at alpha = {alpha}" for alpha in weights)
        reason = (
            "Means over seeds of the squared distance between features of a network that names digits: "
            + (
                "Inception's weights are not at hand."
                if real
                else "on other images the document's are not expected."
            )
        )
        findings.append(
            Finding(
                f"the penalty {'lowers' if falls else 'does not lower'} the Fréchet distance of "
                f"{'samples x' if falls else 'means mu(z)'}",
                paper,
                f"{before:.2f} without; {values}; largest change {change:.2f}",
                error,
                held(lower == falls),
                reason,
            )
        )
    return [*findings, _price(strong)]


def _price(strong: Trials) -> Finding:
    plain, *weights = strong
    cost = {
        alpha: paired_error([b["elbo"] - a["elbo"] for a, b in zip(strong[plain], strong[alpha])])
        for alpha in weights
    }
    told = ", ".join(f"{cost[alpha][0]:+.1f} ± {cost[alpha][1]:.1f} at alpha = {alpha}" for alpha in weights)
    gaps = ", ".join(f"{_mean(strong[alpha], 'gap'):.2f} at {alpha}" for alpha in strong)
    return Finding(
        "what the penalty costs: bound of a held-out image",
        "not in the document",
        told,
        None,
        met(cost[weights[0]][0] > -max(SURE * cost[weights[0]][1], 1.0)),
        f"Nats against alpha = 0; gaps on held-out rows {gaps}. The smallest weight should cost no more than noise.",
    )


def _time(seconds: tuple[float, str], evaluations: int) -> Finding:
    each = seconds[0] / evaluations
    return Finding(
        f"{evaluations} evaluations of the penalty with gradient",
        f"{SECONDS:.0f} s for 500 (Ryzen 5600X)",
        f"{seconds[0]:.2f} s, {1000 * each:.2f} ms each ({seconds[1]})",
        None,
        met(each < SECONDS / 500),
        "The second moment of m laws is one matrix product, with a gradient in closed form.",
    )


def _helps(table: Table) -> list[Finding]:
    """One line a data set: the weight that validation chooses against none, on rows that no fit has seen."""
    findings = []
    for problem, trials in table.items():
        plain = trials["0"]
        lines = []
        for name, runs in trials.items():
            if name == "0":
                continue
            cost, error = paired_error([b["elbo"] - a["elbo"] for a, b in zip(plain, runs)])
            ratio = np.exp(np.mean([np.log(b["gap"] / a["gap"]) for a, b in zip(plain, runs)]))
            spread = _mean(runs, "MMD") / max(_mean(plain, "MMD"), 1e-12)
            weight = f"alpha = {name}"
            if name == "validation":
                weight = "validation (chose " + ", ".join(f"{run['alpha']:g}" for run in runs) + ")"
            lines.append(f"{weight}: gap x {ratio:.2f}, MMD x {spread:.2f}, bound {cost:+.2f} ± {error:.2f}")
        cost, error = paired_error([b["elbo"] - a["elbo"] for a, b in zip(plain, trials["validation"])])
        change, doubt = paired_error([b["gap"] - a["gap"] for a, b in zip(plain, trials["validation"])])
        helps = cost > -SURE * error and change < -SURE * doubt
        findings.append(
            Finding(
                f"the penalty helps at equal bound: {problem}",
                "not in the document",
                "; ".join(lines),
                None,
                met(helps),
                f"At the weight that validation chooses the held-out gap changes by {change:.3f} ± {doubt:.3f} and the "
                f"bound by {cost:.2f} ± {error:.2f} nats, of which the best of six fits gains some by itself."
                + _before(plain, trials),
            )
        )
    return findings


def _before(plain: list[dict[str, float]], trials: Mapping[str, list[dict[str, float]]]) -> str:
    """In how many runs the penalty, which begins half-way, came too late to change anything."""
    last = [name for name in trials if name != "validation"][-1]
    same = sum(a["elbo"] == b["elbo"] for a, b in zip(plain, trials[last]))
    if not same:
        return ""
    return f" In {same} of {len(plain)} runs at alpha = {last} the best pass came before the penalty began."


def _mean(runs: list[dict[str, float]], name: str) -> float:
    return float(np.mean([run[name] for run in runs]))
