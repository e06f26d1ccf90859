"""Energy models trained by the gradient of section 1.1, on targets whose normaliser is known (002, example 1.1)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.mixture import GaussianMixture as Peer

from boxloop.estimators import EnergyBasedModel, FitWarning
from boxloop.numeric import generator
from papers.energy_figures import picture
from papers.energy_trials import (
    Truth,
    divergence,
    exact_fit,
    fitted,
    gradient_errors,
    partition_trials,
    quartic_well,
    ring,
    standard,
    trained_family,
    two_hills,
)
from papers.experiment import Finding, Options, Report
from papers.words import held, met, percent, standard_error

MOST_COMPONENTS = 12
SHORT_STEPS = 5
"""Steps of the chains that do not persist."""


@dataclass(frozen=True)
class Size:
    """How much to run.

    Args:
        family: rows, rounds and seeds of the exponential families.
        rows: numbers of rows of the network energies.
        rounds: of their training.
        seeds: data sets of each size.
        repeats: of annealing, with so many chains.
    """

    family: tuple[int, int, int]
    rows: tuple[int, ...]
    rounds: int
    seeds: int
    repeats: tuple[int, int]


QUICK = Size((1000, 500, 2), (250, 1000), 200, 1, (40, 128))
FULL = Size((2000, 800, 8), (250, 1000, 4000), 1000, 3, (300, 256))


def families(size: Size, seed: int) -> dict[str, dict[str, list[float]]]:
    """Trained parameters less those of maximum likelihood, in standard errors of the latter."""
    n, rounds, repeats = size.family
    truth = quartic_well()
    found: dict[str, dict[str, list[float]]] = {}
    rows = truth.draw(n, generator(seed))
    for name, quartic in (("Gaussian", False), ("quartic", True)):
        for repeat in range(repeats):
            model, point = trained_family(quartic, rows, rounds, seed + repeat)
            if repeat == 0:
                best, error = exact_fit(model, rows, truth)
            for j, gap in enumerate(((point - best) / error).tolist()):
                found.setdefault(name, {}).setdefault(f"theta {j + 1}", []).append(gap)
    return found


def mixture_divergence(truth: Truth, n: int, seed: int) -> float:
    """KL of the Gaussian mixture with the best BIC on the same rows."""
    rows = truth.draw(n, generator(seed)).numpy()
    fits = [Peer(k, n_init=2, random_state=0).fit(rows) for k in range(1, MOST_COMPONENTS + 1)]
    best = min(fits, key=lambda fit: float(fit.bic(rows)))
    return divergence(lambda x: torch.from_numpy(best.score_samples(x.numpy())), truth)


Curves = dict[str, dict[str, dict[str, list[float]]]]


def against_rows(
    size: Size, seed: int, tell: Callable[[str], None]
) -> tuple[Curves, dict[str, EnergyBasedModel]]:
    """KL(truth || fitted) for every target, method, number of rows and seed; and the last fit of each target."""
    curves: Curves = {}
    last: dict[str, EnergyBasedModel] = {}
    for truth in (two_hills(), ring()):
        panel = curves.setdefault(truth.name, {"energy": {}, "Gaussian mixture": {}})
        for n in size.rows:
            for s in range(seed, seed + size.seeds):
                tell(f"{truth.name}, {n} rows")
                fit = fitted(truth, n, size.rounds, s)
                last[truth.name] = fit
                kl = divergence(lambda x, fit=fit: -fit.model_.energy(x), truth)  # type: ignore[misc]
                panel["energy"].setdefault(str(n), []).append(kl)
                panel["Gaussian mixture"].setdefault(str(n), []).append(mixture_divergence(truth, n, s))
    return curves, last


def experiment(options: Options) -> Report:
    """Train, integrate, compare."""
    size = QUICK if options.quick else FULL
    total = 3 + 2 * len(size.rows) * size.seeds
    done = 0

    def tell(what: str) -> None:
        nonlocal done
        options.progress(done, total, what)
        done += 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # short runs on purpose
        tell("exponential families")
        family = families(size, options.seed)
        kl, fits = against_rows(size, options.seed, tell)
        tell("chains that do not persist")
        n = max(size.rows)
        short = fitted(two_hills(), n, size.rounds, options.seed, restart=1.0, steps=SHORT_STEPS)
    tell("annealing")
    checks = _checks(size, fits, options.seed)
    short_kl = divergence(lambda x: -short.model_.energy(x), two_hills())
    findings = [
        *judge_families(family),
        *judge_identity(checks),
        *judge_divergence(kl),
        *judge_partition(checks),
    ]
    findings.append(_short_finding(short_kl, kl["two hills"]["energy"][str(n)]))
    settings = {
        "rows of the families": size.family[0],
        "rows": list(size.rows),
        "rounds": size.rounds,
        "data sets": size.seeds,
        "annealings": size.repeats[0],
        "chains of each": size.repeats[1],
        "seed": options.seed,
    }
    curves = {"families": family, "divergence": kl, "checks": checks, "short run divergence": short_kl}
    figures = {"fits": picture(two_hills(), ring(), fits, short, kl, checks)}
    return Report("energy-model", "Energy-based models", settings, findings, curves, figures)


def _checks(size: Size, fits: dict[str, EnergyBasedModel], seed: int) -> dict[str, Any]:
    """Identity and annealing at the last fit of each target."""
    stream = generator(seed)
    found: dict[str, Any] = {}
    for truth in (two_hills(), ring()):
        model = standard(fits[truth.name].model_)
        identity, score = gradient_errors(model, truth, stream)
        scores, ratios, errors = partition_trials(model, truth, *size.repeats, stream)
        found[truth.name] = {
            "identity": identity,
            "identity z": score,
            "z": scores,
            "ratio": ratios,
            "error": errors,
        }
    return found


def judge_families(family: dict[str, dict[str, list[float]]]) -> list[Finding]:
    """Maximum likelihood is found."""
    findings = []
    for name, gaps in family.items():
        whole = np.array(list(gaps.values()))
        findings.append(
            Finding(
                f"{name} exponential family, trained parameters",
                "those of maximum likelihood",
                f"{np.abs(whole.mean(1)).max():.3f} standard errors apart at most",
                float(np.max([standard_error(row) for row in whole])),
                held(bool(np.abs(whole.mean(1)).max() < 0.5)),
                f"Root mean square {np.sqrt((whole**2).mean()):.3f} over {whole.shape[1]} trainings on the same rows; "
                "maximum likelihood by quadrature.",
            )
        )
    return findings


def judge_identity(checks: dict[str, Any]) -> list[Finding]:
    """The gradient of section 1.1."""
    worst = max(check["identity"] for check in checks.values())
    scores = [check["identity z"] for check in checks.values()]
    return [
        Finding(
            "gradient of log Z against the mean of -grad E",
            "equal",
            f"largest relative difference {worst:.1e}",
            None,
            "reproduced" if worst < 1e-5 else "not reproduced",
            "Central differences of log Z by quadrature, five random directions at each fitted network; the same mean "
            f"over 2000 annealed draws has z = {', '.join(f'{z:.1f}' for z in scores)}.",
            exact=True,
        )
    ]


def judge_divergence(kl: Curves) -> list[Finding]:
    """The fitted density is the truth's, and nearer with more rows."""
    findings = []
    for name, panel in kl.items():
        few, many = (list(panel["energy"].values())[i] for i in (0, -1))
        peer = list(panel["Gaussian mixture"].values())[-1]
        n = list(panel["energy"])[-1]
        findings.append(
            Finding(
                f"{name}: KL(truth, fitted) of a network energy at {n} rows",
                "a flexible model whose density can be trained without Z",
                f"{np.mean(many):.4f}",
                standard_error(many) if len(many) > 1 else None,
                held(bool(np.mean(many) < 0.05)),
                f"{np.mean(few):.4f} at {next(iter(panel['energy']))} rows. The Gaussian mixture of best BIC has "
                f"{np.mean(peer):.4f}"
                + (
                    ": it is the truth's own family here."
                    if name == "two hills"
                    else ": it must tile the ring."
                ),
            )
        )
    return findings


