"""Is a posterior over weights anything like one? Everything that can be looked at, on one page."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.optim import Optimizer

from boxloop.concerns import ORDER, Concern, Level, worst_first
from boxloop.data import check_count, make_frame
from boxloop.numeric import RandomState, generator, seed, single_threaded, spawn
from boxloop.weights.audit_chain import Chains
from boxloop.weights.audit_held import HeldOut, held_out
from boxloop.weights.audit_iterates import Iterates
from boxloop.weights.audit_last import LastLayerCheck
from boxloop.weights.audit_steps import Inquiry, whole
from boxloop.weights.decay import DecayCheck, Loss
from boxloop.weights.method import Posterior
from boxloop.weights.predictor import Kind, Predictor

WIDTH = 100
"""Columns of the page."""


@dataclass(frozen=True)
class Audit:
    """What was found about a posterior over weights.

    Args:
        title: what was audited.
        iterates: of the trajectory; None where not looked at, as are those below.
        last_layer: against the exact posterior of the last layer.
        chains: against Monte Carlo over all weights.
        decay: of the optimiser.
        held_out: predictions.
        skipped: why something was not looked at.
        notes: what was taken for granted.

    Example:
        >>> from boxloop.criticise import regression_scores
        >>> scores = regression_scores([0.1, -0.7, 0.3], [0.0, 0.0, 0.0], 0.5)
        >>> found = Audit("A law", None, None, None, None, HeldOut(scores, scores, 0.0), (), ())
        >>> found.level, [concern.what for concern in found.worries]
        ('good', ['Predictions', 'Coverage'])
    """

    title: str
    iterates: Iterates | None
    last_layer: LastLayerCheck | None
    chains: Chains | None
    decay: DecayCheck | None
    held_out: HeldOut
    skipped: tuple[Concern, ...]
    notes: tuple[str, ...]

    @property
    def worries(self) -> tuple[Concern, ...]:
        """Concerns, worst first; what was not checked, and what is good, after them."""
        parts = (self.iterates, self.last_layer, self.chains, self.decay, self.held_out)
        found = [concern for part in parts if part is not None for concern in part.worries]
        return worst_first((*found, *self.skipped))

    @property
    def level(self) -> Level:
        """The worst of what was looked at."""
        return min((w.level for w in self.worries if w.level != "not run"), key=ORDER.index)

    def table(self) -> Any:
        """One line per concern."""
        worries = self.worries
        return make_frame(
            {
                "level": [concern.level for concern in worries],
                "what": [concern.what for concern in worries],
                "why": [concern.why for concern in worries],
                "next": [concern.next for concern in worries],
            }
        )

    def plot(self) -> NDArray[np.object_]:
        """A figure of its own with four pictures.

        Autocorrelation, widths of the last layer, coverage or reliability, and scores against the mean network's.

        Returns:
            The axes, (2, 2); ``axes[0, 0].figure`` is the figure.
        """
        from boxloop.figures import dress, gains, new_figure, say

        grid = np.asarray(new_figure(11.6, 8.8).subplots(2, 2), dtype=object)
        for ax, part, name in (
            (grid[0, 0], self.iterates, "Autocorrelation"),
            (grid[0, 1], self.last_layer, "Last layer"),
        ):
            if part is None:
                dress(ax, name)
                say(ax, "not looked at")
            else:
                part.plot(ax)
        self.held_out.plot(grid[1, 0])
        found = self.held_out.less
        gains(
            {name: (one.value, one.standard_error) for name, one in found.items()},
            {"CRPS", "squared error", "Brier score"},
            grid[1, 1],
            title="Posterior less mean network",
        )
        return grid

    def __str__(self) -> str:
        lines = [f"{self.title}: {self.level}", ""]
        for concern in self.worries:
            said = f"{concern.what}: {concern.why}." + (f" Next: {concern.next}." if concern.next else "")
            wrapped = textwrap.wrap(said, WIDTH - 10)
            lines.append(f"{concern.level:<10}{wrapped[0]}")
            lines += [" " * 10 + line for line in wrapped[1:]]
        lines += ["", *_columns(self.held_out.table())]
        if self.notes:
            lines += ["", *textwrap.wrap("Taken for granted: " + "; ".join(self.notes) + ".", WIDTH)]
        return "\n".join(lines)


def _columns(frame: Any) -> list[str]:
    """A frame of numbers as lines of text."""
    heads = [str(name) for name in frame.columns]
    lines = ["held-out rows".ljust(16) + "".join(head.rjust(16) for head in heads)]
    for name, row in zip(frame.index, frame.to_numpy(), strict=True):
        lines.append(str(name).ljust(16) + "".join(f"{value:16.4g}" for value in row))
    return lines


@single_threaded
def audit(
    posterior: Posterior,
    X: Any,
    y: Any,
    X_test: Any,
    y_test: Any,
    *,
    kind: Kind,
    prior_precision: float | None = None,
    noise: Any = None,
    optimiser: Optimizer | None = None,
    loss: Loss | None = None,
    predictor: Predictor | None = None,
    n_draws: int = 100,
    chains: int | None = None,
    chain_draws: int = 200,
    random_state: RandomState = 0,
) -> Audit:
    r"""Ask of a posterior over weights whether it is one, and whether its predictions are any good.

    Iterates of an optimiser are draws from a posterior only by accident (Mandt, Hoffman and Blei 2017; document 004,
    section 6.1). So: how many independent vectors is the trajectory worth, and does it drift; how far is the law of the
    last layer from the exact posterior given the features of the mean network (exact for regression, Laplace's for
    classes); how far are predictions from those of Hamiltonian Monte Carlo over all weights, where the network is
    small; is the weight decay that of the prior; are predictions of rows held out calibrated, and better than those of
    the mean network alone. Tests of drift, coverage and calibration fail once in a hundred where nothing is wrong; the
    other borders between good, doubtful and bad, such as factors of 2 and 4 between spreads, are conventions.

    Args:
        posterior: a :class:`~boxloop.weights.WeightPosterior`, or any other law over weights; of a mixture only
            predictions and weight decay are looked at.
        X: training rows, as the network takes them.
        y: their outputs, or classes.
        X_test: rows that were not trained on.
        y_test: theirs.
        kind: ``"regression"`` or ``"classification"``.
        prior_precision: alpha, of the prior :math:`N(0, \alpha^{-1} I)`; that of highest evidence for the last layer
            when None.
        noise: standard deviation of observations, one or one for each output; likewise.
        optimiser: whose weight decay is compared with the prior's, where that is stated.
        loss: how its loss is scaled, see :func:`weight_decay`; ``mean_squared`` or ``mean_log`` by kind when None.
        predictor: whose predictions are judged, such as one that is tuned; one of ``n_draws`` networks when None.
        n_draws: networks.
        chains: of Monte Carlo, 2 at least; 0 for none. When None, 16 where the network has 500 weights at most and
            weights times rows are 300,000 at most.
        chain_draws: of each, after 200 steps.
        random_state: seed or generator.

    Returns:
        :class:`Audit`: ``print(audit)`` is a page, ``audit.plot()`` a figure, ``audit.worries`` the verdicts.

    Example:
        >>> import torch
        >>> from boxloop.weights.posterior import WeightPosterior
        >>> draws = torch.Generator().manual_seed(0)
        >>> x = torch.randn(300, 2, generator=draws)
        >>> y = x @ torch.tensor([[1.0], [-2.0]]) + 0.5 * torch.randn(300, 1, generator=draws)
        >>> net = torch.nn.Linear(2, 1)
        >>> optimiser = torch.optim.SGD(net.parameters(), lr=0.01)
        >>> posterior = WeightPosterior(net, "full", random_state=0)
        >>> for step in range(1500):
        ...     some = torch.randint(200, (20,), generator=draws)
        ...     loss = (net(x[some]) - y[some]).square().mean()
        ...     optimiser.zero_grad(); loss.backward(); optimiser.step()
        ...     if step >= 500:
        ...         _ = posterior.observe(loss)
        >>> found = audit(posterior, x[:200], y[:200], x[200:], y[200:], kind="regression", chains=0)
        >>> found.level, found.worries[0].what
        ('bad', 'Last layer')
    """
    if chains is not None and (check_count(chains, "chains", 0) == 1):
        raise ValueError(f"chains must be 0, or 2 at least, which are compared with each other, got {chains}")
    asked = Inquiry(tuple(posterior.parts()), X, y, kind, prior_precision, noise)
    X_test, y_test = whole(X_test, y_test, "X_test", "y_test")
    judging, moving, labels = (seed(stream) for stream in spawn(generator(random_state), 3))
    plain = asked.predictor(n_draws, judging)
    iterates = asked.attempt("Independent vectors", lambda: asked.iterates(posterior))
    last = asked.attempt("Last layer", lambda: asked.last_layer(plain))
    used = asked.with_noise(plain if predictor is None else predictor)
    return Audit(
        title=asked.title(posterior),
        iterates=iterates,
        last_layer=last,
        chains=asked.attempt(
            "Against Monte Carlo over all weights",
            lambda: asked.chains(plain, X_test, chains, chain_draws, moving),
        ),
        decay=asked.attempt("Weight decay", lambda: asked.decay(optimiser, loss)),
        held_out=held_out(used, X_test, y_test, seed=labels),
        skipped=tuple(asked.skipped),
        notes=tuple(asked.notes),
    )
