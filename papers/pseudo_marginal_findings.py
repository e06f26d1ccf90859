"""What pseudo-marginal chains showed, beside the document and the theory that followed it."""

from __future__ import annotations

import numpy as np

from papers.experiment import Finding
from papers.pseudo_marginal_trials import BEST, Array, Runs, Walked
from papers.words import held, met


def exactness(runs: Runs) -> list[Finding]:
    """Estimates are unbiased, and the posterior is right."""
    bias = np.abs(list(runs.bias.values()))
    lines = [
        Finding(
            "W is unbiased for the density, every N",
            "assumed",
            f"largest of {len(bias)} absolute z-scores {bias.max():.1f}",
            None,
            held(float(bias.max()) < 4.0),
            f"At the posterior mean, N = {_ends(runs.bias)}; for small N the law of W is skew and the z-score rough.",
        )
    ]
    for what, found in (("independent numbers", runs.plain), ("correlated numbers", runs.correlated)):
        every: list[Walked] = list(found.values())
        z = np.abs(np.stack([run.z for run in every]))
        spread = [run.sd[0] for run in every]
        lines.append(
            Finding(
                f"posterior mean and sd for every N, {what}",
                "those of the exact posterior"
                if what[0] == "i"
                else "not in the document; those of the exact posterior",
                f"largest of {z.size} absolute z-scores {z.max():.2f}; "
                f"sd {min(spread):.3f} to {max(spread):.3f} of the exact one",
                None,
                (held if what[0] == "i" else met)(float(z.max()) < 4.0),
                f"Errors from effective draws; by chance one run in {1.0 / (z.size * 6.33e-5):.0f} would exceed 4.",
            )
        )
    return lines


def mixing(runs: Runs) -> Finding:
    """Effective draws fall as the noise grows."""
    n = sorted(runs.plain)
    worth = np.asarray([runs.plain[k].worth for k in n])
    error = np.asarray([runs.plain[k].error for k in n])
    steps = np.diff(worth) / np.hypot(error[1:], error[:-1])
    return Finding(
        "chains mix more slowly as the variance of log W grows",
        "not in the document; theory says so",
        f"{runs.exact.worth:.3f} effective draws a draw with the marginal, {worth[-1]:.3f} at N = {n[-1]} "
        f"(var log W {runs.spread[n[-1]] ** 2:.2g}), {worth[0]:.4f} at N = {n[0]} (var {runs.spread[n[0]] ** 2:.2g})",
        float(error[-1]),
        met(bool((steps > -3.0).all()) and worth[0] < 0.5 * worth[-1]),
        "Falling from each N to the next smaller one, up to 3 standard errors.",
    )


