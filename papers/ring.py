"""Relevant variables of points in a disk and a ring: the exact channel, and variables learned from points.

Learning relevant features for statistical inference, section 5.3 and figure 3.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.linalg import eigh
from sklearn.exceptions import ConvergenceWarning
from sklearn.isotonic import IsotonicRegression
from sklearn.utils.parallel import Parallel, delayed

from boxloop.data import DiskAndRing
from boxloop.estimators import RelevantFeatures
from boxloop.figures import COLOURS, INK, add_legend, dress, new_figure
from boxloop.numeric import generator
from boxloop.twoview import GaussianNoise
from papers.experiment import Finding, Options, Report
from papers.verdicts import judge_claim, judge_target, percent, standard_error

Array = NDArray[np.float64]
Runs = Sequence[Mapping[str, Any]]


# --- Settings ---

SHAPE, SD, GAP = DiskAndRing(0.45, 0.78, 1.22), 0.14, 1.0
"""Radii, standard deviation of the shift, and gap in radians; the paper gives none."""
WHOLE, OPEN = "a whole ring", "a ring with a gap"
STEP = 0.8
"""Of the grid and of the nodes along the ring, in standard deviations of the shift."""
REACH = 6.0
"""Standard deviations that the grid goes beyond the ring."""
EMPTY = 1e-15
"""Probability of a place of Y below which it is left out."""
CUTS = 12
"""Angles at which the ring is opened in turn."""
WAVES = 14
"""Angular frequencies with a name of their own; half waves where the ring has a gap."""
RIDGE = 1e-6
"""Of random features, relative to their variances; networks need none."""
MOST = 0.8
"""Squared multiple correlation above which a variable is identified with its name."""
SHOWN = 20
"""Variables in a mosaic, the constant first."""
ACROSS = 5


@dataclass(frozen=True)
class Setting:
    """How variables are learned.

    Args:
        features: that a fit learns, without the constant.
        rows: points.
        passes: epochs.
        batch: rows of a mini-batch.
        rate: of Adam, which falls to zero by a cosine.
        fourier: random features, of the fits without networks.
        length: of their kernel, in standard deviations of a column.
    """

    features: int
    rows: int
    passes: int
    batch: int
    rate: float
    fourier: int
    length: float = 0.4


@dataclass(frozen=True)
class Size:
    """How much to run.

    Args:
        seeds: samples of points, each fitted by networks and by random features.
        settings: of the fits, by kind of features.
        judged: variables that are compared, by kind.
        side: pixels of an image.
        disks: radii of the scan.
        thick: thicknesses of the ring.
        shifts: standard deviations of the shift.
    """

    seeds: int
    settings: dict[str, Setting]
    judged: dict[str, int]
    side: int
    disks: tuple[float, ...]
    thick: tuple[float, ...]
    shifts: tuple[float, ...]


MANY = Setting(24, 20_000, 200, 2000, 3e-3, 300)
FULL = Size(
    5, {"network": MANY, "fourier": MANY}, {"network": 16, "fourier": 16}, 72,
    (0.3, 0.36, 0.42, 0.48), (0.2, 0.32, 0.44, 0.6), (0.08, 0.11, 0.14, 0.2, 0.28),
)  # fmt: skip
SMALL = Size(
    2, {"network": Setting(6, 3000, 25, 400, 1e-2, 1), "fourier": Setting(20, 4000, 1, 400, 1e-2, 200)},
    {"network": 2, "fourier": 9}, 24, (0.3, 0.42), (0.2, 0.44), (0.14, 0.28),
)  # fmt: skip


# --- The exact channel, and functions with a name ---


@dataclass(frozen=True)
class Channel:
    """A channel as a matrix, with its most relevant variables.

    Args:
        points: nodes of X, (n, 2).
        weight: their probabilities, (n,).
        ring: which of them are in the ring, (n,).
        places: of Y, (m, 2).
        transition: probability of each place given each node, (m, n).
        relevance: of the variables, largest first, the constant left out, (k,).
        variables: of X at the nodes, (n, k), of mean 0 and mean square 1.
    """

    points: Array
    weight: Array
    ring: NDArray[np.bool_]
    places: Array
    transition: Array
    relevance: Array
    variables: Array

    @classmethod
    def of(cls, shape: DiskAndRing, sd: float, most: int, step: float = STEP) -> Channel:
        """Decompose the channel.

        Args:
            shape: where X lies.
            sd: sigma, of the shift.
            most: variables to keep, without the constant.
            step: of the quadratures, in units of sd.
        """
        points, weight, ring = _nodes(shape, step * sd)
        edge = shape.outer + REACH * sd
        side = np.linspace(-edge, edge, math.ceil(2.0 * edge / (step * sd)) + 1)
        kernel = np.exp(-0.5 * ((side[:, None, None] - points) / sd) ** 2)
        kernel *= (side[1] - side[0]) / (math.sqrt(2.0 * math.pi) * sd)
        transition = (kernel[:, None, :, 0] * kernel[None, :, :, 1]).reshape(-1, len(points))
        chance = transition @ weight
        there = chance > EMPTY
        places = np.stack(np.meshgrid(side, side, indexing="ij"), 2).reshape(-1, 2)[there]
        transition = transition[there] / transition[there].sum(0)
        half = transition * np.sqrt(weight) / np.sqrt(transition @ weight)[:, None]
        ends = [len(points) - 1 - most, len(points) - 2]  # the last is the constant
        values, vectors = eigh(half.T @ half, subset_by_index=ends)
        variables = vectors[:, ::-1] / np.sqrt(weight)[:, None]
        return cls(points, weight, ring, places, transition, values[::-1].clip(0.0, 1.0), variables)

    def standardise(self, values: Array) -> Array:
        """Functions at the nodes, (n, k), with mean 0 and mean square 1."""
        centred = values - self.weight @ values
        return centred / np.sqrt(self.weight @ centred**2).clip(1e-300)

    def true_relevance(self, left: Array, right: Array) -> Array:
        """Squared correlations of learned pairs under the exact joint distribution, (k,).

        Args:
            left: of X at the nodes, (n, k).
            right: of Y at the places, (m, k).
        """
        chance = self.transition @ self.weight
        other = right - chance @ right
        other /= np.sqrt(chance @ other**2).clip(1e-300)
        inferred = self.transition.T @ other
        return (self.weight @ (self.standardise(left) * inferred)).clip(0.0) ** 2


def _nodes(shape: DiskAndRing, step: float) -> tuple[Array, Array, NDArray[np.bool_]]:
    disk = _sector(0.0, shape.disk, 0.0, step, 1.0 - shape.ring_share)
    ring = _sector(shape.inner, shape.outer, shape.gap, step, shape.ring_share)
    inside = np.repeat([False, True], [len(disk[1]), len(ring[1])])
    return np.concatenate([disk[0], ring[0]]), np.concatenate([disk[1], ring[1]]), inside


def _sector(inner: float, outer: float, gap: float, step: float, mass: float) -> tuple[Array, Array]:
    """Nodes and weights of the uniform distribution between two radii."""
    deep, thick = np.polynomial.legendre.leggauss(4 + math.ceil((outer - inner) / step))
    radius = np.sqrt(inner**2 + 0.5 * (deep + 1.0) * (outer**2 - inner**2))
    n = 8 + math.ceil(2.0 * math.pi * outer / step)
    if gap > 0.0:
        turn, wide = np.polynomial.legendre.leggauss(n)
    else:
        turn, wide = (2.0 * np.arange(n) + 1.0) / n - 1.0, np.full(n, 2.0 / n)
    angle = turn * (math.pi - 0.5 * gap)
    points = np.stack([np.outer(radius, np.cos(angle)), np.outer(radius, np.sin(angle))], 2).reshape(-1, 2)
    return points, mass * np.outer(thick, wide).ravel() / 4.0


def families(channel: Channel, gap: float = 0.0) -> dict[str, Array]:
    r"""Functions of X that have a name, orthonormal under its distribution, those of one name together.

    On a whole ring :math:`\cos m\theta, \sin m\theta`; with a gap g, where :math:`\theta` runs from end to end,
    :math:`\cos(j \pi (\theta + \pi - g/2) / (2\pi - g))`, j half waves, the first of which is monotone.

    Args:
        channel: where the functions are evaluated.
        gap: of the ring.
    """
    x, y = channel.points.T
    radius, angle, ring = np.hypot(x, y), np.arctan2(y, x), channel.ring[:, None].astype(float)
    depth = radius[:, None] * ring
    waves = _waves(angle, gap)
    found = {"disk or ring": ring}
    found |= {name: wave * ring for name, wave in waves.items()}
    found["x and y in the disk"] = channel.points * (1.0 - ring)
    found["radius in the ring"] = depth
    found["x² - y² and xy in the disk"] = np.stack([x**2 - y**2, x * y], 1) * (1.0 - ring)
    found["radius in the disk"] = (radius**2)[:, None] * (1.0 - ring)
    found["radius times angle in the ring"] = np.hstack(list(waves.values())) * depth
    return _orthonormal(found, channel.weight)


def _waves(angle: Array, gap: float) -> dict[str, Array]:
    if gap > 0.0:
        turn = (angle + math.pi - 0.5 * gap) / (2.0 * math.pi - gap)
        return {half_wave(j): np.cos(j * math.pi * turn)[:, None] for j in range(1, WAVES + 1)}
    return {wave(m): np.stack([np.cos(m * angle), np.sin(m * angle)], 1) for m in range(1, WAVES + 1)}


def wave(m: int) -> str:
    """Name of the pair of one angular frequency."""
    return "sin and cos of the angle" if m == 1 else f"sin and cos of {m} angles"


def half_wave(j: int) -> str:
    """Name of so many half waves along a ring with a gap."""
    return "the angle (half a wave)" if j == 1 else f"{j} half waves of the angle"


def _orthonormal(found: dict[str, Array], weight: Array) -> dict[str, Array]:
    """The same spans, each orthogonal to those before it and to the constant: shares then add up."""
    root = np.sqrt(weight)[:, None]
    sizes = [1] + [part.shape[1] for part in found.values()]
    turned, _ = np.linalg.qr(np.hstack([np.ones_like(root), *found.values()]) * root)
    parts = np.split(turned / root, np.cumsum(sizes)[:-1], axis=1)[1:]
    return dict(zip(found, parts))


def shares(channel: Channel, named: dict[str, Array], variables: Array) -> dict[str, Array]:
    """Squared multiple correlation of each variable with each family, by name, (k,) each; they add up to at most 1."""
    standard = channel.standardise(variables) * channel.weight[:, None]
    return {name: ((part.T @ standard) ** 2).sum(0) for name, part in named.items()}


def name_variables(share: dict[str, Array]) -> list[str]:
    """The family that holds most of each variable."""
    known = list(share)
    return [known[i] for i in np.argmax(np.stack(list(share.values())), axis=0)]


def angle_share(channel: Channel, values: Array) -> float:
    """R² of the angle on the ring by a monotone function of one variable.

    The ring is opened where that is largest; a periodic angle needs two variables, for sines rise and fall.

    Args:
        channel: the nodes.
        values: of the variable, (n,).
    """
    x, y = channel.points[channel.ring].T
    mass, seen = channel.weight[channel.ring], values[channel.ring]
    found = []
    for cut in np.linspace(-math.pi, math.pi, CUTS, endpoint=False):
        turn = np.mod(np.arctan2(y, x) - cut, 2.0 * math.pi)
        spread = mass @ (turn - np.average(turn, weights=mass)) ** 2
        for sign in (1.0, -1.0):
            best = IsotonicRegression(out_of_bounds="clip").fit(sign * seen, turn, mass).predict(sign * seen)
            found.append(1.0 - float(mass @ (turn - best) ** 2 / spread))
    return max(found)


DISK, RADIUS, BINARY = "x and y in the disk", "radius in the ring", "disk or ring"
ORDER = [*[wave(1)] * 2, BINARY, *[wave(2)] * 2, *[wave(3)] * 2, *[wave(4)] * 2, *[DISK] * 2]
"""The paper's eleven most relevant variables after the constant; finer waves and the radius follow."""
STAGES = (
    ("the two most relevant: sine and cosine of the angle", slice(0, 2)),
    ("the third: disk or ring", slice(2, 3)),
    ("the next six: sines and cosines of shorter waves", slice(3, 9)),
    ("the next two: Cartesian coordinates in the disk", slice(9, 11)),
)


