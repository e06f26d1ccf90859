"""Progress of chains: phase, acceptance, and whether they agree so far."""

from __future__ import annotations

import time

import numpy as np
import torch

from boxloop.loop import Observer, Progress
from boxloop.progress import ProgressBar
from boxloop.sample.diagnostics import diagnose
from boxloop.sample.loop import Plan, Sampling


def watching(verbose: bool | None, plan: Plan) -> list[Observer[Sampling]]:
    """A progress bar, where it is wanted."""
    return [] if verbose is False else [ProgressBar(verbose).stage("chains", describe=Said(plan))]


class Said:
    """What the progress bar says of the chains: phase, acceptance, and R-hat of the log-density once a second."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._text, self._time = "", 0.0

    def __call__(self, progress: Progress[Sampling]) -> str:
        """In a few words."""
        state = progress.state
        if state.drawn == 0:
            return "warm-up"
        if time.monotonic() - self._time > 1.0 or progress.stopped:
            accepted = float(state.accepted.mean()) / (state.drawn * self.plan.thin)
            said = f"acceptance {accepted:.2f}, " if self._refuses(state) else ""
            table = torch.cat(state.densities).T[:, :, None].double().cpu().numpy()
            r_hat = float(diagnose(table).r_hat[0])
            self._text = f"{said}R-hat {r_hat:.3f}" if np.isfinite(r_hat) else f"{said}R-hat not available"
            self._time = time.monotonic()
        return self._text

    def _refuses(self, state: Sampling) -> bool:
        return self.plan.kernel(state.tuning, self.plan.warmup).chance is not None
