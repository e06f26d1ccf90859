"""Topics from moments as a model: by themselves, or as the start of EM."""

from __future__ import annotations

from dataclasses import replace

from torch import Generator, Tensor

from boxloop.distributions import Multinomial, Sums
from boxloop.fit.em import EMState, em
from boxloop.fit.fit import Fit, coordinates, unstandardise
from boxloop.fit.spectral import Spectral, spectral
from boxloop.fit.spectral_errors import spectral_errors
from boxloop.loop import run
from boxloop.models import Mixture
from boxloop.types import Source

HALF = 0.5
"""Pseudo-counts a word, spread by frequency: a word that moments leave out of a topic is rare there, not impossible."""


def spectral_model(found: Spectral, template: Multinomial) -> Mixture[Sums]:
    """The mixture with these topics, every word possible in every topic.

    Args:
        found: topics.
        template: whose total and smoothing to keep.
    """
    documents = found.documents
    mean = documents.mean / documents.scale
    share = found.weights.clamp(min=1.0 / documents.total)
    words = (share * documents.words)[:, None]
    b = len(mean)
    smooth = (words * found.probabilities + HALF * b * (mean + 1e-3 / b)) / (words + HALF * b * 1.001)
    smooth = smooth / smooth.sum(1, keepdim=True)
    family = Multinomial(smooth, template.total, template.smoothing)
    return Mixture((share / share.sum()).log(), family)


def spectral_start(
    source: Source, template: Multinomial, generator: Generator
) -> tuple[Mixture[Sums], tuple[str, ...]]:
    """Topics from moments for EM to start from, and what had to be mended."""
    found = spectral(source, len(template.probability), generator)
    return spectral_model(found, template), found.notes


def fit_spectral(source: Source, template: Multinomial, generator: Generator) -> Fit[Mixture[Sums]]:
    """Topics from moments, and their likelihood.

    Args:
        source: word counts.
        template: k topics; their values only fix the shape.
        generator: random stream.
    """
    model, notes = spectral_start(source, template, generator)
    outcome = run(em(source), EMState(model), max_iter=1)
    state = EMState(model, outcome.state.path)
    outcome = replace(outcome, state=state, events=[*notes, *outcome.events], converged=True)
    return unstandardise(outcome, source, source, coordinates(source, "none"), "none")


def topic_errors(source: Source, k: int, generator: Generator) -> dict[str, Tensor]:
    """Standard errors by name, as :func:`fit_spectral` with the same generator orders the topics."""
    errors = spectral_errors(spectral(source, k, generator))
    return {"weights": errors.weights, "probabilities": errors.probabilities}
