"""Posteriors over the weights of a convolutional classifier, on test images and on images of unknown classes.

Batch-normalised networks, beyond the linear models of Brownlie (2021), section 6.2.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Generator, Tensor, nn
from torch.nn.utils import skip_init
from torch.optim.swa_utils import update_bn

from boxloop.criticise import reliability
from boxloop.data import load_dataset
from boxloop.estimators import pick_device
from boxloop.figures import COLOURS, INK, dress, label_lines, new_figure, reliability_diagram
from boxloop.networks import (
    KEEP,
    LastLayerPosterior,
    Layout,
    Posterior,
    Predictor,
    WeightWarning,
    last_layer_laplace,
    weight_decay,
)
from boxloop.numeric import generator, normal, spawn
from papers.cifar10 import decode_images
from papers.experiment import Finding, Options, Report
from papers.network_posteriors import (
    ANNEALED,
    ENSEMBLE,
    FACTOR,
    LAPLACE,
    METHODS,
    MULTI_FACTOR,
    MULTI_SWA,
    MULTI_SWAG,
    SEVERAL,
    SGD,
    SINGLE,
    SURE,
    SWA,
    SWAG,
    WITH_COVARIANCE,
    Point,
    Run,
    build_posteriors,
)
from papers.verdicts import judge_target, standard_error

Array = NDArray[np.float64]

Images = NDArray[Any]

Labels = NDArray[np.int64]

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Setting:
    """Settings of training.

    Args:
        channels: of each convolution; negative if max pooling follows.
        hidden: inputs of the last layer.
        batch: images of a step.
        burn_in: steps before weights are observed.
        steps: steps after that.
        every: steps between two observations.
        rate: of learning, constant.
        momentum: of SGD.
        rank: directions of a posterior.
        prior_precision: alpha, of every weight.
        batch_norm_rows: training images from which the statistics of BatchNorm are recomputed.
    """

    channels: tuple[int, ...]
    hidden: int
    batch: int
    burn_in: int
    steps: int
    every: int
    rate: float = 0.05
    momentum: float = 0.9
    rank: int = 10
    prior_precision: float = 1.0
    batch_norm_rows: int = 1000


SCALES = (0.0, *(4.0**power for power in range(-3, 4)))


@dataclass(frozen=True)
class Trial:
    """How much to run.

    Args:
        groups: of runs, each evaluated by itself.
        runs: training runs in a group; methods of one run take the first.
        draws: networks drawn from a posterior that has a covariance.
        setting: of training.
        scales: of the covariance that are tried.
    """

    groups: int
    runs: int
    draws: int
    setting: Setting
    scales: tuple[float, ...] = SCALES


DIGITS = Trial(4, 3, 20, Setting((8, -16), 32, 25, 300, 200, 2, prior_precision=0.1, batch_norm_rows=100))

MNIST = Trial(3, 3, 20, Setting((-32, -64, -64), 64, 200, 600, 600, 6, batch_norm_rows=500))

CIFAR = Trial(3, 3, 20, Setting((32, -32, -64, -128), 64, 128, 1000, 1000, 10, batch_norm_rows=500))

SLOW = Trial(2, 3, 10, Setting((-8, -16, -16), 32, 100, 300, 300, 6, batch_norm_rows=400))
"""MNIST without a GPU."""

SMALL = Trial(2, 2, 6, Setting((-4, -8), 16, 50, 80, 60, 3, rank=5, batch_norm_rows=100), (0.0, 1.0, 8.0))

KNOWN = 8
"""Of scikit-learn's digits, the classes below are learned; the others are unknown."""

N_TRAIN, N_VALID = 100, 500
"""Digits to train on, few enough for errors, and to tune with: without errors the temperature goes to 0."""

PRIORS = tuple(10.0**power for power in range(-2, 5))
"""Prior precisions of the last layer among which the evidence chooses."""

ENTROPY, INFORMATION = KINDS = ("entropy", "mutual information")

SHOWN = (SGD, SWAG, FACTOR, ENSEMBLE, MULTI_SWAG)

MIN_ROWS = 20
"""Smallest number of rows of a bin that is drawn."""


# Images


@dataclass(frozen=True)
class ImageData:
    """Images (n, C, H, W), standardised by the training pixels, and their classes.

    Args:
        name: of the images.
        x: by part, ``"train"``, ``"valid"`` (to tune with) or ``"test"``.
        y: classes (n,) likewise.
        unknown: images of no class, by kind.
        classes: number.
        mirror: whether training images may be mirrored.
    """

    name: str
    x: dict[str, Tensor]
    y: dict[str, Tensor]
    unknown: dict[str, Tensor]
    classes: int
    mirror: bool = False

    def to(self, device: torch.device) -> ImageData:
        """On a device."""
        x, y, unknown = (
            {key: value.to(device) for key, value in part.items()} for part in (self.x, self.y, self.unknown)
        )
        return ImageData(self.name, x, y, unknown, self.classes, self.mirror)


