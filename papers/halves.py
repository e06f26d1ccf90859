"""Left halves of digits inferred from right halves, with their uncertainty.

Learning relevant features for statistical inference, section 5.1 and figure 1.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import RidgeCV
from torch import Generator, Tensor, nn
from torch.nn import functional

from boxloop.data import ArraySource, load_dataset
from boxloop.estimators import FitWarning, RelevantFeatures, pick_device
from boxloop.figures import COLOURS, FAINT, INK, add_legend, dress, new_figure
from boxloop.fit import Cooling, Epochs, Trainer, TrainPlan, hold_out
from boxloop.loop import run
from boxloop.models import ModuleNetwork, Part
from boxloop.numeric import generator
from boxloop.twoview import NetworkView, RelevanceModel, prepend_constant, relevance_loss
from papers.experiment import Finding, Options, Report
from papers.verdicts import judge_claim, judge_target, percent, standard_error

Images = NDArray[np.float32]
Array = NDArray[np.float64]
Fits = Mapping[int, Mapping[str, Any]]


# --- Settings ---

LEAST = 0.02
"""Standard deviation of a pixel among all images below which it counts as blank and is left out."""
BINS = 10
PAIRS = 3
"""Of parts of the rows."""
SHARE = 0.6
"""Of the error of column means, below which that of the inferred half must lie."""
COLLAPSED = 0.95
"""Share of the number of variables; a training loss above it means that they have become constants."""
FINE = 28
"""Dots on the side of an image: smaller ones are enlarged, so that lines stay thin."""
ACROSS = 3
"""Digits in a line of the mosaic, four images each."""
SHOWN = 24
"""Digits in the figure."""


@dataclass(frozen=True)
class Setting:
    """How features are learned.

    Args:
        channels: of the first convolutions.
        passes: epochs.
        rate: of Adam.
        batch: rows of a mini-batch; None is 30 for each variable, and at least 256.
        device: where.
    """

    channels: int
    passes: int
    rate: float = 1e-3
    batch: int | None = None
    device: str = "auto"


@dataclass(frozen=True)
class Size:
    """How much to run.

    Args:
        cutoffs: k0, the constant counted.
        trained: how features are learned.
        given: test images whose left halves are inferred.
        ranked: test images whose pixels are ranked.
        rows: training images, at most.
        forest: rows and trees of the random forest.
        small: epochs of the fit with batches that are too small.
    """

    cutoffs: tuple[int, ...]
    trained: Setting
    given: int
    ranked: int
    rows: int | None
    forest: tuple[int, int]
    small: int


LARGE = Size((50, 100, 200), Setting(32, 80), 500, 100, None, (10_000, 48), 4)
"""MNIST."""
FEW = Size((10, 20, 40), Setting(16, 120), 397, 200, None, (1400, 100), 40)
"""Small digits."""
QUICK = Size((6, 12), Setting(4, 8, 5e-3, device="cpu"), 60, 30, 600, (300, 10), 4)


# --- Images ---


@dataclass(frozen=True)
class Halves:
    """Images (n, H, W) with pixels between 0 and 1, whose left half is to be inferred from the right one.

    Args:
        name: what they are.
        train: to learn from.
        test: others.
    """

    name: str
    train: Images
    test: Images

    @property
    def half(self) -> tuple[int, int]:
        """Height and width of a half."""
        return self.train.shape[1], self.train.shape[2] // 2


def left(images: Images) -> Images:
    """Left halves, (n, H, W / 2)."""
    return np.ascontiguousarray(images[:, :, : images.shape[2] // 2])


def right(images: Images) -> Images:
    """Right halves, (n, H, W / 2)."""
    return np.ascontiguousarray(images[:, :, images.shape[2] // 2 :])


def flat(images: Images) -> NDArray[Any]:
    """Rows of pixels."""
    return images.reshape(len(images), -1)


def digits(folder: Path | None, rows: int | None, seed: int) -> tuple[Halves, Halves]:
    """MNIST, else the small digits of scikit-learn: each image rotated and shifted at random, and as it is.

    Args:
        folder: where ``mnist.npz`` is.
        rows: of training, at most.
        seed: of the rotations, and of the split of the small digits.
    """
    if folder is not None and (folder / "mnist.npz").exists():
        with np.load(folder / "mnist.npz") as file:
            train, test = file["train_images"][:rows] / 255.0, file["test_images"] / 255.0
        return _make_halves("MNIST", train, test, 10.0, 2.0, seed)
    images = load_dataset("digits").rows.reshape(-1, 8, 8) / 16.0
    order = np.random.default_rng(seed).permutation(len(images))
    cut = 1400
    name = "scikit-learn's digits, 8 x 8"
    return _make_halves(name, images[order[:cut]][:rows], images[order[cut:]], 5.0, 0.5, seed)


def _make_halves(
    name: str, train: Any, test: Any, degrees: float, pixels: float, seed: int
) -> tuple[Halves, Halves]:
    stream = generator(seed)
    plain = [torch.from_numpy(part.astype(np.float32)) for part in (train, test)]
    moved = [disturb(part, degrees, pixels, stream).numpy() for part in plain]
    moves = f"{name}, turned up to {degrees:g} degrees, shifted up to {pixels:g} pixels"
    return Halves(moves, moved[0], moved[1]), Halves(
        f"{name}, as they are", plain[0].numpy(), plain[1].numpy()
    )


def disturb(images: Tensor, degrees: float, pixels: float, stream: Generator) -> Tensor:
    """Rotate each image about its middle and shift it, by independent uniform draws; what enters is black.

    One copy of an image, not many: rows stay independent, as error bars and test rows need.

    Args:
        images: (n, H, W).
        degrees: largest angle, either way.
        pixels: largest shift, either way along each axis.
        stream: on the device of the images.
    """
    n, height, width = images.shape
    chance = 2.0 * torch.rand((n, 3), generator=stream, device=images.device, dtype=images.dtype) - 1.0
    angle = chance[:, 0] * math.radians(degrees)
    cos, sin, squeeze = angle.cos(), angle.sin(), height / width
    move = chance[:, 1:] * pixels * 2.0 / torch.tensor([width, height]).to(images)
    turn = torch.stack([cos, -sin * squeeze, move[:, 0], sin / squeeze, cos, move[:, 1]], 1).reshape(n, 2, 3)
    places = functional.affine_grid(turn, [n, 1, height, width], align_corners=False)
    return functional.grid_sample(images[:, None], places, align_corners=False)[:, 0]


# --- The network, as features of a view and as a direct regression ---


class FourConvolutions(nn.Module):
    """Four convolutions and a dense layer, half images to k features; the paper does not say how wide.

    Kernels of 3 x 3, every second of stride 2; rectifiers between, a hyperbolic tangent at the end (appendix A.2).

    Args:
        half: height and width of a half image.
        features: k.
        channels: of the first two convolutions; the others have twice as many.
        stream: of the start, which reads no global seed.
        bounded: with the hyperbolic tangent.
    """

    def __init__(
        self, half: tuple[int, int], features: int, channels: int, stream: Generator, bounded: bool = True
    ) -> None:
        super().__init__()
        self.size, self.bounded = half, bounded
        before, height, width = 1, *half
        layers: list[nn.Module] = []
        for place, after in enumerate((channels, channels, 2 * channels, 2 * channels)):
            stride = 1 + place % 2
            made = nn.utils.skip_init(nn.Conv2d, before, after, 3, stride=stride, padding=1)
            layers += [cast(nn.Module, made), nn.ReLU()]
            before, height, width = after, -(-height // stride), -(-width // stride)
        dense = cast(nn.Module, nn.utils.skip_init(nn.Linear, before * height * width, features))
        self.layers = nn.Sequential(*layers, nn.Flatten(), dense)
        for part in self.layers:
            if isinstance(part, nn.Conv2d | nn.Linear):
                gain: Literal["linear", "relu"] = "linear" if part is dense else "relu"
                nn.init.kaiming_normal_(part.weight, nonlinearity=gain, generator=stream)
                assert part.bias is not None
                nn.init.zeros_(part.bias)

    def forward(self, rows: Tensor) -> Tensor:
        """(n, H * W) -> (n, k)."""
        found: Tensor = self.layers(rows.reshape(len(rows), 1, *self.size))
        return found.tanh() if self.bounded else found


@dataclass(frozen=True)
class Squares:
    """Mean squared error of a network that predicts the last columns of a row from the first."""

    known: int

    def __call__(
        self, view: NetworkView, rows: Tensor, weight: Tensor, stream: Generator
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss; weights are all alike."""
        error = (view(rows[:, : self.known]).double() - rows[:, self.known :].double()).square().mean()
        return error, {"squares": error}


