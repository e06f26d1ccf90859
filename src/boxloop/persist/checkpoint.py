"""Checkpoints of the loop: written while it runs, read to continue it as if it had never stopped."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from boxloop.loop import Outcome, Progress
from boxloop.persist.constraints import ANY, Array, Constraints, Number, Table
from boxloop.persist.container import ModelFileError, read_container
from boxloop.persist.trees import load_tree, save_tree
from boxloop.tree import Tree


@dataclass(frozen=True)
class Checkpoint(Tree):
    """A loop after a complete iteration, as it is stored."""

    state: Any
    trace: Tensor
    events: tuple[str, ...]
    n_iter: int
    converged: bool
    excused: bool

    def __post_init__(self) -> None:
        if tuple(self.trace.shape) != (self.n_iter,):
            raise ValueError(
                f"{self.n_iter} iterations need as many objectives, got {tuple(self.trace.shape)}"
            )


SOONEST = 1.0
"""Seconds between two saves at the beginning of a run."""
CONSTRAINTS = Constraints(trace=Array("n", ANY, torch.float64, least=0), n_iter=Number(least=0))


class CheckpointWriter:
    """An observer of :func:`boxloop.loop.run` that saves the loop now and then, and when it ends.

    The end is a normal one, Ctrl-C, an error, or ``SystemExit`` raised by a signal handler. A killed process
    leaves the checkpoint before.

    Args:
        path: where to; replaced at each save.
        fingerprint: what fit this is, as JSON: parameters, seed, a digest of the data. A checkpoint is only
            continued by a fit with the same fingerprint.
        every: save after this many iterations; ``None`` does not count them.
        seconds: save after the first iteration, and when this long has passed since the last save, at first when as
            long has passed again as before it, so that a kill loses half the work at most, but no sooner than after a
            second; ``None`` does none of this.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from boxloop.average import Running
        >>> from boxloop.loop import Iteration, run
        >>> count = lambda state: Iteration(Running(None, state.count + 1), objective=float(state.count))
        >>> with TemporaryDirectory() as folder:
        ...     path = f"{folder}/fit.boxloop"
        ...     writer = CheckpointWriter(path, {"seed": 0}, every=1)
        ...     _ = run(count, Running(), max_iter=2, observers=[writer])
        ...     found = read_checkpoint(path, {"Running": Running}, {"seed": 0})
        >>> run(count, Running(), max_iter=3, resume=found).trace
        [0.0, 1.0, 2.0]
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fingerprint: Mapping[str, Any],
        *,
        every: int | None = None,
        seconds: float | None = 30.0,
    ) -> None:
        if every is not None and every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        if seconds is not None and not seconds >= 0.0:
            raise ValueError(f"seconds must be at least 0, got {seconds}")
        self.path = path
        self.fingerprint: dict[str, Any] = dict(fingerprint)
        self.every = every
        self.seconds = seconds
        self._saved = 0
        self._begun = self._time = time.monotonic()

    def __call__(self, progress: Progress[Any]) -> None:
        """Save if it is time to; never before an iteration is complete, nor the same one twice."""
        fresh = progress.iteration not in (0, self._saved)
        if fresh and (progress.stopped or self._is_due(progress.iteration)):
            self.save(progress)
        if progress.stopped:
            self._saved = 0  # the next run counts its iterations anew

    def _is_due(self, iteration: int) -> bool:
        by_count = self.every is not None and iteration % self.every == 0
        if by_count or self.seconds is None:
            return by_count
        # The first save is early: what stands before it, as starts and warm-up, is the dearest to do again.
        wait = min(self.seconds, max(SOONEST, self._time - self._begun))
        return self._saved == 0 or time.monotonic() - self._time >= wait

    def save(self, progress: Progress[Any]) -> None:
        """Write the checkpoint now."""
        checkpoint = Checkpoint(
            state=progress.state,
            trace=torch.tensor(progress.trace, dtype=torch.float64),
            events=tuple(progress.events),
            n_iter=progress.iteration,
            converged=progress.converged,
            excused=progress.excused,
        )
        save_tree(self.path, checkpoint, extra={"fingerprint": self.fingerprint})
        self._saved, self._time = progress.iteration, time.monotonic()


def read_checkpoint(
    path: str | os.PathLike[str],
    classes: Mapping[str, type],
    fingerprint: Mapping[str, Any],
    constraints: Table | None = None,
) -> Outcome[Any]:
    """Read a checkpoint for ``run(..., resume=...)``.

    Args:
        path: a file that :class:`CheckpointWriter` wrote.
        classes: the classes of the loop's state, by name.
        fingerprint: of the fit that wants to continue.
        constraints: of the fields of these classes.

    Returns:
        The outcome as it stood after the last iteration saved: same bits, so the same trajectory from there.

    Raises:
        ModelFileError: the file is damaged, is not a checkpoint, or belongs to another fit; the message names
            the first entry of the fingerprint that differs.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     CheckpointWriter(f"{folder}/fit", {"seed": 0})(Progress(7, 1, 1, [0.5], [], stopped=True))
        ...     read_checkpoint(f"{folder}/fit", {}, {"seed": 0}).trace
        [0.5]
    """
    table = {**(constraints or {}), Checkpoint: CONSTRAINTS}
    saved = load_tree(path, {**classes, "Checkpoint": Checkpoint}, table)
    checkpoint, belongs = saved.tree, saved.extra.get("fingerprint")
    if not isinstance(checkpoint, Checkpoint) or not isinstance(belongs, dict):
        raise ModelFileError(f"{os.fspath(path)}: a model, not a checkpoint")
    _check_fingerprint(path, belongs, fingerprint)
    return Outcome(
        state=checkpoint.state,
        trace=checkpoint.trace.tolist(),
        events=list(checkpoint.events),
        n_iter=checkpoint.n_iter,
        converged=checkpoint.converged,
        excused=checkpoint.excused,
    )


def is_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Whether a file says that it is a checkpoint; false for one that cannot be read."""
    try:
        tree = read_container(path).document.get("tree")
    except ModelFileError:
        return False
    return isinstance(tree, dict) and tree.get("class") == Checkpoint.__name__


def _check_fingerprint(
    path: str | os.PathLike[str], there: Mapping[str, Any], here: Mapping[str, Any]
) -> None:
    """Compare as text: NaN equals itself, and a tuple the list it comes back as."""
    for key in sorted({*there, *here}):
        old, new = (
            json.dumps(side[key], sort_keys=True) if key in side else "absent" for side in (there, here)
        )
        if old != new:
            raise ModelFileError(
                f"{os.fspath(path)}: a checkpoint of another fit: {key!r} is {old[:80]} there and {new[:80]} here"
            )
