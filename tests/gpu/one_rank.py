"""Fits in which one process sends all it adds up through ``torch.distributed``, as several would; run by a test.

Two processes cannot share a card by NCCL, so that this is what one card can show of it: every tensor that is added up
lies on the card and is of a kind that NCCL takes, and comes back as it was.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist

import boxloop
from boxloop.fit import Workers
from estimators import parallel_fit_cases as cases

FITS = ("penalty", "weighted views", "labels", "generator")


class Talking(Workers):
    """One process that does not know it."""

    @property
    def alone(self) -> bool:
        return False


def found(folder: Path) -> dict[str, np.ndarray]:
    fits = {name: cases.CASES[name](folder) for name in FITS}
    return {f"{fit}/{name}": _array(value) for fit, made in fits.items() for name, value in made.items()}


def _array(value: Any) -> np.ndarray:
    return np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value)


def main(folder: Path, device: str) -> None:
    """Leave both ways' results, and what was sent."""
    warnings.simplefilter("ignore")  # fits this short warn
    cases.COMMON["device"] = device
    sent: Counter[str] = Counter()
    plain = dist.all_reduce

    def noted(value: torch.Tensor, *given: Any, **more: Any) -> Any:
        sent[f"{value.device.type} {value.dtype}"] += 1
        return plain(value, *given, **more)

    with boxloop.distributed() as workers, patch.object(dist, "all_reduce", noted):
        np.savez(folder / "alone.npz", **found(folder))
        alone = sum(sent.values())
        token = sys.modules["boxloop.fit.distributed"].ACTIVE_WORKERS.set(
            Talking(workers.rank, workers.size, workers.group)
        )
        try:
            np.savez(folder / "talking.npz", **found(folder))
        finally:
            sys.modules["boxloop.fit.distributed"].ACTIVE_WORKERS.reset(token)
        backend = dist.get_backend_config()
    (folder / "said.json").write_text(json.dumps({"alone": alone, "sent": sent, "backend": backend}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