# --- Variables learned from points, and other radii ---


@dataclass(frozen=True)
class Task:
    """One fit: of which shape, with which shift, by which features (``network`` or ``fourier``), from which seed."""

    shape: DiskAndRing
    sd: float
    kind: str
    seed: int
    setting: Setting


def fit_variables(task: Task) -> RelevantFeatures:
    """Learn the variables; the second view is drawn anew at every step."""
    points = task.shape.rows(task.setting.rows, generator(task.seed)).numpy()
    setting = task.setting
    learner = RelevantFeatures(
        setting.features,
        x_features=task.kind,
        y_features=task.kind,
        n_fourier=setting.fourier,
        length_scale=setting.length,
        ridge=RIDGE if task.kind == "fourier" else 0.0,
        channel=GaussianNoise(task.sd),
        learning_rate=setting.rate,
        schedule="cosine",
        batch_size=setting.batch,
        max_iter=setting.passes,
        patience=None,
        random_state=task.seed,
        device="auto" if task.kind == "network" else "cpu",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the passes are those that were planned
        return learner.fit(points)


def train_and_name(task: Task, channel: Channel, pixels: Array | None = None) -> dict[str, Any]:
    """Fit, and name the variables.

    Args:
        task: the fit.
        channel: exact.
        pixels: places to evaluate the variables at, (p, 2), for figures.

    Returns:
        Names of the variables, shares by name, relevances on the rows of the fit and under the exact distribution, R²
        of the angle by the first variable, and ``pixels``, (p, k), if given.
    """
    found = fit_variables(task)
    left, right = found.transform(channel.points, channel.places)
    share = shares(channel, families(channel, task.shape.gap), left)
    facts = {
        "seed": task.seed,
        "names": name_variables(share),
        "shares": {name: values.tolist() for name, values in share.items()},
        "relevance": found.relevance_.tolist(),
        "true relevance": channel.true_relevance(left, right).tolist(),
        "angle share": angle_share(channel, left[:, 0]),
    }
    return facts if pixels is None else {**facts, "pixels": found.transform(pixels)}


def pixel_grid(shape: DiskAndRing, side: int) -> Array:
    """Pixels of a figure, (side * side, 2), rows from top to bottom."""
    edge = 1.15 * shape.outer
    line = np.linspace(-edge, edge, side)
    across, up = np.meshgrid(line, line[::-1])
    return np.stack([across.ravel(), up.ravel()], 1)


def scan_radii(
    disks: Sequence[float], thick: Sequence[float], shifts: Sequence[float]
) -> list[dict[str, Any]]:
    """Exact orders for other radii and shifts, the middle of the ring at 1: the first place of each kind of variable.

    Args:
        disks: radii of the disk.
        thick: thicknesses of the ring.
        shifts: standard deviations of the shift.
    """
    found = []
    for disk in disks:
        for width in thick:
            for sd in shifts:
                shape = DiskAndRing(disk, 1.0 - width / 2, 1.0 + width / 2)
                channel = Channel.of(shape, sd, 30, step=1.0)
                names = name_variables(shares(channel, families(channel), channel.variables))
                places = {name: names.index(name) + 1 for name in dict.fromkeys(names)}
                found.append({"disk": disk, "thickness": width, "sd": sd, "first": places})
    return found


# --- Findings ---


def list_names(names: Sequence[str]) -> str:
    """Names in order, equal ones in a row together: ``1-2 sine, 3 disk``."""
    parts, place = [], 1
    for name, group in groupby(names):
        n = len(list(group))
        parts.append(f"{place} {name}" if n == 1 else f"{place}-{place + n - 1} {name}")
        place += n
    return ", ".join(parts)


def judge_exact_order(names: Sequence[str], relevance: Array) -> Finding:
    """The order of the exact channel, without any learning."""
    radius = names.index(RADIUS) if RADIUS in names else len(names)
    finer = all(name.startswith("sin and cos of") for name in names[len(ORDER) : radius])
    eta = ", ".join(f"{relevance[place]:.3f}" for place in (0, 2, 3, 9, 11, min(radius, len(names) - 1)))
    return Finding(
        "order of the exact channel, no learning",
        "sin and cos; disk or ring; six finer waves; Cartesian in the disk; finer waves; radius in the ring",
        list_names(names[: radius + 1]),
        None,
        "reproduced"
        if list(names[: len(ORDER)]) == ORDER and finer and radius < len(names)
        else "not reproduced",
        f"Quadrature and singular values; relevances of variables 1, 3, 4, 10, 12 and the radius: {eta}. Without the "
        "constant, which is first. The radii and the shift, which the document leaves out, were chosen so that the "
        "order is this one; the last line has others.",
        exact=True,
    )


def judge_learned_order(runs: Runs, kind: str, judged: int) -> list[Finding]:
    """Each stage of the order, as learned by networks or random features from several samples.

    Args:
        runs: one fit each.
        kind: of features.
        judged: variables that are compared.
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
                judge_claim(float(np.mean(share)) > MOST and right > len(runs) / 2),
                "Mean squared multiple correlation with those functions, under the exact distribution of X, over "
                f"{len(runs)} samples; in {right} of them each of the variables is mostly that.",
            )
        )
    return findings


def judge_radius(runs: Runs, kind: str) -> Finding:
    """The place of the variable with the largest share of the radius."""
    places = [int(np.argmax(run["shares"][RADIUS])) + 1 for run in runs]
    shares = [float(np.max(run["shares"][RADIUS])) for run in runs]
    flat = [int(np.max(np.argsort(run["shares"][DISK])[-2:])) + 1 for run in runs]
    return Finding(
        f"the radius in the ring comes late ({kind})",
        "after the Cartesian coordinates and finer waves",
        "variable " + ", ".join(str(place) for place in places),
        None,
        judge_claim(all(a > b for a, b in zip(places, flat))),
        f"The Cartesian coordinates end at variable {', '.join(str(place) for place in flat)}; its R² is "
        f"{np.mean(shares):.2f} ± {standard_error(shares):.2f}, for its relevance is near that of others, and it mixes "
        "with them. Of the document's two sentences this is the second: the first has the radius before the Cartesian "
        "coordinates.",
    )


def judge_relevances(runs: Runs, exact: Array, kind: str, judged: int) -> Finding:
    """Learned variables beside the exact ones, by relevance."""
    found = np.asarray([run["true relevance"][:judged] for run in runs])
    training = np.asarray([run["relevance"][:judged] for run in runs])
    share = found.sum(1) / exact[:judged].sum()
    return Finding(
        f"relevance of the first {judged} variables beside the exact ({kind})",
        "not in the document",
        percent(float(share.mean())),
        None,
        judge_target(float(share.mean()) > 0.95),
        f"Squared correlations under the exact distribution, {found.sum(1).mean():.3f} ± "
        f"{standard_error(found.sum(1)):.2g} of {exact[:judged].sum():.3f}; on the rows of the fit they read "
        f"{training.sum(1).mean():.3f}. Largest gap of one variable "
        f"{np.abs(found.mean(0) - exact[:judged]).max():.3f}.",
    )


def judge_gap(
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
    angle = [run["angle share"] for run in open_runs]
    whole = [run["angle share"] for run in whole_runs]
    first = sum(run["names"][0] == half_wave(1) for run in open_runs)
    holds = names[0] == half_wave(1) and first == len(open_runs) and np.mean(angle) > 0.95 > np.mean(whole)
    return Finding(
        f"with a gap in the ring the angle is the most relevant variable ({kind})",
        "a monotonous function of the angle",
        f"R² of the angle {np.mean(angle):.3f}",
        standard_error(angle),
        judge_claim(bool(holds)),
        f"By a monotone function of the first variable alone; exact {exact[0]:.3f}. Without a gap {np.mean(whole):.3f} "
        f"(exact {exact[1]:.3f}), however the ring is opened: a sine rises and falls. Exact order with the gap: "
        f"{list_names(names[:9])}.",
    )


def judge_radii(scan: Sequence[Mapping[str, Any]]) -> Finding:
    """How far the order depends on the radii and the shift."""

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
        judge_target(angle > 0.5),
        f"Sine and cosine come first in {percent(angle)}, disk or ring third in {percent(binary)} (first where the "
        "shift is small beside the space between them, later where it is large), the Cartesian coordinates before the "
        f"radius in {percent(flat)}: a thin ring, or a large disk. The order is of scales, as the document argues, "
        "and not of kinds.",
    )


# --- Figures ---


def draw_variables(drawn: Mapping[str, tuple[Array, Array]]) -> Figure:
    """The first twenty variables as images, and the same where X has mass: mid-grey is 0.

    Args:
        drawn: by name, variables at pixels (side * side, k), the constant left out, and which pixels have mass.
    """
    figure = new_figure(11.0, 4.8 * len(drawn) + 0.3)
    axes: Any = figure.subplots(len(drawn), 2, squeeze=False)
    for row, (name, (values, mass)) in zip(axes, drawn.items()):
        whole = np.column_stack([np.ones(len(values)), values[:, : SHOWN - 1]])
        size = np.sqrt(np.mean(whole[mass] ** 2, axis=0))
        largest = whole[mass][np.abs(whole[mass]).argmax(0), np.arange(whole.shape[1])]
        whole = whole / (size * np.sign(largest))
        for axis, part, what in zip(row, (whole, whole * mass[:, None]), ("variables", "where X has mass")):
            axis.imshow(_tile_images(part), cmap="gray", vmin=-2.2, vmax=2.2, interpolation="nearest")
            axis.set_axis_off()
            axis.set_title(f"{name}: {what}", loc="left", fontsize=11, color=INK)
    return figure


def _tile_images(values: Array) -> Array:
    """Variables as square images, five in a line, white between."""
    side = round(len(values) ** 0.5)
    images = values.T.reshape(-1, side, side).clip(-2.2, 2.2)
    lines = -(-len(images) // ACROSS)
    canvas = np.full((lines * (side + 2), ACROSS * (side + 2)), 2.2)
    for place, image in enumerate(images):
        top, left = (side + 2) * (place // ACROSS) + 1, (side + 2) * (place % ACROSS) + 1
        canvas[top : top + side, left : left + side] = image
    return canvas


def draw_order(
    exact: Mapping[str, tuple[Array, Sequence[str]]],
    runs: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]],
) -> Figure:
    """Relevances by kind of variable: exact as bars, learned as points.

    Args:
        exact: by shape, relevances and names.
        runs: by shape and kind of features, the fits.
    """
    figure = new_figure(12.0, 4.6)
    axes: Any = figure.subplots(1, len(exact), sharey=True, squeeze=False)
    for axis, (ring, (relevance, names)) in zip(axes[0], exact.items()):
        place = np.arange(1, len(relevance) + 1)
        for kind, colour in zip(dict.fromkeys(_kind(name) for name in names), COLOURS):
            mine = np.asarray([_kind(name) == kind for name in names])
            axis.bar(place[mine], relevance[mine], color=colour, alpha=0.45, width=0.8, label=kind)
        for (features, fits), shape in zip(runs[ring].items(), ("o", "^")):
            values = np.asarray([run["true relevance"] for run in fits])
            error = 2.0 * values.std(0) / max(len(values) - 1, 1) ** 0.5
            at = place[: values.shape[1]] + (0.15 if shape == "^" else -0.15)
            axis.errorbar(
                at,
                values.mean(0)[: len(place)],
                error[: len(place)],
                fmt=shape,
                color=INK,
                markersize=3.5,
                lw=1,
                label=f"learned, {features} (± 2 s.e.)",
            )
        dress(axis, ring, "canonical variable", "relevance" if axis is axes[0][0] else "")
        axis.set(ylim=(0.0, 1.05), xlim=(0.3, len(place) + 0.7))
        add_legend(axis, "upper right")
    return figure


def _kind(name: str) -> str:
    """A coarser name, of few enough for colours."""
    if name in {wave(m) for m in range(1, 99)} | {half_wave(j) for j in range(1, 99)}:
        return "angle in the ring, exact"
    known = {"disk or ring": "disk or ring", "radius in the ring": "radius in the ring"}
    return known.get(name, "in the disk" if "disk" in name else "radius times angle")


def experiment(options: Options) -> Report:
    """Decompose the channel exactly, learn it from samples of points, with and without a gap, and scan other radii."""
    size = SMALL if options.quick else FULL
    shapes = {WHOLE: SHAPE, OPEN: replace(SHAPE, gap=GAP)}
    most = max(setting.features for setting in size.settings.values())
    channels = {ring: Channel.of(shape, SD, most) for ring, shape in shapes.items()}
    named = {
        ring: name_variables(shares(channel, families(channel, shapes[ring].gap), channel.variables))
        for ring, channel in channels.items()
    }
    runs, pictures = _train_all(options, size, shapes, channels)
    scan = scan_radii(size.disks, size.thick, size.shifts)
    exact = {ring: (channel.relevance, named[ring]) for ring, channel in channels.items()}
    curves: dict[str, Any] = {
        "exact": {
            ring: {"relevance": values.tolist(), "names": names} for ring, (values, names) in exact.items()
        },
        "learned": runs,
        "other radii": scan,
    }
    drawn = {
        f"{ring.capitalize()}, {kind}": (
            pixels,
            shapes[ring].contains(torch.from_numpy(pixel_grid(SHAPE, size.side))).numpy(),
        )
        for (ring, kind), pixels in pictures.items()
        if kind == ("fourier" if options.quick else "network")
    }
    figures = {"variables": draw_variables(drawn), "order": draw_order(exact, runs)}
    settings = _settings(options, size)
    return Report(
        "ring",
        "Variables of a disk and a ring",
        settings,
        _findings(size, channels, named, runs, scan),
        curves,
        figures,
    )


def _train_all(
    options: Options, size: Size, shapes: dict[str, DiskAndRing], channels: dict[str, Channel]
) -> tuple[dict[str, dict[str, list[dict[str, Any]]]], dict[tuple[str, str], Array]]:
    """All fits by shape and kind, and the variables of the first of each at the pixels."""
    pixels = pixel_grid(SHAPE, size.side)
    work = [
        (ring, Task(shape, SD, kind, options.seed + i, setting), i == 0)
        for ring, shape in shapes.items()
        for kind, setting in size.settings.items()
        for i in range(size.seeds)
    ]
    jobs = 1 if options.quick or torch.cuda.is_available() else -1
    done = Parallel(n_jobs=jobs, return_as="generator")(
        delayed(train_and_name)(task, channels[ring], pixels if first else None) for ring, task, first in work
    )
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {}
    pictures: dict[tuple[str, str], Array] = {}
    for number, ((ring, task, first), facts) in enumerate(zip(work, done)):
        options.progress(number + 1, len(work) + 1, f"{ring}, {task.kind}")
        if first:
            pictures[ring, task.kind] = facts.pop("pixels")
        runs.setdefault(ring, {}).setdefault(task.kind, []).append(facts)
    return runs, pictures


def _findings(
    size: Size,
    channels: dict[str, Channel],
    named: dict[str, list[str]],
    runs: dict[str, dict[str, list[dict[str, Any]]]],
    scan: list[dict[str, Any]],
) -> list[Finding]:
    whole = channels[WHOLE]
    opened, closed = (
        angle_share(channels[shape], channels[shape].variables[:, 0]) for shape in (OPEN, WHOLE)
    )
    findings = [judge_exact_order(named[WHOLE], whole.relevance)]
    for kind, judged in size.judged.items():
        found = runs[WHOLE][kind]
        findings += judge_learned_order(found, kind, judged)
        if judged >= 16:
            findings.append(judge_radius(found, kind))
        findings.append(judge_relevances(found, whole.relevance, kind, judged))
        findings.append(judge_gap((opened, closed), runs[OPEN][kind], found, named[OPEN], kind))
    return [*findings, judge_radii(scan)]


def _settings(options: Options, size: Size) -> dict[str, Any]:
    network, kernel = size.settings["network"], size.settings["fourier"]
    return {
        "disk": SHAPE.disk,
        "ring": [SHAPE.inner, SHAPE.outer],
        "sd of the shift": SD,
        "gap": GAP,
        "points": network.rows,
        "variables learned": network.features,
        "network": "two layers of 128, tanh at the end",
        "passes": network.passes,
        "batch": network.batch,
        "learning rate": f"{network.rate:g}, cosine",
        "random features": kernel.fourier,
        "seeds": size.seeds,
        "seed": options.seed,
    }
