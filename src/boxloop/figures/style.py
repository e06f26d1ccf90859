"""The common style of all figures, and axes on figures of their own: no display, no shared state."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from numpy.typing import NDArray

Array = NDArray[np.float64]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#222222")
"""Okabe and Ito's palette, which readers with any kind of colour vision can distinguish."""
MARKERS = ("o", "^", "s", "D", "v", "P", "X")
INK, FAINT = "#222222", "#8a8a8a"
PLAIN, MARKED = COLOURS[0], COLOURS[1]
"""What is shown, and what the reader should look at first."""
LABEL = 10.5
DPI = 160
PLENTY = 4000
"""Most rows that are drawn one by one."""


def pick_colour(place: int) -> str:
    """A colour for the place-th of several things; markers and labels distinguish those that share one."""
    return COLOURS[place % len(COLOURS)]


def pick_marker(place: int) -> str:
    """A shape for the place-th of several things."""
    return MARKERS[place % len(MARKERS)]


def new_figure(width: float, height: float) -> Figure:
    """A figure of this size in inches that belongs to its owner alone: pyplot does not know it."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def new_axes(width: float = 6.6, height: float = 4.6) -> Axes:
    """Axes on a figure of their own; the figure is ``axes.figure``.

    Example:
        >>> new_axes(4, 3).figure.get_size_inches().tolist()
        [4.0, 3.0]
    """
    return new_figure(width, height).subplots()


def check_axes(ax: Any) -> Axes | None:
    """Axes that were given, or None.

    Raises:
        TypeError: anything else.
    """
    if ax is not None and not isinstance(ax, Axes):
        raise TypeError(
            f"ax must be matplotlib axes, or None for a figure of its own; got a {type(ax).__name__}"
        )
    return ax


def dress(axes: Axes, title: str, across: str = "", up: str = "") -> None:
    """Title, labels and lines. Names of columns are text, never formulas: none of the words are read as TeX."""
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=INK, parse_math=False)
    axes.set_xlabel(across, fontsize=LABEL, color=INK, parse_math=False)
    axes.set_ylabel(up, fontsize=LABEL, color=INK, parse_math=False)
    axes.tick_params(labelsize=LABEL - 1, colors=INK, length=3)
    axes.grid(visible=True, color=INK, alpha=0.08)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)


def prepare_axes(
    ax: Axes | None, width: float, height: float, title: str, across: str = "", up: str = ""
) -> Axes:
    """The caller's axes, or axes on a new figure of this size, with title and labels."""
    ax = check_axes(ax) or new_axes(width, height)
    dress(ax, title, across, up)
    return ax


def label_lines(axes: Axes, names: list[str], most: int = 40) -> None:
    """One name per line, the first on top, every other line shaded so that the eye keeps to it."""
    d = len(names)
    axes.set_yticks(range(d), [short(name, most) for name in names], parse_math=False)
    axes.set_ylim(d - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    for line in range(0, d, 2):
        axes.axhspan(line - 0.5, line + 0.5, color=INK, alpha=0.035, linewidth=0, zorder=-1)


def write_message(axes: Axes, text: str) -> None:
    """A sentence in the middle of axes that have nothing to show."""
    shown = axes.text(0.5, 0.5, text, transform=axes.transAxes, color=FAINT, parse_math=False)
    shown.set(ha="center", va="center")


def add_legend(axes: Axes, where: str = "best", *, beside: bool = False, title: str | None = None) -> None:
    """A legend without a frame, whose words are text: inside the axes, or beside them where it might cover things."""
    make: Any = axes.legend  # its stubs differ between releases
    legend = make(
        frameon=False,
        loc="upper left" if beside else where,
        bbox_to_anchor=(1.0, 1.0) if beside else None,
        fontsize=LABEL - 1.5,
        title=title,
        title_fontsize=LABEL - 1.5,
        handletextpad=0.5,
        alignment="left",
    )
    for text in (*legend.get_texts(), legend.get_title()):
        text.set_parse_math(False)
        text.set_color(INK)


def short(name: object, most: int = 18) -> str:
    """A name on one line that leaves room for the picture.

    Example:
        >>> short("od280/od315_of_diluted_wines")
        'od280/od315_of_di…'
    """
    line = "".join(c if c.isprintable() else "\ufffd" for c in " ".join(str(name).split()))
    return line if len(line) <= most else line[: most - 1] + "…"


def png(drawn: Axes | Figure, dpi: int = DPI) -> bytes:
    """A figure, or the one that some axes are on, as PNG."""
    figure: Figure | SubFigure = drawn.figure if isinstance(drawn, Axes) else drawn
    out = io.BytesIO()
    if isinstance(figure, SubFigure):
        figure = figure.figure
    figure.savefig(out, format="png", dpi=dpi)
    return out.getvalue()