def load_digits(seed: int) -> ImageData:
    """Eight of scikit-learn's ten digits, 8 x 8; the other two are among the unknown."""
    table = load_dataset("digits")
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(table.rows))
    images, labels = table.rows[order].reshape(-1, 1, 8, 8), table.target[order].astype(int)
    known = labels < KNOWN
    cuts = {
        "train": slice(0, N_TRAIN),
        "valid": slice(N_TRAIN, N_TRAIN + N_VALID),
        "test": slice(N_TRAIN + N_VALID, None),
    }
    parts = {part: (images[known][cut], labels[known][cut]) for part, cut in cuts.items()}
    others = {"digits 8 and 9": images[~known], **_corrupt(parts["test"][0], rng)}
    return _standardise("digits", parts, others, KNOWN)


def load_mnist(folder: Path, train: int, valid: int, test: int, few: int, seed: int) -> ImageData:
    """MNIST, with photographs in grey among the unknown.

    Args:
        folder: of the data.
        train: images to train on.
        valid: images to tune with, others of the 60000.
        test: images to test with.
        few: largest number of images of every unknown kind.
        seed: of the sample.
    """
    rng = np.random.default_rng(seed)
    with np.load(folder / "mnist.npz") as file:
        images, labels = file["train_images"][:, None], file["train_labels"].astype(int)
        tested = file["test_images"][:test, None], file["test_labels"][:test].astype(int)
    order = rng.permutation(len(images))
    cuts = {"train": order[:train], "valid": order[len(order) - valid :]}
    parts = {part: (images[rows], labels[rows]) for part, rows in cuts.items()} | {"test": tested}
    grey = _read_cifar10(folder, "test")[0][:few].mean(1, keepdims=True)[:, :, 2:30, 2:30]
    others = {"photographs": grey, **_corrupt(tested[0][:few], rng)}
    return _standardise("MNIST", parts, others, 10)


def load_cifar10(folder: Path, valid: int, few: int, seed: int) -> ImageData:
    """10000 images of CIFAR-10, with digits among the unknown."""
    rng = np.random.default_rng(seed)
    images, labels = _read_cifar10(folder, "train")
    order = rng.permutation(len(images))
    cuts = {"train": order[valid:], "valid": order[:valid]}
    parts = {part: (images[rows], labels[rows]) for part, rows in cuts.items()}
    test_images, test_labels = _read_cifar10(folder, "test")
    parts["test"] = test_images[:few], test_labels[:few]
    with np.load(folder / "mnist.npz") as file:
        digits = np.pad(file["test_images"][:few], ((0, 0), (2, 2), (2, 2)))
    others = {"digits": np.repeat(digits[:, None], 3, 1), **_corrupt(parts["test"][0], rng)}
    return _standardise("CIFAR-10", parts, others, 10, mirror=True)


def rotate(images: Images) -> Images:
    """By 90 degrees, anticlockwise."""
    return np.rot90(images, axes=(2, 3))


def shuffle_pixels(images: Images, rng: np.random.Generator) -> Images:
    """Permute the pixels of every image independently, the colours of a pixel together."""
    n, c = images.shape[:2]
    flat = images.reshape(n, c, -1)
    order = rng.permuted(np.tile(np.arange(flat.shape[2]), (n, 1)), axis=1)
    return np.take_along_axis(flat, order[:, None], 2).reshape(images.shape)


def _corrupt(images: Images, rng: np.random.Generator) -> dict[str, Images]:
    return {"turned by 90 degrees": rotate(images), "pixels shuffled": shuffle_pixels(images, rng)}


def _read_cifar10(folder: Path, part: str) -> tuple[Images, Images]:
    with np.load(folder / "cifar10_subset.npz") as file:
        return decode_images(file[f"{part}_coded"]), file[f"{part}_labels"].astype(int)


def _standardise(
    name: str,
    parts: Mapping[str, tuple[Images, Images]],
    others: dict[str, Images],
    classes: int,
    mirror: bool = False,
) -> ImageData:
    """Standardise every colour by the training pixels."""
    pixels = parts["train"][0].astype(np.float64)
    mean, scale = (statistic((0, 2, 3), keepdims=True)[0] for statistic in (pixels.mean, pixels.std))

    def standardise(images: Images) -> Tensor:
        return torch.from_numpy(((images - mean) / scale).astype(np.float32))

    return ImageData(
        name,
        {part: standardise(images) for part, (images, _) in parts.items()},
        {part: torch.from_numpy(labels.astype(np.int64)) for part, (_, labels) in parts.items()},
        {kind: standardise(images) for kind, images in others.items()},
        classes,
        mirror,
    )


# Training


