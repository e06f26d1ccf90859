"""Weights that are a Dask collection of their own, beside the rows of another; rows keep their order."""

from __future__ import annotations

from typing import Any

from boxloop.data.cluster import each
from boxloop.data.parts import WEIGHT, ValuePart, count_rows


def beside(data: Any, weight: Any) -> Any:
    """A Dask array with its weights, another one, as last column.

    Raises:
        ValueError: not one weight a row, or chunks of unknown sizes that differ in number.
    """
    import dask.array as da

    n, m = data.shape[0], weight.size
    known, unknown = n == n and m == m, n != n and m != m
    if weight.ndim != 1 or (known and n != m):
        raise _uneven(n, weight)
    if known:
        weight = weight.rechunk((data.chunks[0],))
    elif not unknown or weight.numblocks[0] != data.numblocks[0]:
        raise ValueError(
            "rows and weights are in chunks of unknown sizes: call compute_chunk_sizes() of both"
        )
    return da.concatenate([data, weight[:, None]], axis=1, allow_unknown_chunksizes=True)


def assigned(frame: Any, weight: Any) -> Any:
    """A Dask DataFrame with a column of weights: a series meets it by label, an array by position.

    Raises:
        ValueError: weights that are no column, not one a row, or in partitions that cannot be matched.
    """
    import dask.array as da
    import dask.dataframe as dd

    if not isinstance(weight, dd.Series | da.Array) or weight.ndim != 1:
        raise ValueError(f"the weights must be one column: a Dask series or array, not {type(weight)}")
    if isinstance(weight, da.Array) and weight.size == weight.size:
        parts = [ValuePart(i, (), None, task) for i, task in enumerate(frame.to_delayed())]
        counts = tuple(each(count_rows, parts))
        if sum(counts) != weight.size:
            raise _uneven(sum(counts), weight)
        weight = weight.rechunk((counts,))
    elif isinstance(weight, dd.Series) and frame.known_divisions and weight.known_divisions:
        return frame.assign(**{WEIGHT: weight})
    if weight.npartitions != frame.npartitions:
        raise ValueError(
            f"the rows are in {frame.npartitions} partitions and the weights in {weight.npartitions}, and it is not "
            "known which belong together: take both from one DataFrame, or give weights at hand"
        )
    if isinstance(weight, da.Array):
        return frame.assign(**{WEIGHT: weight})
    # Dask's own way without divisions is a shuffle, after which the rows are in another order.
    return frame.map_partitions(_with_weight, weight, align_dataframes=False)


def _with_weight(rows: Any, weight: Any) -> Any:
    return rows.assign(**{WEIGHT: weight})


def _uneven(n_rows: float, weight: Any) -> ValueError:
    return ValueError(
        f"the weights must have one entry a row: shape ({n_rows},) is needed, {weight.shape} was given"
    )
