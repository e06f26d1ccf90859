"""Whether rows weigh the same, over tiles and partitions."""

import dask.array as da
import numpy as np
import pytest
import torch

from boxloop.data import ArraySource, MapReader, StreamSource, dask_source, has_equal_weights

N = 50_000


def weights(place: int | None) -> torch.Tensor:
    """All alike, but for one row."""
    found = torch.full((N,), 0.1, dtype=torch.float64)
    if place is not None:
        found[place] = 0.1 + 1e-12
    return found


@pytest.mark.parametrize("place", [None, 0, N // 2, N - 1])
@pytest.mark.parametrize("kind", ["array", "stream", "partitions"])
def test_one_row_among_many_tiles_is_found(kind: str, place: int | None) -> None:
    rows, weight = np.zeros((N, 40)), weights(place)
    source = {
        "array": lambda: ArraySource(torch.from_numpy(rows), weight),
        "stream": lambda: StreamSource(MapReader(rows), tuple(f"x{j}" for j in range(40)), weight),
        "partitions": lambda: dask_source(da.from_array(rows, chunks=(9000, 40)), weight),
    }[kind]()
    assert len(list(zip(range(3), source.chunks()))) == 3
    assert has_equal_weights(source) == (place is None)
