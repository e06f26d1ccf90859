r"""Independent variables and a generative model: the error of generators against the dimension of their code.

Learning relevant features for statistical inference, section 5.4 and figure 4, which finds the crossing of two lines by
eye. Here

.. math:: \log e_i = a + b_1 \min(t_i - \tau, 0) + b_2 \max(t_i - \tau, 0) + \epsilon_i, \qquad t_i = \log x_i

with the least-squares tau; its interval holds every tau that an F test does not reject (Hinkley 1971). Whether there is
a change at all is tested first: without one tau means nothing, so that the largest F over tau has no F distribution
(Davies 1987), and is compared with that of straight lines with Gaussian noise at the same places.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, stats
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from torch import Tensor

from boxloop.criticise import MomentPenalty
from boxloop.data import load_dataset
from boxloop.estimators import FitWarning, RelevantFeatures, RelevantGenerator, pick_device
from boxloop.figures import COLOURS, FAINT, INK, add_legend, dress, image_grid, new_figure
from boxloop.numeric import generator, seed as draw_seed, single_threaded, spawn
from boxloop.twoview import PixelShuffle
from papers.experiment import Finding, Options, Report
from papers.verdicts import judge_claim, judge_target, percent

Array = NDArray[np.float64]
Kind = Literal["break", "bend", "line"]


# --- Settings ---

SURE = 0.9
"""Probability of a digit from which an image is called recognised."""
NOISE = 0.1
"""Of the pixels, which lie in [0, 1]; the paper does not give its own."""
PAPER = 19
"""Where the paper's lines cross."""


@dataclass(frozen=True)
class Setting:
    """How much is trained.

    Args:
        learned: variables that the convolutions learn.
        kept: the most relevant of them, which the generator sees.
        channels: of the convolutions.
        feature_passes: epochs, for the variables.
        hidden: of the generator.
        batch: images of its mini-batches.
        passes: epochs of each generator.
        dimensions: of the code.
        seeds: generators of each dimension.
        shown: dimensions whose samples are drawn, beside that of the change of slope.
        rows: most images.
        rate: of the generators; the paper's is 0.001.
    """

    learned: int
    kept: int
    channels: tuple[int, ...]
    feature_passes: int
    hidden: tuple[int, ...]
    batch: int
    passes: int
    dimensions: tuple[int, ...]
    seeds: int
    shown: tuple[int, ...] = (2, 8)
    rows: int = 60_000
    rate: float = 1e-3


MANY = (1, 2, 3, 4, 6, 8, 11, 14, 19, 25, 33, 45, 60, 80, 110)
FULL = Setting(600, 500, (64, 128), 80, (800,) * 5, 500, 40, MANY, 3)
"""For MNIST. The paper learns 1200 variables and keeps 1000."""
DIGITS = Setting(60, 50, (16, 32), 150, (200,) * 3, 64, 60, (1, 2, 3, 4, 6, 8, 11, 14, 19, 25, 33, 45), 3)
"""For the small digits, of which there are 1300."""
SMALL = Setting(24, 20, (8, 16), 5, (64,), 65, 8, (1, 2, 3, 5, 8, 12, 20), 2, rows=1500, rate=1e-2)


# --- Images, relevant variables and generators ---


@dataclass(frozen=True)
class Digits:
    """Images in [0, 1], (n, side, side), with their digits.

    Args:
        name: what they are.
        train: training images.
        held: test images.
        labels: of the first.
        real: whether they are the document's.
    """

    name: str
    train: Tensor
    held: Tensor
    labels: NDArray[Any]
    real: bool

    @property
    def side(self) -> int:
        """Pixels on a side."""
        return self.train.shape[1]