def judge_partition(checks: dict[str, Any]) -> list[Finding]:
    """log Z by annealing has the error that it says."""
    findings = []
    for name, check in checks.items():
        z, ratio = np.array(check["z"]), np.array(check["ratio"])
        covered = float((np.abs(z) < 1.96).mean())
        margin = 4.0 * (0.95 * 0.05 / len(z)) ** 0.5
        bias = float((ratio.mean() - 1.0) / standard_error(ratio))
        findings.append(
            Finding(
                f"{name}: log Z by annealing within 1.96 reported errors of quadrature",
                "not in the document; 95%",
                percent(covered),
                float((covered * (1.0 - covered) / len(z)) ** 0.5),
                met(abs(covered - 0.95) < margin and abs(bias) < 4.0),
                f"Mean of Z over its true value {ratio.mean():.4f} (z = {bias:.1f}: unbiased); median reported error "
                f"{np.median(check['error']):.3f}; sd of the z-scores {z.std():.2f}.",
            )
        )
    return findings


def _short_finding(short: float, persistent: list[float]) -> Finding:
    return Finding(
        f"two hills: chains that start anew each round, {SHORT_STEPS} steps",
        "draws of the model are required",
        f"KL {short:.3g}, persistent chains {np.mean(persistent):.4f}",
        None,
        held(short > 5.0 * float(np.mean(persistent))),
        "They do not reach the model's law: training makes the short run look like the data, and the density wrong.",
    )
