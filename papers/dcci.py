"""Labels inferred by canonical correlations (DCCI) against cross-entropy: one network, one optimiser, four objectives.

Learning relevant features for statistical inference, section 5.2 and figure 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray
from sklearn.utils.parallel import Parallel, delayed
from torch import Generator, Tensor
from torch.nn import functional

from boxloop.criticise import classification_scores
from boxloop.data import ArraySource, load_dataset
from boxloop.estimators import apply_temperature, fit_temperature, pick_device, project_to_simplex
from boxloop.figures import COLOURS, MARKERS, dress, new_figure
from boxloop.fit import Constant, Epochs, Trainer, TrainPlan
from boxloop.loop import run
from boxloop.numeric import generator, normal
from boxloop.twoview import FiniteView, LinearView, RelevanceFit, RelevanceModel, ViewPair, relevance_loss
from papers.cifar10 import decode_images
from papers.experiment import Finding, Options, Report
from papers.verdicts import judge_claim, judge_target, standard_error

Level = tuple[Tensor, Tensor]
"""Mean and variance of each channel."""
Objective = Callable[[Tensor, Tensor], Tensor]
"""(outputs, indicators) -> a scalar."""
Runs = list[dict[str, Any]]
Table = Mapping[str, Mapping[str, Runs]]
Rows = NDArray[np.float32]


# --- Settings ---

TINY = 1e-5
"""Added to the variances that activations are divided by."""
TORCH_GAIN, HE_GAIN = 1.0 / 3.0, 2.0
"""Variance of a slope, times the values that it sums: where torch starts, and where activations keep their size."""
BINS = 15
"""Of confidence, in which it is compared with accuracy."""
LEVEL_ROWS = 2000
"""Training rows whose activations normalise those of other rows."""
DROPPED = 0.5
"""Share of units that dropout drops."""
LEAD = 0.03
"""Accuracy after one epoch by which DCCI is to lead."""
SURE = 2.0
"""Standard errors by which a difference must exceed zero to be one."""
FAST = 1e-2
"""The second learning rate."""
PLAIN, NORMAL = "CIFAR-10", "CIFAR-10, batch normalisation"
MEANS = "Means over seeds of paired differences; the networks start alike and see the same batches."
LINES = ("DCCI", "cross-entropy", "cross-entropy, dropout", "squared loss")


@dataclass(frozen=True)
class Setting:
    """How networks are trained.

    Args:
        channels: of the convolutions.
        dense: widths of the hidden dense layers.
        batch: rows of a mini-batch.
        epochs: how many.
        rate: of Adam.
        pooled: whether images are halved by pooling, else by strides.
        normalised: with batch normalisation.
        gain: of the start.
    """

    channels: tuple[int, ...]
    dense: tuple[int, ...]
    batch: int
    epochs: int
    rate: float = 1e-3
    pooled: bool = False
    normalised: bool = False
    gain: float = TORCH_GAIN


@dataclass(frozen=True)
class Size:
    """How much to run.

    Args:
        seeds: of every training on digits.
        train: digits to train on, where there are so many.
        test: digits to test with.
        others: other numbers of digits of MNIST, for one epoch.
        digits: how networks of digits are trained.
        photographs: how networks of photographs are, None for not at all.
        photograph_seeds: of every training on photographs.
    """

    seeds: int
    train: int
    test: int
    others: tuple[int, ...]
    digits: Setting
    photographs: Setting | None
    photograph_seeds: int


DEEP = (32, 32, -32, 64, 64, -64, 128, 128, 128, -128)
"""Ten convolutions, as in the paper's short VGG network."""
FULL = Size(
    10,
    5000,
    5000,
    (2000, 20_000, 60_000),
    Setting((-16, -32, -32), (), 100, 20),
    Setting(
        DEEP, (128, 128), 128, 15, pooled=True, gain=HE_GAIN
    ),  # from a smaller start nothing passes 13 layers
    5,
)
SMALL = Size(3, 2000, 500, (), Setting((-8, -16), (), 100, 4), None, 0)


# --- Images: MNIST and CIFAR-10 where the data folder has them, else the small digits of scikit-learn ---


@dataclass(frozen=True)
class Images:
    """Images as rows, pixels in standard units, the number of the class in the last column.

    Args:
        name: what they are.
        train: (n, C * H * W + 1).
        test: test images.
        shape: of one, (C, H, W).
        classes: how many.
    """

    name: str
    train: Rows
    test: Rows
    shape: tuple[int, int, int]
    classes: int = 10


