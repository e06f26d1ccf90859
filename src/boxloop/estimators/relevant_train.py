"""Features of two views learned by gradient, with rows that choose the pass and others that may judge it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from sklearn.base import BaseEstimator

from boxloop.data import ArraySource, has_equal_weights, sample_rows, select_rows
from boxloop.estimators._training import TrainingRun, check_convergence, make_plan
from boxloop.fit import Epochs, Trainer, TrainState, current_workers, hold_out
from boxloop.loop import Progress
from boxloop.numeric import generator, seed, spawn
from boxloop.twoview import BATCH_RATIO, RIDGES, HeldOut, RelevanceLoss, ViewPair
from boxloop.types import Source

SMALL_BATCH = 256
"""Rows of a mini-batch where features are few."""

BATCH_ROWS = 30
"""Rows of a mini-batch for each feature: with the document's 10 a network still learns the chance of each batch."""

REFERENCE_ROWS = 20
"""Rows for each feature, of those trained on, from which canonical variables are found for validation."""

HELD_VALUES = 1 << 25
"""Most values of the rows held out: they are in memory."""


@dataclass(frozen=True)
class Training:
    """Learned features, and how they were learned.

    Args:
        pair: features of both views.
        ridge: of their canonical variables, relative.
        rows: trained on, both views.
        held: rows that neither trained nor chose the pass, both views.
        history: a list a pass by name.
        epochs: passes done.
        batch: rows of a mini-batch.
        converged: whether validation rows stopped improving.
        interrupted: whether Ctrl-C ended it.
        events: what went wrong on the way.
    """

    pair: ViewPair
    ridge: float
    rows: Source
    held: ArraySource | None
    history: dict[str, list[float]]
    epochs: int
    batch: int
    converged: bool
    interrupted: bool
    events: tuple[str, ...]


def train_views(
    estimator: BaseEstimator, pair: ViewPair, both: Source, first: Source | None, ridge: float
) -> Training:
    """Learn features by the parameters of an estimator.

    Args:
        estimator: a ``RelevantFeatures``, or another with its parameters of training.
        pair: features of both views, as they start.
        both: rows that hold both views.
        first: rows of the first view alone, where a channel draws the second anew at every step.
        ridge: of the loss, in the units of squared features.
    """
    streams = spawn(generator(estimator.random_state), 4)
    splits, orders, own = (seed(stream) for stream in streams[:3])
    mask, held = hold_out(both, estimator.validation_fraction, splits, max(1, HELD_VALUES // both.n_columns))
    train = both if mask is None else select_rows(both, ~mask)
    width = 1 + max(pair.left.n_features, pair.right.n_features)
    size = estimator.batch_size or enough(train.n_rows, max(SMALL_BATCH, BATCH_ROWS * width))
    epochs = Epochs(both if first is None else first, size, orders, mask)
    ridges = RIDGES if estimator.ridge is None else (ridge,)
    validate, judges = None, None
    if held is not None:
        some = sample_rows(train, max(REFERENCE_ROWS * width, held.n_rows), streams[3])
        half = torch.arange(held.n_rows, device=held.rows.device)
        validate = HeldOut(ArraySource(some.rows, some.weight), held.take(half[::2]), ridges)
        judges = held.take(half[1::2]) if len(half) > 1 else None
    channel = None if first is None else estimator.channel
    loss = RelevanceLoss(ridge, estimator.constant, not has_equal_weights(both), channel, current_workers())
    judged = validate is not None
    plan = make_plan(
        estimator, estimator.max_iter * epochs.per_epoch, judged, graphs=False
    )  # the loss looks at pivots
    trainer = Trainer(pair, epochs, loss, plan, None, validate, current_workers())
    outcome = TrainingRun(estimator, trainer, both, teller(trainer), own)()
    state = outcome.state
    learned = state.fitted(pair)
    return Training(
        learned,
        ridge if validate is None else validate.best(learned)[2],
        train,
        judges,
        state.history_by_name(),
        state.epoch,
        max(epochs.sizes),
        check_convergence(estimator, outcome, judged, "the relevance of validation rows still rose"),
        outcome.interrupted,
        (*_batched(min(epochs.sizes), width), *outcome.events),
    )


def enough(rows: int, least: int) -> int:
    """Rows of a mini-batch such that none of an epoch has fewer than ``least``, where there are as many."""
    return -(-rows // max(1, rows // least))


def teller(trainer: Trainer[ViewPair]) -> Callable[[Progress[TrainState]], str]:
    """What a progress bar says after a round: the pass, the total relevance in its batches and on rows held out."""

    def told(progress: Progress[TrainState]) -> str:
        state = progress.state
        now, past = dict(zip(state.names, state.recent.tolist())), state.history_by_name()
        said = [f"epoch {state.epoch}"]
        if now:
            said.append(f"relevance {now['relevance']:.4g}")
        if past.get("validation_relevance"):
            said.append(f"held out {past['validation_relevance'][-1]:.4g}")
        return ", ".join(said)

    return told


def _batched(size: int, width: int) -> tuple[str, ...]:
    if size >= BATCH_RATIO * width:
        return ()
    return (
        f"a batch has {size} rows for {width} features with the constant: below {BATCH_RATIO} rows a feature "
        "relevances in a batch are spurious; raise batch_size, lower n_features, or find more rows",
    )
