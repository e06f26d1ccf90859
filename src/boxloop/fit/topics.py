"""Multinomial mixtures from spectral topics: as an estimate, or as the start of EM."""

from __future__ import annotations

from dataclasses import replace

from torch import Generator, Tensor

from boxloop.distributions import Multinomial, Sums
from boxloop.fit.em import EMState, em
from boxloop.fit.fit import Fit, coordinates, unstandardise
from boxloop.fit.spectral import SpectralTopics, spectral, spectral_errors
from boxloop.loop import run
from boxloop.models import Mixture
from boxloop.types import Source

PSEUDO_COUNT = 0.5
"""Pseudo-counts per word, distributed by frequency: a word of estimated probability 0 is rare, not impossible."""


def topic_mixture(topics: SpectralTopics, template: Multinomial) -> Mixture[Sums]:
    """The multinomial mixture with these topics, smoothed so that every word is possible in every topic.

    Args:
        topics: estimated from moments.
        template: gives total and smoothing.
    """
    documents = topics.documents
    mean = documents.mean / documents.scale
    share = topics.weights.clamp(min=1.0 / documents.total)
    words = (share * documents.words)[:, None]
    b = len(mean)
    smooth = (words * topics.probabilities + PSEUDO_COUNT * b * (mean + 1e-3 / b)) / (
        words + PSEUDO_COUNT * b * 1.001
    )
    smooth = smooth / smooth.sum(1, keepdim=True)
    family = Multinomial(smooth, template.total, template.smoothing)
    return Mixture((share / share.sum()).log(), family)


def start_topics(
    source: Source, template: Multinomial, generator: Generator
) -> tuple[Mixture[Sums], tuple[str, ...]]:
    """Topics from moments as a start of EM, and notes on corrections."""
    topics = spectral(source, len(template.probability), generator)
    return topic_mixture(topics, template), topics.notes


def fit_spectral(source: Source, template: Multinomial, generator: Generator) -> Fit[Mixture[Sums]]:
    """Fit topics from moments and compute their likelihood.

    Args:
        source: word counts.
        template: k topics; only their shape matters.
        generator: random generator.
    """
    model, notes = start_topics(source, template, generator)
    outcome = run(em(source), EMState(model), max_iter=1)
    state = EMState(model, outcome.state.path)
    outcome = replace(outcome, state=state, events=[*notes, *outcome.events], converged=True)
    return unstandardise(outcome, source, source, coordinates(source, "none"), "none")


def topic_errors(source: Source, k: int, generator: Generator) -> dict[str, Tensor]:
    """Standard errors by name, with topics ordered as by :func:`fit_spectral` with the same generator."""
    errors = spectral_errors(spectral(source, k, generator))
    return {"weights": errors.weights, "probabilities": errors.probabilities}