def digits(folder: Path | None, n_train: int, n_test: int, seed: int) -> Images:
    """Some of MNIST, else of scikit-learn's digits."""
    if folder is not None and (folder / "mnist.npz").exists():
        with np.load(folder / "mnist.npz") as file:
            sets = [(file[f"{part}_images"], file[f"{part}_labels"]) for part in ("train", "test")]
        rng = np.random.default_rng(seed)
        some = [
            _sample_images(images, labels, n, rng) for (images, labels), n in zip(sets, (n_train, n_test))
        ]
        return _make_images(f"MNIST, {n_train} of 60000 images", some, (1, 28, 28))
    table = load_dataset("digits")
    order = np.random.default_rng(seed).permutation(len(table.rows))
    images, labels = table.rows[order].reshape(-1, 8, 8), table.target[order]
    parts = [(images[:1200], labels[:1200]), (images[1200:], labels[1200:])]
    return _make_images("scikit-learn's digits, 8 x 8, 1200 images", parts, (1, 8, 8))


def photographs(folder: Path | None) -> Images | None:
    """The first 10000 images of CIFAR-10, each with its mirror image, and 2000 to test; None where they are not."""
    if folder is None or not (folder / "cifar10_subset.npz").exists():
        return None
    with np.load(folder / "cifar10_subset.npz") as file:
        train, test = decode_images(file["train_coded"]), decode_images(file["test_coded"])
        labels, held = file["train_labels"], file["test_labels"]
    both = np.concatenate([train, train[..., ::-1]]), np.concatenate([labels, labels])
    return _make_images("CIFAR-10, 10000 images and their mirror images", [both, (test, held)], (3, 32, 32))