def load_digits(options: Options, rows: int) -> Digits:
    """MNIST where the data folder has it, else the small digits of scikit-learn; on a GPU where there is one."""
    device, folder = pick_device("auto"), options.data
    order = np.random.default_rng(options.seed)
    if folder is not None and (Path(folder) / "mnist.npz").exists():
        with np.load(Path(folder) / "mnist.npz") as file:
            train, labels, held = file["train_images"], file["train_labels"], file["test_images"]
        some = order.permutation(len(train))[:rows]
        parts = [
            train[some].reshape(-1, 28, 28) / 255.0,
            held[: max(rows // 5, 1)].reshape(-1, 28, 28) / 255.0,
        ]
        name, labels, real = "MNIST", labels[some], True
    else:
        table = load_dataset("digits")
        some = order.permutation(len(table.rows))
        images = table.rows[some].reshape(-1, 8, 8) / 16.0
        parts, labels = [images[:1300], images[1300:]], table.target[some[:1300]]
        name, real = "scikit-learn's digits, 8 x 8", False
    first, second = (torch.from_numpy(np.ascontiguousarray(part)).to(device) for part in parts)
    return Digits(name, first, second, labels, real)


def learn_features(images: Digits, setting: Setting, seed: int, kind: str) -> RelevantFeatures:
    """Variables of clean images that survive displaced pixels and noise: learned, or linear in the pixels."""
    network = kind == "network"
    estimator = RelevantFeatures(
        setting.learned if network else setting.kept,
        x_features=kind,
        y_features=kind,
        hidden=setting.channels,
        channel=PixelShuffle((images.side, images.side), displacement=1.0, noise=NOISE),
        max_iter=setting.feature_passes,
        patience=None,
        ridge=0.0 if network else 1e-6,
        random_state=seed,
        device="auto",
    )
    return _quietly(lambda: estimator.fit(images.train))


@single_threaded
def train_generators(
    features: RelevantFeatures,
    train: Tensor,
    test: Tensor,
    setting: Setting,
    seed: int,
    n_seeds: int,
    progress: Callable[[int, int, str], None],
) -> DimensionCurve:
    """Generators on the same features at every latent dimension, with several seeds.

    Args:
        features: fitted.
        train: rows or images.
        test: on which errors are measured.
        setting: of the generators.
        seed: of their seeds.
        n_seeds: generators of each dimension.
        progress: called with (done, total, what).
    """
    dimensions = tuple(k for k in setting.dimensions if k <= setting.kept)
    seeds = [draw_seed(stream) % 2**32 for stream in spawn(generator(seed), n_seeds)]
    errors = np.empty((len(dimensions), n_seeds))
    fits: dict[int, RelevantGenerator] = {}
    for i, k in enumerate(dimensions):
        trained = []
        for j in range(n_seeds):
            fit = RelevantGenerator(
                k,
                features=features,
                n_relevant=setting.kept,
                hidden=setting.hidden,
                batch_size=setting.batch,
                max_iter=setting.passes,
                learning_rate=setting.rate,
                schedule="cosine",
                patience=None,
                random_state=seeds[j],
                device="auto",
            )
            trained.append(_quietly(lambda fit=fit: fit.fit(train)))
            errors[i, j] = -fit.score(test)
            progress(i * n_seeds + j + 1, errors.size, f"latent dimension {k}")
        fits[k] = min(trained, key=lambda fit: float(fit.error_))
    return DimensionCurve(dimensions, errors, fits)


@dataclass(frozen=True)
class DimensionCurve:
    """Errors of generators by the dimension of their code.

    Args:
        dimensions: (m,).
        errors: mean squared errors on test images, (m, s), one column a seed.
        fits: the best generator of each dimension.
    """

    dimensions: tuple[int, ...]
    errors: Array
    fits: dict[int, RelevantGenerator]

    @property
    def best(self) -> Array:
        """The smallest error of each dimension, (m,)."""
        return np.asarray(self.errors.min(1))

    def knee(self) -> Knee:
        """The change of slope in logarithms, or that there is none."""
        return change_of_slope(self.dimensions, self.errors)


def _quietly(work: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # pixels at the edge are constant
        warnings.simplefilter("ignore", ConvergenceWarning)  # as many passes as were asked for
        return work()


# --- Where a power law changes its exponent: two straight lines that meet, in logarithms ---

FEWEST = 6
"""Places that a fit of two lines needs: it has four parameters."""
GRID = 400
"""Values of tau that are tried."""
ROUNDING = 1e-26
"""Of squares of logarithms, beside 1: a curve this near a line is one."""


@dataclass(frozen=True)
class Knee:
    """A change of slope, or that there is none.

    Args:
        kind: ``break``: two lines; ``line``: one line does as well; ``bend``: one line does not, but a parabola does at
            least as well as two, so that the slope changes nowhere in particular.
        at: the place of the change, in units of x; what two lines would say, where ``kind`` is another.
        low: lower end of its interval.
        high: upper end.
        slopes: exponents before and after.
        slope_errors: their standard errors.
        p_value: of one line against two.
        level: of the interval.
        x: places.
        y: geometric mean of the values at each.
        fitted: of the two lines at each.
    """

    kind: Kind
    at: float
    low: float
    high: float
    slopes: tuple[float, float]
    slope_errors: tuple[float, float]
    p_value: float
    level: float
    x: Array
    y: Array
    fitted: Array

    @property
    def found(self) -> bool:
        """Whether there is a distinct change of slope."""
        return self.kind == "break"

    def __str__(self) -> str:
        before, after = self.slopes
        if self.kind == "line":
            return f"no change of slope: one straight line will do (p = {self.p_value:.2g})"
        if self.kind == "bend":
            return (
                f"no change of slope at any one place: a smooth bend fits as well as two lines "
                f"(from {before:.2f} to {after:.2f}; one line: p = {self.p_value:.2g})"
            )
        return (
            f"slope changes at {self.at:.3g} ({100 * self.level:.0f}% interval {self.low:.3g} to {self.high:.3g}), "
            f"from {before:.2f} to {after:.2f}; one line: p = {self.p_value:.2g}"
        )

    def lines(self, x: ArrayLike) -> tuple[Array, Array]:
        """Both lines, each drawn on beyond the place where they cross, at any x."""
        where = int(np.argmin(np.abs(np.log(self.x / self.at))))
        slope = self.slopes[0 if self.x[where] <= self.at else 1]
        level = np.log(self.fitted[where]) - slope * np.log(self.x[where] / self.at)
        far = np.log(np.asarray(x, dtype=np.float64) / self.at)
        first, second = (np.exp(level + b * far) for b in self.slopes)
        return first, second


def change_of_slope(
    x: ArrayLike, y: ArrayLike, *, level: float = 0.95, draws: int = 4000, random_state: int = 0
) -> Knee:
    """Estimate where a power law changes its exponent, and test whether it does.

    Args:
        x: at least six different places, positive.
        y: positive values at each, (m,), or several repetitions, (m, s): their logarithms are averaged, and what is
            left over by the lines says how far off a mean may be.
        level: of the interval; a line is refused at 1 - level.
        draws: straight lines with noise behind the p-value.
        random_state: of these.
    """
    place, value = _sort_points(x, y)
    t, v = np.log(place), np.log(value).mean(1)
    m = len(t)
    taus, bases = _bases(t)
    best, misfits = _best_tau(t, v, taus, bases)
    design = _hinge(t, best)
    parameters, misfit = _least_squares(design, v)
    noise = max(misfit / (m - 4), np.finfo(np.float64).tiny)
    moves = np.where(t < best, -parameters[1], -parameters[2])  # of the fit with tau
    change = np.column_stack([design, moves])
    errors = np.sqrt(noise * np.linalg.pinv(change.T @ change).diagonal())
    most = misfit + noise * float(stats.f.ppf(level, 1, m - 4))
    low, high = (
        _interval_end(t, v, best, taus[side], misfits[side], most) for side in (taus < best, taus > best)
    )
    p_value = _p_value(t, v, misfit, bases, draws, random_state)
    kind: Kind = "line"
    if p_value < 1.0 - level:
        _, smooth = _least_squares(np.stack([np.ones(m), t, t * t], 1), v)
        gain = m * np.log(max(smooth, 1e-300) / max(misfit, 1e-300)) - np.log(m)
        kind = "break" if gain > 0.0 else "bend"
    return Knee(
        kind,
        at=float(np.exp(best)),
        low=float(np.exp(low)),
        high=float(np.exp(high)),
        slopes=(float(parameters[1]), float(parameters[2])),
        slope_errors=(float(errors[1]), float(errors[2])),
        p_value=p_value,
        level=level,
        x=place,
        y=np.exp(v),
        fitted=np.exp(design @ parameters),
    )


def _sort_points(x: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    place, value = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    value = value[:, None] if value.ndim == 1 else value
    if place.ndim != 1 or value.ndim != 2 or len(place) != len(value):
        raise ValueError(f"x must be (m,) and y (m,) or (m, s), got {place.shape} and {value.shape}")
    if len(np.unique(place)) < max(FEWEST, len(place)):
        raise ValueError(
            f"at least {FEWEST} places are needed, none of them twice, got {len(np.unique(place))}"
        )
    if not (np.isfinite(place).all() and np.isfinite(value).all() and place.min() > 0 and value.min() > 0):
        raise ValueError("places and values must be positive and finite: their logarithms are fitted")
    order = np.argsort(place)
    return place[order], value[order]


def _hinge(t: Array, tau: float) -> Array:
    return np.stack([np.ones_like(t), np.minimum(t - tau, 0.0), np.maximum(t - tau, 0.0)], 1)


def _least_squares(design: Array, v: Array) -> tuple[Array, float]:
    """Least squares: parameters and the sum of squares left over."""
    parameters = np.asarray(np.linalg.lstsq(design, v, rcond=None)[0], dtype=np.float64)
    return parameters, float(np.square(v - design @ parameters).sum())


def _bases(t: Array) -> tuple[Array, Array]:
    """Values of tau from the second to the last place but one, and an orthonormal basis of each fit, (g, m, 3)."""
    taus = np.unique(np.append(np.linspace(t[1], t[-2], GRID), t[1:-1]))
    return taus, np.stack([np.linalg.qr(_hinge(t, tau))[0] for tau in taus])


def _best_tau(t: Array, v: Array, taus: Array, bases: Array) -> tuple[float, Array]:
    """The best tau, and the misfit at each that is tried."""
    centred = v - v.mean()
    misfits = np.maximum(centred @ centred - np.square(np.einsum("gmk,m->gk", bases, centred)).sum(1), 0.0)
    at = int(misfits.argmin())
    around = (taus[max(at - 1, 0)], taus[min(at + 1, len(taus) - 1)])
    fine = optimize.minimize_scalar(
        lambda tau: _misfit(t, v, tau), bounds=around, method="bounded", options={"xatol": 1e-10}
    )
    return float(fine.x if fine.fun < _misfit(t, v, taus[at]) else taus[at]), misfits


def _misfit(t: Array, v: Array, tau: float) -> float:
    return _least_squares(_hinge(t, tau), v)[1]


def _interval_end(t: Array, v: Array, best: float, taus: Array, misfits: Array, most: float) -> float:
    """The end of an interval on one side: the furthest tau whose misfit is below ``most``."""
    order = np.argsort(np.abs(taus - best))
    taus, inside = taus[order], np.flatnonzero(misfits[order] <= most)
    last = int(inside[-1]) if len(inside) else -1
    if last + 1 == len(taus):
        return float(taus[-1]) if len(taus) else best
    near, far = (best if last < 0 else taus[last]), taus[last + 1]
    for _ in range(50):
        middle = 0.5 * (near + far)
        near, far = (middle, far) if _misfit(t, v, middle) <= most else (near, middle)
    return float(near)


def _p_value(t: Array, v: Array, misfit: float, bases: Array, draws: int, random_state: int) -> float:
    """How often a straight line with Gaussian noise gains as much by a change of slope."""
    line = np.linalg.qr(np.stack([np.ones_like(t), t], 1))[0]

    def left(values: Array) -> Array:
        return values - values @ line @ line.T

    own = left(v)
    if float(own @ own) <= ROUNDING * (1.0 + float(v @ v)):
        return 1.0
    noise = left(np.random.default_rng(random_state).normal(size=(draws, len(t))))
    whole = np.square(noise).sum(1)
    kept = np.max([np.square(noise @ basis).sum(1) for basis in bases], axis=0)
    ratio = misfit / float(own @ own)
    return float((1 + np.count_nonzero(1.0 - kept / whole <= ratio)) / (1 + draws))


# --- Samples ---


@dataclass(frozen=True)
class Samples:
    """Samples at one dimension, and their quality.

    Args:
        images: (64, side, side), means of the emission, as the document shows.
        recognised: share of samples that a network names with probability 0.9 or more.
        gap: moment gap of the model on test images.
        mixture_gap: the same with a mixture as the prior of the codes.
    """

    images: NDArray[np.float64]
    recognised: float
    gap: float
    mixture_gap: float


def train_classifier(images: Digits, seed: int) -> MLPClassifier:
    """Train a small network to classify digits."""
    some = slice(0, 20_000)
    pixels = images.train[some].reshape(-1, images.side**2).cpu().numpy()
    network = MLPClassifier((128,), alpha=1e-3, max_iter=30, random_state=seed)
    return _quietly(lambda: network.fit(pixels, images.labels[some]))


def share_recognised(network: MLPClassifier, images: NDArray[np.float64]) -> float:
    """Share of images named with confidence."""
    chance = network.predict_proba(images.reshape(len(images), -1))
    return float((chance.max(1) >= SURE).mean())


def sample_generator(
    fit: RelevantGenerator, images: Digits, network: MLPClassifier, seed: int, draws: int
) -> Samples:
    """Draw from a generator, classify its images, and compare moments.

    Args:
        fit: a generator with a Gaussian prior of codes.
        images: on which it was fitted.
        network: classifies digits.
        seed: of the draws.
        draws: images drawn.
    """
    _, codes = fit.sample(draws)
    made = fit.inverse_transform(codes)
    held = images.held.reshape(len(images.held), -1)
    params = {**fit.get_params(deep=False), "features": fit.features_, "prior": "mixture"}
    mixed = _quietly(lambda: RelevantGenerator(**params).fit(images.train))
    gaps = []
    for model in (fit.model_, mixed.model_):
        with torch.no_grad():
            stream = generator(seed, held.device)
            gaps.append(float(MomentPenalty(1.0, 1 << 13, "monte_carlo").gap(model, held, stream)))
    return Samples(made[:64], share_recognised(network, made), *gaps)


# --- Findings ---


def judge(
    curve: DimensionCurve,
    knee: Knee,
    pixels: DimensionCurve,
    samples: Mapping[int, Samples],
    known: float,
    real: bool,
) -> list[Finding]:
    """Figure 4, its controls, and the quality of the samples.

    Args:
        curve: of relevant variables.
        knee: its change of slope.
        pixels: the curve of linear functions of pixels.
        samples: by dimension.
        known: share of real images that are recognised.
        real: whether the images are the document's.
    """
    return [
        *_judge_change(knee, real),
        _judge_slope_beyond(curve, knee),
        _judge_control(curve, pixels),
        *_judge_samples(samples, known),
    ]


def _judge_change(knee: Knee, real: bool) -> list[Finding]:
    found = [
        Finding(
            "the error falls as a power of the latent dimension whose exponent changes",
            "a distinct change of polynomial scaling law",
            str(knee),
            None,
            judge_claim(knee.found),
            "Two lines that meet, by least squares in logarithms, against one line and against a parabola.",
        )
    ]
    if real:
        inside = knee.found and knee.low <= PAPER <= knee.high
        why = (
            f"The interval {'holds' if inside else 'does not hold'} it; network, noise, number of variables and "
            "passes of the document are not all known, and the place depends on them."
        )
        found.append(
            Finding(
                "the dimension at which it changes",
                str(PAPER),
                f"{knee.at:.1f}",
                None,
                judge_claim(inside),
                why,
            )
        )
    return found


def _judge_slope_beyond(curve: DimensionCurve, knee: Knee) -> Finding:
    claim = "more dimensions beyond it bring no improvement"
    paper = "increasing the dimension further provides no improvement"
    if not knee.found:
        why = f"The error still falls from {curve.best[-2]:.4g} to {curve.best[-1]:.4g} at the last two dimensions."
        return Finding(claim, paper, "there is no change of slope", None, judge_claim(False), why)
    slope, error = knee.slopes[1], knee.slope_errors[1]
    gain = 1.0 - np.exp(slope * np.log(curve.dimensions[-1] / knee.at))
    return Finding(
        claim,
        paper,
        f"slope {slope:.3f} after the change",
        error,
        judge_claim(slope > -2.0 * error),
        f"From {knee.at:.1f} to {curve.dimensions[-1]} dimensions the line falls by {percent(gain)}.",
    )


def _judge_control(curve: DimensionCurve, pixels: DimensionCurve) -> Finding:
    ratio = np.exp(np.log(curve.errors).mean(1) - np.log(pixels.errors).mean(1))
    ratios = ", ".join(
        f"{r:.2f} at {k}" for k, r in zip(curve.dimensions, ratio) if k in curve.dimensions[::3]
    )
    other = pixels.knee()
    return Finding(
        "control: the same generator on linear functions of the pixels",
        "not in the document",
        f"error of relevant variables relative to it: {ratios}",
        None,
        judge_target(bool(ratio[: len(ratio) // 2].max() < 1.0)),
        f"Its own curve: {other}. A change that both curves show belongs to the generator, not to the variables; few "
        "relevant variables should say more than as many linear ones.",
    )


def _judge_samples(samples: Mapping[int, Samples], known: float) -> list[Finding]:
    shares = ", ".join(f"{percent(one.recognised)} at {k}" for k, one in samples.items())
    gaps = ", ".join(f"{one.gap:.2f} and {one.mixture_gap:.2f} at {k}" for k, one in samples.items())
    below = all(one.mixture_gap < one.gap for one in samples.values())
    return [
        Finding(
            "samples from a Gaussian distribution of codes are recognised as digits",
            "most, below dimension 20",
            shares,
            None,
            judge_claim(all(one.recognised > 0.5 for k, one in samples.items() if k < 20)),
            f"Named by a small network with probability 0.9 or more; of real images {percent(known)} are. A network is "
            "sure of some shapes that are no digits, so this is an upper bound of what eyes would say.",
        ),
        Finding(
            "a mixture as the distribution of codes lowers the moment gap",
            "not in the document",
            f"gap of the Gaussian and of the mixture: {gaps}",
            None,
            judge_target(below),
            "On images held out. The mixture of ten Gaussians is fitted by EM to the same codes.",
        ),
    ]


# --- Figures ---


def draw_curve(curve: DimensionCurve, pixels: DimensionCurve) -> Figure:
    """Errors by dimension, with both lines where the slope changes: figure 4.

    Args:
        curve: of relevant variables.
        pixels: of linear functions of the pixels.
    """
    figure = new_figure(7.2, 4.8)
    axis: Any = figure.subplots()
    knee = curve.knee()
    axis.set(xscale="log", yscale="log")
    axis.plot(knee.x, knee.y, "o", color=COLOURS[0], markersize=5, label="mean over repetitions")
    bottom, top = 0.93 * float(knee.y.min()), 1.07 * float(knee.y.max())
    if knee.found:
        reach = np.geomspace(knee.x[0], knee.x[-1], 200)
        for line, colour in zip(knee.lines(reach), COLOURS[1:3]):
            shown = (line > bottom) & (line < top)
            axis.plot(reach[shown], line[shown], color=colour, lw=1.2)
        label = f"change of slope at {knee.at:.3g} ({knee.low:.3g} to {knee.high:.3g})"
        axis.axvspan(knee.low, knee.high, color=FAINT, alpha=0.25, lw=0)
        axis.axvline(knee.at, color=INK, lw=1, ls="--", label=label)
    for column in curve.errors.T:
        axis.plot(curve.dimensions, column, ".", color=FAINT, markersize=4, zorder=1)
    ticks: list[int] = []
    for k in curve.dimensions:
        if not ticks or k > 1.25 * ticks[-1]:
            ticks.append(k)
    axis.set_xticks(ticks, [str(k) for k in ticks], minor=False)
    axis.set_xticks([], minor=True)
    mean = pixels.errors.mean(1)
    axis.plot(
        pixels.dimensions, mean, "x", color=COLOURS[3], markersize=5, label="linear functions of pixels"
    )
    axis.set_ylim(min(bottom, 0.93 * mean.min()), max(top, 1.07 * mean.max()))
    outcome = "" if knee.found else ": no change of slope"
    dress(axis, f"Error of images made from their code{outcome}", "latent dimension", "mean squared error")
    add_legend(axis)
    return figure


def _draw_samples(samples: dict[int, Samples]) -> Figure:
    figure = new_figure(4.2 * len(samples), 4.4)
    axes: Any = figure.subplots(1, len(samples), squeeze=False)[0]
    for axis, (k, one) in zip(axes, samples.items(), strict=True):
        image_grid(1.0 - one.images, axis, columns=8, limits=(0.0, 1.0), title=f"latent dimension {k}")
    return figure


def experiment(options: Options) -> Report:
    """Learn relevant variables of digits, then generators at every latent dimension."""
    known = options.data is not None and (options.data / "mnist.npz").exists()
    setting = SMALL if options.quick else (FULL if known else DIGITS)
    images = load_digits(options, setting.rows)
    total = len(setting.dimensions) * (setting.seeds + 1) + 2
    options.progress(0, total, "relevant variables")
    features = learn_features(images, setting, options.seed, "network")

    curve = train_generators(
        features,
        images.train,
        images.held,
        setting,
        options.seed,
        setting.seeds,
        lambda done, _, what: options.progress(1 + done, total, what),
    )
    first = 1 + len(setting.dimensions) * setting.seeds
    pixels = train_generators(
        learn_features(images, setting, options.seed, "linear"),
        images.train,
        images.held,
        setting,
        options.seed,
        1,
        lambda done, _, what: options.progress(first + done, total, f"pixels, {what}"),
    )
    knee, network = curve.knee(), train_classifier(images, options.seed)
    near = min(curve.dimensions, key=lambda k: abs(np.log(k / knee.at)))
    shown = sorted({*(k for k in setting.shown if k in curve.fits), near})
    draws = 200 if options.quick else 2000
    samples = {k: sample_generator(curve.fits[k], images, network, options.seed, draws) for k in shown}
    real = share_recognised(network, images.held.cpu().numpy())
    findings = judge(curve, knee, pixels, samples, real, images.real)
    settings = {
        "images": images.name,
        "images fitted": len(images.train),
        "variables learned": setting.learned,
        "variables kept": setting.kept,
        "hidden layers": list(setting.hidden),
        "passes": setting.passes,
        "seeds": setting.seeds,
        "seed": options.seed,
    }
    curves = {
        "dimensions": list(curve.dimensions),
        "errors": curve.errors.tolist(),
        "errors of pixels": pixels.errors.tolist(),
        "change of slope": {
            name: value for name, value in asdict(knee).items() if name not in ("x", "y", "fitted")
        },
        "relevance": features.relevance_.tolist(),
    }
    figures = {"curve": draw_curve(curve, pixels), "samples": _draw_samples(samples)}
    title = "Independent variables and a generative model"
    return Report("generator", title, settings, findings, curves, figures)
