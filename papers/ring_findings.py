"""What the variables of a disk and a ring are, beside document 003, section 5.3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from papers.experiment import Finding
from papers.ring_channel import Array, half_wave, wave
from papers.words import held, met, percent, standard_error

DISK, RADIUS, BINARY = "x and y in the disk", "radius in the ring", "disk or ring"

ORDER = [*[wave(1)] * 2, BINARY, *[wave(2)] * 2, *[wave(3)] * 2, *[wave(4)] * 2, *[DISK] * 2]
"""The document's eleven most relevant variables after the constant; finer waves and the radius follow."""

STAGES = (
    ("the two most relevant: sine and cosine of the angle", slice(0, 2)),
    ("the third: disk or ring", slice(2, 3)),
    ("the next six: sines and cosines of shorter waves", slice(3, 9)),
    ("the next two: Cartesian coordinates in the disk", slice(9, 11)),
)

MOST = 0.8
"""Squared multiple correlation above which a variable is taken to be what it is named."""

Runs = Sequence[Mapping[str, Any]]


def listed(names: Sequence[str]) -> str:
    """Names in order, those alike in a row together.

    Example:
        >>> listed(["sine", "sine", "disk"])
        '1-2 sine, 3 disk'
    """
    said, place = [], 1
    for name, group in groupby(names):
        n = len(list(group))
        said.append(f"{place} {name}" if n == 1 else f"{place}-{place + n - 1} {name}")
        place += n
    return ", ".join(said)


def exact_order(names: Sequence[str], relevance: Array) -> Finding:
    """The order that the channel itself has, without any learning."""
    radius = names.index(RADIUS) if RADIUS in names else len(names)
    finer = all(name.startswith("sin and cos of") for name in names[len(ORDER) : radius])
    eta = ", ".join(f"{relevance[place]:.3f}" for place in (0, 2, 3, 9, 11, min(radius, len(names) - 1)))
    return Finding(
        "order of the exact channel, no learning",
        "sin and cos; disk or ring; six finer waves; Cartesian in the disk; finer waves; radius in the ring",
        listed(names[: radius + 1]),
        None,
        "reproduced"
        if list(names[: len(ORDER)]) == ORDER and finer and radius < len(names)
        else "not reproduced",
        f"Quadrature and singular values; relevances of variables 1, 3, 4, 10, 12 and the radius: {eta}. Without the "
        "constant, which is first. The radii and the shift, which the document leaves out, were chosen so that the "
        "order is this one; the last line has others.",
        exact=True,
    )


def learned_order(runs: Runs, kind: str, judged: int) -> list[Finding]:
    """Each stage of the order, as networks or random features found it in several samples.

    Args:
        runs: one fit each.
        kind: of features.
        judged: variables that are learned well enough to be judged.
    """
    findings = []
    for claim, where in STAGES:
        wanted = ORDER[where]
        if where.stop > judged:
            continue
        share = [np.mean(np.asarray(run["shares"][wanted[0]])[where]) for run in runs]
        if len(set(wanted)) > 1:
            share = [
                np.mean([run["shares"][name][where.start + i] for i, name in enumerate(wanted)])
                for run in runs
            ]
        right = sum(list(run["names"][where]) == wanted for run in runs)
        findings.append(
            Finding(
                f"{claim} ({kind})",
                "as said",
                f"R² {np.mean(share):.3f}",
                standard_error(share),
                held(float(np.mean(share)) > MOST and right > len(runs) / 2),
                f"Mean squared multiple correlation with those functions, under the exact law of X, over {len(runs)} "
                f"samples; in {right} of them each of the variables is mostly that.",
            )
        )
    return findings