@dataclass(frozen=True)
class HeldSquares:
    """The same on validation rows."""

    rows: ArraySource
    known: int

    def __call__(self, view: NetworkView, stream: Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean squared error, which chooses the epoch."""
        rows = self.rows.rows
        with torch.no_grad():
            return Squares(self.known)(view, rows, rows.new_ones(len(rows)), stream)


@dataclass(frozen=True)
class Regression:
    """How a network is fitted to least squares.

    Args:
        channels: see :class:`FourConvolutions`.
        passes: epochs, at a rate that falls to zero by a cosine.
        batch: rows of a mini-batch.
        rate: of Adam.
        device: of the network.
    """

    channels: int
    passes: int
    batch: int
    rate: float
    device: torch.device

    def predict(self, given: Array, wanted: Array, new: Array, half: tuple[int, int], seed: int) -> Array:
        """Train on pairs of half images, keep the best epoch on a tenth of them, and predict for new ones.

        Args:
            given: (n, d), what is known.
            wanted: (n, d).
            new: (m, d).
            half: height and width.
            seed: of the start, the split and the order.
        """
        rows = torch.from_numpy(np.hstack([given, wanted])).to(self.device)
        d = given.shape[1]
        module = FourConvolutions(half, d, self.channels, generator(seed), bounded=False)
        part = Part(*ModuleNetwork.from_module(module, torch.float32, self.device))
        origin, scale = rows[:, :d].mean(), rows[:, :d].std()
        view = NetworkView(origin.expand(d), scale.expand(d), part, d, bounded=False)
        source = ArraySource(rows)
        mask, held = hold_out(source, 0.1, seed, len(rows))
        assert held is not None
        epochs = Epochs(source, self.batch, seed, mask)
        plan = TrainPlan(Cooling(self.rate, self.passes * epochs.per_epoch), graphs=False)
        trainer = Trainer(view, epochs, Squares(d), plan, None, HeldSquares(held, d))
        outcome = run(trainer, trainer.start(seed), max_iter=trainer.iterations(self.passes))
        fitted = outcome.state.fitted(view)
        with torch.no_grad():
            tiles = torch.from_numpy(new).to(self.device).split(1000)
            return torch.cat([fitted(tile) for tile in tiles]).double().cpu().numpy()


# --- Fits and their errors ---


def fit_features(images: Images, cutoff: int, seed: int, setting: Setting) -> RelevantFeatures:
    """Variables of right (X) and left halves (Y); the paper's k0 counts the constant, ours do not."""
    half = images.shape[1], images.shape[2] // 2
    nets = [
        FourConvolutions(half, cutoff - 1, setting.channels, generator(2 * seed + side)) for side in (0, 1)
    ]
    learner = RelevantFeatures(
        cutoff - 1,
        x_features=nets[0],
        y_features=nets[1],
        learning_rate=setting.rate,
        schedule="cosine",
        batch_size=setting.batch,
        max_iter=setting.passes,
        patience=None,
        random_state=seed,
        device=setting.device,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # a small batch is what one of the experiments shows
        return learner.fit(right(images), left(images))


def squared_error(truth: Images, inferred: Any) -> dict[str, float]:
    """Mean over images and pixels, with its standard error over images."""
    each = ((flat(truth) - inferred.reshape(len(truth), -1)) ** 2).mean(1, dtype=np.float64)
    return {"mse": float(each.mean()), "error": standard_error(each)}


def evaluate(found: RelevantFeatures, data: Halves) -> dict[str, Any]:
    """Errors and relevances on test images, relevances on training images, and losses by epoch."""
    there = found.significance(right(data.test), left(data.test), permutations=99)
    history = {
        name: values for name, values in found.history_.items() if "loss" in name or "relevance" in name
    }
    return {
        **squared_error(left(data.test), found.predict(right(data.test))),
        "correlation": found.correlation_.tolist(),
        "held out": there.correlation.tolist(),
        "held out error": there.standard_error.tolist(),
        "significant": there.n_significant,
        "history": history,
        "loss": found.loss_,
        "batch": found.batch_size_,
    }


def linear_errors(data: Halves) -> dict[str, dict[str, float]]:
    """Errors of column means, and of ridge regression with a penalty by cross-validation."""
    known, wanted = (flat(part(data.train)).astype(float) for part in (right, left))
    truth, new = left(data.test), flat(right(data.test)).astype(float)
    ridge = RidgeCV(np.geomspace(1e-2, 1e3, 11)).fit(known, wanted)
    means = np.broadcast_to(wanted.mean(0), (len(truth), wanted.shape[1]))
    return {"column means": squared_error(truth, means), "ridge": squared_error(truth, ridge.predict(new))}


def nonlinear_errors(
    data: Halves, setting: Setting, forest_rows: int, trees: int, seed: int
) -> dict[str, dict[str, float]]:
    """Errors of a forest, and of the same network with one output per pixel and least squares.

    Args:
        data: the images.
        setting: of the network, which gets half the epochs and batches of a quarter of the rows.
        forest_rows: that the forest sees, the first ones.
        trees: of the forest.
        seed: of both.
    """
    known, wanted = flat(right(data.train)), flat(left(data.train))
    truth, new = left(data.test), flat(right(data.test))
    forest = RandomForestRegressor(
        trees, max_features="sqrt", min_samples_leaf=2, n_jobs=-1, random_state=seed
    )
    forest.fit(known[:forest_rows], wanted[:forest_rows])
    batch = max(64, (setting.batch or 256) // 4)
    passes = max(setting.passes // 2, 1)
    network = Regression(setting.channels, passes, batch, setting.rate, pick_device(setting.device))
    guess = network.predict(known, wanted, new, data.half, seed)
    return {
        "random forest": squared_error(truth, forest.predict(new)),
        "network": squared_error(truth, guess),
    }


def small_batches(data: Halves, cutoff: int, seed: int, setting: Setting) -> dict[str, Any]:
    """The loss and its gradient with batches of two rows per variable, and of fewer rows than variables.

    All losses are k0 - 1, the number of variables, less the relevance found: features that became constant in training
    have no variable left, and count in full.
    """
    small = Setting(setting.channels, setting.passes, setting.rate, 2 * cutoff, setting.device)
    found = fit_features(data.train, cutoff, seed, small)
    kept = len(found.correlation_)
    in_batch = found.diagnose(n_given=20).batch_loss if kept else 0.0
    assert in_batch is not None
    stream = generator(seed)
    size = {"enough": 10 * cutoff, "too few": 4 * cutoff // 5}
    slopes = {}
    for name, n in size.items():
        features = [
            torch.randn((n, cutoff - 1), generator=stream, dtype=torch.float64, requires_grad=True)
            for _ in "fg"
        ]
        relevance_loss(*features).backward()
        assert features[0].grad is not None
        slopes[name] = float(features[0].grad.norm())
    return {
        "batch": found.batch_size_,
        "batch loss": in_batch + cutoff - 1 - kept,
        "losses in training": found.history_["loss"],
        "loss": found.loss_,
        "variables": kept,
        "gradient": slopes,
        "rows": size,
    }


# --- Whether the error bars hold: of the mean, by other rows; of the distribution, by the true halves ---


def compare_refits(data: Halves, cutoff: int, given: int, seed: int, setting: Setting) -> dict[str, Any]:
    r"""z-scores of the difference of two inferred means from rows that have nothing in common.

    .. math:: z = (\hat m_1 - \hat m_2) / \sqrt{s_1^2 + s_2^2}

    With features that are given (learned from a third part of the rows) and variables solved on each of two parts, the
    error bars cover all that differs, and z has standard deviation 1; where each part learns its own features, they
    leave that out. Pixels and images share their rows, so that errors are taken over pairs of parts.

    Args:
        data: the images.
        cutoff: k0.
        given: test images to condition on.
        seed: of the fits.
        setting: of training.

    Returns:
        By kind: root mean square of z, shares within 1 and 2, and a standard error of the first over pairs.
    """
    third = len(data.train) // 3
    parts = [data.train[i * third : (i + 1) * third] for i in range(3)]
    fits = [fit_features(part, cutoff, seed + i, setting) for i, part in enumerate(parts)]
    new, inked = right(data.test[:given]), flat(left(data.train)).std(0) > LEAST
    pieces = np.array_split(data.train[third:], 2 * PAIRS)
    same = [fits[0].expect(given=new, data=(right(part), left(part))) for part in pieces]
    own = [found.expect(given=new) for found in fits]
    return {
        "features given": _score_differences(list(zip(same[::2], same[1::2])), inked),
        "features learned anew": _score_differences(list(combinations(own, 2)), inked),
    }


def _score_differences(pairs: list[tuple[Any, Any]], inked: NDArray[np.bool_]) -> dict[str, float]:
    z = np.stack([_differences(one, two, inked) for one, two in pairs])
    each = np.sqrt((z**2).mean((1, 2)))
    return {
        "spread": float(np.sqrt((z**2).mean())),
        "error": standard_error(each),
        "pairs": len(pairs),
        "within 1": float((np.abs(z) < 1.0).mean()),
        "within 2": float((np.abs(z) < 2.0).mean()),
        "standard error": float(np.median(pairs[0][0].standard_error[:, inked])),
    }


def _differences(one: Any, two: Any, inked: NDArray[np.bool_]) -> Array:
    size = np.sqrt(one.standard_error**2 + two.standard_error**2)
    found: Array = ((one.mean - two.mean) / np.where(size > 0.0, size, 1.0))[:, inked]
    return found


def compare_residuals(found: RelevantFeatures, data: Halves, given: int) -> dict[str, Any]:
    """True halves beside the inferred distribution: standard deviations, negative variances and mass, main direction.

    Args:
        found: the fit.
        data: the images.
        given: test images to condition on.
    """
    images = data.test[:given]
    expectation = found.expect(given=right(images))
    truth, inked = flat(left(images)).astype(float), flat(left(data.train)).std(0) > LEAST
    gap, sd = (truth - expectation.mean)[:, inked], expectation.deviation[:, inked]
    positive = sd > 0.0
    z = np.abs(gap[positive] / sd[positive])
    main = expectation.ambiguity()
    along = ((truth - expectation.mean) * main.direction).sum(1)
    clear = main.deviation > 0.0
    return {
        "negative variances": float(expectation.negative_variance[:, inked].mean()),
        "negative variances of all pixels": float(expectation.negative_variance.mean()),
        "negative mass": float(expectation.negative_mass.mean()),
        "worst negative mass": float(expectation.negative_mass.max()),
        "within 1": float((z < 1.0).mean()),
        "within 2": float((z < 2.0).mean()),
        "mean square of residuals": float((gap**2).mean()),
        "mean variance": float((sd**2).mean()),
        "by deviation": _by_deviation(gap, sd),
        "residual where negative": float(np.sqrt((gap[~positive] ** 2).mean())) if (~positive).any() else 0.0,
        "along within 1": float((np.abs(along[clear]) < main.deviation[clear]).mean()),
        "along within 2": float((np.abs(along[clear]) < 2.0 * main.deviation[clear]).mean()),
        "along ratio": float(np.sqrt((along[clear] ** 2).mean() / (main.deviation[clear] ** 2).mean())),
        "median standard error": float(np.median(expectation.standard_error[:, inked])),
    }


def _by_deviation(gap: Array, sd: Array) -> list[list[float]]:
    """Root mean square residual against the inferred standard deviation, in classes of about as many pixels."""
    order = np.argsort(sd, axis=None, kind="stable")
    return [
        [float(np.sqrt((sd.ravel()[part] ** 2).mean())), float(np.sqrt((gap.ravel()[part] ** 2).mean()))]
        for part in np.array_split(order, BINS)
    ]


def rank_pixels(
    found: RelevantFeatures, images: Images, rows: Images, given: int, seed: int
) -> dict[str, Any]:
    r"""Ranks of true pixels in their inferred distributions: uniform where those are right.

    .. math:: \mathrm{PIT} = F(x^- \mid y) + U \left( F(x \mid y) - F(x^- \mid y) \right), \qquad
        F(t \mid y) = \sum_n w_n(y) \, 1[x_n \le t]

    with U uniform, as many pixels are exactly black; F is clipped to [0, 1], for weights may be negative.

    Args:
        found: the fit.
        images: test images.
        rows: training images, whose left halves carry the weights.
        given: test images to condition on.
        seed: of U.
    """
    model = found.model_
    device = model.canonical.correlation.device
    known, truth = (torch.from_numpy(flat(part(images[:given]))).to(device) for part in (right, left))
    pool = torch.from_numpy(flat(left(rows))).to(device)
    inked = pool.std(0) > LEAST
    with torch.no_grad():
        weight = signed_weights(model, known, pool)
        pool, truth = pool[:, inked], truth[:, inked]
        below, upto = (
            torch.stack([w @ sign(pool, x).double() for w, x in zip(weight, truth)]).clamp(0.0, 1.0)
            for sign in (torch.lt, torch.le)
        )
        dark = (weight @ (pool > 0.5).double()).clamp(0.0, 1.0)
    chance = np.random.default_rng(seed).random(tuple(below.shape))
    low, high = below.cpu().numpy(), upto.cpu().numpy()
    pit = low + chance * (high - low).clip(0.0)
    return {
        "histogram": np.histogram(pit, BINS, (0.0, 1.0))[0].tolist(),
        "reliability": _reliability(dark.cpu().numpy(), (truth > 0.5).cpu().numpy()),
        "distance": float(np.abs(np.sort(pit, axis=None) - np.linspace(0.0, 1.0, pit.size)).max()),
    }


def signed_weights(model: RelevanceModel, known: Tensor, pool: Tensor) -> Tensor:
    r"""Weights of rows of the second view given rows of the first, (m, n), which add up to 1 and may be negative.

    .. math:: w_n(x) \propto 1 + \sum_i \eta_i u_i(x) v_i(y_n)

    Args:
        model: canonical variables.
        known: rows of the first view, (m, d_x).
        pool: rows of the second, (n, d_y).
    """
    weight = (
        prepend_constant(model.left(known) * model.canonical.correlation)
        @ prepend_constant(model.right(pool)).mT
    )
    return weight / weight.sum(1, keepdim=True)


def _reliability(chance: Array, seen: NDArray[np.bool_]) -> list[list[float]]:
    """By class of probability: its mean, frequency of bright pixels with standard error, share of pixels."""
    found = []
    for low in np.arange(BINS) / BINS:
        mine = (chance >= low) & (chance < low + 1.0 / BINS + (low > 0.89))
        if not mine.any():
            continue
        count = mine.sum(1)
        frequency = float(seen[mine].mean())
        off = ((seen - frequency) * mine).sum(1)
        error = float(np.sqrt((off**2).sum()) / count.sum())
        found.append([float(chance[mine].mean()), frequency, error, float(mine.mean())])
    return found


# --- Findings ---


def judge_errors(
    fits: Fits, others: Mapping[str, Mapping[str, float]], what: str, real: bool
) -> list[Finding]:
    """Mean squared errors against methods that infer the mean alone.

    Args:
        fits: facts by cutoff.
        others: errors by method, column means and ridge regression among them.
        what: how the images were made.
        real: whether they are MNIST, of which the claim is.
    """
    base, ridge = others["column means"], others["ridge"]
    listed = ", ".join(f"{who} {facts['mse']:.4f} ± {facts['error']:.1g}" for who, facts in others.items())
    prototype = (
        {50: "; prototype 0.0313", 100: "; prototype 0.0294"} if what == "as they are" and real else {}
    )
    findings = []
    for cutoff, ours in fits.items():
        ratio = ours["mse"] / base["mse"]
        below = ours["mse"] + 2.0 * ours["error"] < ridge["mse"]
        findings.append(
            Finding(
                f"mean squared error of the left half, images {what}, k0 = {cutoff}",
                f"below {SHARE} of column means and below ridge{prototype.get(cutoff, '')}",
                f"{ours['mse']:.4f}",
                ours["error"],
                judge_claim(ratio < SHARE and below),
                f"{ratio:.2f} times that of column means. On the same test images: {listed}."
                + ("" if real else " The claim is of MNIST; these are few and small images."),
            )
        )
    return findings


def judge_spectra(fits: Fits) -> Finding:
    """Whether the drop at the end of the singular values is of the cutoff or of the data."""
    cutoffs = sorted(fits)
    lines, lifts = [], []
    for low, high in pairwise(cutoffs):
        end = slice(int(0.9 * (low - 1)), low - 1)
        last = [
            float(np.mean(np.asarray(fits[k][which])[end]))
            for which in ("correlation", "held out")
            for k in (low, high)
        ]
        lifts.append(last[1] - last[0])
        lines.append(
            f"last tenth at k0 = {low}: {last[0]:.3f}, the same places at {high}: {last[1]:.3f} "
            f"(test images {last[2]:.3f} and {last[3]:.3f})"
        )
    kept = ", ".join(f"{fits[k]['significant']} of {k - 1}" for k in cutoffs)
    total = ", ".join(
        f"{sum(np.square(fits[k]['correlation'])):.1f} ({sum(np.square(np.clip(fits[k]['held out'], 0, 1))):.1f})"
        for k in cutoffs
    )
    return Finding(
        "the sudden drop at the end of the singular values is not robust to a larger cutoff",
        "k0 = 200 is too low to capture all",
        "; ".join(lines),
        None,
        judge_claim(all(lift > 0.0 for lift in lifts)),
        f"Total relevance on training images (and on test images) {total}; significant on test images: {kept}.",
    )


def judge_variances(facts: Mapping[str, Any], cutoff: int) -> list[Finding]:
    """Negative variances, and conditional standard deviations beside residuals."""
    ratio = np.sqrt(facts["mean square of residuals"] / facts["mean variance"])
    inferred, seen = np.asarray(facts["by deviation"]).T
    upper = inferred > np.median(inferred)
    classes = seen[upper] / inferred[upper]
    even = bool(np.abs(np.log(classes)).max() < np.log(1.25))
    return [
        Finding(
            f"negative conditional variances, k0 = {cutoff}",
            "30% of pixels in a prototype",
            percent(facts["negative variances"]),
            None,
            judge_target(facts["negative variances"] < 0.3),
            f"Of pixels that are not blank ({percent(facts['negative variances of all pixels'])} of all), counted and "
            f"taken for 0; negative mass {facts['negative mass']:.2f} on average, at worst "
            f"{facts['worst negative mass']:.2f}.",
        ),
        Finding(
            f"conditional deviations beside residuals of test images, k0 = {cutoff}",
            "not in the document",
            f"{percent(facts['within 1'])} within 1, {percent(facts['within 2'])} within 2",
            None,
            judge_target(0.9 < ratio < 1.1 and even and facts["negative variances"] < 0.05),
            f"Root mean square residual {ratio:.2f} times the root mean inferred variance; by class "
            f"{classes.min():.2f} to {classes.max():.2f} in the upper half of deviations; where the variance is "
            f"negative and the deviation thus 0, residuals are {facts['residual where negative']:.2f}. Pixels are "
            "mostly black or white: a right distribution need not give 68% and 95%. Along the main direction of "
            f"ambiguity {percent(facts['along within 1'])} and {percent(facts['along within 2'])}, residuals "
            f"{facts['along ratio']:.2f} times the deviation.",
        ),
    ]


def judge_probabilities(facts: Mapping[str, Any], cutoff: int) -> Finding:
    """Probabilities of bright pixels, and ranks of true pixels."""
    found = np.asarray(facts["reliability"])
    off = float(np.abs(found[:, 0] - found[:, 1]) @ found[:, 3])
    count = np.asarray(facts["histogram"])
    share = count / count.sum()
    return Finding(
        f"chance of a bright pixel (above 0.5) beside how often it is, k0 = {cutoff}",
        "not in the document",
        f"mean gap {off:.3f}",
        None,
        judge_target(off < 0.02),
        "Over ten classes of chance. Ranks of true pixels in their distributions: shares of ten classes from "
        f"{share.min():.3f} to {share.max():.3f} (uniform 0.1), largest distance of the distribution "
        f"functions {facts['distance']:.3f}.",
    )


def judge_means(facts: Mapping[str, Mapping[str, float]], cutoff: int) -> list[Finding]:
    """Standard errors of the mean against rows that have nothing in common."""
    findings = []
    for kind, found in facts.items():
        given = kind == "features given"
        reason = (
            "Pairs of parts of the rows, features learned from others: all that differs is in the error bars."
            if given
            else "Each part learns its own features: what that costs the error bars leave out, as documented."
        )
        findings.append(
            Finding(
                f"standard error of the inferred mean, {kind}, k0 = {cutoff}",
                "not in the document",
                f"spread of z {found['spread']:.2f}",
                found["error"],
                judge_target(0.85 < found["spread"] < (1.15 if given else 1.5)),
                f"{reason} {found['pairs']} pairs; {percent(found['within 1'])} within 1, "
                f"{percent(found['within 2'])} within 2 (68% and 95% for a normal distribution); median standard error "
                f"{found['standard error']:.3g}.",
            )
        )
    return findings


def judge_batches(facts: Mapping[str, Any], cutoff: int) -> list[Finding]:
    """Batches that are too small: for the loss, and for a gradient."""
    rows, slope = facts["rows"], facts["gradient"]
    return [
        _judge_small_batch(facts, cutoff),
        Finding(
            f"a batch of {rows['too few']} rows, fewer than the {cutoff - 1} features",
            "not in the document (prototype: zero gradient)",
            f"norm of the gradient {slope['too few']:.1g}",
            None,
            judge_target(slope["too few"] < 1e-8 * slope["enough"]),
            f"Any features span the same space of so few rows, so nothing changes the loss; {rows['enough']} rows give "
            f"{slope['enough']:.2g}.",
        ),
    ]


def _judge_small_batch(facts: Mapping[str, Any], cutoff: int) -> Finding:
    """Losses with two rows per variable; where training ended without any relevance there are none to compare."""
    most, last = cutoff - 1, facts["losses in training"][-1]
    collapsed = last > COLLAPSED * most
    apart = f"{facts['batch loss']:.1f} in a batch, {facts['loss']:.1f} on all rows, of {most}"
    return Finding(
        f"a batch of {facts['batch']} rows for k0 = {cutoff}",
        "dramatically different losses on larger batches (prototype: 7.8 and 45 at k0 = 50, batch 100)",
        f"training collapsed: loss {last:.1f} of {most} in its last pass; {apart}" if collapsed else apart,
        None,
        judge_claim(not collapsed and facts["loss"] > 1.5 * facts["batch loss"]),
        f"By such batches features became constant, and {facts['variables']} of {most} variables are left: there are "
        "no losses to compare. The estimator warns of the batches and of the variables that are missing."
        if collapsed
        else "Learned by such batches, the variables fit the chance of each; the estimator warns, and reports the loss "
        "on all rows.",
    )


# --- Figures ---


def draw_digits(images: Images, expectation: Any, fits: Mapping[int, Mapping[str, Any]]) -> Figure:
    """Digits whose left half is inferred: minus one deviation, mean, plus one deviation, truth; loss; singular values.

    Args:
        images: whole, (m, H, W).
        expectation: of their left halves.
        fits: facts by cutoff.
    """
    main = expectation.ambiguity()
    figure = new_figure(13.0, 0.75 * -(-len(images) // ACROSS) + 0.6)
    grid = figure.add_gridspec(2, 2, width_ratios=(1.45, 1.0))
    axis = figure.add_subplot(grid[:, 0])
    shown = _tile_images(
        images,
        [
            part.reshape(-1, images.shape[1], images.shape[2] // 2)
            for part in (main.low, expectation.mean, main.high)
        ],
    )
    axis.imshow(shown, cmap="gray_r", vmin=0.0, vmax=1.0, interpolation="nearest")
    axis.set_axis_off()
    axis.set_title(
        "Left half inferred: mean - 1 sd, mean, mean + 1 sd along the main direction; truth (boxed)",
        loc="left",
        fontsize=10.5,
        color=INK,
    )
    _draw_loss(figure.add_subplot(grid[0, 1]), fits)
    _draw_spectra(figure.add_subplot(grid[1, 1]), fits)
    return figure


def _tile_images(images: Images, parts: list[Any]) -> Any:
    """Four images per digit, a grey line where they are cut, a frame around the truth."""
    known, grain = right(images), max(1, round(FINE / images.shape[1]))
    m, height, width = len(images), *(grain * side for side in images.shape[1:])
    lines = -(-m // ACROSS)
    tall, wide = height + 2, 4 * (width + 2) + 4
    canvas = np.zeros((lines * tall, ACROSS * wide))
    for place in range(m):
        top, side = (place // ACROSS) * tall + 1, (place % ACROSS) * wide + 1
        for number in range(4):
            whole = images[place] if number == 3 else np.hstack([parts[number][place], known[place]])
            whole = np.kron(whole, np.ones((grain, grain)))
            start = side + number * (width + 2)
            if number == 3:
                canvas[top - 1 : top + height + 1, start - 1 : start + width + 1] = 0.6
            canvas[top : top + height, start : start + width] = whole.clip(0.0, 1.0)
            if number < 3:
                cut = canvas[top : top + height, start + width // 2 - 1]
                cut[:] = np.maximum(cut, 0.25)
    return canvas


def _draw_loss(axis: Any, fits: Mapping[int, Mapping[str, Any]]) -> None:
    cutoff = max(fits)
    history = fits[cutoff]["history"]
    pass_ = np.arange(1, len(history["loss"]) + 1)
    axis.plot(pass_, history["loss"], color=COLOURS[0], label="in training batches")
    there = cutoff - 1 - np.asarray(history["validation_relevance"])
    axis.plot(np.arange(1, len(there) + 1), there, color=COLOURS[1], label="on rows held out (score)")
    axis.axhline(fits[cutoff]["loss"], color=FAINT, ls="--", label="on all rows of the fit")
    dress(axis, f"Loss, k0 = {cutoff}", "pass", "k0 less total relevance")
    add_legend(axis)


def _draw_spectra(axis: Any, fits: Mapping[int, Mapping[str, Any]]) -> None:
    for colour, (cutoff, facts) in zip(COLOURS, fits.items()):
        place = np.arange(1, cutoff)[: len(facts["correlation"])]
        axis.plot(place, facts["correlation"], color=colour, label=f"k0 = {cutoff}")
        axis.plot(place, facts["held out"], color=colour, ls=":", lw=1)
    axis.plot([], [], color=FAINT, ls=":", label="the same on test images")
    axis.set_ylim(min(0.0, axis.get_ylim()[0]), 1.02)
    dress(axis, "Singular values", "variable", "correlation")
    add_legend(axis)


def draw_calibration(residual: Mapping[str, Any], rank: Mapping[str, Any]) -> Figure:
    """Residuals by inferred deviation, frequencies by inferred chance, ranks of true pixels.

    Args:
        residual: of :func:`compare_residuals`.
        rank: of :func:`rank_pixels`.
    """
    figure = new_figure(13.0, 4.2)
    axes: Any = figure.subplots(1, 3)
    spread = np.asarray(residual["by deviation"])
    top = 1.05 * spread.max()
    axes[0].plot([0.0, top], [0.0, top], color=FAINT, ls="--")
    axes[0].plot(spread[:, 0], spread[:, 1], "o-", color=COLOURS[0])
    dress(axes[0], "Residuals by deviation", "inferred standard deviation", "root mean square residual")
    chance = np.asarray(rank["reliability"])
    axes[1].plot([0.0, 1.0], [0.0, 1.0], color=FAINT, ls="--")
    axes[1].errorbar(chance[:, 0], chance[:, 1], 2.0 * chance[:, 2], fmt="o-", color=COLOURS[0], capsize=3)
    dress(axes[1], "Bright pixels", "inferred chance", "frequency (± 2 s.e.)")
    count = np.asarray(rank["histogram"], dtype=float)
    share = count / count.sum()
    axes[2].bar(
        (np.arange(len(share)) + 0.5) / len(share), share, 0.9 / len(share), color=COLOURS[0], alpha=0.6
    )
    axes[2].axhline(1.0 / len(share), color=FAINT, ls="--")
    dress(axes[2], "Ranks of true pixels", "place in the inferred distribution", "share")
    return figure


def experiment(options: Options) -> Report:
    """Fit at every cutoff, compare with other methods, and check the error bars against other rows and the truth."""
    real = options.data is not None and (options.data / "mnist.npz").exists()
    size = QUICK if options.quick else LARGE if real else FEW
    data, plain = digits(options.data, size.rows, options.seed)
    total, done = len(size.cutoffs) + 5, 0

    def watch(what: str) -> None:
        nonlocal done
        done += 1
        options.progress(done, total, what)

    fits = {}
    for cutoff in size.cutoffs:
        fits[cutoff] = fit_features(data.train, cutoff, options.seed, size.trained)
        watch(f"k0 = {cutoff}")
    facts = {cutoff: evaluate(found, data) for cutoff, found in fits.items()}
    last = fits[size.cutoffs[-1]]
    checks = {
        "residuals": compare_residuals(last, data, size.given),
        "ranks": rank_pixels(last, data.test, data.train, size.ranked, options.seed),
    }
    watch("residuals")
    curves = {"cutoffs": facts, **checks, **_comparisons(options, size, data, plain, watch)}
    images = data.test[:SHOWN]
    figures = {
        "digits": draw_digits(images, last.expect(given=right(images)), facts),
        "calibration": draw_calibration(checks["residuals"], checks["ranks"]),
    }
    title = "Halves of digits inferred, with their uncertainty"
    smallest, largest, still = size.cutoffs[0], size.cutoffs[-1], curves["images as they are"]
    findings = [
        *judge_errors(curves["cutoffs"], curves["others"], "turned and shifted", real),
        *judge_errors(still["cutoffs"], still["others"], "as they are", real),
        judge_spectra(curves["cutoffs"]),
        *judge_variances(curves["residuals"], largest),
        judge_probabilities(curves["ranks"], largest),
        *judge_means(curves["refits"], smallest),
        *judge_batches(curves["small batches"], smallest),
    ]
    return Report("halves", title, _settings(options, size, data), findings, curves, figures)


def _comparisons(
    options: Options, size: Size, data: Halves, plain: Halves, watch: Callable[[str], None]
) -> dict[str, Any]:
    """Other rows, small batches, other methods, and images as they are."""
    first, seed, trained = size.cutoffs[0], options.seed, size.trained
    refit = compare_refits(data, first, min(size.given, 200), seed + 1, trained)
    watch("refits")
    small = small_batches(data, first, seed, replace(trained, passes=size.small))
    watch("small batches")
    others = {**linear_errors(data), **nonlinear_errors(data, trained, *size.forest, seed)}
    watch("others")
    still = {k: evaluate(fit_features(plain.train, k, seed, trained), plain) for k in size.cutoffs[:2]}
    as_they_are = {"cutoffs": still, "others": linear_errors(plain)}
    watch("images as they are")
    return {"refits": refit, "small batches": small, "others": others, "images as they are": as_they_are}


def _settings(options: Options, size: Size, data: Halves) -> dict[str, Any]:
    channels = size.trained.channels
    return {
        "images": data.name,
        "training images": len(data.train),
        "test images": len(data.test),
        "k0": list(size.cutoffs),
        "network": f"four convolutions (twice {channels}, twice {2 * channels} channels), a dense layer, tanh",
        "passes": size.trained.passes,
        "learning rate": f"{size.trained.rate:g}, cosine",
        "batch": "30 k0, at least 256" if size.trained.batch is None else size.trained.batch,
        "random forest": f"{size.forest[1]} trees on {size.forest[0]} rows",
        "seed": options.seed,
    }