def _sample_images(
    images: NDArray[np.uint8], labels: NDArray[np.uint8], n: int, rng: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    chosen = rng.permutation(len(images))[:n]
    return images[chosen], labels[chosen]


def _make_images(
    name: str, parts: Sequence[tuple[NDArray[Any], NDArray[Any]]], shape: tuple[int, int, int]
) -> Images:
    """Pixels less their mean over their standard deviation, both of all training pixels."""
    first = parts[0][0].astype(np.float64)
    middle, spread = first.mean(), first.std()
    rows = [
        np.concatenate(
            [
                ((images.astype(np.float64) - middle) / spread).reshape(len(images), -1),
                labels.astype(np.float64)[:, None],
            ],
            1,
        ).astype(np.float32)
        for images, labels in parts
    ]
    return Images(name, rows[0], rows[1], shape)


# --- The network ---


@dataclass(frozen=True)
class Classifier:
    """Convolutions of 3 x 3, then dense layers, all with silu between; one output per class.

    There is no training mode: training passes the generator that dropout draws from. Activations are normalised by the
    batch unless levels are given: those of many training rows, in evaluation.

    Args:
        shape: of an image, (C, H, W); a row holds its values, channel by channel.
        channels: of each convolution; a negative number halves height and width.
        dense: widths of the hidden dense layers.
        classes: columns of the result.
        pooled: halve by the largest of four values, else by a stride of 2.
        normalised: whether the activations of convolutions are normalised.
        dropped: share of the units before each dense layer that training drops.
        gain: of the start.
    """

    shape: tuple[int, int, int]
    channels: tuple[int, ...]
    dense: tuple[int, ...]
    classes: int
    pooled: bool = False
    normalised: bool = False
    dropped: float = 0.0
    gain: float = TORCH_GAIN

    def draw_parameters(self, stream: Generator, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
        """Kernels and slopes of variance ``gain`` over the values that they sum, zero shifts, scales of 1.

        The last slopes have the smaller gain: a hyperbolic tangent of large outputs learns nothing.
        """
        found: list[Tensor] = []
        before, side = self.shape[0], self.shape[1:]
        for after in self.channels:
            kernel = normal((abs(after), before, 3, 3), stream, dtype) * math.sqrt(self.gain / (9 * before))
            found += [kernel, torch.zeros(abs(after), dtype=dtype)]
            if self.normalised:
                found += [torch.ones(abs(after), dtype=dtype), torch.zeros(abs(after), dtype=dtype)]
            if after < 0:  # a stride rounds up, a pool down
                side = ((side[0] + (not self.pooled)) // 2, (side[1] + (not self.pooled)) // 2)
            before = abs(after)
        widths = (before * side[0] * side[1], *self.dense, self.classes)
        for i, (inner, outer) in enumerate(pairwise(widths)):
            gain = min(self.gain, TORCH_GAIN) if i == len(self.dense) else self.gain
            found.append(normal((inner, outer), stream, dtype) * math.sqrt(gain / inner))
            found.append(torch.zeros(outer, dtype=dtype))
        return tuple(found)

    def __call__(
        self,
        parameters: Sequence[Tensor],
        rows: Tensor,
        stream: Generator | None = None,
        levels: Sequence[Level] | None = None,
        seen: list[Level] | None = None,
    ) -> Tensor:
        """(n, C * H * W) -> (n, classes).

        Args:
            parameters: of the network.
            rows: images.
            stream: draws the units that are dropped; None drops none.
            levels: of every normalised layer; None takes those of the rows.
            seen: where levels of the rows are entered.
        """
        rest, image = list(parameters), rows.reshape(len(rows), *self.shape)
        for i, after in enumerate(self.channels):
            step = 2 if after < 0 and not self.pooled else 1
            image = functional.conv2d(image, rest.pop(0), rest.pop(0), step, padding=1)
            image = functional.silu(image)
            if self.normalised:
                variance, mean = (
                    torch.var_mean(image, (0, 2, 3), correction=0) if levels is None else levels[i]
                )
                if seen is not None:
                    seen.append((variance, mean))
                factor = rest.pop(0) * (variance + TINY).rsqrt()
                shift = rest.pop(0) - mean * factor
                image = image * factor[:, None, None] + shift[:, None, None]
            if after < 0 and self.pooled:
                image = functional.max_pool2d(image, 2)
        found = image.flatten(1)
        while rest:
            if stream is not None and self.dropped > 0.0:
                kept = torch.rand(found.shape, generator=stream, device=found.device) >= self.dropped
                found = found * kept / (1.0 - self.dropped)
            found = torch.addmm(rest.pop(1), found, rest.pop(0))
            found = functional.silu(found) if rest else found
        return found


@dataclass(frozen=True)
class Learner:
    """A network with its parameters, for the trainer."""

    network: Classifier
    parameters: tuple[Tensor, ...]

    def trainable(self) -> tuple[Tensor, ...]:
        """All parameters."""
        return self.parameters

    def with_trainable(self, learned: tuple[Tensor, ...]) -> Self:
        """The network at other parameters."""
        return replace(self, parameters=tuple(learned))

    def trained(self, rows: Tensor, stream: Generator) -> Tensor:
        """Outputs in training."""
        return self.network(self.parameters, rows, stream)

    def levels(self, rows: Tensor) -> list[Level]:
        """Of activations on many rows at once: exact for them, where running means over steps lag behind."""
        seen: list[Level] = []
        if self.network.normalised:
            self.network(self.parameters, rows, seen=seen)
        return seen

    def used(self, rows: Tensor, levels: Sequence[Level], tile: int = 2000) -> Tensor:
        """Outputs in use, which for one row depend on no other."""
        return torch.cat([self.network(self.parameters, some, levels=levels) for some in rows.split(tile)])


# --- Objectives, and what a network knows after every epoch ---


def cross_entropy(outputs: Tensor, truth: Tensor) -> Tensor:
    """Minus the log-probability of the label."""
    return -(truth * functional.log_softmax(outputs, 1)).sum(1).mean()


def squared_loss(outputs: Tensor, truth: Tensor) -> Tensor:
    """Squared distance from the indicator of the label."""
    return (outputs - truth).square().sum(1).mean()


def relevance(outputs: Tensor, truth: Tensor) -> Tensor:
    """Relevance that the outputs lack, 0 to C - 1, as indicators sum to 1; bounded as in the paper's A.2."""
    return relevance_loss(outputs.tanh(), truth) - 1.0


METHODS: dict[str, tuple[Objective, bool]] = {
    "DCCI": (relevance, False),
    "cross-entropy": (cross_entropy, False),
    "cross-entropy, dropout": (cross_entropy, True),
    "squared loss": (squared_loss, False),
}
"""Objective, and whether units are dropped in training."""


def indicators(rows: Tensor, classes: int) -> Tensor:
    """One column per class."""
    return (rows[:, -1:] == torch.arange(classes, device=rows.device)).to(rows.dtype)


def constant_loss(objective: Objective, truth: Tensor) -> float:
    """The objective at the best constant outputs."""
    share = truth.double().mean(0)
    if objective is relevance:
        return truth.shape[1] - 1.0
    return float((share * (1.0 - share) if objective is squared_loss else torch.special.entr(share)).sum())


@dataclass(frozen=True)
class Loss:
    """The objective of a batch whose last column is the number of the class, for the trainer."""

    objective: Objective
    classes: int

    def __call__(
        self, model: Learner, rows: Tensor, weight: Tensor, stream: Generator
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss; rows have no weights here."""
        found = self.objective(model.trained(rows[:, :-1], stream), indicators(rows, self.classes))
        return found, {"objective": found}


@dataclass(frozen=True)
class Judge:
    """Error of a network on test images, after an epoch.

    Args:
        train: rows of the fit, as far as they are needed: for means of activations, and for canonical variables.
        test: other rows.
        objective: that was minimised.
        classes: how many.
    """

    train: Tensor
    test: Tensor
    objective: Objective
    classes: int

    def __call__(self, model: Learner, stream: Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """The objective on test rows, and the error rate by its own rule and by the rule of DCCI."""
        here, there = self.outputs(model)
        truth, right = indicators(self.test, self.classes), self.test[:, -1].long()
        solved = self.scores(here, there, True)
        own = self.scores(here, there, self.objective is relevance)
        loss = self.objective(there, truth)
        wrong = [(found.argmax(1) != right).double().mean() for found in (own, solved)]
        return loss, {"error": wrong[0], "solved_error": wrong[1]}

    def outputs(self, model: Learner) -> tuple[Tensor, Tensor]:
        """Of training rows, and of test rows."""
        levels = model.levels(self.train[:LEVEL_ROWS, :-1])
        return model.used(self.train[:, :-1], levels), model.used(self.test[:, :-1], levels)

    def scores(self, here: Tensor, there: Tensor, inferred: bool) -> Tensor:
        """Of each class: outputs of test rows, or the indicators expected from them by the training rows."""
        if not inferred:
            return there
        if self.objective is relevance:
            here, there = here.tanh(), there.tanh()
        both = ArraySource(torch.cat([here.double(), self.train[:, -1:].double()], 1))
        still = LinearView(torch.zeros_like(here[0]).double(), torch.ones_like(here[0]).double())
        pair = ViewPair(still, FiniteView(torch.arange(self.classes, device=here.device).double()))
        fit = RelevanceFit.of(RelevanceModel.solve(pair, both, self.classes - 1), both)
        return fit.infer_right(there.double())


@dataclass(frozen=True)
class Task:
    """One training: of which images, by which method, how, from which seed; and the panel it belongs to."""

    images: Images
    method: str
    setting: Setting
    seed: int
    panel: str


def train_network(task: Task) -> dict[str, Any]:
    """Train, and evaluate after every epoch; on a GPU where there is one."""
    images, setting = task.images, task.setting
    objective, drops = METHODS[task.method]
    device = pick_device("auto" if images.shape[1] > 8 else "cpu")
    train, test = (torch.from_numpy(rows).to(device) for rows in (images.train, images.test))
    network = Classifier(
        images.shape,
        setting.channels,
        setting.dense,
        images.classes,
        setting.pooled,
        setting.normalised,
        DROPPED * drops,
        setting.gain,
    )
    start = Learner(network, tuple(v.to(device) for v in network.draw_parameters(generator(task.seed))))
    judge = Judge(train, test, objective, images.classes)
    plan = TrainPlan(
        Constant(setting.rate), graphs=objective is not relevance
    )  # its loss looks at its pivots
    epochs = Epochs(ArraySource(train), setting.batch, task.seed)
    trainer = Trainer(start, epochs, Loss(objective, images.classes), plan, None, judge)
    outcome = run(trainer, trainer.start(task.seed), max_iter=trainer.iterations(setting.epochs))
    history = outcome.state.history_by_name()
    last = replace(outcome.state, best=outcome.state.parameters).fitted(start)
    return {
        "error": history["validation_error"],
        "solved error": history["validation_solved_error"],
        "loss": history["validation_loss"],
        "chance": constant_loss(objective, indicators(test, images.classes)),
        **_score_probabilities(judge, last, task.method),
    }


def _score_probabilities(judge: Judge, model: Learner, method: str) -> dict[str, dict[str, float]]:
    """Probabilities of the last epoch on the second half of the test rows; temperatures come from the first."""
    with torch.no_grad():
        here, there = judge.outputs(model)
        found = judge.scores(here, there, judge.objective is relevance).double().cpu().numpy()
    codes = judge.test[:, -1].long().cpu().numpy()
    half = len(codes) // 2
    warm = apply_temperature(found, fit_temperature(found[:half], codes[:half], np.ones(half)))
    plain = apply_temperature(found, 1.0) if judge.objective is cross_entropy else project_to_simplex(found)
    return {
        "plain": probability_scores(plain[half:], codes[half:]),
        "temperature": probability_scores(warm[half:], codes[half:]),
    }


def probability_scores(p: NDArray[np.float64], codes: NDArray[np.int64]) -> dict[str, float]:
    r"""Calibration error, log score, Brier score, and share of labels of probability 0.

    .. math:: \mathrm{ECE} = \sum_b \frac{n_b}{n} \, |\text{accuracy}_b - \text{confidence}_b|

    over 15 bins of the largest probability (Naeini et al., 2015). The log score floors probabilities at 1e-6, since a
    projection may give 0.

    Args:
        p: (n, C).
        codes: numbers of the classes, (n,).
    """
    found = classification_scores(p, codes, bins=BINS, floor=1e-6, repeats=1)
    return {
        "ECE": found.reliability.calibration_error,
        "log score": -float(found.log_score.mean()),
        "Brier": float(found.brier.mean()),
        "impossible": float((p[np.arange(len(codes)), codes] <= 0.0).mean()),
    }


# --- Findings ---


def judge(runs: Table, name: str, plain: str, normal: str, real: bool) -> list[Finding]:
    """The lead after one epoch and what is left of it; then photographs, and probabilities.

    Args:
        runs: by panel and method.
        name: the panel of digits.
        plain: the panel of photographs.
        normal: the same with batch normalisation.
        real: whether the digits are MNIST.
    """
    found = [
        _judge_lead(runs[name], real),
        _judge_fast_rate(runs[name], runs["fast"]),
        _judge_start(runs[name], runs["start"]),
    ]
    found += [_judge_squared_loss(runs[name]), _judge_rule(runs[name]), *_judge_final_error(runs[name], name)]
    more = {panel: table for panel, table in runs.items() if panel.endswith(" images")}
    if more:
        found.insert(3, _judge_sizes(more))
    if plain in runs:
        found += _judge_photographs(runs[plain], runs[normal])
    return [*found, _judge_probabilities(runs[name])]


def errors_after(runs: Runs, epoch: int, kind: str = "error") -> NDArray[np.float64]:
    """Test error after an epoch, by seed."""
    return np.asarray([run[kind][epoch] for run in runs])


def _gain(worse: Runs, better: Runs, epoch: int) -> NDArray[np.float64]:
    return errors_after(worse, epoch) - errors_after(better, epoch)


def _judge_lead(runs: Mapping[str, Runs], real: bool) -> Finding:
    gain = _gain(runs["cross-entropy"], runs["DCCI"], 0)
    middle = float(np.median(gain))
    both = [float(np.mean(1.0 - errors_after(runs[method], 0))) for method in ("DCCI", "cross-entropy")]
    return Finding(
        "accuracy after one epoch, DCCI less cross-entropy, at Adam's rate 1e-3",
        "DCCI converges faster",
        f"median {middle:+.3f} (target over {LEAD}); {both[0]:.3f} and {both[1]:.3f}",
        standard_error(gain),
        judge_claim(middle > LEAD),
        "Few steps are in an epoch; the canonical correlations of a batch solve the last layer, which cross-entropy "
        f"must learn.{'' if real else ' Other images than the document has.'}",
    )


def _judge_fast_rate(slow: Mapping[str, Runs], fast: Mapping[str, Runs]) -> Finding:
    gain = _gain(fast["cross-entropy"], fast["DCCI"], 0)
    across = _gain(fast["cross-entropy"], slow["DCCI"], 0)
    middle = float(np.median(gain))
    return Finding(
        "the same at the rate 1e-2",
        "not in the document",
        f"median {middle:+.3f}; DCCI at 1e-3 less cross-entropy at 1e-2 {np.median(across):+.3f}",
        standard_error(gain),
        judge_claim(middle > LEAD),
        "A larger step is enough for cross-entropy to make up for "
        + ("part of" if middle > LEAD else "all but little of")
        + " the lead, which is one of speed at a given rate.",
    )


def _judge_start(small: Mapping[str, Runs], sized: Mapping[str, Runs]) -> Finding:
    gain = _gain(sized["cross-entropy"], sized["DCCI"], 0)
    middle = float(np.median(gain))
    before = float(np.median(_gain(small["cross-entropy"], small["DCCI"], 0)))
    return Finding(
        "the same from slopes that keep the size of activations (He et al., 2015), at 1e-3",
        "not in the document",
        f"median {middle:+.3f}",
        standard_error(gain),
        judge_claim(middle > LEAD),
        (
            "Canonical correlations do not change with the size of outputs, which is small where torch starts and the "
            "lead was found; cross-entropy must first make them large."
            if middle < 0.5 * before
            else f"The lead, {before:+.3f} where torch starts, is not one of the start."
        ),
    )


def _judge_sizes(more: Table) -> Finding:
    """The lead after one epoch of fewer and of more steps."""
    gains = {panel: _gain(runs["cross-entropy"], runs["DCCI"], 0) for panel, runs in more.items()}
    leads = [
        f"{np.median(gain):+.3f} ± {standard_error(gain):.3f} for {panel}" for panel, gain in gains.items()
    ]
    last = list(gains.values())[-1]
    return Finding(
        "the same with more images, and so more steps, in an epoch",
        "mean of 10 runs, 60000 images",
        "median " + ", ".join(leads),
        None,
        judge_claim(float(np.median(last)) > LEAD),
        f"Judged on {list(gains)[-1]}: the lead is one of the first steps.",
    )


def _judge_squared_loss(runs: Mapping[str, Runs]) -> Finding:
    gains = [_gain(runs["squared loss"], runs["DCCI"], epoch) for epoch in (0, -1)]
    first, last = (float(gain.mean()) for gain in gains)
    error = standard_error(gains[0])
    tie = abs(first) < max(SURE * error, 0.01)
    return Finding(
        "DCCI is ahead of the plain squared loss on indicators after one epoch",
        "not in the document",
        f"{first:+.3f} after one epoch, {last:+.3f} after the last",
        error,
        judge_target(first > SURE * error and not tie),
        (
            "They tie: for given features DCCI is least squares on indicators with its last layer solved."
            if tie
            else "For given features DCCI is least squares on indicators with its last layer solved, which the "
            "squared loss must learn by steps, from a start of its own."
        ),
    )


def _judge_rule(runs: Mapping[str, Runs]) -> Finding:
    """How much of the lead is the exact last layer, which any network can use."""
    plain = runs["cross-entropy"]
    whole = _gain(plain, runs["DCCI"], 0)
    rule = errors_after(plain, 0) - errors_after(plain, 0, "solved error")
    rest = whole - rule
    share = float(rule.mean() / whole.mean()) if whole.mean() > 0.0 else float("nan")
    return Finding(
        "the lead after one epoch is one of features, not of the rule alone",
        "not in the document",
        f"{rule.mean():+.3f} of {whole.mean():+.3f} ({share:.0%}) comes to cross-entropy's network when its outputs "
        f"are put through DCCI's rule; {rest.mean():+.3f} is left",
        standard_error(rest),
        judge_target(float(rest.mean()) > SURE * standard_error(rest)),
        "The rule finds the last layer by least squares over all training rows, whatever the network was trained for.",
    )


def _judge_final_error(runs: Mapping[str, Runs], name: str) -> list[Finding]:
    found = []
    for method, paper in (
        ("cross-entropy", "a large improvement of the final accuracy"),
        ("cross-entropy, dropout", "DCCI alone outperforms dropout"),
    ):
        gain = _gain(runs[method], runs["DCCI"], -1)
        error = standard_error(gain)
        both = [float(errors_after(runs[which], -1).mean()) for which in ("DCCI", method)]
        found.append(
            Finding(
                f"{name}: error after the last epoch, {method} less DCCI",
                paper,
                f"{gain.mean():+.4f}; {both[0]:.4f} for DCCI and {both[1]:.4f}",
                error,
                judge_claim(float(gain.mean()) > SURE * error),
                MEANS,
            )
        )
    return found


def _judge_photographs(plain: Mapping[str, Runs], normal: Mapping[str, Runs]) -> list[Finding]:
    found = []
    rules: tuple[tuple[Mapping[str, Runs], str, str, Callable[[float, float], bool]], ...] = (
        (plain, "CIFAR-10", "DCCI is better", lambda gain, error: gain > SURE * error),
        (
            normal,
            "CIFAR-10 with batch normalisation",
            "no distinction",
            lambda gain, error: abs(gain) < SURE * error,
        ),
    )
    for runs, name, paper, holds in rules:
        gain = _gain(runs["cross-entropy"], runs["DCCI"], -1)
        best = np.asarray([min(run["error"]) for run in runs["cross-entropy"]]) - np.asarray(
            [min(run["error"]) for run in runs["DCCI"]]
        )
        both = [float(errors_after(runs[method], -1).mean()) for method in ("DCCI", "cross-entropy")]
        error = standard_error(gain)
        found.append(
            Finding(
                f"{name}: error after the last epoch, cross-entropy less DCCI",
                paper,
                f"{gain.mean():+.4f}; {both[0]:.3f} for DCCI and {both[1]:.3f}; at the best epoch {best.mean():+.4f}",
                error,
                judge_claim(holds(float(gain.mean()), error)),
                f"A fifth of the document's images. {MEANS}",
            )
        )
    return found


def _judge_probabilities(runs: Mapping[str, Runs]) -> Finding:
    """Calibration after the last epoch."""
    lines = []
    for method, kind, word in (
        ("DCCI", "plain", "DCCI projected"),
        ("DCCI", "temperature", "DCCI with a temperature"),
        ("cross-entropy", "plain", "cross-entropy"),
        ("cross-entropy", "temperature", "cross-entropy with a temperature"),
    ):
        facts = {key: np.mean([run[kind][key] for run in runs[method]]) for key in runs[method][0][kind]}
        text = f"{word} {facts['ECE']:.3f}, {facts['log score']:.3f}"
        lines.append(text + (f", {facts['impossible']:.2%} impossible" if facts["impossible"] > 0.0 else ""))
    gain = np.asarray([run["plain"]["ECE"] - run["temperature"]["ECE"] for run in runs["DCCI"]])
    return Finding(
        "probabilities on other test rows: calibration error and log score; a temperature lowers DCCI's",
        "not in the document",
        "; ".join(lines) + f"; calibration error of DCCI lowered by {gain.mean():.3f}",
        standard_error(gain),
        judge_target(float(gain.mean()) > SURE * standard_error(gain)),
        "Expected indicators are least squares estimates: projections are timid, and may rule the label out.",
    )


# --- Figure ---


def draw_learning_curves(panels: Mapping[str, Mapping[str, Runs]]) -> Figure:
    """Figure 2: error above, loss below; means over seeds, bands of one standard deviation.

    Each loss is divided by its value at the best constant outputs, since the objectives have units of their own.

    Args:
        panels: runs by set of images and method.
    """
    figure = new_figure(max(4.6 * len(panels), 6.4), 7.4)
    axes: Any = figure.subplots(2, len(panels), squeeze=False, sharex="col")
    for column, (name, runs) in zip(axes.T, panels.items()):
        for place, method in enumerate(LINES):
            if method in runs:
                _draw_band(column[0], np.asarray([run["error"] for run in runs[method]]), place, method)
                share = [np.asarray(run["loss"]) / run["chance"] for run in runs[method]]
                _draw_band(column[1], np.asarray(share), place, method)
        column[0].set_yscale("log")
        column[0].yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        column[0].yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100.0 * share:g}%"))
        column[0].yaxis.set_minor_formatter(NullFormatter())
        dress(column[0], name, "", "test images wrong")
        dress(column[1], "", "epoch", "test loss, relative to chance")
        column[1].set_ylim(0.0, min(column[1].get_ylim()[1], 1.5))
        column[1].xaxis.set_major_locator(MaxNLocator(integer=True))
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(
        handles, names, loc="outside lower center", ncols=2 if len(panels) == 1 else 4, frameon=False
    )
    return figure


def _draw_band(axis: Any, values: Any, place: int, label: str) -> None:
    """Mean over seeds, and one standard deviation either way."""
    middle, spread = values.mean(0), values.std(0)
    at = np.arange(1, len(middle) + 1)
    axis.fill_between(
        at,
        np.maximum(middle - spread, 0.2 * middle),
        middle + spread,
        color=COLOURS[place],
        alpha=0.18,
        linewidth=0,
    )
    axis.plot(at, middle, color=COLOURS[place], marker=MARKERS[place], markersize=4, lw=1.6, label=label)


def experiment(options: Options) -> Report:
    """Train one network by four objectives on digits, at two rates; on photographs with and without normalisation."""
    size = SMALL if options.quick else FULL
    images = digits(options.data, size.train, size.test, options.seed)
    real = images.shape[1] > 8
    name = "MNIST" if real else "digits"
    slow = size.digits
    fast = replace(slow, epochs=1, rate=FAST)
    seeds = range(options.seed, options.seed + size.seeds)
    tasks = [Task(images, method, slow, seed, name) for seed in seeds for method in METHODS]
    tasks += [Task(images, method, fast, seed, "fast") for seed in seeds for method in METHODS]
    sized = replace(slow, epochs=1, gain=HE_GAIN)
    tasks += [Task(images, method, sized, seed, "start") for seed in seeds for method in METHODS]
    once = replace(slow, epochs=1)
    for n in size.others if real else ():
        more = digits(options.data, n, size.test, options.seed)
        tasks += [
            Task(more, method, once, seed, f"{n} images")
            for seed in seeds
            for method in ("DCCI", "cross-entropy")
        ]
    colour = photographs(options.data) if size.photographs is not None else None
    if colour is not None and size.photographs is not None:
        tasks += _photograph_tasks(
            colour, size.photographs, range(options.seed, options.seed + size.photograph_seeds)
        )
    runs = _train_all(tasks, options)
    curves: dict[str, Any] = {**runs}
    panels = {panel: runs[panel] for panel in (name, PLAIN, NORMAL) if panel in runs}
    figures = {"curves": draw_learning_curves(panels)}
    return Report(
        "dcci",
        "Labels inferred by canonical correlations, against cross-entropy",
        _settings(options, size, images, colour),
        judge(runs, name, PLAIN, NORMAL, real),
        curves,
        figures,
    )


def _photograph_tasks(images: Images, setting: Setting, seeds: range) -> list[Task]:
    return [
        Task(images, method, replace(setting, normalised=panel == NORMAL), seed, panel)
        for seed in seeds
        for panel in (PLAIN, NORMAL)
        for method in ("DCCI", "cross-entropy")
    ]


def _train_all(tasks: list[Task], options: Options) -> dict[str, dict[str, Runs]]:
    """All trainings by panel and method; in parallel where they are many."""
    done = Parallel(n_jobs=1 if options.quick else -1, return_as="generator")(
        delayed(train_network)(task) for task in tasks
    )
    found: dict[str, dict[str, Runs]] = {}
    for number, (task, facts) in enumerate(zip(tasks, done)):
        options.progress(number + 1, len(tasks), f"{task.panel}, {task.method}, seed {task.seed}")
        found.setdefault(task.panel, {}).setdefault(task.method, []).append(facts)
    return found


def _settings(options: Options, size: Size, images: Images, colour: Images | None) -> dict[str, Any]:
    found = {
        "images": images.name,
        "test images": len(images.test),
        "channels": [abs(c) for c in size.digits.channels],
        "rows of a batch": size.digits.batch,
        "batches in an epoch": -(-len(images.train) // size.digits.batch),
        "variance of slopes at the start, times values summed": round(size.digits.gain, 3),
        "epochs": size.digits.epochs,
        "Adam's rate": size.digits.rate,
        "seeds": size.seeds,
        "seed": options.seed,
    }
    if colour is not None and size.photographs is not None:
        found |= {
            "photographs": colour.name,
            "their test images": len(colour.test),
            "their channels": [abs(c) for c in size.photographs.channels],
            "their rows of a batch": size.photographs.batch,
            "variance of their slopes at the start, times values summed": size.photographs.gain,
            "their epochs": size.photographs.epochs,
            "their seeds": size.photograph_seeds,
        }
    return found
