"""Constraints on model files of two views."""

from __future__ import annotations

import torch

from boxloop.models import CONSTRAINTS as MODEL_CONSTRAINTS, LATENTS, Part
from boxloop.persist import LOCATION, POSITIVE, SCALE, SHARE, Array, Axes, Constraints, Nested, Table
from boxloop.twoview.canonical import CanonicalVariables, RelevanceFit, RelevanceModel
from boxloop.twoview.generator import GeneratorModel
from boxloop.twoview.views import FiniteView, FourierView, LinearView, NetworkView, ViewPair

VIEWS = (LinearView, FourierView, FiniteView, NetworkView)


def _set_linear_axes(view: LinearView, axes: Axes) -> str | None:
    axes["k"] = axes["v"] = axes["d"]
    return None


def _set_fourier_axes(view: FourierView, axes: Axes) -> str | None:
    axes["v"] = axes["d"]
    return None


def _has_distinct_codes(view: FiniteView, axes: Axes) -> str | None:
    axes["d"], axes["v"] = 1, axes["k"]
    return None if len(view.codes.unique()) == len(view.codes) else "codes must be distinct"


def _has_network_widths(view: NetworkView, axes: Axes) -> str | None:
    axes["k"], axes["v"] = view.n_features, axes["d"]
    widths = axes.get("i", axes["d"]), axes.get("o", view.n_features)
    if widths == (axes["d"], view.n_features):
        return None
    return f"the network maps {widths[0]} columns to {widths[1]}, not {axes['d']} to {view.n_features}"


def _has_decoder_widths(model: GeneratorModel, axes: Axes) -> str | None:
    d, c = axes["d"], axes["c"]
    widths = axes.get("i", c), axes.get("o", d)
    return (
        None if widths == (c, d) else f"the decoder maps {widths[0]} columns to {widths[1]}, not {c} to {d}"
    )


def _has_double_precision(canonical: CanonicalVariables, axes: Axes) -> str | None:
    return None if axes["dtype"] == torch.float64 else f"it holds {axes['dtype']}, not torch.float64"


CONSTRAINTS: Table = {
    **MODEL_CONSTRAINTS,
    LinearView: Constraints(_set_linear_axes, origin=Array("d", LOCATION), scale=Array("d", SCALE)),
    FourierView: Constraints(
        _set_fourier_axes,
        origin=Array("d", LOCATION),
        scale=Array("d", SCALE),
        frequency=Array("d k"),
        phase=Array("k"),
    ),
    FiniteView: Constraints(_has_distinct_codes, codes=Array("k")),
    NetworkView: Constraints(
        _has_network_widths, origin=Array("d", LOCATION), scale=Array("d", SCALE), part=Nested((Part,), "i o")
    ),
    ViewPair: Constraints(left=Nested(VIEWS, "k d v=v_left"), right=Nested(VIEWS, "k=l d=e v=v_right")),
    CanonicalVariables: Constraints(
        _has_double_precision,
        left_mean=Array("k"),
        right_mean=Array("l"),
        left=Array("k r", least=0),
        right=Array("l r", least=0),
        correlation=Array("r", SHARE, least=0),
    ),
    RelevanceModel: Constraints(
        pair=Nested((ViewPair,), "k l d e v_left v_right"),
        canonical=Nested((CanonicalVariables,), "k l r dtype"),
    ),
    RelevanceFit: Constraints(
        model=Nested((RelevanceModel,), "d e r v_left v_right dtype"),
        left=Array("r+1 v_left"),
        right=Array("r+1 v_right"),
    ),
    GeneratorModel: Constraints(
        _has_decoder_widths,
        relevance=Nested((RelevanceModel,), "d r"),
        code=Array("r c"),
        shift=Array("c"),
        colour=Array("c c"),
        centre=Array("c"),
        decoder=Nested((Part,), "i o"),
        latent=Nested(LATENTS, "c"),
        noise=Array("d|1", POSITIVE),
        origin=Array("d", LOCATION),
        scale=Array("d", SCALE),
    ),
}
"""By class."""
