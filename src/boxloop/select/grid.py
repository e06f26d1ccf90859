"""Every candidate on every fold: in parallel, watched, and not twice."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from sklearn.base import clone
from sklearn.utils.parallel import Parallel, delayed

from boxloop.loop import Iteration, Observer, run
from boxloop.select.cells import Cell, Criterion, Fold, evaluate
from boxloop.select.scores import Array
from boxloop.select.store import CellStore

Place = tuple[int, int]
"""Number of a candidate and number of a fold."""
Cells = dict[Place, Cell]


def fill(
    candidates: Sequence[Any],
    X: Any,
    folds: Sequence[Fold],
    criterion: Criterion | None,
    *,
    n_jobs: int | None,
    store: CellStore | None,
    weight: Array | None = None,
    observers: Sequence[Observer[Cells]] = (),
) -> Cells:
    """Evaluate every candidate on every fold.

    Args:
        candidates: estimators that were not fitted; they stay so.
        X: all rows.
        folds: of these rows.
        criterion: passed to :func:`evaluate`.
        n_jobs: processes, as joblib understands it.
        store: where finished cells are kept and looked for first.
        weight: of all rows, for rows in memory.
        observers: told after every cell.

    Returns:
        One cell a candidate and fold.

    Raises:
        KeyboardInterrupt: on Ctrl-C; the cells finished until then are in the store.
    """
    cells: Cells = {}
    keys: dict[Place, dict[str, Any]] = {}
    places = [(i, f) for i in range(len(candidates)) for f in range(len(folds))]
    if store is not None:
        keys = {(i, f): store.key(candidates[i], folds[f], criterion) for i, f in places}
        cells = {place: cell for place, key in keys.items() if (cell := store.read(key)) is not None}
    todo = [place for place in places if place not in cells]
    fits: Generator[tuple[Place, Cell]] = Parallel(n_jobs=n_jobs, return_as="generator_unordered")(
        delayed(_fit)((i, f), candidates[i], X, folds[f], criterion, weight) for i, f in todo
    )

    def step(done: Cells) -> Iteration[Cells]:
        place, cell = next(fits)
        if store is not None:
            store.write(keys[place], cell)
        done[place] = cell
        return Iteration(done, float("nan") if cell.density is None else cell.density.mean)

    try:
        outcome = run(step, cells, max_iter=len(todo), observers=observers)
        if outcome.interrupted:
            raise KeyboardInterrupt
        next(fits, None)  # all are there; joblib sees the end
    finally:
        fits.close()
    return outcome.state


def _fit(
    place: Place, estimator: Any, X: Any, fold: Fold, criterion: Criterion | None, weight: Array | None
) -> tuple[Place, Cell]:
    return place, evaluate(clone(estimator), X, fold, criterion, weight)