def learned_radius(runs: Runs, kind: str) -> Finding:
    """Where the radius comes, by the variable that holds most of it."""
    places = [int(np.argmax(run["shares"][RADIUS])) + 1 for run in runs]
    shares = [float(np.max(run["shares"][RADIUS])) for run in runs]
    flat = [int(np.max(np.argsort(run["shares"][DISK])[-2:])) + 1 for run in runs]
    return Finding(
        f"the radius in the ring comes late ({kind})",
        "after the Cartesian coordinates and finer waves",
        "variable " + ", ".join(str(place) for place in places),
        None,
        held(all(a > b for a, b in zip(places, flat))),
        f"The Cartesian coordinates end at variable {', '.join(str(place) for place in flat)}; its R² is "
        f"{np.mean(shares):.2f} ± {standard_error(shares):.2f}, for its relevance is near that of others, and it mixes "
        "with them. Of the document's two sentences this is the second: the first has the radius before the Cartesian "
        "coordinates.",
    )


def relevances(runs: Runs, exact: Array, kind: str, judged: int) -> Finding:
    """Whether what was learned is as relevant as what there is."""
    found = np.asarray([run["true relevance"][:judged] for run in runs])
    told = np.asarray([run["relevance"][:judged] for run in runs])
    share = found.sum(1) / exact[:judged].sum()
    return Finding(
        f"relevance of the first {judged} variables beside the exact ({kind})",
        "not in the document",
        percent(float(share.mean())),
        None,
        met(float(share.mean()) > 0.95),
        f"Squared correlations under the exact law, {found.sum(1).mean():.3f} ± {standard_error(found.sum(1)):.2g} of "
        f"{exact[:judged].sum():.3f}; on the rows of the fit they read {told.sum(1).mean():.3f}. Largest gap of one "
        f"variable {np.abs(found.mean(0) - exact[:judged]).max():.3f}.",
    )


def gap(
    exact: tuple[float, float], open_runs: Runs, whole_runs: Runs, names: Sequence[str], kind: str
) -> Finding:
    """With a gap one variable, the first, gives the angle.

    Args:
        exact: share of the angle that the first exact variable gives, with the gap and without.
        open_runs: fits with the gap.
        whole_runs: fits without.
        names: of the exact variables with the gap.
        kind: of features.
    """
    told = [run["angle told"] for run in open_runs]
    whole = [run["angle told"] for run in whole_runs]
    first = sum(run["names"][0] == half_wave(1) for run in open_runs)
    holds = names[0] == half_wave(1) and first == len(open_runs) and np.mean(told) > 0.95 > np.mean(whole)
    return Finding(
        f"with a gap in the ring the angle is the most relevant variable ({kind})",
        "a monotonous function of the angle",
        f"R² of the angle {np.mean(told):.3f}",
        standard_error(told),
        held(bool(holds)),
        f"By a monotone function of the first variable alone; exact {exact[0]:.3f}. Without a gap {np.mean(whole):.3f} "
        f"(exact {exact[1]:.3f}), however the ring is opened: a sine rises and falls. Exact order with the gap: "
        f"{listed(names[:9])}.",
    )


def radii(scan: Sequence[Mapping[str, Any]]) -> Finding:
    """How far the order belongs to the radii and the shift."""

    def share(holds: Any) -> float:
        return float(np.mean([holds(case["first"]) for case in scan]))

    late = 99
    angle = share(lambda place: place[wave(1)] == 1)
    binary = share(lambda place: place[wave(1)] == 1 and place.get(BINARY, late) == 3)
    flat = share(lambda place: place.get(DISK, late) < place.get(RADIUS, late))
    whole = share(
        lambda place: (
            [place.get(name, late) for name in (wave(1), BINARY, wave(2), wave(3))] == [1, 3, 4, 6]
            and place.get(wave(3), late) < place.get(DISK, late) < place.get(RADIUS, late)
        )
    )
    return Finding(
        f"the order for {len(scan)} other radii and shifts (exact)",
        "one picture, radii not given",
        f"all of it in {percent(whole)}",
        None,
        met(angle > 0.5),
        f"Sine and cosine come first in {percent(angle)}, disk or ring third in {percent(binary)} (first where the "
        "shift is small beside the space between them, later where it is large), the Cartesian coordinates before the "
        f"radius in {percent(flat)}: a thin ring, or a large disk. The order is of scales, as the document argues, "
        "and not of kinds.",
    )
