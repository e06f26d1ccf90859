"""The picture of a criticism: which pairs of columns misfit, and which moments most."""

from __future__ import annotations

from boxloop.criticise import Mega
from boxloop.figures import INK, new_figure, png


def gap_picture(result: Mega) -> bytes:
    """The z-scores of second moments as a heat map, and the worst moments of all with their errors, as a PNG."""
    pairs = next((g for g in result.gaps if g.gap.dim() == 2), None)
    wide = pairs is not None
    figure = new_figure(12.6 if wide else 7.0, 6.0)
    axes = figure.subplots(1, 2 if wide else 1, squeeze=False, width_ratios=[1.0, 1.15] if wide else None)
    if pairs is not None:
        pairs.plot(axes[0][0])
    result.plot(axes[0][-1])
    chance = "" if result.p_value is None else f"; all tests together: p = {result.p_value:.3g}"
    figure.suptitle(f"Data minus model on {result.n_rows} rows{chance}", color=INK, fontsize=12)
    return png(figure)