def build_classifier(
    shape: Sequence[int], classes: int, setting: Setting, stream: Generator
) -> nn.Sequential:
    """Convolutions of 3 x 3, each with BatchNorm; one hidden layer; initial weights of He et al. (2015).

    Args:
        shape: of an image, (C, H, W).
        classes: outputs, logits.
        setting: sizes.
        stream: of the initial weights.
    """
    before, height, width = shape
    layers: list[nn.Module] = []
    for channels in setting.channels:
        after = abs(channels)
        layers += [
            skip_init(nn.Conv2d, before, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
        ]
        if channels < 0:
            layers.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
        before = after
    layers += [nn.Flatten(), skip_init(nn.Linear, before * height * width, setting.hidden), nn.ReLU()]
    layers.append(skip_init(nn.Linear, setting.hidden, classes))
    net = nn.Sequential(*layers)
    with torch.no_grad():
        for module in net:
            if isinstance(module, nn.Conv2d | nn.Linear):
                size = math.sqrt(2.0 / module.weight[0].numel())
                module.weight.copy_(size * normal(tuple(module.weight.shape), stream, torch.float32))
            if isinstance(module, nn.Linear):
                module.bias.zero_()
    return net


def train_network(data: ImageData, setting: Setting, seed: int, *, laplace: bool) -> Run:
    """One network, from its start to its posteriors.

    Args:
        data: on the device of the training.
        setting: of training.
        seed: of the start, the orders and the posteriors.
        laplace: whether to compute the Laplace approximation of the last layer.

    Raises:
        FloatingPointError: weights that are not finite.
    """
    x, y = data.x["train"], data.y["train"]
    start, first, annealing, collecting, posterior_stream = spawn(generator(seed), 5)

    net = build_classifier(x.shape[1:], data.classes, setting, start).to(x.device)
    layout = Layout.from_network(net)
    _run_sgd(net, data, setting, setting.burn_in, first)
    annealed_net = copy.deepcopy(net)
    _run_sgd(annealed_net, data, setting, setting.steps, annealing, lambda done: 1.0 - done)
    posteriors = build_posteriors(net, setting.rank, posterior_stream)

    def observe(step: int) -> None:
        if step % setting.every == 0:
            for posterior in posteriors.values():
                posterior.observe()

    _run_sgd(net, data, setting, setting.steps, collecting, observe=observe)
    for trained in (net, annealed_net):  # statistics of its present weights, not of earlier ones
        update_bn(batch_norm_images(data, setting).split(setting.batch), trained)
        trained.eval()
    laplace_posterior = _fit_laplace(net, x, y) if laplace else None
    return Run(Point.of(net, layout), Point.of(annealed_net, layout), posteriors, laplace_posterior)


def batch_norm_images(data: ImageData, setting: Setting) -> Tensor:
    """Training images for the statistics of BatchNorm."""
    return data.x["train"][: setting.batch_norm_rows]


def _fit_laplace(net: nn.Module, x: Tensor, y: Tensor) -> LastLayerPosterior:
    """At the last iterate, under the prior of the highest evidence: under a vague one it is far too wide."""
    candidates = (last_layer_laplace(net, x, y, "classification", alpha, mode=False) for alpha in PRIORS)
    return max(candidates, key=lambda candidate: candidate.log_evidence)


def _run_sgd(
    net: nn.Module,
    data: ImageData,
    setting: Setting,
    steps: int,
    stream: Generator,
    rate: Callable[[float], float] = lambda done: 1.0,
    observe: Callable[[int], None] = lambda step: None,
) -> None:
    """Steps of SGD on the mean cross-entropy, starting without momentum; rows in a new order every epoch."""
    x, y = data.x["train"], data.y["train"]
    n = len(x)
    optimiser = torch.optim.SGD(
        net.parameters(),
        lr=setting.rate,
        momentum=setting.momentum,
        weight_decay=weight_decay(setting.prior_precision, n, "mean_log"),
    )
    net.train()
    step = 0
    while step < steps:
        order = torch.randperm(n, generator=stream).to(x.device)
        for batch in order.split(setting.batch)[: n // min(setting.batch, n)]:  # full batches
            if step == steps:
                break
            for group in optimiser.param_groups:
                group["lr"] = setting.rate * rate(step / steps)
            images = x[batch]
            if data.mirror and bool(torch.rand((), generator=stream) < 0.5):
                images = images.flip(-1)
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(images), y[batch]).backward()
            optimiser.step()
            step += 1
            observe(step)


# Trials


@dataclass(frozen=True)
class Predictions:
    """Predictions of one method, a row for each group.

    Args:
        score: log-probability of the class of every test image, (g, n), tuned.
        untuned_score: the same at scale 1 and temperature 1.
        correct: whether the likeliest class is the image's, (g, n).
        probability: of classes (g, n, c), tuned.
        untuned_probability: the same at scale 1 and temperature 1.
        uncertainty: by kind of uncertainty and of images, ``"test"`` or unknown, (g, n): entropy is tuned; mutual
            information is not, since at a scale of 0, where tuning may end, it is zero.
        scale: of the covariance, chosen on validation images, (g,).
        temperature: likewise.
        stale_score: as ``untuned_score``, with the BatchNorm statistics of the last iterate; None if not computed.
    """

    score: Array
    untuned_score: Array
    correct: Array
    probability: Array
    untuned_probability: Array
    uncertainty: dict[str, dict[str, Array]]
    scale: Array
    temperature: Array
    stale_score: Array | None

    def calibration(self, y: NDArray[np.int64], *, tuned: bool) -> Array:
        """Expected calibration error of each group."""
        probability = self.probability if tuned else self.untuned_probability
        return np.array([reliability(p, y, repeats=2).calibration_error for p in probability])


Results = dict[str, Predictions]
"""By method."""


def run_trial(data: ImageData, trial: Trial, seed: int, progress: Progress) -> Results:
    """All groups, and all methods on each.

    Args:
        data: on the device of the training.
        trial: sizes.
        seed: of the first run; the others follow.
        progress: called with a description of every finished step.
    """
    results: dict[str, list[Predictions]] = {}
    for group in range(trial.groups):
        runs: list[Run] = []
        for run in range(trial.runs):
            run_seed = seed + group * trial.runs + run
            runs.append(train_network(data, trial.setting, run_seed, laplace=run == 0))
            progress(f"{data.name}, network {group * trial.runs + run + 1}")
        for method, prediction in evaluate_group(data, trial, runs, seed + group).items():
            results.setdefault(method, []).append(prediction)
        progress(f"{data.name}, group {group + 1} judged")
    return {method: _concatenate_groups(parts) for method, parts in results.items()}


def evaluate_group(data: ImageData, trial: Trial, runs: Sequence[Run], seed: int) -> Results:
    """All methods on one group of runs."""
    return {
        method: evaluate(data, trial, method, build_posterior(runs), seed)
        for method, build_posterior in METHODS.items()
    }


def evaluate(data: ImageData, trial: Trial, method: str, posterior: Posterior, seed: int) -> Predictions:
    """Tune scale and temperature on validation images; predict test images and unknown ones."""
    has_covariance = method in WITH_COVARIANCE
    untuned = Predictor.from_posterior(
        posterior,
        "classification",
        trial.draws if has_covariance else 2,
        refresh=batch_norm_images(data, trial.setting),
        random_state=seed,
        use_vmap=True,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeightWarning)  # a scale at the end of the grid
        scales = trial.scales if has_covariance else (0.0,)
        tuned = untuned.tune(data.x["valid"], data.y["valid"], scales=scales, refine=2)
    y, images = data.y["test"], {"test": data.x["test"], **data.unknown}
    with_tuning = {kind: tuned.predict(x) for kind, x in images.items()}
    without = {kind: untuned.predict(x) for kind, x in images.items()}
    stale_score = None
    if method in (SWA, SWAG):
        stale_score = untuned.refresh_batch_norm(KEEP).predict(data.x["test"]).log_prob(y)[None]
    return Predictions(
        with_tuning["test"].log_prob(y)[None],
        without["test"].log_prob(y)[None],
        (with_tuning["test"].predict() == y.cpu().numpy())[None].astype(np.float64),
        with_tuning["test"].probability[None],
        without["test"].probability[None],
        {
            ENTROPY: {kind: prediction.entropy[None] for kind, prediction in with_tuning.items()},
            INFORMATION: {kind: prediction.mutual_information[None] for kind, prediction in without.items()},
        },
        np.array([tuned.scale]),
        np.array([tuned.temperature]),
        stale_score,
    )


def _concatenate_groups(parts: list[Predictions]) -> Predictions:
    uncertainty = {
        kind: {
            images: np.concatenate([part.uncertainty[kind][images] for part in parts]) for images in values
        }
        for kind, values in parts[0].uncertainty.items()
    }
    fields = (
        "score",
        "untuned_score",
        "correct",
        "probability",
        "untuned_probability",
        "scale",
        "temperature",
    )
    arrays = {field: np.concatenate([getattr(part, field) for part in parts]) for field in fields}
    stale = [part.stale_score for part in parts if part.stale_score is not None]
    return Predictions(
        **arrays, uncertainty=uncertainty, stale_score=np.concatenate(stale) if stale else None
    )


@dataclass(frozen=True)
class Estimate:
    """A number and its standard error."""

    value: float
    error: float

    @property
    def z(self) -> float:
        """In units of the error; 0 if the error is."""
        return self.value / self.error if self.error > 0.0 else 0.0

    def __str__(self) -> str:
        return f"{self.value:.4f} ± {self.error:.4f}"


def estimate_mean(values: Array) -> Estimate:
    r"""Of (g, n) values, a row for each group of runs and a column for each image.

    .. math:: \mathrm{se}^2 = \frac{s^2_\mathrm{groups}}{g} + \frac{s^2_\mathrm{images}}{n}

    Groups and images are both random; their interaction is counted in both terms, so the error is conservative.
    """
    groups, images = values.mean(1), values.mean(0)
    return Estimate(float(values.mean()), float(np.hypot(standard_error(groups), standard_error(images))))


def estimate_over_groups(values: Array) -> Estimate:
    """Of one number for each group."""
    return Estimate(float(values.mean()), standard_error(values))


def placements(known: Array, unknown: Array) -> tuple[Array, Array]:
    r"""Shares of pairs that are in order, for every known and every unknown image (DeLong et al., 1988).

    .. math:: V_j = \tfrac1m \sum_i \psi(u_j, k_i), \quad W_i = \tfrac1n \sum_j \psi(u_j, k_i), \qquad
              \psi = 1 \text{ if } u > k, \ \tfrac12 \text{ if } u = k, \ 0 \text{ otherwise}

    Args:
        known: uncertainty of the m known images.
        unknown: of the n unknown ones.

    Returns:
        W (m,) and V (n,); the mean of either is the area under the ROC curve.
    """
    m, n = len(known), len(unknown)
    ranks = rankdata(np.concatenate([known, unknown]))
    above = ranks[m:] - rankdata(unknown)
    below = ranks[:m] - rankdata(known)
    return 1.0 - below / n, above / m


def estimate_auc(known: Array, unknown: Array, base: tuple[Array, Array] | None = None) -> Estimate:
    """Area under the ROC curve over groups, or its difference from that of another method on the same images.

    Args:
        known: uncertainty of known images, (g, m).
        unknown: of unknown ones, (g, n).
        base: known and unknown of the other method.
    """
    pairs = [placements(a, b) for a, b in zip(known, unknown, strict=True)]
    if base is not None:
        others = [placements(a, b) for a, b in zip(*base, strict=True)]
        pairs = [(w - w0, v - v0) for (w, v), (w0, v0) in zip(pairs, others, strict=True)]
    of_known, of_unknown = (np.array(part) for part in zip(*pairs, strict=True))
    by_image = np.hypot(standard_error(of_known.mean(0)), standard_error(of_unknown.mean(0)))
    groups = of_unknown.mean(1)
    return Estimate(float(groups.mean()), float(np.hypot(standard_error(groups), by_image)))


# Findings


def compare(results: Results, method: str, base: str, field: str = "score") -> Estimate:
    """A method's mean minus another's, paired by group and image; above 0 the first is better."""
    one, other = (getattr(results[name], field) for name in (method, base))
    return estimate_mean(one - other)


def judge_known(name: str, results: Results, y: Labels) -> list[Finding]:
    """Log scores, accuracy and calibration of test images.

    Args:
        name: of the images.
        results: by method.
        y: classes of the test images.
    """
    return [
        _better(name, results, (SWAG, FACTOR), SGD, "are better than SGD", "Maddox et al. (2019)"),
        _better(
            name,
            results,
            (SWAG, FACTOR),
            ANNEALED,
            "are better than SGD whose rate fell to 0",
            "not in the document",
        ),
        _better(name, results, (LAPLACE,), SGD, "is better than SGD", "not in the document"),
        _no_worse(name, results),
        _accuracy(name, results),
        _several(name, results),
        _adds(name, results),
        _calibration(name, results, y),
        _alone(name, results),
        _statistics(name, results),
        _table(name, results, y),
    ]


def _list_estimates(estimates: Mapping[str, Estimate]) -> str:
    return ", ".join(f"{name} {one.value:+.4f} (z = {one.z:+.1f})" for name, one in estimates.items())


def _better(
    name: str, results: Results, methods: tuple[str, ...], base: str, words: str, paper: str
) -> Finding:
    estimates = {method: compare(results, method, base) for method in methods}
    return Finding(
        f"{name}: {' and '.join(methods)} {words}, by log score",
        paper,
        _list_estimates(estimates),
        None,
        judge_target(all(one.z > SURE for one in estimates.values())),
        "Scale and temperature of all were tuned alike, on images of neither training nor test.",
    )


def _no_worse(name: str, results: Results) -> Finding:
    tuned, untuned = (compare(results, FACTOR, SWAG, field) for field in ("score", "untuned_score"))
    return Finding(
        f"{name}: factor EM is as good as SWAG or better, by log score",
        "Brownlie (2021), chapter 5: EM fits better",
        _list_estimates({"tuned": tuned, "at scale 1 and temperature 1": untuned}),
        tuned.error,
        judge_target(tuned.z > -SURE),
        f"No worse is a z above {-SURE:g}.",
    )


def _accuracy(name: str, results: Results) -> Finding:
    estimates = {method: compare(results, method, SGD, "correct") for method in (SWA, ANNEALED)}
    return Finding(
        f"{name}: accuracy of SWA is no lower than SGD's",
        "Izmailov et al. (2018): wider optima",
        _list_estimates(estimates),
        estimates[SWA].error,
        judge_target(estimates[SWA].z > -SURE),
        f"Share of test images. No lower is a z above {-SURE:g}.",
    )


def _several(name: str, results: Results) -> Finding:
    estimates = {
        method: min((compare(results, method, single) for single in SINGLE), key=lambda one: one.z)
        for method in SEVERAL
    }
    return Finding(
        f"{name}: several runs together are better than any one run, by log score",
        "Wilson and Izmailov (2020)",
        _list_estimates(estimates),
        None,
        judge_target(all(estimates[method].z > SURE for method in (ENSEMBLE, MULTI_SWAG))),
        "Each against the single-run method that it is least ahead of; judged by the deep ensemble and MultiSWAG.",
    )


def _adds(name: str, results: Results) -> Finding:
    pairs = ((MULTI_SWAG, ENSEMBLE), (MULTI_SWAG, MULTI_SWA), (MULTI_FACTOR, MULTI_SWA))
    estimates = {f"{one} less {other}": compare(results, one, other) for one, other in pairs}
    return Finding(
        f"{name}: Gaussians around the members of an ensemble are better than the members: MultiSWAG less the deep "
        "ensemble",
        "Wilson and Izmailov (2020)",
        _list_estimates(estimates),
        None,
        judge_target(next(iter(estimates.values())).z > SURE),
        "MultiSWA has the same means without spread.",
    )


def _calibration(name: str, results: Results, y: Labels) -> Finding:
    """Calibration before tuning."""
    untuned = {method: one.calibration(y, tuned=False) for method, one in results.items()}
    tuned = {method: one.calibration(y, tuned=True).mean() for method, one in results.items()}
    estimates = {
        method: estimate_over_groups(untuned[SGD] - untuned[method])
        for method in (SWAG, FACTOR, MULTI_SWAG, ENSEMBLE)
    }
    text = ", ".join(
        f"{method} {values.mean():.4f} ({tuned[method]:.4f} tuned)" for method, values in untuned.items()
    )
    return Finding(
        f"{name}: before any tuning SWAG and factor EM are better calibrated than SGD",
        "Maddox et al. (2019)",
        f"calibration error of SGD less theirs: {_list_estimates(estimates)}",
        None,
        judge_target(all(estimates[method].z > SURE for method in (SWAG, FACTOR))),
        f"Expected calibration error of the likeliest class in 15 bins of equal width, mean over groups: {text}.",
    )


def _alone(name: str, results: Results) -> Finding:
    """Posteriors of one run before tuning."""
    estimates = {
        method: estimate_mean(results[method].untuned_score - results[SGD].untuned_score)
        for method in WITH_COVARIANCE
        if method in SINGLE
    }
    scales = {method: np.median(results[method].scale) for method in WITH_COVARIANCE}
    return Finding(
        f"{name}: weight distributions from one run are better than SGD without tuning, at scale 1 and temperature 1",
        "not in the document",
        _list_estimates(estimates),
        None,
        judge_target(all(one.z > SURE for one in estimates.values())),
        "Log score. Median of the scale that other images prefer: "
        + ", ".join(f"{method} {scale:.2g}" for method, scale in scales.items())
        + ".",
    )


def _statistics(name: str, results: Results) -> Finding:
    """Effect of recomputing the statistics of BatchNorm."""
    estimates = {}
    for method, one in results.items():
        if one.stale_score is not None:
            estimates[method] = estimate_mean(one.untuned_score - one.stale_score)
    return Finding(
        f"{name}: statistics of BatchNorm must be gathered anew for averaged and drawn weights",
        "Izmailov et al. (2018)",
        f"log score with them less that with the last iterate's: {_list_estimates(estimates)}",
        None,
        judge_target(all(one.z > SURE for one in estimates.values())),
        "Averaged weights give other activations than the weights they are the average of.",
    )


def _table(name: str, results: Results, y: Labels) -> Finding:
    text = []
    for method, one in results.items():
        right, score = estimate_mean(one.correct), estimate_mean(one.score)
        error = estimate_over_groups(one.calibration(y, tuned=True))
        text.append(
            f"{method} {right.value:.4f} ± {right.error:.4f}, {score.value:.4f} ± {score.error:.4f}, "
            f"{error.value:.4f} ± {error.error:.4f}"
        )
    best = max(results, key=lambda method: float(results[method].score.mean()))
    return Finding(
        f"{name}: the best log score is one of several runs",
        "not in the document",
        "; ".join(text),
        None,
        judge_target(best not in SINGLE),
        "Accuracy, log score and calibration error, tuned; errors count images and groups of runs (the last, groups "
        f"alone). Best: {best}.",
    )


def judge_unknown(name: str, results: Results) -> list[Finding]:
    """Areas under the ROC curve, by entropy (tuned) and by mutual information (untuned).

    Args:
        name: of the images.
        results: by method.
    """
    return [
        _judge_entropy(name, results, (SWAG, FACTOR), "a posterior of one run", "Maddox et al. (2019)"),
        _judge_entropy(
            name, results, (ENSEMBLE, MULTI_SWAG), "several runs", "Lakshminarayanan et al. (2017)"
        ),
        _judge_information(name, results),
        _judge_unknown_table(name, results),
    ]


def compute_aucs(results: Results, method: str, kind: str) -> dict[str, Estimate]:
    """Areas under the ROC curve by kind of unknown images."""
    uncertainty = results[method].uncertainty[kind]
    return {
        what: estimate_auc(uncertainty["test"], values)
        for what, values in uncertainty.items()
        if what != "test"
    }


def compare_aucs(results: Results, method: str, base: str, kind: str, other: str) -> dict[str, Estimate]:
    """Areas of a method by one kind of uncertainty minus those of another method by another kind."""
    one, two = results[method].uncertainty[kind], results[base].uncertainty[other]
    return {
        what: estimate_auc(one["test"], one[what], (two["test"], two[what])) for what in one if what != "test"
    }


def _list_aucs(aucs: dict[str, Estimate]) -> str:
    return ", ".join(f"{what} {one.value:+.3f} (z = {one.z:+.1f})" for what, one in aucs.items())


def _judge_entropy(name: str, results: Results, methods: tuple[str, ...], words: str, paper: str) -> Finding:
    aucs = {method: compare_aucs(results, method, SGD, ENTROPY, ENTROPY) for method in methods}
    every = [one for by in aucs.values() for one in by.values()]
    return Finding(
        f"{name}: entropy under {words} tells unknown images better than under SGD, of every kind",
        paper,
        "; ".join(f"{method}: {_list_aucs(by)}" for method, by in aucs.items()),
        None,
        judge_target(all(one.z > SURE for one in every)),
        f"Area under the curve less SGD's, paired; surely larger in {sum(one.z > SURE for one in every)} and surely "
        f"smaller in {sum(one.z < -SURE for one in every)} of {len(every)} cases.",
    )


def _judge_information(name: str, results: Results) -> Finding:
    aucs = {
        method: compare_aucs(results, method, method, INFORMATION, ENTROPY)
        for method in (MULTI_SWAG, ENSEMBLE, SWAG)
    }
    every = [one for by in aucs.values() for one in by.values()]
    return Finding(
        f"{name}: mutual information tells unknown images better than entropy",
        "not in the document",
        "; ".join(f"{method}: {_list_aucs(by)}" for method, by in aucs.items()),
        None,
        judge_target(all(one.z > SURE for one in every)),
        "What networks disagree about, against all that they are unsure of; areas under the curve, the first less the "
        "second.",
    )


def _judge_unknown_table(name: str, results: Results) -> Finding:
    best: dict[str, tuple[float, str, str]] = {}
    text = []
    for method in results:
        cells = []
        for kind in KINDS:
            aucs = compute_aucs(results, method, kind)
            if any(one.error > 0.0 for one in aucs.values()):  # one network does not disagree with itself
                cells.append(
                    f"{kind} " + ", ".join(f"{one.value:.3f} ± {one.error:.3f}" for one in aucs.values())
                )
                for what, one in aucs.items():
                    best[what] = max(best.get(what, (0.0, "", "")), (one.value, method, kind))
        text.append(f"{method}: {'; '.join(cells)}")
    return Finding(
        f"{name}: unknown images ({', '.join(best)}) are best recognised by several runs",
        "not in the document",
        "; ".join(text),
        None,
        judge_target(all(method not in SINGLE for _, method, _ in best.values())),
        "Area under the curve of hits and false alarms. Best: "
        + "; ".join(f"{what}: {method}, {kind}, {value:.3f}" for what, (value, method, kind) in best.items())
        + ".",
    )


# Figures


def draw_reliability(
    results_by_name: Mapping[str, Results], labels: Mapping[str, NDArray[np.int64]]
) -> Figure:
    """Reliability diagrams before and after tuning; all groups of runs together, bins of at least 20 rows.

    Args:
        results_by_name: predictions by images and method.
        labels: classes of the test images.
    """
    figure = new_figure(11.0, 5.4 * len(results_by_name))
    axes: Any = figure.subplots(len(results_by_name), 2, squeeze=False)
    for line, (name, methods) in zip(axes, results_by_name.items()):
        for axis, tuned in zip(line, (False, True)):
            curves = {}
            for method in SHOWN:
                predictions = methods[method]
                probability = predictions.probability if tuned else predictions.untuned_probability
                y = np.tile(labels[name], len(probability))
                parts = reliability(probability.reshape(-1, probability.shape[2]), y, bins=10).curve()
                predicted, observed, rows, low, high = (part[parts[2] >= MIN_ROWS] for part in parts)
                curves[method] = predicted, observed, rows, low, high
            state = "scale and temperature tuned" if tuned else "as they are"
            reliability_diagram(curves, axis, title=f"{name}, {state}")
    return figure


def draw_unknown(results_by_name: Mapping[str, Results]) -> Figure:
    """Area under the curve by method and kind of unknown images, with one standard error."""
    names = list(next(iter(results_by_name.values())))
    figure = new_figure(12.0, (0.36 * len(names) + 1.0) * len(results_by_name) + 0.4)
    widest = max(len(_kinds(results)) for results in results_by_name.values())
    axes: Any = figure.subplots(len(results_by_name), widest, squeeze=False, sharey=True)
    for line, (name, results) in zip(axes, results_by_name.items()):
        for axis, what in zip(line, _kinds(results)):
            dress(axis, f"{name}: {what}", "area under the curve")
            for place, kind in enumerate(KINDS):
                aucs = {method: compute_aucs(results, method, kind)[what] for method in names}
                shown = [(row, aucs[method]) for row, method in enumerate(names) if aucs[method].error > 0.0]
                axis.errorbar(
                    [one.value for _, one in shown],
                    [row + 0.3 * place - 0.13 for row, _ in shown],
                    xerr=[one.error for _, one in shown],
                    fmt="o^"[place],
                    color=COLOURS[place],
                    markersize=4.5,
                    linewidth=1.2,
                    label=kind,
                )
            axis.axvline(compute_aucs(results, SGD, KINDS[0])[what].value, color=INK, linewidth=0.8)
            label_lines(axis, names)
            axis.tick_params(labelleft=axis is line[0])
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


def _kinds(results: Results) -> list[str]:
    return [what for what in results[SGD].uncertainty[KINDS[0]] if what != "test"]


# Experiment


def experiment(options: Options) -> Report:
    """Train classifiers with BatchNorm, and compare eleven posteriors of their trajectories."""
    device = pick_device("auto" if options.data is not None else "cpu")
    plan = _plan(options, device)
    total = sum(trial.groups * (trial.runs + 1) for _, trial in plan)
    done = 0

    def advance(what: str) -> None:
        nonlocal done
        done += 1
        options.progress(done, total, what)

    results_by_name: dict[str, Results] = {}
    for data, trial in plan:
        results_by_name[data.name] = run_trial(data.to(device), trial, options.seed, advance)
    labels = {data.name: data.y["test"].numpy() for data, _ in plan}
    findings = []
    for name, results in results_by_name.items():
        findings += [*judge_known(name, results, labels[name]), *judge_unknown(name, results)]
    return Report(
        "network-images",
        "Posteriors over the weights of a convolutional classifier, with images of no class",
        _settings(options, plan, device),
        findings,
        {
            name: {method: _facts(results, method, labels[name]) for method in results}
            for name, results in results_by_name.items()
        },
        {"reliability": draw_reliability(results_by_name, labels), "unknown": draw_unknown(results_by_name)},
    )


def _plan(options: Options, device: torch.device) -> list[tuple[ImageData, Trial]]:
    """Images and sizes: digits without data; MNIST and, on a GPU, CIFAR-10 with data."""
    folder, seed = options.data, options.seed
    if folder is None:
        return [(load_digits(seed), SMALL if options.quick else DIGITS)]
    for name in ("mnist.npz", "cifar10_subset.npz"):
        if not (folder / name).exists():
            raise FileNotFoundError(f"{folder} has no {name}")
    if options.quick:
        return [(load_mnist(folder, 2000, 500, 300, 300, seed), SMALL)]
    if device.type == "cpu":
        return [(load_mnist(folder, 5000, 1000, 1000, 1000, seed), SLOW)]
    return [
        (load_mnist(folder, 57_000, 3000, 5000, 2000, seed), MNIST),
        (load_cifar10(folder, 1000, 2000, seed), CIFAR),
    ]


def _facts(results: Results, method: str, y: Any) -> dict[str, Any]:
    """Numbers of one method, each with its standard error."""
    predictions: Predictions = results[method]
    facts = {
        "accuracy": estimate_mean(predictions.correct),
        "log score": estimate_mean(predictions.score),
        "log score at scale 1": estimate_mean(predictions.untuned_score),
        "calibration error": estimate_over_groups(predictions.calibration(y, tuned=True)),
        "calibration error at scale 1": estimate_over_groups(predictions.calibration(y, tuned=False)),
    }
    for kind in KINDS:
        facts |= {f"{kind}, {what}": one for what, one in compute_aucs(results, method, kind).items()}
    numbers = {name: [one.value, one.error] for name, one in facts.items()}
    return {
        **numbers,
        "scale": predictions.scale.tolist(),
        "temperature": predictions.temperature.tolist(),
    }


def _settings(options: Options, plan: list[tuple[ImageData, Trial]], device: torch.device) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for data, trial in plan:
        setting = {key.replace("_", " "): value for key, value in asdict(trial.setting).items()}
        settings[data.name] = {
            "images": {part: len(x) for part, x in data.x.items()},
            "groups": trial.groups,
            "runs of a group": trial.runs,
            "draws": trial.draws,
            **setting,
            "weight decay": "alpha / N",
        }
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return {**settings, "device": kind, "seed": options.seed}
