"""One network, one optimiser and four objectives: what each has learned after every epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor
from torch.nn import functional

from boxloop.criticise import classification_scores
from boxloop.data import ArraySource
from boxloop.estimators import fitted_temperature, onto_simplex, pick_device, with_temperature
from boxloop.fit import Constant, Epochs, Trainer, TrainPlan, TrainState
from boxloop.numeric import generator
from boxloop.run import run
from boxloop.twoview import FiniteView, LinearView, RelevanceFit, RelevanceModel, ViewPair, relevance_loss
from papers.dcci_data import Images
from papers.dcci_networks import TORCH_GAIN, Classifier, Learner

Objective = Callable[[Tensor, Tensor], Tensor]
"""(outputs, indicators) -> a scalar."""

BINS = 15
"""Of confidence, in which it is compared with accuracy."""

LEVEL_ROWS = 2000
"""Training rows whose activations normalise those of other rows."""

DROPPED = 0.5
"""Share of units that dropout drops."""


def cross_entropy(outputs: Tensor, truth: Tensor) -> Tensor:
    """Minus the log-probability of the label."""
    return -(truth * functional.log_softmax(outputs, 1)).sum(1).mean()


def squared(outputs: Tensor, truth: Tensor) -> Tensor:
    """Squared distance from the indicator of the label."""
    return (outputs - truth).square().sum(1).mean()


def relevance(outputs: Tensor, truth: Tensor) -> Tensor:
    """Relevance that the outputs lack, 0 to C - 1, as indicators sum to 1; bounded as in the document's A.2."""
    return relevance_loss(outputs.tanh(), truth) - 1.0


METHODS: dict[str, tuple[Objective, bool]] = {
    "DCCI": (relevance, False),
    "cross-entropy": (cross_entropy, False),
    "cross-entropy, dropout": (cross_entropy, True),
    "squared loss": (squared, False),
}
"""Objective, and whether units are dropped in training."""


@dataclass(frozen=True)
class Setting:
    """How networks are trained.

    Args:
        channels: of the convolutions.
        dense: widths of the hidden dense layers.
        batch: rows of a mini-batch.
        epochs: passes.
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
class Loss:
    """The objective of a batch whose last column is the number of the class, as a trainer takes it."""

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
    """What a network knows of images that it was not trained on, after an epoch.

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
        """The objective on test rows; how many it gets wrong, by its own rule and by the rule of DCCI."""
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


def indicators(rows: Tensor, classes: int) -> Tensor:
    """One column a class."""
    return (rows[:, -1:] == torch.arange(classes, device=rows.device)).to(rows.dtype)


@dataclass(frozen=True)
class Task:
    """One training: of which images, by which method, how, from which seed; and the panel it belongs to."""

    images: Images
    method: str
    setting: Setting
    seed: int
    panel: str


def tried(task: Task) -> dict[str, Any]:
    """Train and judge after every epoch; on a GPU where there is one."""
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
    start = Learner(network, tuple(v.to(device) for v in network.start(generator(task.seed))))
    judge = Judge(train, test, objective, images.classes)
    plan = TrainPlan(
        Constant(setting.rate), graphs=objective is not relevance
    )  # its loss looks at its pivots
    epochs = Epochs(ArraySource(train), setting.batch, task.seed)
    trainer = Trainer(start, epochs, Loss(objective, images.classes), plan, None, judge)
    outcome = run(trainer, TrainState.start(start, task.seed), max_rounds=trainer.rounds(setting.epochs))
    history = outcome.state.history_by_name()
    last = replace(outcome.state, best=outcome.state.point).fitted(start)
    return {
        "error": history["validation_error"],
        "solved error": history["validation_solved_error"],
        "loss": history["validation_loss"],
        "chance": chance(objective, indicators(test, images.classes)),
        **_calibrated(judge, last, task.method),
    }


def chance(objective: Objective, truth: Tensor) -> float:
    """The objective where outputs are the best constants: what knowing nothing of an image costs."""
    share = truth.double().mean(0)
    if objective is relevance:
        return truth.shape[1] - 1.0
    return float((share * (1.0 - share) if objective is squared else torch.special.entr(share)).sum())


def _calibrated(judge: Judge, model: Learner, method: str) -> dict[str, dict[str, float]]:
    """Probabilities of the last epoch on the second half of the test rows; temperatures come from the first."""
    with torch.no_grad():
        here, there = judge.outputs(model)
        found = judge.scores(here, there, judge.objective is relevance).double().cpu().numpy()
    codes = judge.test[:, -1].long().cpu().numpy()
    half = len(codes) // 2
    warm = with_temperature(found, fitted_temperature(found[:half], codes[:half], np.ones(half)))
    plain = with_temperature(found, 1.0) if judge.objective is cross_entropy else onto_simplex(found)
    return {
        "plain": probability_scores(plain[half:], codes[half:]),
        "temperature": probability_scores(warm[half:], codes[half:]),
    }


def probability_scores(p: NDArray[np.float64], codes: NDArray[np.int64]) -> dict[str, float]:
    r"""How good probabilities are: calibration error, log score, Brier score, and labels that were impossible.

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