def planted(runs: Runs) -> list[Finding]:
    """W of the current state drawn anew: another law."""
    n = sorted(runs.refreshed)
    found = {k: runs.refreshed[k].sd for k in n}
    z = {k: (sd - 1.0) / error for k, (sd, error) in found.items()}
    few = max(n, key=lambda k: z[k])
    return [
        Finding(
            "W must be kept with the state: drawing it anew is another algorithm (planted bug)",
            "the state is (x, W)",
            f"sd {found[few][0]:.3f} of the exact one at N = {few}, z = {z[few]:.0f}",
            found[few][1],
            held(z[few] > 6.0),
            "Noise on both sides of the ratio flattens the law, and nothing in the chains tells: they have "
            f"{runs.refreshed[few].worth / runs.plain[few].worth:.0f} times the effective draws of the right ones.",
        ),
        Finding(
            "the bias of drawing W anew against N",
            "not in the document",
            ", ".join(f"{found[k][0]:.3f} at N = {k}" for k in n if k in (n[0], n[len(n) // 2], n[-1])),
            found[n[-1]][1],
            met(abs(found[n[-1]][0] - 1.0) < found[n[0]][0] - 1.0),
            "It vanishes as the estimate becomes exact, and only then.",
        ),
    ]


def correlation(runs: Runs) -> list[Finding]:
    """Correlated numbers at the same N, and how much correlation is best."""
    gain = {n: runs.correlated[n, BEST].worth / run.worth for n, run in runs.plain.items()}
    error = {
        n: gain[n] * float(np.hypot(run.error / run.worth, _relative(runs.correlated[n, BEST])))
        for n, run in runs.plain.items()
    }
    noisy = [n for n in gain if runs.spread[n] > 1.0]
    told = min(noisy, key=lambda n: abs(runs.spread[n] - 2.0))
    lines = [
        Finding(
            f"correlated numbers (rho = {BEST}) mix better at the same N",
            "not in the document; theory says so",
            f"{gain[told]:.1f} times the effective draws at N = {told} (sd of log W {runs.spread[told]:.1f})",
            error[told],
            met(all(_ahead(runs.correlated[n, BEST], runs.plain[n]) > 3.0 for n in noisy)),
            f"Wherever the sd is above 1; {gain[max(gain)]:.2f} times at N = {max(gain)}: little is left to gain.",
        )
    ]
    tried = {n for n, rho in runs.correlated if rho != BEST}
    for n in sorted(tried & {2}):
        by = {rho: run.worth for (k, rho), run in runs.correlated.items() if k == n}
        best, most = max(by, key=lambda rho: by[rho]), max(by)
        lines.append(
            Finding(
                "more correlation is not always better",
                "not in the document",
                f"at N = {n} best at rho = {best:g} ({by[best]:.3f}); rho = {most:g} has {by[most]:.3f}",
                runs.correlated[n, most].error,
                met(best < most),
                "The numbers themselves must move too: with few groups they, not theta, become the slow part.",
            )
        )
    return lines


def best_noise(runs: Runs) -> list[Finding]:
    """The standard deviation of log W at which an evaluation is worth most."""
    n = sorted(runs.plain)
    sd = np.asarray([runs.spread[k] for k in n])
    plain = np.stack([runs.plain[k].teams / k for k in n])
    linked = np.stack([runs.correlated[k, BEST].teams / k for k in n])
    sds = np.asarray([s for s in runs.ideal if s > 0.0])
    ideal = np.stack([runs.ideal[s].teams * s * s for s in sds])
    lines = []
    for what, x, worth, inside in (
        ("importance sampling, cost N", sd, plain, (1.0, 1.7)),
        ("log-normal noise, cost 1 / variance", sds, ideal, (1.0, 1.7)),
        (f"importance sampling, correlation {BEST}, cost N", sd, linked, (1.2, 4.0)),
    ):
        at, error = summit(x, worth)
        low, high = inside
        lines.append(
            Finding(
                f"best sd of log W, {what}",
                "not in the document; theory says 1.0 to 1.7 (Doucet et al. 2015)"
                if high < 2.0
                else "not in the document; more noise than without",
                f"{at:.2f}",
                error,
                met(low - 3.0 * error < at < high + 3.0 * error),
                f"From a cubic; of {len(x)} points those at sd {_flat(x, worth)} are worth at least 0.8 of the best.",
            )
        )
    return lines


def summit(x: Array, worth: Array) -> tuple[float, float]:
    """Where worth (points, teams) is highest along x, by a cubic in log x; its error by leaving out teams."""

    def top(values: Array) -> float:
        log = np.log(values)
        near = log > log.max() - 1.2
        fitted = np.polynomial.Polynomial.fit(np.log(x[near]), log[near], min(3, int(near.sum()) - 1))
        grid = np.linspace(np.log(x[near]).min(), np.log(x[near]).max(), 400)
        return float(np.exp(grid[int(np.argmax(fitted(grid)))]))

    teams = worth.shape[1]
    left = np.asarray([top(np.delete(worth, j, axis=1).mean(1)) for j in range(teams)])
    return top(worth.mean(1)), float(left.std() * (teams - 1) ** 0.5)


def _flat(x: Array, worth: Array) -> str:
    mean = worth.mean(1)
    good = x[mean > 0.8 * mean.max()]
    return f"{good.min():.2f} to {good.max():.2f}"


def _ahead(one: Walked, other: Walked) -> float:
    """How far one is above the other, in standard errors."""
    return (one.worth - other.worth) / float(np.hypot(one.error, other.error))


def _relative(run: Walked) -> float:
    return run.error / run.worth


def _ends(found: dict[int, float]) -> str:
    return f"{min(found)} to {max(found)}"
